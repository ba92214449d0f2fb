"""The observations that a stream of forecasts reads, one per line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.tables.cells import TIME, YEAR_COLUMN
from flax_linattn.data.tables.dialect import PLAIN, Dialect
from flax_linattn.data.tables.times import join_date_and_clock
from flax_linattn.tasks.lines import CellLines, Cells

TimeKind: TypeAlias = Literal["integer", "local", "zoned"]
"""Kind of a time: an integer, or a datetime without or with an offset from UTC."""


class Row(NamedTuple):
    """An observation of a stream: its time and values.

    Attributes:
        time: Time of the kind of the run's times; None if the stream has no times.
        values: Values, float64 [channels]; NaN marks a missing value.
    """

    time: datetime | int | None
    values: NDArray[np.float64]


def series_row(series: TimeSeries, at: int, known: Sequence[int], horizon: int) -> Row:
    """The input of a stream for one row: values, then the known future covariates.

    Example:
        >>> sales = TimeSeries("sales", np.arange(6.0).reshape(3, 2), ("sales", "price"))
        >>> series_row(sales, 1, (1,), 2).values.tolist()
        [2.0, 3.0, 5.0, nan]
    """
    ahead = np.full((horizon, len(known)), np.nan)
    given = series.values[at + 1 : at + 1 + horizon, list(known)]
    ahead[: len(given)] = given
    times = series.row_times
    time = None if times is None else times[at]
    time = int(time) if isinstance(time, np.integer) else time
    return Row(time, np.concatenate([series.values[at], ahead.ravel()]))


def find_time_kind(time: datetime | int) -> TimeKind:
    """The kind of a time.

    Example:
        >>> find_time_kind(1949), find_time_kind(datetime(1949, 1, 1))
        ('integer', 'local')
    """
    if isinstance(time, int):
        return "integer"
    return "local" if time.tzinfo is None else "zoned"


def check_time_kind(time: datetime | int, expected: TimeKind | None, text: object) -> None:
    """Refuses a time of another kind than the times of the run, if these have a kind."""
    if expected is not None and find_time_kind(time) != expected:
        raise ValueError(
            f"expected {EXPECTED_TIMES[expected]}, as in the training data of the run, got {text}; "
            "write all times in the same form."
        )


class RowLines(CellLines):
    """Reads observations, one per line: JSON objects, or cells in the format of the run's file.

    A JSON object has the channels by name, and optionally "time" (or "date", "datetime",
    "timestamp"). Cells are the channels in the run's order, after the time if there is one; a first
    line with names may order them differently, and have further columns. Blank lines are ignored;
    an empty cell, "?", "NaN" or null is a missing value.

    A column "year" that is not a channel holds times as well. When clocks are set back, the first
    row of the repeated hour that is not after the previous row begins the second hour, as with
    pandas' ``ambiguous="infer"``: a duplicate row within that hour is indistinguishable from it.

    Args:
        channels: Names of the channels to read.
        numeric_names: Whether a first line that holds only numbers may name the columns.
        dialect: Format of cells and times.
        time_kind: Kind of the times of the run; None without times, so that any kind is accepted.
        optional: Channels that a first line or a JSON object may omit; they are then missing.
        hint: Text added to errors about lines that do not have all channels.
        after: Time of the row before the first one, which resolves a local time that occurs twice
            when clocks are set back.
        series: Column of the names of series, and the only name that it may hold. Rows of another
            series are refused.

    Example:
        >>> rows = RowLines(("a", "b")).parse(["b,a,c", "1,2,3", '{"a": 4, "b": null}'])
        >>> [row.values.tolist() for row in rows]
        [[2.0, 1.0], [4.0, nan]]
    """

    def __init__(
        self,
        channels: tuple[str, ...],
        *,
        numeric_names: bool = False,
        dialect: Dialect = PLAIN,
        time_kind: TimeKind | None = None,
        optional: Collection[str] = (),
        hint: str = "",
        after: datetime | None = None,
        series: tuple[str, str] = ("", ""),
    ) -> None:
        self._last, self._series = after, series
        self._channels, self._numeric_names, self._kind = channels, numeric_names, time_kind
        time = next((t for t in ("time", *TIME) if t not in channels), "")
        forms = (channels, (*(dialect.time_columns or (time,)), *channels))
        super().__init__(*forms, optional=optional, dialect=dialect, hint=hint)

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        for cells in self.cells(lines):
            if cells is not None:
                self._check_series(cells)
                yield Row(self._time(cells), cells.numbers(self._channels))

    def _check_series(self, cells: Cells) -> None:
        """Refuses a row of another series: it would enter the state of this one."""
        column, name = self._series
        value = cells.texts.get(column, name) if column else name
        if value.strip() != name:
            raise ValueError(
                f"expected rows of the series {quote(name)}, got {quote(value)} in the column "
                f"{column}; stream each series separately, with a state file of its own."
            )

    def is_header(self, cells: Sequence[str]) -> bool:
        """Whether a first line names columns, also by numbers with ``numeric_names``."""
        named = self._numeric_names and set(self._needed) <= set(cells)
        return named or super().is_header(cells)

    def check_names(self, names: Sequence[str], advice: str) -> None:
        """Refuses names that lack a channel, or two columns of times."""
        super().check_names(names, advice)
        self._time_names(names)

    def column_forms(self, cells: Sequence[str]) -> Sequence[tuple[str, ...]]:
        first = cells[0]
        is_time = not self._dialect.is_value(first) and self._dialect.time(first) is not None
        return self._forms[is_time:]

    def _time_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of the columns of times: one, two of dates and clock times, or none."""
        names, observed = list(names), frozenset(self._channels)
        if self._dialect.time_column and set(self._dialect.time_columns) <= set(names):
            return self._dialect.time_columns
        times = [name for name in names if name.lower() in TIME and name not in observed]
        if not times:
            times = [n for n in names if n.lower() == YEAR_COLUMN and n not in observed]
        if len(times) > 1:
            raise ValueError(
                f"expected one column of times, got {itemize(times)}; rename all but one."
            )
        return tuple(times)

    def _time(self, cells: Cells) -> datetime | int | None:
        names = self._time_names(cells.texts)
        first = next((name for name in cells.texts if name != self._series[0]), "")
        if not names and not cells.is_json and first not in self._channels:
            # As in files, a first column that holds no numbers is the column of times.
            names = () if self._dialect.is_value(cells.texts[first]) else (first,)
        texts = [cells.texts[name] for name in names]
        text = " ".join(texts)
        if not names or (cells.is_json and not text.strip()):
            return None
        if len(texts) == 2:
            date, clock = texts
            time: datetime | int = join_date_and_clock(date, clock, self._dialect, after=self._last)
        else:
            time = self._parse_time(text, names[0])
        check_time_kind(time, self._kind, quote(text))
        if self._dialect.timezone and isinstance(time, datetime):
            self._check_exists(time, text)
            self._last = time
        return time

    def _parse_time(self, text: str, name: str) -> datetime | int:
        """The time of a cell: an integer for a run with integer times, or without times."""
        dialect = self._dialect
        time = None if self._kind == "integer" else dialect.time(text, after=self._last)
        if time is not None:
            return time
        is_plain = not dialect.date_format and dialect.time_unit == "none"
        if self._kind in ("integer", None) and is_plain and _INTEGER.fullmatch(text.strip()):
            return int(text.strip().partition(".")[0])
        expected = f"a time such as {_TIMES[dialect.time_unit]} in the column {name}"
        if self._kind == "integer":
            expected = f"an integer time in the column {name}, as in the training data of the run"
        raise ValueError(f"expected {expected}, got {quote(text)}.")

    def _check_exists(self, time: datetime, text: str) -> None:
        """Refuses a local time that clocks skip, which conversion to UTC and back changes."""
        try:
            if time.astimezone(UTC).astimezone(time.tzinfo) == time:
                return
        except OverflowError:  # the first and the last day of the calendar
            return
        raise ValueError(
            f"expected a time that exists in {self._dialect.timezone}, got {quote(text)}, which "
            "clocks skip; correct it, or write times with their offset from UTC."
        )


EXPECTED_TIMES: dict[TimeKind, str] = {
    "integer": "an integer time",
    "local": "a time without an offset from UTC",
    "zoned": "a time with its offset from UTC",
}
"""Description of the expected time in an error, by its kind."""
_INTEGER = re.compile(r"[+-]?\d{1,18}(\.0+)?", re.ASCII)
_TIMES = {"none": "2016-07-01 00:00:00", "s": "1467331200", "ms": "1467331200000"}
_TIMES |= {"us": "1467331200000000", "ns": "1467331200000000000"}
