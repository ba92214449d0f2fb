"""Events in NumPy's ``.npz`` files: concatenated or padded sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.events.clock import MAX_TIME
from flax_linattn.data.events.rows import MAX_EVENT_TYPE, EventFileError, EventRows
from flax_linattn.data.files.arrays import read_arrays

KEYS = ("times", "marks", "masks", "lengths", "t_max")
"""Names of the arrays that are read."""

_EXPANSION = 8
"""Bytes of memory per byte of the arrays: owners, orders and bounds of all events."""

_FALLING = 0.25
"""Minimum fraction of sequences with decreasing times for which times are gaps; of two random gaps,
half decrease."""


def read_event_npz(path: Path, gaps: bool | None = None) -> EventRows:
    """Reads the arrays of an ``.npz`` file."""
    file = _EventArrays(path)
    owner, flat = file.events()
    count = int(owner[-1]) + 1
    times = file.floats("times", flat)
    if gaps is None:
        gaps = file.arrays["times"].ndim == 2 and _are_gaps(times, owner)
    begin = end = None
    if gaps:
        if (wrong := np.flatnonzero(times < 0)).size:
            raise EventFileError(
                f"{file.place('times', flat[wrong[0]])}: expected gaps between events, 0 or more, "
                f"got {times[wrong[0]]}",
                "correct it, or pass gaps=False if they are times",
                "gaps",
            )
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        begin = np.where(times[starts] == 0, np.nan, 0.0)
        times = np.concatenate([np.cumsum(own) for own in np.split(times, starts[1:])])
    if "t_max" in file.arrays:
        begin, end = np.zeros(count), file.ends(count)
    return EventRows(
        path,
        owner,
        times,
        file.event_types(flat) if "marks" in file.arrays else None,
        place=lambda row: file.place("times", flat[row]),
        begin=begin,
        end=end,
        advice="sort the events of each sequence by time, or pass gaps=True if times are gaps",
        options=("gaps",),
    )


def _are_gaps(times: NDArray[np.float64], owner: NDArray[np.int64]) -> bool:
    """Whether times are gaps; if times decrease in only a few sequences, these are an error."""
    if times.min() < 0:
        return False
    same = np.diff(owner) == 0
    longer = np.unique(owner[1:][same])
    falling = np.unique(owner[1:][same & (np.diff(times) < 0)])
    return 0 < len(falling) >= _FALLING * len(longer)


class _EventArrays:
    """The arrays of a file; an event is an index into the flattened arrays.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.arrays = path, read_arrays(path, KEYS, _EXPANSION)

    def place(self, key: str, flat: int | np.integer) -> str:
        """Describes the place of a value in messages."""
        index = np.unravel_index(flat, self.arrays[key].shape)
        inside = f"[{', '.join(str(i) for i in index)}]" if index else ""
        return f"{self.path}:{key}{inside}"

    def events(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sequence of each event, and its index, both int64 [n]."""
        others = ", ".join(key for key in self.arrays if key != "times")
        if "times" not in self.arrays:
            advice = "save them under the names times, marks, and lengths or masks"
            raise self._error("", "an array times", others, advice)
        times = self._array("times", "fiu", "numbers")
        if "marks" in self.arrays:
            self._check_shape("marks", "save one event type for each time")
        if {1: "lengths", 2: "masks"}.get(times.ndim) not in self.arrays:
            raise self._error(
                "times",
                "shape [n] with lengths [N], or [N, L] with masks [N, L]",
                f"{list(times.shape)} with {others or 'neither'}",
                "save the lengths of the sequences, or 1 at events and 0 at padding",
            )
        if not len(times):
            raise self._error(
                "times", "at least one sequence", "none", "check that this is the right file"
            )
        return self._by_masks() if times.ndim == 2 else self._by_lengths()

    def _by_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths, count = self._array("lengths", "iu", "integers"), self.arrays["times"].size
        if lengths.ndim != 1:
            raise self._error("lengths", "shape [N], one length per sequence", lengths.shape)
        self._refuse("lengths", lengths < 1, "1 or more events", "drop the empty sequence")
        total = lengths.sum(dtype=np.float64)
        if total != count:
            expected = f"a sum of {count}, the number of times"
            raise self._error(
                "lengths", expected, f"{total:.0f}", "save lengths and times of the same sequences"
            )
        return np.repeat(np.arange(len(lengths)), lengths.astype(np.int64)), np.arange(count)

    def _by_masks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        masks = self._array("masks", "biuf", "1 at events and 0 elsewhere")
        self._check_shape("masks", "save 0 or 1 for each time")
        self._refuse("masks", (masks != 0) & (masks != 1), "0 or 1", "correct it")
        row, column = np.nonzero(masks)
        sizes = np.bincount(row, minlength=len(masks))
        gaps = np.unique(row[1:][(np.diff(row) == 0) & (np.diff(column) > 1)])
        bad = np.union1d(np.flatnonzero(sizes == 0), gaps)
        if bad.size:
            raise self._error(
                f"masks[{bad[0]}]",
                "1 at one or more adjacent events",
                "0 between events" if sizes[bad[0]] else "0 everywhere",
                "drop the sequence, or remove padding between its events",
            )
        return row, np.flatnonzero(masks)

    def floats(self, key: str, flat: NDArray[np.int64]) -> NDArray[np.float64]:
        """Finite numbers at the indices, float64 [n]."""
        values = _doubles(self.arrays[key].reshape(-1)[flat])
        expected = f"a finite number of at most {MAX_TIME:g}"
        self._refuse(key, ~(np.abs(values) <= MAX_TIME), expected, "correct it", flat)
        return values

    def event_types(self, flat: NDArray[np.int64]) -> NDArray[np.int64]:
        """Integers at the indices, int64 [n]."""
        values = self._array("marks", "iuf", "integers").reshape(-1)[flat]
        if values.dtype.kind == "f":
            values = _doubles(values)
        wrong = ~((values >= 0) & (values <= MAX_EVENT_TYPE))
        if values.dtype.kind == "f":
            wrong |= values != np.floor(np.where(wrong, 0, values))
        expected = f"an integer from 0 to {MAX_EVENT_TYPE}"
        self._refuse("marks", wrong, expected, "correct it", flat)
        return values.astype(np.int64)

    def ends(self, count: int) -> NDArray[np.float64]:
        """End of the observation of each of N sequences, float64 [N]."""
        ends = self._array("t_max", "fiu", "numbers")
        if ends.shape not in ((), (1,), (count,)):
            expected = f"one number, or one for each of {count} sequences"
            raise self._error("t_max", expected, ends.shape)
        return np.broadcast_to(self.floats("t_max", np.arange(ends.size)), (count,)).copy()

    def _array(self, key: str, kinds: str, expected: str) -> NDArray:
        array = self.arrays[key]
        if array.dtype.kind not in kinds:
            raise self._error(key, expected, array.dtype)
        return array

    def _check_shape(self, key: str, advice: str) -> None:
        shape, got = self.arrays["times"].shape, self.arrays[key].shape
        if got != shape:
            raise self._error(key, f"the shape of times, {list(shape)}", got, advice)

    def _refuse(
        self,
        key: str,
        wrong: NDArray[np.bool_],
        expected: str,
        advice: str,
        flat: NDArray[np.int64] | None = None,
    ) -> None:
        """Raises an error about the first invalid value."""
        if wrong.any():
            first = int(np.argmax(wrong))
            place = first if flat is None else int(flat[first])
            got = quote(self.arrays[key].reshape(-1)[place].item())
            raise DataFormatError(
                f"{self.place(key, place)}: expected {expected}, got {got}; {advice}"
            )

    def _error(
        self, key: str, expected: str, got: object, advice: str = "save the array in this form"
    ) -> DataFormatError:
        got = f"shape {list(got)}" if isinstance(got, tuple) else got
        place = f"{self.path}:{key}" if key else str(self.path)
        return DataFormatError(f"{place}: expected {expected}, got {got}; {advice}")


def _doubles(values: NDArray) -> NDArray[np.float64]:
    """Converts to float64; numbers beyond its range become infinite, without a warning."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)
