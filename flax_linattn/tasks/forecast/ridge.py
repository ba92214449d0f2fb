"""Linear maps from a channel's past to its future, fitted by ridge regression.

The fit uses all windows of the training rows at almost no cost. With x the values of a channel,
the sum over windows t of x[t + i] x[t + j] for two places i and j of a window follows from the sum
for i - 1 and j - 1 by one addition and one subtraction. So the normal equations of N windows of W
values take O(N W + W^2) operations instead of O(N W^2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.forecast.options import RidgeMaps

MAX_PRODUCTS = 6 * 10**11
"""Maximum number of multiplications to fit a map per channel: about 45 seconds of a core."""
MAX_NUMBERS = 2**27
"""Maximum number of coefficients of the maps per channel, of 8 bytes each."""
MAX_INPUT = 1024
"""Maximum number of input rows of a map; of a longer context it uses the last rows."""
STRENGTHS = np.logspace(-4, 1, 11)
"""Penalties of the shared map, in mean eigenvalues of its Gram matrix."""
CHANNEL_STRENGTHS = np.logspace(-3, 3, 13)
"""Penalties of a channel's difference from the shared map, in the same unit."""
MIN_GAIN = 0.01
"""Minimum relative improvement of the validation error that justifies maps per channel, or a
longer context."""


class Ridge(NamedTuple):
    """A linear map from a channel's past to its future, shared or one per channel.

    The last value of the context is subtracted from the input and added to the output, as in
    NLinear (Zeng et al., Are Transformers Effective for Time Series Forecasting?, 2023).

    Attributes:
        kernel: The map [L, H], or the map of each channel [C, L, H]; float64.
    """

    kernel: NDArray[np.float64]
    validation_error: float
    num_windows: int

    @property
    def maps(self) -> RidgeMaps:
        """Kind of the map: "shared", or "channel" for one map per channel."""
        return "shared" if self.kernel.ndim == 2 else "channel"

    def __call__(self, context: NDArray) -> NDArray[np.float64]:
        """Forecasts [N, H, C] from contexts [N, rows, C]."""
        last = context[:, -1:].astype(np.float64)
        past = np.moveaxis(context[:, -self.kernel.shape[-2] :] - last, -1, 0)
        return np.moveaxis(past @ self.kernel, 0, -1) + last


def fit_ridge(
    values: NDArray,
    train: Sequence[range],
    validation: Sequence[range],
    context_length: int,
    horizon: int,
    begins: Sequence[int] = (0,),
    maps: RidgeMaps = "shared",
) -> Ridge:
    """Fits a shared map, or a map per channel, to all windows of the training rows.

    The map of a channel is shrunk towards the shared map: the penalty applies to the difference of
    the two, so that a channel with few or unusual training rows gets nearly the shared map. Each
    penalty has the strength with the smallest squared error on windows of the validation rows.
    ``maps="auto"`` chooses maps per channel if they lower that error by ``MIN_GAIN`` or more and
    are within ``MAX_PRODUCTS`` and ``MAX_NUMBERS``.

    Values [T, C] are the concatenated series, which begin at rows ``begins``, as the model receives
    them: standardized, missing values filled. Horizons lie in the given rows of each series.

    Example:
        >>> wave = np.sin(np.arange(200.0) / 3)[:, None]
        >>> ridge = fit_ridge(wave, [range(120)], [range(120, 160)], 12, 4)
        >>> bool(np.abs(ridge(wave[None, 160:172]) - wave[172:176]).max() < 0.01)
        True
        >>> noise = np.random.default_rng(0).normal(size=wave.shape)
        >>> two = np.concatenate([wave, noise], axis=1)
        >>> fit_ridge(two, [range(120)], [range(120, 160)], 12, 4, maps="auto").maps
        'channel'
    """
    spans = _Spans(train, validation, begins, context_length, horizon)
    shared = _fit(*spans.sums(values), strengths=STRENGTHS)
    count = values.shape[1]
    unit = max(spans.num_numbers(count), 1)
    whole = Ridge(shared.kernel, shared.error / unit, spans.num_windows)
    if maps == "shared" or count < 2 or (maps == "auto" and not spans.affordable(count)):
        return whole
    channel_maps = [
        _fit(*spans.sums(channel[:, None]), strengths=CHANNEL_STRENGTHS, towards=shared.kernel)
        for channel in values.T
    ]
    error = sum(one.error for one in channel_maps)
    if maps == "auto" and not error < (1 - MIN_GAIN) * shared.error:
        return whole
    kernels = np.stack([one.kernel for one in channel_maps])
    return Ridge(kernels, error / unit, spans.num_windows)


