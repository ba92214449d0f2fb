"""The arrays of an ``.npz`` file of events, and where each sequence is in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.events.gather import LARGEST_MARK, LARGEST_TIME
from flax_linattn.data.files import DataFormatError

KEYS = ("times", "marks", "masks", "lengths", "t_max")
"""Of the arrays that are read."""


@dataclasses.dataclass
class NpzFile:
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
        if "times" not in self.arrays:
            raise _error(
                str(self.path),
                "an array times",
                ", ".join(self.arrays),
                "save them under the names times, marks, and lengths or masks",
            )
        times = self._array("times", "fiu", "numbers")
        if "marks" in self.arrays and self.arrays["marks"].shape != times.shape:
            raise _error(
                f"{self.path}:marks",
                f"the shape of times, {list(times.shape)}",
                f"{list(self.arrays['marks'].shape)}",
                "give a mark for each time",
            )
        if {1: "lengths", 2: "masks"}.get(times.ndim) not in self.arrays:
            others = [key for key in self.arrays if key != "times"]
            raise _error(
                f"{self.path}:times",
                "[n] with lengths [N], or [N, L] with masks [N, L]",
                f"{list(times.shape)} with {', '.join(others) or 'neither'}",
                "save the lengths of the sequences, or 1 at events and 0 at padding",
            )
        found = self._by_masks() if times.ndim == 2 else self._by_lengths()
        if not found:
            raise _error(f"{self.path}:times", "at least one sequence", "none", "add some")
        return found

    def _by_lengths(self) -> list[NDArray[np.int64]]:
        lengths, count = self._array("lengths", "iu", "whole numbers"), self.arrays["times"].size
        if lengths.ndim != 1:
            raise _error(
                f"{self.path}:lengths",
                "[N], the events of each sequence",
                f"{list(lengths.shape)}",
                "save it so",
            )
        self._refuse("lengths", lengths < 1, "1 or more events", "drop it")
        stops = np.cumsum(lengths.astype(np.float64))
        if lengths.size and stops[-1] != count:
            raise _error(
                f"{self.path}:lengths",
                f"a sum of {count}, as there are times",
                f"{stops[-1]:.0f}",
                "save both of one set",
            )
        return np.split(np.arange(count), stops[:-1].astype(np.int64)) if lengths.size else []

    def _by_masks(self) -> list[NDArray[np.int64]]:
        masks = self._array("masks", "biuf", "1 at events and 0 elsewhere")
        shape = self.arrays["times"].shape
        if masks.shape != shape:
            raise _error(
                f"{self.path}:masks",
                f"the shape of times, {list(shape)}",
                f"{list(masks.shape)}",
                "give 0 or 1 for each time",
            )
        self._refuse("masks", (masks != 0) & (masks != 1), "0 or 1", "save it so")
        found = []
        for row, events in enumerate(masks == 1):
            places = np.flatnonzero(events)
            if not places.size or places[-1] - places[0] >= places.size:
                raise _error(
                    f"{self.path}:masks[{row}]",
                    "1 at one or more adjacent events",
                    "1 nowhere" if not places.size else "0 between events",
                    "drop the sequence, or remove padding between its events",
                )
            found.append(places + row * shape[1])
        return found

    def floats(self, key: str, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Finite numbers at the places, float64 [n]."""
        values = _doubles(self.arrays[key].reshape(-1)[places])
        wrong = ~(np.abs(values) <= LARGEST_TIME)
        self._refuse(
            key, wrong, f"a finite number of at most {LARGEST_TIME:g}", "correct it", places
        )
        return values

    def marks(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole numbers at the places, int64 [n]."""
        values = self._array("marks", "iuf", "whole numbers").reshape(-1)[places]
        if values.dtype.kind == "f":
            values = _doubles(values)
        wrong = ~((values >= 0) & (values <= LARGEST_MARK))
        if values.dtype.kind == "f":
            wrong |= values != np.floor(np.where(wrong, 0, values))
        self._refuse(
            "marks", wrong, f"a whole number from 0 to {LARGEST_MARK}", "correct it", places
        )
        return values.astype(np.int64)

    def ends(self, count: int) -> NDArray[np.float64]:
        """When the observation of each of so many sequences ended, float64 [N]."""
        ends = self._array("t_max", "fiu", "numbers")
        if ends.shape not in ((), (1,), (count,)):
            raise _error(
                f"{self.path}:t_max",
                f"a number, or one for each of {count} sequences",
                f"{list(ends.shape)}",
                "save it so",
            )
        return np.broadcast_to(self.floats("t_max", np.arange(ends.size)), (count,)).copy()

    def _array(self, key: str, kinds: str, expected: str) -> NDArray:
        array = self.arrays[key]
        if array.dtype.kind not in kinds:
            raise _error(f"{self.path}:{key}", expected, f"{array.dtype}", "save it so")
        return array

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
            raise _error(self.place(key, flat), expected, got, advice)


def _doubles(values: NDArray) -> NDArray[np.float64]:
    """As float64; what is beyond it is infinite, without a warning."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)


def _error(place: str, expected: str, got: str, advice: str) -> DataFormatError:
    return DataFormatError(f"{place}: expected {expected}, got {got}; {advice}")
