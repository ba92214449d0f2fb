"""Series as a forecaster takes them, and forecasts in the form of these: arrays or pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import shown
from flax_linattn.data.cells import parse_time
from flax_linattn.storage import write_text


class History(NamedTuple):
    """A series as it came.

    Attributes:
        series: as a run takes it.
        given: the array, data frame or pandas series.
    """

    series: data.TimeSeries
    given: Any

    def like(self, values: NDArray[np.float64], index: pd.Index, names: list[Any]) -> Any:
        """Rows to come, in the form of what was given: [H, C], or [H] for one without channels.

        Args:
            values: float64 [H, C].
            index: of these rows [H], as ``HorizonForecast.row_index``.
            names: of the C channels.
        """
        if not hasattr(self.given, "iloc"):
            return values[:, 0] if np.ndim(self.given) == 1 else values
        if self.given.ndim == 1:
            return pd.Series(values[:, 0], index, name=self.given.name)
        return pd.DataFrame(values, index, columns=pd.Index(names, name=self.given.columns.name))

    def quantiles_like(
        self,
        quantiles: NDArray[np.float64],
        index: pd.Index,
        names: list[Any],
        levels: Sequence[float],
    ) -> Any:
        """As ``like``, of quantiles: [H, C, Q], or [H, Q]; of pandas with a column for each pair.

        Args:
            quantiles: float64 [H, C, Q].
            index: as there.
            names: as there.
            levels: of the quantiles.
        """
        if not hasattr(self.given, "iloc"):
            return quantiles[:, 0] if np.ndim(self.given) == 1 else quantiles
        of_columns = None
        if self.given.ndim == 1:
            names = [self.given.name if self.given.name is not None else 0]
        else:
            of_columns = self.given.columns.name
        columns = pd.MultiIndex.from_product([names, levels], names=[of_columns, "quantile"])
        return pd.DataFrame(quantiles.reshape(len(quantiles), -1), index, columns=columns)


def as_history(history: Any, channels: tuple[str, ...] | None = None) -> History:
    """Reads a history.

    Args:
        history: numbers [T, C] or [T]; or a data frame or pandas series of them, whose index may
            hold times.
        channels: those that it has to have; of a data frame by name.

    Raises:
        ValueError: it is something else, empty, or has other channels; times that fall.

    Example:
        >>> as_history([1.0, 2.0, 4.0]).series.channels
        ('x0',)
    """
    is_pandas = hasattr(history, "iloc")
    index = _index_of(history.index) if is_pandas else None
    names = [f"x{c}" for c in range(np.shape(history)[1] if np.ndim(history) == 2 else 1)]
    if is_pandas and history.ndim == 2:
        names = [str(name) for name in history.columns]
        if channels is not None and set(names) >= set(channels) and names != list(channels):
            history = history[[history.columns[names.index(name)] for name in channels]]
            names = list(channels)
    if hasattr(history, "columns"):
        _check_numbers(history)
    try:
        values = np.asarray(history, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers [T, C] or [T], got {shown(history)}: {error}") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"expected numbers [T, C] or [T], one row for each time, got {list(values.shape)}."
        )
    if (np.abs(values) > np.finfo(np.float32).max).any():  # infinity, too
        row, column = np.argwhere(np.abs(values) > np.finfo(np.float32).max)[0].tolist()
        raise ValueError(
            f"expected finite numbers that float32 can hold, got {values[row, column]} in row "
            f"{row}, column {column}; give NaN where a value is missing."
        )
    if (
        channels is not None
        and tuple(names) != channels
        and (len(names) != len(channels) or (is_pandas and history.ndim == 2))
    ):
        raise ValueError(
            f"expected the channels {list(channels)}, as in fit, got {names}; give the same ones."
        )
    kept = tuple(names) if channels is None else channels
    return History(data.TimeSeries("the history", values, kept, index), history)


def _check_numbers(frame: Any) -> None:
    """Refuses a data frame with a column of times, or of something else than numbers.

    Raises:
        ValueError: there is one; it is named.
    """
    for name in frame.columns:
        column = np.asarray(frame[name])
        if column.ndim > 1 or column.dtype.kind in "biuf":
            continue
        try:
            if column.dtype.kind not in "mM":
                column.astype(np.float64)
                continue
        except (TypeError, ValueError):
            pass
        first = column[0] if len(column) else None
        if parse_time(str(first)) is None:
            raise ValueError(
                f"expected numbers in column {name!r}, got {shown(first)}; leave it out, or make "
                "numbers of it."
            )
        how = f"frame.set_index({name!r})"
        if column.dtype.kind != "M":
            how = f"frame.set_index(pandas.to_datetime(frame.pop({name!r})))"
        raise ValueError(
            f"expected numbers, and times as the index, got times in column {name!r}; make it the "
            f"index of a pandas data frame: {how}."
        )


def _index_of(index: pd.Index) -> pd.Index:
    """An index of times, periods or integers; of texts and dates the times that they are."""
    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) or index.dtype.kind in "iu":
        return index
    if not (pd.api.types.is_numeric_dtype(index) or isinstance(index, pd.MultiIndex)):
        times = [parse_time(str(label)) for label in index]
        if None not in times and len({time.tzinfo is None for time in times if time}) == 1:
            return pd.DatetimeIndex(times, name=index.name)
    raise ValueError(
        f"expected times, periods or integers in the index, got {shown(index[0])}; convert it by "
        "pandas.to_datetime, or leave it out by reset_index(drop=True)."
    )


def as_time(time: Any) -> datetime:
    """A time as files have it, to the second.

    Args:
        time: a ``datetime``, ``numpy.datetime64``, text, or a pandas time or period, which begins
            there.

    Returns:
        The time in UTC if it has a zone, else without one.

    Raises:
        ValueError: it is none.

    Example:
        >>> as_time(np.datetime64("2016-07"))
        datetime.datetime(2016, 7, 1, 0, 0)
    """
    exact = time.to_timestamp() if hasattr(time, "to_timestamp") else time
    if isinstance(exact, np.datetime64):
        exact = exact.astype("M8[us]")
    found = None if isinstance(exact, int | float | np.number) else parse_time(str(exact))
    if found is None:
        raise ValueError(
            f"expected a time such as 2016-07-01 00:00:00, got {shown(time)}; give a datetime, a "
            "numpy.datetime64, or text."
        )
    return found


def write_history(path: Path, series: data.TimeSeries) -> None:
    """Writes a series so that ``data.load_series`` reads the same numbers, with a header.

    Names that a table cannot have, such as one with blanks around it, are not read again as they
    are.

    Args:
        path: the file.
        series: what it is to hold.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    timed = series.times is not None
    writer.writerow([*(["date"] if timed else []), *series.channels])
    for row, values in enumerate(series.values.tolist()):
        time = []
        if series.times is not None:
            time = [str(series.times[row])]
        writer.writerow([*time, *("" if value != value else repr(value) for value in values)])
    write_text(path, text.getvalue())
