"""Trackers of a run's metrics during training, and a profiler trace of some of its steps."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax

from flax_linattn.storage import write_text

WARM_UP_STEPS = 10
"""Steps before a trace: the first ones compile."""


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


class Profile:
    """Traces some steps by ``jax.profiler`` into a folder for TensorBoard, XProf or Perfetto.

    Args:
        folder: The folder of the trace.
        step: Steps done already.
        count: Steps to trace; 0 = none.
    """

    def __init__(self, folder: Path, step: int, count: int) -> None:
        self._folder = folder
        self._first = step + WARM_UP_STEPS
        self._end = self._first + count
        self._tracing = False

    def before(self, step: int) -> None:
        """Begins the trace where it is to begin."""
        if step == self._first < self._end:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, state: Any) -> None:
        """Ends the trace where it is to end, once the state is computed."""
        if self._tracing and step == self._end:
            jax.block_until_ready(state)
            self.stop()

    def stop(self) -> None:
        """Ends the trace if it has begun."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
