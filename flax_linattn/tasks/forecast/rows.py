"""The observations that a stream of forecasts reads, one a line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.cells import TIME, YEAR
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.times import join_date_and_clock
from flax_linattn.tasks.lines import CellLines, Cells


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


class RowLines(CellLines):
    """Reads observations, one a line: a JSON object, or cells as the run's file has them.

    A JSON object has the channels by name, and perhaps "time" (or "date", "datetime", "timestamp").
    Cells are the channels in the run's order, after the time if there is one; a first line that
    names them may order them otherwise, and have further ones. Blank lines are left out; an empty
    cell, "?", "NaN" or null is a missing value.

    As in files, a first column "year" that is no channel holds years. Where clocks go back, the
    first row of the repeated hour that is not after the row before it begins the second hour, as
    of pandas' ``ambiguous="infer"``: a duplicate row within that hour cannot be told from it.

    Args:
        channels: the channels to find.
        numeric_names: whether a first line of numbers alone may name the columns.
        dialect: how cells and times are written.
        zoned: whether times have to name their offset from UTC, or must not; None if both will do,
            and integers in place of times, too, which are not read.
        optional: channels that a first line or a JSON object may leave out, missing then.
        hint: added to errors about lines that do not have all channels.
        after: the time of the row before the first: it tells which of the two a local time is that
            clocks show twice.

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
        zoned: bool | None = None,
        optional: Collection[str] = (),
        hint: str = "",
        after: datetime | None = None,
    ) -> None:
        self._last = after
        self._channels, self._numeric_names, self._zoned = channels, numeric_names, zoned
        time = next((t for t in ("time", *TIME) if t not in channels), "")
        forms = (channels, (*(dialect.time_columns or (time,)), *channels))
        super().__init__(*forms, optional=optional, dialect=dialect, hint=hint)

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        """Reads rows."""
        for cells in self.cells(lines):
            if cells is not None:
                yield Row(self._time(cells), cells.numbers(self._channels))

    def is_header(self, cells: Sequence[str]) -> bool:
        """Also numbers that are the names of all channels, where these may be."""
        named = self._numeric_names and set(self._needed) <= set(cells)
        return named or super().is_header(cells)

    def check_names(self, names: Sequence[str], advice: str) -> None:
        """Refuses two columns of times, too."""
        super().check_names(names, advice)
        self._time_names(names)

    def column_forms(self, cells: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """A line that begins with a time has it in front of the channels."""
        first = cells[0]
        is_time = not self._dialect.is_value(first) and self._dialect.time(first) is not None
        return self._forms[is_time:]

    def _time_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of the columns of times: one, two of dates and clock times, or none."""
        names, observed = list(names), frozenset(self._channels)
        if self._dialect.time_column and set(self._dialect.time_columns) <= set(names):
            return self._dialect.time_columns
        times = [name for name in names if name.lower() in TIME and name not in observed]
        if not times and names and names[0].lower() == "year" and names[0] not in observed:
            return (names[0],)
        if len(times) > 1:
            raise ValueError(
                f"expected one column of times, got {itemize(times)}; rename all but one."
            )
        return tuple(times)

    def _time(self, cells: Cells) -> datetime | None:
        names, first = self._time_names(cells.texts), next(iter(cells.texts), "")
        if not names and not cells.is_json and first not in self._channels:
            # As in files: a first column that holds no numbers is that of times.
            names = () if self._dialect.is_value(cells.texts[first]) else (first,)
        texts = [cells.texts[name] for name in names]
        text = " ".join(texts)
        if not names or (cells.is_json and not text.strip()):
            return None
        time: datetime | None
        if len(texts) == 2:
            date, clock = texts
            time = join_date_and_clock(date, clock, self._dialect, after=self._last)
        elif self._is_year(names[0], text):
            time = datetime(int(text), 1, 1)
        else:
            time = self._dialect.time(text, after=self._last)
            if time is None and self._zoned is None and _INTEGER.fullmatch(text.strip()):
                return None  # of a run without times, whose rows are numbered
            if time is None:
                raise ValueError(
                    f"expected a time such as {_TIMES[self._dialect.time_unit]} in the column "
                    f"{names[0]}, got {quote(text)}."
                )
        if self._zoned is not None and (time.tzinfo is not None) != self._zoned:
            kinds = ("with its offset from UTC", "without an offset from UTC")
            expected, _ = kinds if self._zoned else kinds[::-1]
            raise ValueError(
                f"expected a time {expected}, as the run's file has them, got {quote(text)}."
            )
        if self._dialect.timezone:
            self._check_shown(time, text)
            self._last = time
        return time

    def _is_year(self, name: str, text: str) -> bool:
        """Whether a cell holds a year: not of a run without times, whose rows are numbered."""
        if self._dialect.time_unit != "none" or self._dialect.date_format:
            return False
        dated = self._zoned is not None or name.lower() == "year"
        return dated and _YEAR.fullmatch(text.strip()) is not None

    def _check_shown(self, time: datetime, text: str) -> None:
        """Refuses a local time that clocks skip: a way through UTC changes it."""
        try:
            if time.astimezone(UTC).astimezone(time.tzinfo) == time:
                return
        except OverflowError:  # the first and the last day of the calendar
            return
        raise ValueError(
            f"expected a time that there is once, got {quote(text)}, but clocks of "
            f"{self._dialect.timezone} skip it; correct it, or write times with their offset from "
            "UTC."
        )


_INTEGER = re.compile(r"-?\d+", re.ASCII)
_YEAR = re.compile(YEAR, re.ASCII)
_TIMES = {"none": "2016-07-01 00:00:00", "s": "1467331200", "ms": "1467331200000"}
_TIMES |= {"us": "1467331200000000", "ns": "1467331200000000000"}
