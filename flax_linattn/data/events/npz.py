"""Events in NumPy's ``.npz`` files: one sequence after the other, or padded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.arrays import read_arrays
from flax_linattn.data.events.gather import LARGEST_MARK, LARGEST_TIME, Found, number_marks
from flax_linattn.data.events.sequences import UNMARKED, EventSequences
from flax_linattn.data.files import DataFormatError

KEYS = ("times", "marks", "masks", "lengths", "t_max")
"""Of the arrays that are read."""

_FALLING = 0.25
"""Sequences whose times fall, from which share on they are gaps; of two random gaps half do."""


def load_event_npz(
    path: str | Path,
    *,
    gaps: bool | None = None,
    begin: float | str | None = None,
    end: float | str | None = None,
) -> EventSequences:
    r"""Loads the arrays of an ``.npz`` file.

    Two forms: ``times`` [n], one sequence after the other, with their ``lengths``, whole numbers
    [N]; or padded, ``times`` [N, L] with ``masks`` [N, L], 1 or True at events, which are adjacent.
    Both may have ``marks`` of the shape of ``times``, whole numbers from 0 on (those that there are
    become the names), and ``t_max``, [N] or one number: when the observation ended, which then
    began at 0. Nothing is unpickled.

    Args:
        path: The file.
        gaps: Whether ``times`` are gaps since the event before, the first one since 0, when the
            observation began; or, where it is 0, the first event is at 0 and the begin not known.
            Default: where ``times`` are padded and fall in a quarter of the sequences or more, they
            are gaps; where they never fall, they are not; in between, it has to be said.
        begin: When the observation of every sequence began, in the unit of the times.
        end: When it ended. Default: with the last event of each.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: It is no such file, or damaged; the message names the array and the place
            in it.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.npz")
        ...     np.savez(path, times=np.array([0.5, 2.0, 1.0]), lengths=np.array([2, 1]), t_max=3)
        ...     events = load_event_npz(path)
        >>> [own.tolist() for own in events.times], events.begins.tolist(), events.ends.tolist()
        ([[0.5, 2.0], [1.0]], [0.0, 0.0], [3.0, 3.0])
    """
    file = _EventArrays(Path(path), read_arrays(path, KEYS))
    places = file.places()
    times = [file.floats("times", own) for own in places]
    if "marks" in file.arrays:
        marks, names = number_marks([file.marks(own) for own in places])
    else:
        marks, names = [np.zeros(len(own), np.int32) for own in times], UNMARKED
    found = Found(
        file.path,
        times,
        marks,
        names,
        lambda sequence, event: file.place("times", int(places[sequence][event])),
        advice="sort the events of each sequence by time, or say gaps=True if times are gaps",
        options=("gaps",),
    )
    if gaps or (gaps is None and file.padded and _are_gaps(found)):
        found = _summed(found)
    if "t_max" in file.arrays:
        found.begin = np.zeros(len(times))
        found.end = file.ends(len(times))
    return found.finish(begin, end)


def _are_gaps(found: Found) -> bool:
    """Whether they are; where times fall in few sequences it is no, and these are refused."""
    if any(times.min() < 0 for times in found.times):
        return False
    longer = [times for times in found.times if len(times) > 1]
    falling = sum(bool((times[1:] < times[:-1]).any()) for times in longer)
    return falling > 0 and falling >= _FALLING * len(longer)


def _summed(found: Found) -> Found:
    """The same where times are gaps."""
    for index, gaps in enumerate(found.times):
        if (wrong := np.flatnonzero(gaps < 0)).size:
            raise DataFormatError(
                f"{found.place(index, int(wrong[0]))}: expected gaps between events, 0 or more, "
                f"got {gaps[wrong[0]]}; correct it, or say gaps=False if they are times",
                "gaps",
            )
    begin = np.array([np.nan if gaps[0] == 0 else 0.0 for gaps in found.times])
    return dataclasses.replace(found, times=[np.cumsum(gaps) for gaps in found.times], begin=begin)


@dataclasses.dataclass
class _EventArrays:
    """The arrays of a file; places are indices into them as if they were flat.

    Args:
        path: The file.
        arrays: What ``read_arrays`` found of ``KEYS``.
    """

    path: Path
    arrays: dict[str, NDArray]

    @property
    def padded(self) -> bool:
        """Whether each sequence has a row of its own."""
        return self.arrays["times"].ndim == 2

    def place(self, key: str, flat: int) -> str:
        """Where a value is, for a message."""
        index = np.unravel_index(flat, self.arrays[key].shape)
        inside = f"[{', '.join(str(i) for i in index)}]" if index else ""
        return f"{self.path}:{key}{inside}"

    def places(self) -> list[NDArray[np.int64]]:
        """Of the events of each sequence, int64 [n]."""
        others = [key for key in self.arrays if key != "times"]
        if "times" not in self.arrays:
            advice = "save them under the names times, marks, and lengths or masks"
            raise self._error("", "an array times", ", ".join(others), advice)
        times = self._array("times", "fiu", "numbers")
        if "marks" in self.arrays:
            self._check_shape("marks", "give a mark for each time")
        if {1: "lengths", 2: "masks"}.get(times.ndim) not in self.arrays:
            raise self._error(
                "times",
                "[n] with lengths [N], or [N, L] with masks [N, L]",
                f"{list(times.shape)} with {', '.join(others) or 'neither'}",
                "save the lengths of the sequences, or 1 at events and 0 at padding",
            )
        found = self._by_masks() if times.ndim == 2 else self._by_lengths()
        if not found:
            raise self._error("times", "at least one sequence", "none", "add some")
        return found

    def _by_lengths(self) -> list[NDArray[np.int64]]:
        lengths, count = self._array("lengths", "iu", "whole numbers"), self.arrays["times"].size
        if lengths.ndim != 1:
            raise self._error("lengths", "[N], the events of each sequence", lengths.shape)
        self._refuse("lengths", lengths < 1, "1 or more events", "drop it")
        stops = np.cumsum(lengths.astype(np.float64))
        if lengths.size and stops[-1] != count:
            expected = f"a sum of {count}, as there are times"
            raise self._error("lengths", expected, f"{stops[-1]:.0f}", "save both of one set")
        return np.split(np.arange(count), stops[:-1].astype(np.int64)) if lengths.size else []

    def _by_masks(self) -> list[NDArray[np.int64]]:
        masks = self._array("masks", "biuf", "1 at events and 0 elsewhere")
        self._check_shape("masks", "give 0 or 1 for each time")
        self._refuse("masks", (masks != 0) & (masks != 1), "0 or 1", "save it so")
        found = []
        for row, events in enumerate(masks == 1):
            places = np.flatnonzero(events)
            if not places.size or places[-1] - places[0] >= places.size:
                raise self._error(
                    f"masks[{row}]",
                    "1 at one or more adjacent events",
                    "1 nowhere" if not places.size else "0 between events",
                    "drop the sequence, or remove padding between its events",
                )
            found.append(places + row * masks.shape[1])
        return found

    def floats(self, key: str, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Finite numbers at the places, float64 [n]."""
        values = _doubles(self.arrays[key].reshape(-1)[places])
        wrong = ~(np.abs(values) <= LARGEST_TIME)
        expected = f"a finite number of at most {LARGEST_TIME:g}"
        self._refuse(key, wrong, expected, "correct it", places)
        return values

    def marks(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole numbers at the places, int64 [n]."""
        values = self._array("marks", "iuf", "whole numbers").reshape(-1)[places]
        if values.dtype.kind == "f":
            values = _doubles(values)
        wrong = ~((values >= 0) & (values <= LARGEST_MARK))
        if values.dtype.kind == "f":
            wrong |= values != np.floor(np.where(wrong, 0, values))
        expected = f"a whole number from 0 to {LARGEST_MARK}"
        self._refuse("marks", wrong, expected, "correct it", places)
        return values.astype(np.int64)

    def ends(self, count: int) -> NDArray[np.float64]:
        """When the observation of each of so many sequences ended, float64 [N]."""
        ends = self._array("t_max", "fiu", "numbers")
        if ends.shape not in ((), (1,), (count,)):
            expected = f"a number, or one for each of {count} sequences"
            raise self._error("t_max", expected, ends.shape)
        return np.broadcast_to(self.floats("t_max", np.arange(ends.size)), (count,)).copy()

    def _array(self, key: str, kinds: str, expected: str) -> NDArray:
        array = self.arrays[key]
        if array.dtype.kind not in kinds:
            raise self._error(key, expected, array.dtype)
        return array

    def _check_shape(self, key: str, advice: str) -> None:
        shape = self.arrays["times"].shape
        if self.arrays[key].shape != shape:
            got = self.arrays[key].shape
            raise self._error(key, f"the shape of times, {list(shape)}", got, advice)

    def _refuse(
        self,
        key: str,
        wrong: NDArray[np.bool_],
        expected: str,
        advice: str,
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Raises an error about the first value that is wrong."""
        if wrong.any():
            flat = int(np.argmax(wrong))
            flat = flat if places is None else int(places[flat])
            got = shown(self.arrays[key].reshape(-1)[flat].item())
            raise DataFormatError(
                f"{self.place(key, flat)}: expected {expected}, got {got}; {advice}"
            )

    def _error(
        self, key: str, expected: str, got: object, advice: str = "save it so"
    ) -> DataFormatError:
        got = list(got) if isinstance(got, tuple) else got
        place = f"{self.path}:{key}" if key else str(self.path)
        return DataFormatError(f"{place}: expected {expected}, got {got}; {advice}")


def _doubles(values: NDArray) -> NDArray[np.float64]:
    """As float64; what is beyond it is infinite, without a warning."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)
