"""Files of one event a row: which sequence it is of, its time and its mark."""

from __future__ import annotations

from array import array

import numpy as np

from flax_linattn.data.events.gather import Found, mark_names
from flax_linattn.data.events.sequences import UNMARKED
from flax_linattn.data.files import LineReader

SORT = "sort the rows by time, or say sort=True"


class Rows:
    """Rows as they are read; sequences are in the order of their first rows.

    Args:
        reader: The file, at the row that is added.
    """

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._sequences: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._sequence_of = array("q")
        self._mark_of = array("q")
        self._times = array("d")
        self._lines = array("q")

    def add(self, sequence: str, time: float, mark: str = UNMARKED[0]) -> None:
        """Adds the event of the current line.

        Args:
            sequence: The name of its sequence.
            time: Finite.
            mark: The name of its mark.
        """
        self._sequence_of.append(self._sequences.setdefault(sequence, len(self._sequences)))
        self._mark_of.append(self._marks.setdefault(mark, len(self._marks)))
        self._times.append(time)
        self._lines.append(self._reader.line)

    def finish(self, *, named: bool, sort: bool, dates: bool = False) -> Found:
        """The sequences.

        Args:
            named: Whether the file names them.
            sort: Whether to sort the events of each by time; those of one time stay as they are.
            dates: Whether the times are seconds since 1970.

        Raises:
            DataFormatError: There was no row.
        """
        if not self._times:
            raise self._reader.error(
                "rows of events after the header", "none", "check that this is the right file"
            )
        sequence_of, times = np.array(self._sequence_of), np.array(self._times)
        order = np.lexsort((times, sequence_of)) if sort else np.argsort(sequence_of, kind="stable")
        names = mark_names(self._marks)
        rank = {name: index for index, name in enumerate(names)}
        indices = np.array([rank[name] for name in self._marks], np.int32)
        marks = indices[np.array(self._mark_of)[order]]
        lines = np.array(self._lines)[order]
        starts = 1 + np.flatnonzero(np.diff(sequence_of[order]))
        split_lines = np.split(lines, starts)
        path = self._reader.path
        return Found(
            path,
            np.split(times[order], starts),
            np.split(marks, starts),
            tuple(names),
            lambda sequence, event: f"{path}:{split_lines[sequence][event]}",
            keys=list(self._sequences) if named else None,
            lines=split_lines,
            dates=dates,
            advice=SORT + (", and write times in UTC where clocks go back" if dates else ""),
            options=("sort",),
        )
