"""Transforms from a data set to a model: interpolation, standardization, padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Series = Sequence[NDArray[np.float64]]
MAX_VALUE = 1e100
"""Magnitude up to which values are standardized: the square of a larger one may overflow."""
FARTHEST = 1e18
"""Magnitude up to which standardized values are passed on: its square is finite in float32."""


class FarValueError(ValueError):
    """A value is too far from the others to be standardized.

    Attributes:
        series: Index of the series, from 0.
        step: Index of the step in the series, from 0.
    """

    def __init__(self, series: int, step: int, message: str) -> None:
        super().__init__(message)
        self.series = series
        self.step = step


def interpolate_missing(series: Series) -> tuple[NDArray[np.float64], ...]:
    """Fills missing values by linear interpolation over time, channel by channel.

    Values before the first known value, or after the last one, take that value.

    Args:
        series: Arrays ``[length_i, C]``; NaN marks a missing value.

    Returns:
        Arrays of the same shapes without NaN; arrays without gaps are returned unchanged.

    Raises:
        ValueError: If a channel of a series has no value.

    Example:
        >>> (filled,) = interpolate_missing([np.array([[np.nan], [1.0], [np.nan], [3.0]])])
        >>> filled.ravel().tolist()
        [1.0, 1.0, 2.0, 3.0]
    """
    return tuple(_interpolate(values, index) for index, values in enumerate(series))


def _interpolate(values: NDArray[np.float64], index: int) -> NDArray[np.float64]:
    missing = np.isnan(values)
    if not missing.any():
        return values
    if (empty := np.flatnonzero(missing.all(axis=0))).size:
        raise ValueError(
            f"expected at least one value in every channel, got none in channel {empty[0]} of "
            f"example {index}; drop the example or the channel"
        )
    return pd.DataFrame(values).interpolate(limit_direction="both").to_numpy()


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Shifts and scales every channel to zero mean and unit standard deviation.

    Fit it on the training set only, and apply it to every set.

    Attributes:
        mean: Mean of each channel, float64 ``[C]``.
        std: Standard deviation of each channel, float64 ``[C]``, positive.

    Example:
        >>> standardizer = Standardizer.fit([np.array([[1.0], [2.0]]), np.array([[3.0]])])
        >>> standardizer.mean.tolist(), standardizer.std.tolist()
        ([2.0], [1.0])
        >>> standardizer.apply([np.array([[4.0]])])
        (array([[2.]]),)
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise ValueError(
                f"expected mean [C] and std [C], got {list(self.mean.shape)} and "
                f"{list(self.std.shape)}; pass one value of each per channel"
            )
        if not (
            np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std > 0).all()
        ):
            raise ValueError(
                f"expected finite means and finite positive stds, got mean {self.mean} and std "
                f"{self.std}; fill missing values first, and use 1 for a constant channel"
            )

    @classmethod
    def fit(cls, series: Series, ddof: int = 1) -> "Standardizer":
        """Measures mean and standard deviation of each channel over all time steps of all series.

        A constant channel gets a standard deviation of 1, so that it becomes 0.

        Args:
            series: Arrays ``[length_i, C]`` without missing values.
            ddof: Delta degrees of freedom of the standard deviation: 1 as in Time-Series-Library
                for classification, 0 as there for forecasting (scikit-learn's ``StandardScaler``).

        Raises:
            ValueError: If there are no series, or a value is missing or infinite.
        """
        if not len(series):
            raise ValueError("expected at least one series to fit on, got none; pass some")
        steps = np.concatenate(list(series))
        if not np.isfinite(steps).all():
            raise ValueError(
                "expected finite values to fit on, got missing or infinite ones; call "
                "interpolate_missing first"
            )
        if (max_abs := float(np.abs(steps).max())) > MAX_VALUE:
            raise ValueError(
                f"expected values up to {MAX_VALUE:g}, got {max_abs:g}; if it stands for a "
                "missing value, leave it empty"
            )
        mean = steps.mean(axis=0)
        std = np.sqrt(np.square(steps - mean).sum(axis=0) / max(len(steps) - ddof, 1))
        # By the range too: rounding can give a constant channel a tiny deviation that is not 0.
        std[(np.ptp(steps, axis=0) == 0) | (std == 0)] = 1
        return cls(mean, std)

    def apply(
        self, series: Series, channels: Sequence[str] | None = None
    ) -> tuple[NDArray[np.float64], ...]:
        """Standardizes series by the fitted mean and standard deviation.

        Args:
            series: Arrays ``[length_i, C]``; NaN stays NaN.
            channels: Names of the channels, for messages.

        Raises:
            ValueError: If a series has another number of channels, or a value is so large that its
                square overflows in float32.
        """
        return tuple(self._apply(values, index, channels) for index, values in enumerate(series))

    def _apply(
        self, values: NDArray[np.float64], index: int, channels: Sequence[str] | None
    ) -> NDArray[np.float64]:
        if values.ndim != 2 or values.shape[1:] != self.mean.shape:
            raise ValueError(
                f"expected series [length, {len(self.mean)}], got {list(values.shape)} for "
                f"series {index}; use the channels that the standardizer was fitted on"
            )
        scaled = (values - self.mean) / self.std
        far = np.abs(scaled) > FARTHEST
        if far.any():
            step, channel = np.argwhere(far)[0]
            name = channel if channels is None else channels[channel]
            raise FarValueError(
                index,
                int(step),
                f"expected values within {FARTHEST:g} standard deviations of the mean, got "
                f"{values[step, channel]:g} for channel {name} (series {index}, row {step}, from "
                "0); does it stand for a missing one? Leave that empty",
            )
        return scaled


def pad(
    series: Series, max_length: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Pads series of different lengths by zeros at their ends, into one array.

    Args:
        series: N arrays ``[length_i, C]`` without missing values.
        max_length: Length T after padding, at least the longest length. Default: the longest
            length.

    Returns:
        Values float32 ``[N, T, C]``, and a mask bool ``[N, T]``, True at the real time steps.

    Raises:
        ValueError: If there are no series, one is longer than ``max_length``, their channels
            differ, or a value is not finite in float32.

    Example:
        >>> values, mask = pad([np.ones((1, 2)), np.ones((3, 2))])
        >>> values.shape, mask.tolist()
        ((2, 3, 2), [[True, False, False], [True, True, True]])
    """
    if not len(series):
        raise ValueError("expected at least one series to pad, got none; pass some")
    lengths = np.array([len(values) for values in series])
    longest = int(lengths.max())
    num_steps = longest if max_length is None else max_length
    if num_steps < longest:
        raise ValueError(
            f"expected max_length of at least the longest series, {longest} (series "
            f"{lengths.argmax()}), got {max_length}; raise it, or cut the series yourself"
        )
    num_channels = series[0].shape[-1]
    padded = np.zeros((len(series), num_steps, num_channels), np.float32)
    limit = np.finfo(np.float32).max
    for index, values in enumerate(series):
        if values.ndim != 2 or values.shape[1] != num_channels:
            raise ValueError(
                f"expected series [length, {num_channels}] as the first, got "
                f"{list(values.shape)} for series {index}; give all the same channels"
            )
        if not (np.abs(values) <= limit).all():
            raise ValueError(
                f"expected values finite in float32, got others in series {index}; call "
                "interpolate_missing for missing ones, and standardize large ones"
            )
        padded[index, : len(values)] = values
    return padded, np.arange(num_steps) < lengths[:, None]
