"""Where a run's numbers go while it trains."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Takes in a run's numbers; write one for any other service."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in numbers, by name, as they are after ``step`` training steps."""

    def close(self) -> None:
        """Writes what is left; called at the end of a run, however it ends."""


class JsonLines:
    """A JSON object a line, with "step" and the values; NaN and infinities are null.

    Args:
        path: The file, which is added to.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "steps.jsonl")
        >>> JsonLines(path).log(20, {"loss": 0.5})
        >>> path.read_text().splitlines()
        ['{"step": 20, "loss": 0.5}']
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a line."""
        finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")

    def close(self) -> None:
        """Does nothing: every line is written at once."""


class TensorBoard:
    """Event files for TensorBoard, written by tensorboardX.

    Args:
        folder: The folder that ``tensorboard --logdir`` is given.

    Raises:
        ValueError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "TensorBoard files need tensorboardX: pip install 'flax-linattn[tensorboard]'."
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to the curve of each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self._writer.close()
