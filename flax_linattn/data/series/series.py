"""``TimeSeries``, one long multivariate time series for forecasting."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.data.errors import UnknownChannelError
from flax_linattn.data.tables.time_index import (
    find_gaps,
    infer_frequency,
    integer_step,
    timestamps,
    zone_name,
)


class _Steps:
    """A validated index and its irregular rows, which several series may share."""

    def __init__(self, index: pd.Index, freq: str | None) -> None:
        self.index, self.freq = index, freq

    @functools.cached_property
    def repeated(self) -> NDArray[np.int64]:
        return 1 + np.flatnonzero(self.index[1:] == self.index[:-1])

    @functools.cached_property
    def gaps(self) -> NDArray[np.int64]:
        return find_gaps(self.index, self.freq)


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Channels observed at the same times.

    Attributes:
        name: Name of the series.
        values: Values, float64 ``[T, C]``; NaN marks a missing value.
        channels: Names of the C channels.
        index: ``DatetimeIndex`` (with its time zone, if known), ``PeriodIndex`` or integers,
            ``[T]``, nondecreasing. Default ``RangeIndex(T)``.
        lines: Line of each row in its file, from 1, int64 ``[T]``; None if unknown, or after
            ``dataclasses.replace`` changed the number of rows.
        freq: Frequency of the times, see ``time_index``; for periods, the frequency of their starts
            (``W-MON`` for weeks that end on Sundays) or their own. Default: inferred; None without
            times or for a single one.

    Raises:
        ValueError: If the parts do not match.

    Example:
        >>> series = TimeSeries("toy", np.array([[1.0], [np.nan], [3.0]]), ("x",),
        ...                     pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-04"]))
        >>> series.num_steps, series.freq, series.num_gaps
        (3, 'D', 1)
        >>> series.fill_forward().values.ravel().tolist()
        [1.0, 1.0, 3.0]
    """

    name: str
    values: NDArray[np.float64]
    channels: tuple[str, ...]
    index: pd.Index = None
    lines: NDArray[np.int64] | None = None
    freq: str | None = None
    _steps: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float64 or not self.values.size:
            raise ValueError(
                f"expected values float64 [T, C] with T, C >= 1, got {self.values.dtype} "
                f"{list(self.values.shape)}; pass one row for each time"
            )
        if len(self.channels) != self.values.shape[1]:
            raise ValueError(
                f"expected {self.values.shape[1]} channel names, got {len(self.channels)}; "
                "pass one name per column"
            )
        if len(set(self.channels)) < len(self.channels):
            twice = next(name for name, count in Counter(self.channels).items() if count > 1)
            raise ValueError(f"expected different channel names, got {twice!r} twice; rename one")
        if self.lines is not None and self.lines.shape != (len(self.values),):
            object.__setattr__(self, "lines", None)
        index = pd.RangeIndex(len(self.values)) if self.index is None else pd.Index(self.index)
        if len(index) != len(self.values):
            raise ValueError(
                f"expected an index of {len(self.values)} rows, got {len(index)}; give one for each"
            )
        steps = self._steps
        if steps is not None and steps.index is self.index and steps.freq == self.freq:
            return  # the same index as of another series
        object.__setattr__(self, "index", index)
        if not (timestamps(index) is not None or pd.api.types.is_integer_dtype(index)):
            raise ValueError(
                f"expected an index of times, periods or integers, got {index.dtype}; convert it, "
                "such as by pandas.to_datetime"
            )
        if index.hasnans:
            place = self.place(int(np.argmax(index.isna())))
            raise ValueError(f"expected a time for each row, got NaT ({place}); leave it out")
        if not index.is_monotonic_increasing:
            row = 1 + int(np.argmax(index[1:] < index[:-1]))
            raise ValueError(
                f"expected times in ascending order, got {index[row]} after "
                f"{index[row - 1]} ({self.place(row)}); sort the rows"
            )
        freq = None if timestamps(index) is None else self.freq or infer_frequency(index)
        if isinstance(index, pd.PeriodIndex) and freq == index.freq.freqstr:
            freq = infer_frequency(index)
        object.__setattr__(self, "freq", freq)
        object.__setattr__(self, "_steps", _Steps(index, freq))

    @property
    def num_steps(self) -> int:
        """Number of rows (time steps), T."""
        return len(self.values)

    @property
    def times(self) -> pd.DatetimeIndex | None:
        """``index``, or the start times of its periods; None for integers."""
        return timestamps(self.index)

    @property
    def row_times(self) -> pd.Index | None:
        """``times``, or integer times such as years; None for an index of row numbers."""
        index = self.index
        counts_rows = isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
        return None if counts_rows else index if self.times is None else self.times

    @property
    def time_name(self) -> str | None:
        """Name of the column or index of the times; None if it has none."""
        return None if self.index.name is None else str(self.index.name)

    @property
    def has_integer_times(self) -> bool:
        """Whether the index holds integer times, such as years, and not the numbers of the rows."""
        return self.times is None and self.row_times is not None

    @property
    def step(self) -> str | None:
        """The usual step between rows: ``freq``, or that of integer times; None if unknown."""
        return str(integer_step(self.index)) if self.has_integer_times else self.freq

    @property
    def time_zone(self) -> str | None:
        """Time zone by name, or as UTC+01:00; None if the times have none."""
        return None if self.times is None else zone_name(self.times.tz)

    @property
    def repeated(self) -> NDArray[np.int64]:
        """Rows whose time equals the previous one, int64."""
        return self._steps.repeated

    @property
    def gaps(self) -> NDArray[np.int64]:
        """Rows that do not follow the previous row by the usual step; see ``find_gaps``."""
        return self._steps.gaps

    @property
    def num_irregular(self) -> int:
        """Number of rows that repeat a time, or are after a gap."""
        return len(self.repeated) + len(self.gaps)

    @property
    def num_gaps(self) -> int:
        """Number of ``gaps`` between the rows."""
        return len(self.gaps)

    @property
    def num_missing(self) -> int:
        """Number of missing values in all channels."""
        return int(np.isnan(self.values).sum())

    def place(self, row: int) -> str:
        """Describes the place of a row in messages.

        Args:
            row: Index of the row, from 0.
        """
        return f"row {row} (counting from 0)" if self.lines is None else f"line {self.lines[row]}"

    def select(self, channels: Sequence[str]) -> TimeSeries:
        """Selects channels by name, in the given order.

        Raises:
            ValueError: If a channel is unknown.
        """
        column_of = {name: column for column, name in enumerate(self.channels)}
        for name in channels:
            if name not in column_of:
                raise UnknownChannelError.of(name, self.name, self.channels)
        columns = [column_of[name] for name in channels]
        return replace(self, values=self.values[:, columns], channels=tuple(channels))

    def take(self, rows: slice) -> TimeSeries:
        """Selects rows in the given order, with their places in the file.

        Example:
            >>> TimeSeries("a", np.arange(4.0)[:, None], ("x",)).take(slice(2, 4)).values.tolist()
            [[2.0], [3.0]]
        """
        lines = None if self.lines is None else self.lines[rows]
        return replace(self, values=self.values[rows], index=self.index[rows], lines=lines)

    def fill_forward(self, initial: NDArray | None = None) -> TimeSeries:
        """Replaces missing values by the channel's last known one.

        Args:
            initial: Values that replace missing values before the first known one, float64 ``[C]``,
                so that no value depends on a later one. Default: the first known value.

        Raises:
            ValueError: If a channel has neither a value nor an initial value.
        """
        known = ~np.isnan(self.values)
        if initial is None and not known.any(axis=0).all():
            name = self.channels[int(np.argmin(known.any(axis=0)))]
            raise ValueError(f"expected values in channel {name!r}, got none; drop the channel")
        values = pd.DataFrame(self.values).ffill().to_numpy()
        if initial is None:
            initial = self.values[np.argmax(known, axis=0), np.arange(len(self.channels))]
        values = np.where(np.isnan(values), initial, values)
        return replace(self, values=values)
