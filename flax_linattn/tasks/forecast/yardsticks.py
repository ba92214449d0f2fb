"""What a forecaster has to beat: the last value, the last season, and a linear map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WORK = 10**11
"""Most multiplications to fit the map: some ten seconds of a core."""
MOST_INPUT = 1024
"""Rows of its input, the last ones of a longer one."""
BLOCK = 2**23
"""Most numbers that are made float64 at once."""
STRENGTHS = np.logspace(-4, 1, 11)
"""Of the ridge, in mean eigenvalues of its Gram matrix."""


class Ridge(NamedTuple):
    """One linear map of a channel's past to its future, for all channels, fitted by ridge.

    What a window's last value is, is taken off before, and put back after, as in NLinear (Zeng et
    al., Are Transformers Effective for Time Series Forecasting?, 2023).

    Attributes:
        kernel: the map [L, H], float64.
        num_windows: of one channel, that it was fitted on.
        num_there: of one channel, that there were.
    """

    kernel: NDArray[np.float64]
    num_windows: int
    num_there: int

    def __call__(self, seen: NDArray) -> NDArray[np.float64]:
        """Forecasts [N, H, C] of what was seen [N, rows, C]."""
        last = seen[:, -1:].astype(np.float64)
        past = seen[:, -len(self.kernel) :] - last
        return np.einsum("nlc,lh->nhc", past, self.kernel, optimize=True) + last


Rows = range | Sequence[range]
"""Of one series, or of each of several."""


def fit_ridge(
    values: NDArray,
    train: Rows,
    validation: Rows,
    input_length: int,
    horizon: int,
    begins: Sequence[int] = (0,),
) -> Ridge:
    """Fits the map to all windows of the training rows and all channels.

    Its strength is that of the least square error on windows of the validation rows. Where there
    are so many windows that it would take long, it learns from every second, third, ...

    Args:
        values: the series [T, C] as the model sees it: standardised, missing values filled; or
            several, one behind the other.
        train: rows that the windows' horizons lie in; of several series those of each.
        validation: those that choose the strength; as ``train``.
        input_length: rows that the model sees.
        horizon: rows to forecast.
        begins: the first row of each series.

    Raises:
        ValueError: there is no window of these rows.

    Example:
        >>> wave = np.sin(np.arange(200.0) / 3)[:, None]
        >>> ridge = fit_ridge(wave, range(120), range(120, 160), 12, 4)
        >>> bool(np.abs(ridge(wave[None, 160:172]) - wave[172:176]).max() < 0.01)
        True
    """
    length = min(input_length, MOST_INPUT)
    gram, cross, _, *counts = _products(values, train, begins, input_length, length, horizon)
    val_gram, val_cross, val_square, *_ = _products(
        values, validation, begins, input_length, length, horizon
    )
    eigenvalues, vectors = np.linalg.eigh(gram)
    projected = vectors.T @ cross
    unit = max(np.trace(gram) / length, np.finfo(np.float64).tiny)

    def kernel(strength: float) -> NDArray[np.float64]:
        shrunk = projected / (np.maximum(eigenvalues, 0) + strength * unit)[:, None]
        return vectors @ shrunk

    def error(candidate: NDArray) -> float:
        return val_square - float(np.sum(candidate * (2 * val_cross - val_gram @ candidate)))

    return Ridge(min(map(kernel, STRENGTHS), key=error), *counts)


class _Products(NamedTuple):
    gram: NDArray[np.float64]  # [L, L], of the past with itself
    cross: NDArray[np.float64]  # [L, H], of past and future
    square: float  # of the future
    num_windows: int  # of a channel, that were taken
    num_there: int


def _products(
    values: NDArray,
    rows: Rows,
    begins: Sequence[int],
    input_length: int,
    length: int,
    horizon: int,
) -> _Products:
    """Sums over windows, all of which but for their last ``length`` rows of input are looked at."""
    gram, cross, square = np.zeros((length, length)), np.zeros((length, horizon)), 0.0
    parts = [rows] if isinstance(rows, range) else rows
    spans = []
    for begin, part in zip(begins, parts, strict=True):
        first = max(part.start - input_length, begin) + input_length - length
        if part.stop - first >= length + horizon:
            spans.append((first, part.stop))
    counts = [stop - first - length - horizon + 1 for first, stop in spans]
    count = sum(counts)
    if not spans:
        rows_of = f"rows {parts[0].start} to {parts[0].stop - 1}" if len(parts) == 1 else "the rows"
        raise ValueError(
            f"{rows_of} have no window of input_length={input_length} "
            f"and horizon={horizon}; give more rows, or a shorter window."
        )
    stride = max(1, -(-(values.shape[1] * count * length * (length + horizon)) // WORK))
    for first, stop in spans:
        for past, future in _windows(values[first:stop], length, horizon, stride):
            gram += past.T @ past
            cross += past.T @ future
            square += float(np.sum(np.square(future)))
    taken = sum(len(range(0, windows, stride)) for windows in counts)
    return _Products(gram, cross, square, taken, count)


def _windows(
    values: NDArray, length: int, horizon: int, stride: int
) -> Iterator[tuple[NDArray, NDArray]]:
    """Past [N, L] and future [N, H] of windows of a channel, less their last known value."""
    height = max(1, BLOCK // (length + horizon))
    for channel in values.T:
        windows = np.lib.stride_tricks.sliding_window_view(channel, length + horizon)[::stride]
        for begin in range(0, len(windows), height):
            block = windows[begin : begin + height].astype(np.float64)
            block -= block[:, length - 1 : length].copy()
            yield block[:, :length], block[:, length:]
