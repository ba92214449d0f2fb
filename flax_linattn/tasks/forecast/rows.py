"""The observations that a stream of forecasts reads, one a line."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.cells import TIME, BadCellError, split_cells
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.series import TimeSeries


class Row(NamedTuple):
    """An observation.

    Attributes:
        time: when, with a time zone if the run's times have one; None if the stream does not say.
        values: float64 [channels], NaN = missing.
    """

    time: datetime | None
    values: NDArray[np.float64]


def row_of(series: TimeSeries, at: int, known: Sequence[int], horizon: int) -> Row:
    """A row of a series as a stream takes it: values, then known future covariates of its horizon.

    Args:
        series: with the channels of the run.
        at: the row.
        known: indices of the channels that are known for the horizon.
        horizon: H; rows after the end of the series are missing.

    Example:
        >>> sales = TimeSeries("sales", np.arange(6.0).reshape(3, 2), ("sales", "price"))
        >>> row_of(sales, 1, (1,), 2).values.tolist()
        [2.0, 3.0, 5.0, nan]
    """
    ahead = np.full((horizon, len(known)), np.nan)
    given = series.values[at + 1 : at + 1 + horizon, list(known)]
    ahead[: len(given)] = given
    time = None if series.times is None else series.times[at]
    return Row(time, np.concatenate([series.values[at], ahead.ravel()]))


class RowLines:
    """Reads observations, one a line: a JSON object, or cells as the run's file has them.

    A JSON object has the channels by name, and perhaps "time" (or "date", "datetime", "timestamp").
    Cells are the channels in the run's order, after the time if there is one; a first line that
    names them may order them otherwise, and have further ones. Blank lines are left out; an empty
    cell, "?", "NaN" or null is a missing value.

    Args:
        channels: the channels to find.
        numeric_names: whether a first line of numbers alone is one of names, if it has all
            channels: a run's file may have had such a header.
        dialect: how cells and times are written.
        zoned: whether times have to name their offset from UTC, or must not; None if both will do.
        optional: channels that a first line or a JSON object may leave out, missing then.
        hint: added to errors about lines that do not have all channels.

    Example:
        >>> rows = RowLines(("a", "b")).parse(["b,a,c", "1,2,3", '{"a": 4, "b": null}'], "input")
        >>> [row.values.tolist() for row in rows]
        [[2.0, 1.0], [4.0, nan]]
    """

    def __init__(
        self,
        channels: tuple[str, ...],
        *,
        numeric_names: bool = False,
        dialect: Dialect = PLAIN,
        zoned: bool | None = None,
        optional: Collection[str] = (),
        hint: str = "",
    ) -> None:
        self._channels, self._numeric_names, self._zoned = channels, numeric_names, zoned
        self._needed = tuple(channel for channel in channels if channel not in optional)
        self._dialect = dialect
        # The numbers of JSON have points.
        self._json = dataclasses.replace(dialect, decimal=".", separator="auto")
        self._hint = f" {hint}" if hint else ""
        self._place = ""  # of the line, for messages

    def parse(self, lines: Iterable[str], name: str) -> Iterator[Row]:
        """The rows of lines.

        Args:
            lines: the text.
            name: of the source, for messages.

        Raises:
            ValueError: a line that holds something else; the message begins with name and line.
        """
        dialect, columns, first = self._dialect, None, True
        separator = "" if dialect.separator == "auto" else dialect.sniff([])[0]
        for number, line in enumerate(lines, start=1):
            text = line.lstrip("\ufeff") if number == 1 else line  # byte-order marks
            self._place = f"{name}:{number}"
            if not text.strip() and not (separator == "\t" and "\t" in text):
                continue
            if text.strip().startswith("{"):
                yield self._from_json(text.strip())
            else:
                separator = separator or dialect.sniff([text])[0]
                try:
                    cells = split_cells(text.rstrip("\r\n"), separator)
                except ValueError as error:
                    raise ValueError(f"{self._place}: {error}.") from None
                if first and self._are_names(cells):
                    self._time_of(cells)  # refuses two
                    columns = cells
                else:
                    yield self._from_cells(cells, columns)
            first = False

    def _is_time(self, cell: str) -> bool:
        """Whether a cell can only be a time."""
        return not self._dialect.is_value(cell) and self._dialect.time(cell) is not None

    def _are_names(self, cells: list[str]) -> bool:
        """Whether a first line names the columns."""
        channels, dialect = self._needed, self._dialect
        words = [c for c in cells if not dialect.is_value(c) and dialect.time(c) is None]
        named = set(channels) <= set(cells)
        if len(words) < len(cells) and not (named and (words or self._numeric_names)):
            return False
        counts = Counter(cells)
        for channel in self._channels:
            if counts[channel] > 1 or (channel in channels and not counts[channel]):
                got = f"{channel!r} twice" if counts[channel] else f"none {channel!r}"
                raise ValueError(
                    f"{self._place}: expected the names of the channels {listed(channels)}, got "
                    f"{listed(cells)}, {got}; leave out the line, or name each once.{self._hint}"
                )
        return True

    def _time_of(self, names: Iterable[str]) -> str | None:
        """Which name is that of the times."""
        names, observed = list(names), frozenset(self._channels)
        if len(self._dialect.time_column) == 1 and self._dialect.time_column[0] in names:
            return self._dialect.time_column[0]
        times = [name for name in names if name.lower() in TIME and name not in observed]
        if len(times) > 1:
            raise ValueError(
                f"{self._place}: expected one column of times, got {listed(times)}; rename all but "
                "one."
            )
        return times[0] if times else None

    def _from_json(self, text: str) -> Row:
        channels, place = self._channels, self._place
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
        for channel in self._needed:
            if channel not in record:
                raise ValueError(
                    f"{place}: expected the channels {listed(self._needed)}, got "
                    f"{listed([*record])}, none {channel!r}; write null for a missing value."
                    f"{self._hint}"
                )
        time_name = self._time_of(record)
        time = None if time_name is None else record[time_name]
        found = [record.get(channel) for channel in channels]
        cells = ["" if value is None else str(value) for value in found]
        values = self._numbers(cells, self._json, missing="write null")
        return Row(None if time is None else self._time(str(time)), values)

    def _from_cells(self, cells: list[str], columns: list[str] | None) -> Row:
        channels, place, dialect = self._channels, self._place, self._dialect
        if columns is not None:
            if len(cells) != len(columns):
                raise ValueError(
                    f"{place}: expected {len(columns)} cells, as in the first line, got "
                    f"{len(cells)}."
                )
            time_name = self._time_of(columns)
            column_of = {name: column for column, name in enumerate(columns)}
            timed = None if time_name is None else column_of[time_name]
            if timed is None and columns[0] not in channels and not dialect.is_value(cells[0]):
                timed = 0
            of_channels = [cells[column_of[c]] if c in column_of else "" for c in channels]
            cells = of_channels if timed is None else [cells[timed], *of_channels]
        timed = self._is_time(cells[0])
        if len(cells) not in (len(channels) + timed, len(channels) + 1):
            names, count = listed(channels), len(channels)
            expected = (
                f"{count + 1} cells (time, {names})"
                if timed
                else f"{count} cells ({names}), or {count + 1} with the time first"
            )
            raise ValueError(f"{place}: expected {expected}, got {len(cells)}.{self._hint}")
        timed = len(cells) > len(channels)
        values = self._numbers(cells[timed:], dialect, missing="leave the cell empty")
        return Row(self._time(cells[0]) if timed else None, values)

    def _numbers(
        self, cells: Sequence[str], dialect: Dialect, *, missing: str
    ) -> NDArray[np.float64]:
        try:
            return dialect.numbers(cells)
        except BadCellError as bad:
            raise ValueError(
                f"{self._place}: expected a finite number for {self._channels[bad.index]}, got "
                f"{shown(cells[bad.index])}; {missing} if the value is missing."
            ) from None

    def _time(self, text: str) -> datetime:
        time = self._dialect.time(text)
        if time is None:
            raise ValueError(
                f"{self._place}: expected a time such as {_TIMES[self._dialect.time_unit]}, got "
                f"{shown(text)}."
            )
        if self._zoned is not None and (time.tzinfo is not None) != self._zoned:
            kinds = ("with its offset from UTC", "without an offset from UTC")
            expected, _ = kinds if self._zoned else kinds[::-1]
            raise ValueError(
                f"{self._place}: expected a time {expected}, as the run's file has them, got "
                f"{shown(text)}."
            )
        return time


_TIMES = {"none": "2016-07-01 00:00:00", "s": "1467331200", "ms": "1467331200000"}
_TIMES |= {"us": "1467331200000000", "ns": "1467331200000000000"}


def _twice(names: Iterable[str]) -> str | None:
    """A name that stands more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)
