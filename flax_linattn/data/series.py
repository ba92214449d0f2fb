"""One long multivariate time series, as forecasting data sets hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

_MONTH = 28 * 86400.0


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Channels observed at the same times.

    Attributes:
        name: Of the data.
        values: float64 ``[T, C]``; NaN marks a missing value.
        channels: The C channel names.
        times: datetime64[s] ``[T]``, rising, without time zone; None if not known.

    Raises:
        ValueError: The parts do not fit together.

    Example:
        >>> series = TimeSeries("toy", np.array([[1.0], [np.nan], [3.0]]), ("x",),
        ...                     np.array(["2024-01-01", "2024-01-02", "2024-01-04"], "M8[s]"))
        >>> series.num_steps, series.step, series.num_gaps
        (3, np.timedelta64(86400,'s'), 1)
        >>> series.fill_forward().values.ravel().tolist()
        [1.0, 1.0, 3.0]
    """

    name: str
    values: NDArray[np.float64]
    channels: tuple[str, ...]
    times: NDArray[np.datetime64] | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float64 or not self.values.size:
            raise ValueError(
                f"expected values float64 [T, C] with T, C >= 1, got {self.values.dtype} "
                f"{list(self.values.shape)}; pass one row for each time"
            )
        if len(self.channels) != self.values.shape[1]:
            raise ValueError(
                f"expected {self.values.shape[1]} channel names, got {len(self.channels)}; give "
                "one for each column"
            )
        if len(set(self.channels)) < len(self.channels):
            twice = next(name for name in self.channels if self.channels.count(name) > 1)
            raise ValueError(f"expected different channel names, got {twice!r} twice; rename one")
        if self.times is None:
            return
        if self.times.shape != (len(self.values),) or self.times.dtype != np.dtype("M8[s]"):
            raise ValueError(
                f"expected times datetime64[s] [{len(self.values)}], got {self.times.dtype} "
                f"{list(self.times.shape)}; give one for each row"
            )
        late = np.flatnonzero(np.diff(self.times) <= np.timedelta64(0, "s"))
        if late.size:
            row = int(late[0]) + 1
            raise ValueError(
                f"expected rising times, got {self.times[row]} after {self.times[row - 1]} (row "
                f"{row}, counted from 0); sort the rows, and drop repeated ones"
            )

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.values)

    @property
    def step(self) -> np.timedelta64 | None:
        """The most frequent time between rows; None if times are not known or there is one row."""
        if self.times is None or self.num_steps < 2:
            return None
        steps, counts = np.unique(np.diff(self.times), return_counts=True)
        usual: np.timedelta64 = steps[np.argmax(counts)]
        return usual

    @property
    def num_gaps(self) -> int:
        """Rows that do not follow the one before after ``step``; see ``is_step``."""
        if self.times is None or self.step is None:
            return 0
        second = np.timedelta64(1, "s")
        return int(np.sum(~is_step(np.diff(self.times) / second, self.step / second)))

    @property
    def num_missing(self) -> int:
        """Missing values."""
        return int(np.isnan(self.values).sum())

    def select(self, channels: Sequence[str]) -> TimeSeries:
        """Returns some of the channels, in this order.

        Raises:
            ValueError: One is unknown.
        """
        for name in channels:
            if name not in self.channels:
                raise ValueError(
                    f"unknown channel {name!r}; {self.name} has {', '.join(self.channels)}"
                )
        columns = [self.channels.index(name) for name in channels]
        return replace(self, values=self.values[:, columns], channels=tuple(channels))

    def fill_forward(self, initial: NDArray | None = None) -> TimeSeries:
        """Replaces missing values by the channel's last known one.

        Args:
            initial: float64 ``[C]``, for those before the first known value; so no value looks
                ahead. Default that first value.

        Raises:
            ValueError: A channel has no value at all, and no initial one.
        """
        known = ~np.isnan(self.values)
        if initial is None and not known.any(axis=0).all():
            name = self.channels[int(np.argmin(known.any(axis=0)))]
            raise ValueError(f"expected values in channel {name!r}, got none; drop the channel")
        rows = np.where(known, np.arange(self.num_steps)[:, None], -1)
        last = np.maximum.accumulate(rows, axis=0)
        before = last < 0
        last = np.where(before, np.argmax(known, axis=0), last)
        values = np.take_along_axis(self.values, last, axis=0)
        if initial is not None:
            values = np.where(before, initial, values)
        return replace(self, values=values)


def is_step(seconds: NDArray | float, step: float) -> NDArray[np.bool_]:
    """Whether times between rows are the usual one; months, quarters and years differ in days.

    Args:
        seconds: The times between rows.
        step: The usual one, in seconds.

    Example:
        >>> day = 86400.0
        >>> is_step(np.array([28, 31, 61]) * day, step=31 * day).tolist()
        [True, True, False]
        >>> bool(is_step(3601.0, step=3600.0))
        False
    """
    allowed = step / 8 if step >= _MONTH else 0.0
    return np.abs(np.asarray(seconds) - step) <= allowed