class _Sums(NamedTuple):
    """Sums over windows of products of values, counted from the last value of the context."""

    gram: NDArray[np.float64]  # [L, L], of the past with itself
    cross: NDArray[np.float64]  # [L, H], of past and future
    square: float  # of the future

    def gain(self, kernel: NDArray, residual: NDArray) -> float:
        """Decrease of the sum of squares by a map; ``residual`` [L, H] sums past x future."""
        return float(np.sum(kernel * (2 * residual - self.gram @ kernel)))


class _Fitted(NamedTuple):
    kernel: NDArray[np.float64]
    error: float  # sum of squares on the validation rows


def _fit(
    train: _Sums, validation: _Sums, strengths: NDArray, towards: NDArray | None = None
) -> _Fitted:
    """The ridge with the smallest error on the validation rows, and that error."""
    start = np.zeros_like(train.cross) if towards is None else towards
    error = validation.square - validation.gain(start, validation.cross)
    residual = train.cross - train.gram @ start
    eigenvalues, vectors = np.linalg.eigh(train.gram)
    eigenvalues, projected = np.maximum(eigenvalues, 0)[:, None], vectors.T @ residual
    unit = max(np.trace(train.gram) / len(train.gram), np.finfo(np.float64).tiny)
    rotated = _Sums(vectors.T @ validation.gram @ vectors, projected, 0.0)
    left = vectors.T @ (validation.cross - validation.gram @ start)
    kernels = (projected / (eigenvalues + strength * unit) for strength in strengths)
    gain, best = max(
        ((rotated.gain(kernel, left), kernel) for kernel in kernels), key=lambda pair: pair[0]
    )
    if towards is not None and gain <= 0:
        return _Fitted(start, error)
    return _Fitted(start + vectors @ best, error - gain)


class _Spans:
    """The rows of series whose windows fit and validate a map."""

    def __init__(
        self,
        train: Sequence[range],
        validation: Sequence[range],
        begins: Sequence[int],
        context_length: int,
        horizon: int,
    ) -> None:
        self._length, self._horizon = min(context_length, MAX_INPUT), horizon
        self._parts = [
            list(self._with_windows(rows, begins, context_length)) for rows in (train, validation)
        ]
        for spans, rows in zip(self._parts, (train, validation), strict=True):
            if not spans:
                single = f"rows {rows[0].start} to {rows[0].stop - 1}"
                raise ValueError(
                    f"expected a window of context_length={context_length} and horizon={horizon} "
                    f"in {single if len(rows) == 1 else 'the rows of the series'}, got too few "
                    "rows; add rows, or lower context_length or horizon."
                )
        width = self._length + horizon
        self.num_windows, self._num_validation = (
            sum(stop - first - width + 1 for first, stop in spans) for spans in self._parts
        )

    def _with_windows(
        self, rows: Sequence[range], begins: Sequence[int], context_length: int
    ) -> Iterator[tuple[int, int]]:
        for begin, part in zip(begins, rows, strict=True):
            first = max(part.start - context_length, begin) + context_length - self._length
            if part.stop - first >= self._length + self._horizon:
                yield first, part.stop

    def num_numbers(self, num_channels: int) -> int:
        """Number of values that the windows of the validation rows forecast."""
        return self._num_validation * self._horizon * num_channels

    def affordable(self, num_channels: int) -> bool:
        """Whether a map per channel is within the limits for this number of channels."""
        length, horizon = self._length, self._horizon
        products = 10 * length**3 + len(CHANNEL_STRENGTHS) * length**2 * horizon
        return (
            num_channels * products <= MAX_PRODUCTS
            and num_channels * length * horizon <= MAX_NUMBERS
        )

    def sums(self, values: NDArray) -> tuple[_Sums, _Sums]:
        """Sums over all windows of channels [T, C], in the training and validation rows."""
        length = self._length
        sums = []
        for spans in self._parts:
            products = np.zeros((length + self._horizon,) * 2)
            for first, stop in spans:
                for channel in values[first:stop].T:
                    products += _window_products(channel.astype(np.float64), *products.shape[:1])
            # Differences from the last value of the context; its own row becomes exactly 0.
            products = products - products[:, length - 1 : length]
            products = products - products[length - 1]
            past, future = products[:length, :length], products[length:, length:]
            sums.append(_Sums(past, products[:length, length:], float(np.trace(future))))
        return sums[0], sums[1]


def _window_products(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The sum over all windows w of ``width`` values of the outer product w w' [W, W].

    Values count from the first one, which keeps products small where a series is far from 0.
    """
    values = values - values[0]
    count = len(values) - width + 1
    products = np.empty((width, width))
    products[0] = [values[:count] @ values[lag : lag + count] for lag in range(width)]
    leaving, entering = values[: width - 1], values[count:]
    for row in range(width - 1):
        change = entering[row] * entering - leaving[row] * leaving
        products[row + 1, 1:] = products[row, :-1] + change
        products[row + 1, 0] = products[0, row + 1]
    return products
