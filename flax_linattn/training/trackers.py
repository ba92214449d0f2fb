"""Where a run's numbers go while it trains."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flax_linattn.storage import write_text


class Tracker(Protocol):
    """Takes in a run's numbers; write one for any other service."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in numbers, by name, as they are after ``step`` training steps."""

    def close(self) -> None:
        """Writes what is left; called at the end of a session, however it ends."""


class JsonLines:
    """A JSON object a line, with "step" and the values; NaN and infinities are null.

    Args:
        path: The file. What it holds of the first step logged and later ones, as when a run goes on
            from an earlier checkpoint, is dropped.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "steps.jsonl")
        >>> JsonLines(path).log(20, {"loss": 0.5})
        >>> path.read_text().splitlines()
        ['{"step": 20, "loss": 0.5}']
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._begun = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a line."""
        if not self._begun:
            write_text(self._path, "".join(f"{line}\n" for line in self._before(step)))
            self._begun = True
        finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")

    def close(self) -> None:
        """Does nothing: every line is written at once."""

    def _before(self, step: int) -> Iterator[str]:
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a kill cut it off
                if json.loads(line)["step"] < step:
                    yield line


class TensorBoard:
    """Event files for TensorBoard, written by tensorboardX.

    Args:
        folder: The log folder to start TensorBoard with.

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
        self._make_writer = partial(SummaryWriter, str(folder))
        self._writer: Any = None  # which writes a file as soon as it is made

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to the curve of each value."""
        if self._writer is None:
            self._writer = self._make_writer()
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        if self._writer is not None:
            self._writer.close()
