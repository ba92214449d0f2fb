"""The observations that a stream of forecasts reads, one a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.cells import (
    TIME,
    BadCellError,
    is_value,
    parse_numbers,
    parse_time,
    split_cells,
)


class Row(NamedTuple):
    """An observation.

    Attributes:
        time: when; None if the stream does not say.
        values: float64 [channels], NaN = missing.
    """

    time: datetime | None
    values: NDArray[np.float64]


def parse_rows(
    lines: Iterable[str],
    channels: tuple[str, ...],
    name: str = "standard input",
    *,
    numeric_names: bool = False,
) -> Iterator[Row]:
    """Reads one observation a line: a JSON object, or cells separated by commas.

    A JSON object has the channels by name, and perhaps "time" (or "date", "datetime", "timestamp").
    Cells are the channels in the run's order, after the time if there is one; a first line that
    names them may order them otherwise, and have further ones. Blank lines are left out; an empty
    cell, "?", "NaN" or null is a missing value.

    Args:
        lines: the text.
        channels: the channels to find.
        name: of the source, for messages.
        numeric_names: whether a first line of numbers alone is one of names, if it has all
            channels: a run's file may have had such a header.

    Raises:
        ValueError: a line that holds something else; the message names it.

    Example:
        >>> [row.values.tolist() for row in parse_rows(["b,a,c", "1,2,3", '{"a": 4, "b": null}'],
        ...                                            ("a", "b"))]
        [[2.0, 1.0], [4.0, nan]]
    """
    columns: list[str] | None = None
    first = True
    for number, line in enumerate(lines, start=1):
        text = (line.lstrip("\ufeff") if number == 1 else line).strip()  # byte-order marks
        if not text:
            continue
        place = f"{name}:{number}"
        if text.startswith("{"):
            yield _from_json(text, channels, place)
        else:
            cells = _split(text, place)
            if first and _are_names(cells, channels, place, numeric_names):
                _time_of(cells, channels, place)
                columns = cells
            else:
                yield _from_cells(cells, channels, columns, place)
        first = False


def _split(text: str, place: str) -> list[str]:
    try:
        return split_cells(text)
    except ValueError as error:
        raise ValueError(f"{place}: {error}.") from None


def _are_names(
    cells: list[str], channels: tuple[str, ...], place: str, numeric_names: bool
) -> bool:
    """Whether a first line names the columns."""
    words = [cell for cell in cells if not is_value(cell) and parse_time(cell) is None]
    named = set(channels) <= set(cells)
    if len(words) < len(cells) and not (named and (words or numeric_names)):
        return False
    counts = Counter(cells)
    for channel in channels:
        if counts[channel] != 1:
            got = f"{channel!r} twice" if counts[channel] else f"none {channel!r}"
            raise ValueError(
                f"{place}: expected the names of the channels {listed(channels)}, got "
                f"{listed(cells)}, {got}; leave out the line, or name each once."
            )
    return True


def _time_of(names: Iterable[str], channels: tuple[str, ...], place: str) -> str | None:
    """Which name is that of the times."""
    observed = frozenset(channels)
    times = [name for name in names if name.lower() in TIME and name not in observed]
    if len(times) > 1:
        raise ValueError(
            f"{place}: expected one column of times, got {listed(times)}; rename all but one."
        )
    return times[0] if times else None


def _twice(names: Iterable[str]) -> str | None:
    """A name that stands more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _from_json(text: str, channels: tuple[str, ...], place: str) -> Row:
    try:
        # Numbers stay text: Python refuses to read integers of thousands of digits.
        pairs = json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deeply nested"
        raise ValueError(f"{place}: not valid JSON ({reason}): {shown(text)}.") from None
    twice = _twice(name for name, _ in pairs)
    if twice is not None:
        raise ValueError(
            f"{place}: expected each name once, got {shown(twice)} twice; leave one out."
        )
    record = dict(pairs)
    for channel in channels:
        if channel not in record:
            raise ValueError(
                f"{place}: expected the channels {listed(channels)}, got {listed([*record])}, "
                f"none {channel!r}; write null for a missing value."
            )
    time_name = _time_of(record, channels, place)
    time = None if time_name is None else record[time_name]
    cells = ["" if record[channel] is None else str(record[channel]) for channel in channels]
    values = _numbers(cells, channels, place, missing="write null")
    return Row(None if time is None else _time(str(time), place), values)


def _from_cells(
    cells: list[str], channels: tuple[str, ...], columns: list[str] | None, place: str
) -> Row:
    if columns is not None:
        if len(cells) != len(columns):
            raise ValueError(
                f"{place}: expected {len(columns)} cells, as in the first line, got {len(cells)}."
            )
        time_name = _time_of(columns, channels, place)
        column_of = {name: column for column, name in enumerate(columns)}
        timed = None if time_name is None else column_of[time_name]
        if timed is None and columns[0] not in channels and not is_value(cells[0]):
            timed = 0
        of_channels = [cells[column_of[channel]] for channel in channels]
        cells = of_channels if timed is None else [cells[timed], *of_channels]
    timed = not is_value(cells[0]) and parse_time(cells[0]) is not None
    if len(cells) not in (len(channels) + timed, len(channels) + 1):
        names, count = listed(channels), len(channels)
        expected = (
            f"{count + 1} cells (time, {names})"
            if timed
            else f"{count} cells ({names}), or {count + 1} with the time first"
        )
        raise ValueError(f"{place}: expected {expected}, got {len(cells)}.")
    timed = len(cells) > len(channels)
    values = _numbers(cells[timed:], channels, place, missing="leave the cell empty")
    return Row(_time(cells[0], place) if timed else None, values)


def _numbers(
    cells: Sequence[str], channels: Sequence[str], place: str, *, missing: str
) -> NDArray[np.float64]:
    try:
        return parse_numbers(cells)
    except BadCellError as bad:
        raise ValueError(
            f"{place}: expected a finite number for {channels[bad.index]}, got "
            f"{shown(cells[bad.index])}; {missing} if the value is missing."
        ) from None


def _time(text: str, place: str) -> datetime:
    time = parse_time(text)
    if time is None:
        raise ValueError(
            f"{place}: expected a time such as 2016-07-01 00:00:00, got {shown(text)}."
        )
    return time.replace(tzinfo=None)
