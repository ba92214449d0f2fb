"""One long multivariate time series, as forecasting data sets hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.unknown import UnknownChannelError

_MONTH = 28 * 86400.0


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Channels observed at the same times.

    Attributes:
        name: Of the data.
        values: float64 ``[T, C]``; NaN marks a missing value.
        channels: The C channel names.
        times: datetime64[s] ``[T]``, never falling; None if not known.
        lines: int64 ``[T]``, the line of each row in its file, from 1; None if not known, and where
            ``dataclasses.replace`` gives another number of rows.
        utc: Whether times are known to be in UTC; else they are of no known time zone.

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
    lines: NDArray[np.int64] | None = None
    utc: bool = False

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
            twice = next(name for name, count in Counter(self.channels).items() if count > 1)
            raise ValueError(f"expected different channel names, got {twice!r} twice; rename one")
        if self.lines is not None and self.lines.shape != (len(self.values),):
            object.__setattr__(self, "lines", None)
        if self.times is None:
            return
        if self.times.shape != (len(self.values),) or self.times.dtype != np.dtype("M8[s]"):
            raise ValueError(
                f"expected times datetime64[s] [{len(self.values)}], got {self.times.dtype} "
                f"{list(self.times.shape)}; give one for each row"
            )
        late = np.flatnonzero(np.diff(self.times) < np.timedelta64(0, "s"))
        if late.size:
            row = int(late[0]) + 1
            raise ValueError(
                f"expected times that never fall, got {self.times[row]} after "
                f"{self.times[row - 1]} ({self.place(row)}); sort the rows"
            )

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.values)

    @property
    def step(self) -> np.timedelta64 | None:
        """The most frequent time from one row to a later one; None if there is none."""
        if self.times is None:
            return None
        steps = np.diff(self.times)
        steps, counts = np.unique(steps[steps > np.timedelta64(0, "s")], return_counts=True)
        if not steps.size:
            return None
        usual: np.timedelta64 = steps[np.argmax(counts)]
        return usual

    @property
    def repeated(self) -> NDArray[np.int64]:
        """Rows that have the time of the one before, int64."""
        if self.times is None:
            return np.zeros(0, np.int64)
        return 1 + np.flatnonzero(np.diff(self.times) == np.timedelta64(0, "s"))

    @property
    def gaps(self) -> NDArray[np.int64]:
        """Rows of a later time than ``step`` after the one before, or of an earlier, int64.

        See ``is_step``; repeated times are not among them.
        """
        if self.times is None or self.step is None:
            return np.zeros(0, np.int64)
        seconds = np.diff(self.times) / np.timedelta64(1, "s")
        usual = is_step(seconds, self.step / np.timedelta64(1, "s"))
        return 1 + np.flatnonzero(~usual & (seconds > 0))

    @property
    def num_gaps(self) -> int:
        """How many ``gaps`` there are."""
        return len(self.gaps)

    @property
    def num_missing(self) -> int:
        """Missing values."""
        return int(np.isnan(self.values).sum())

    def place(self, row: int) -> str:
        """Where a row stands in its file, for a message.

        Args:
            row: Which one, from 0.
        """
        return f"row {row}, from 0" if self.lines is None else f"line {self.lines[row]}"

    def select(self, channels: Sequence[str]) -> TimeSeries:
        """Returns some of the channels, in this order.

        Raises:
            ValueError: One is unknown.
        """
        column_of = {name: column for column, name in enumerate(self.channels)}
        for name in channels:
            if name not in column_of:
                raise UnknownChannelError.of(name, self.name, self.channels)
        columns = [column_of[name] for name in channels]
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
