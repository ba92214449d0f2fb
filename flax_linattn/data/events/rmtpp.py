"""Two text files of the same sequences, one of times and one of marks, as RMTPP has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import shown
from flax_linattn.data.cells import BadCellError, parse_numbers
from flax_linattn.data.events.gather import LARGEST_MARK, LARGEST_TIME, Found, number_marks
from flax_linattn.data.events.sequences import UNMARKED, EventSequences
from flax_linattn.data.files import MEND, LineReader


def load_rmtpp(
    path: str | Path,
    marks: str | Path | None = None,
    *,
    begin: float | str | None = None,
    end: float | str | None = None,
) -> EventSequences:
    r"""Loads a file of times and one of marks, each plain, ``.gz`` or ``.xz``.

    Each line is a sequence, of numbers separated by whitespace: line i of one file belongs to line
    i of the other. Marks are whole numbers from 0 on, and those that there are become the names, in
    their order: two files of one data set may have different ones (``with_marks``). The format has
    no unit of time; StackOverflow's are seconds since 1970.

    Args:
        path: The file of times.
        marks: The file of marks. Default: events have no marks.
        begin: When the observation of every sequence began, in the unit of the times; not known by
            default, so that its first event is given.
        end: When it ended. Default: with the last event of each.

    Raises:
        FileNotFoundError: One of the files is not there.
        DataFormatError: A file breaks the format, or the two do not fit; the message names the
            line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     times, marks = pathlib.Path(folder, "time.txt"), pathlib.Path(folder, "event.txt")
        ...     _ = times.write_text("0.5 1.5 4\n2 3.25\n"), marks.write_text("4 9 4\n9 1\n")
        ...     events = load_rmtpp(times, marks)
        >>> [own.tolist() for own in events.times], [own.tolist() for own in events.marks]
        ([[0.5, 1.5, 4.0], [2.0, 3.25]], [[1, 2, 1], [2, 0]])
        >>> events.mark_names
        ('1', '4', '9')
    """
    path = Path(path)
    times = list(_times(path))
    names: tuple[str, ...] = UNMARKED
    if marks is None:
        indices = [np.zeros(len(own), np.int32) for own in times]
    else:
        indices, names = number_marks(_marks(Path(marks), path, times))
    return Found(
        path,
        times,
        indices,
        names,
        lambda sequence, _: f"{path}:{sequence + 1}",
        lines=[np.full(len(own), 1 + index) for index, own in enumerate(times)],
    ).finish(begin, end)


def _times(path: Path) -> Iterator[NDArray[np.float64]]:
    with LineReader(path) as reader:
        for cells in _sequences(reader):
            try:
                numbers = parse_numbers(cells, missing=())
            except BadCellError as bad:
                at = bad.index
            else:
                wrong = np.flatnonzero(~(np.abs(numbers) <= LARGEST_TIME))
                if not wrong.size:
                    yield numbers
                    continue
                at = int(wrong[0])
            raise reader.error(
                f"finite times separated by blanks, at most {LARGEST_TIME:g}",
                f"{shown(cells[at])} at event {at}, from 0",
                MEND,
            )
        if not reader.line:
            raise reader.error("a sequence of times on each line", "none", "check the path")


def _marks(path: Path, other: Path, times: list[NDArray[np.float64]]) -> list[NDArray[np.int64]]:
    found: list[NDArray[np.int64]] = []
    with LineReader(path) as reader:
        for cells in _sequences(reader):
            if len(found) == len(times):
                raise reader.error(
                    f"{len(times)} lines, as in {other}", "more", "pair the files of one set"
                )
            if len(cells) != len(times[len(found)]):
                raise reader.error(
                    f"{len(times[len(found)])} marks, as there are times on line "
                    f"{len(found) + 1} of {other}",
                    f"{len(cells)}",
                    "pair the files of one set, or fetch them again if one is cut short",
                )
            found.append(np.array([_mark(reader, cell) for cell in cells], np.int64))
        if len(found) < len(times):
            raise reader.error(
                f"{len(times)} lines, as in {other}",
                f"{len(found)}",
                "pair the files of one set, or fetch this one again if it is cut short",
            )
    return found


def _mark(reader: LineReader, cell: str) -> int:
    if cell.isascii() and cell.isdigit() and len(cell) < 20 and int(cell) <= LARGEST_MARK:
        return int(cell)
    raise reader.error(
        f"marks as whole numbers from 0 to {LARGEST_MARK}, separated by blanks",
        shown(cell),
        "correct it; check that this is the file of marks and the other that of times",
    )


def _sequences(reader: LineReader) -> Iterator[list[str]]:
    for text in reader:
        cells = text.split()
        if not cells:
            raise reader.error(
                "a sequence of at least one event", "a blank line", "remove it from both files"
            )
        yield cells
