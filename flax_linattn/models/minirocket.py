"""MiniRocket features of time series, which also stream: one step per observation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int
from numpy.typing import NDArray

from flax_linattn.checks import check_array, check_integers
from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.models.sequence_model import SequenceModel
from flax_linattn.models.sizes import MINIROCKET_KERNELS
from flax_linattn.nn.call import Call
from flax_linattn.ops.contract.checks import check_mask
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array

KERNEL_SIZE = 9

WEIGHTS = np.full((MINIROCKET_KERNELS, KERNEL_SIZE), -1, np.float32)
np.put_along_axis(
    WEIGHTS, np.array([*itertools.combinations(range(KERNEL_SIZE), 3)]), 2, axis=1
)  # fmt: skip

MAX_CHANNELS = 9
"""Maximum number of channels that a convolution combines."""

A = TypeVar("A", NDArray[Any], Array)


@register_state
class MiniRocketState(NamedTuple):
    """State of :class:`MiniRocketFeatures`; its size does not grow.

    Attributes:
        num_observations: Number of valid observations so far, int32 [B].
        recent: The last 8 D observations, the newest last, where D is the largest dilation, float32
            [B, 8 D, C]; zeros before the first.
        counts: Number of positions at which a convolution exceeded the bias, int32 [B, F]. Only
            positions whose nine inputs have all been observed count.
    """

    num_observations: Int[Array, "B"]
    recent: Float[Array, "B W C"]
    counts: Int[Array, "B F"]


class MiniRocketFeatures(SequenceModel):
    """Random convolutional features of a time series, for a linear classifier.

    MiniRocket (Dempster, Schmidt and Webb, "MiniRocket: A Very Fast (Almost) Deterministic
    Transform for Time Series Classification", KDD 2021) convolves a series with the 84 kernels of
    nine weights of which three are 2 and six are -1, at up to ``max_dilations`` dilations. A
    feature is the proportion of positions whose convolution exceeds a bias. Half of the kernels of
    a dilation, every second one, pad the series with zeros, and have a position for each
    observation; the others have positions only where all nine inputs exist. Of several channels
    each kernel and dilation sums a random subset, as in the authors' multivariate version.

    Features of the first n observations equal the features of a series of length n: after the last
    observation of a series, a stream has the features of the whole series. Only a buffer of recent
    observations and a count for each feature are stored: the positions whose later inputs are not
    yet observed, zeros in the padded convolution, are evaluated when features are read. So a step
    has constant time and memory. A kernel without padding that is longer than the series so far has
    no positions: its features are 0.

    A call returns features float32 [B, F] of the whole series, and with ``every_step`` [B, T, F]
    after every observation, by a loop over the observations. It stores convolutions [T, B, 84] of
    several dilations at once: pass many long series in batches. Convolutions are sums in a fixed
    order, equal in every form to the last bit, since rounding could move a value across a bias.

    A new model has random subsets of channels, but biases of 0: :meth:`fit` makes a model whose
    biases are quantiles of convolutions of training series. Neither is trained by gradients.

    Args:
        num_channels: Number of channels C.
        series_length: Length of the series, at least 9; dilations range from 1 to
            (series_length - 1) / 8. Longer and shorter series have features, too.
        num_features: Maximum number of features; F is the largest multiple of 84 below it or equal.
        max_dilations: Maximum number of dilations of a kernel.
        rngs: Random number generators; "params" chooses the subsets of channels.

    Attributes:
        num_features: Number of features F. They are ordered by dilation, kernel and bias.
        dilations: Increasing dilations, of which there are fewer than ``max_dilations`` if the
            series are short.
        features_per_kernel: Number of biases of each kernel, for each dilation.
        channels: Channels that a convolution sums, int32 [dilations, 84, min(C, 9)]; C stands for
            no further channel.
        biases: Biases float32 [F].

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from flax_linattn import inference, models
        >>> x = np.random.default_rng(0).normal(size=(4, 30, 3)).astype("float32")
        >>> model = models.MiniRocketFeatures.fit(x, num_features=500)
        >>> features, _ = inference.prefill(model, x)        # model(x), compiled
        >>> features.shape, model.dilations
        ((4, 420), (1, 2, 3))
        >>> stream = inference.Stream(model, batch_size=4)
        >>> for t in range(30):
        ...     y = stream.step(x[:, t])
        >>> bool(jnp.all(y == features))
        True
    """

    state_type = MiniRocketState
    option_names = ("num_channels", "series_length", "num_features", "max_dilations")

    def __init__(
        self,
        num_channels: int,
        series_length: int,
        *,
        num_features: int = 10_000,
        max_dilations: int = 32,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, num_channels=num_channels, max_dilations=max_dilations)
        check_integers(KERNEL_SIZE, series_length=series_length)
        check_integers(MINIROCKET_KERNELS, num_features=num_features)
        self.num_channels = int(num_channels)
        self.series_length = int(series_length)
        self.num_features = int(num_features) // MINIROCKET_KERNELS * MINIROCKET_KERNELS
        self.max_dilations = int(max_dilations)
        self.dilations, self.features_per_kernel = choose_dilations(
            self.series_length, self.num_features // MINIROCKET_KERNELS, self.max_dilations
        )
        shape = (len(self.dilations), MINIROCKET_KERNELS)
        self.channels = FittedVariable(_sample_channels(rngs.params(), shape, self.num_channels))
        self.biases = FittedVariable(jnp.zeros(self.num_features, jnp.float32))

    @classmethod
    def fit(
        cls,
        series: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        num_features: int = 10_000,
        max_dilations: int = 32,
        series_length: int | None = None,
        seed: int = 0,
    ) -> MiniRocketFeatures:
        """Makes a model whose biases are quantiles of convolutions of training series.

        Each kernel and dilation has quantiles of its own, from a sequence of low discrepancy, of
        the convolution of one random series.

        Args:
            series: Training series of shape [N, T, C].
            mask: Boolean array of shape [N, T]; True marks valid observations.
            num_features: Maximum number of features.
            max_dilations: Maximum number of dilations of a kernel.
            series_length: Length that decides the dilations. Default: that of the longest series.
            seed: Seed of the random choices of channels and series; a seed always gives the same
                model.

        Raises:
            ValueError: If the series are empty, shorter than 9, or not finite, or an option is out
                of range.
        """
        x, lengths = _training_series(series, mask)
        rngs = nnx.Rngs(params=seed)
        model = cls(
            x.shape[2],
            int(lengths.max()) if series_length is None else series_length,
            num_features=num_features,
            max_dilations=max_dilations,
            rngs=rngs,
        )
        channels = np.asarray(model.channels[...])
        examples = np.asarray(jax.random.randint(rngs.params(), channels.shape[:2], 0, len(x)))
        golden = (1 + np.sqrt(5)) / 2
        levels = np.arange(1, model.num_features + 1) * golden % 1
        biases: list[NDArray[np.float32]] = []
        for index, dilation in enumerate(model.dilations):
            chosen = examples[index]
            y = np.zeros((x.shape[1] + 8 * dilation, MINIROCKET_KERNELS), np.float32)
            inner = y[4 * dilation : 4 * dilation + x.shape[1]]
            for channel in channels[index].T:
                exists = channel < x.shape[2]
                inner[:, exists] += x[chosen[exists], :, channel[exists]].T
            own, levels = np.split(levels, [MINIROCKET_KERNELS * model.features_per_kernel[index]])
            convolved = convolve(y, dilation, WEIGHTS).T
            biases.append(
                _quantiles(convolved, lengths[chosen], own.reshape(MINIROCKET_KERNELS, -1))
            )
        model.biases[...] = jnp.asarray(np.concatenate(biases, axis=None))
        return model

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.num_channels,)

    @property
    def streams(self) -> bool:
        return True

    @property
    def constant_memory(self) -> bool:
        """True: the state has a bounded buffer, and a count for each feature."""
        return True

    @property
    def num_positions(self) -> int | None:
        return None

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> MiniRocketState:
        """Returns the state before the first observation; ``max_length`` has no effect."""
        sums = accumulation_dtype(dtype)
        return MiniRocketState(
            jnp.zeros(batch_size, jnp.int32),
            jnp.zeros((batch_size, 8 * self.dilations[-1], self.num_channels), sums),
            jnp.zeros((batch_size, self.num_features), jnp.int32),
        )

    def read(self, state: MiniRocketState) -> Float[Array, "B F"]:
        """Returns the features [B, F] of the observations so far; zeros before the first."""
        length, longest = state.num_observations, self.dilations[-1]
        z = jnp.pad(_time_first(state.recent), ((0, 4 * longest), (0, 0), (0, 0)))
        tails, lost = [], []
        for index, dilation in enumerate(self.dilations):
            # Padded convolutions at the last 4 x dilation observations: later inputs are zeros.
            near = z[8 * (longest - dilation) : 8 * longest + 4 * dilation]
            ages = 1 + np.arange(4 * dilation, dtype=np.int32)[::-1, None]
            tail = self._count(near, (length >= ages)[..., None], index, slice(index % 2, None, 2))
            pair = (tail, jnp.zeros_like(tail)) if index % 2 == 0 else (jnp.zeros_like(tail), tail)
            tails.append(jnp.stack(pair, axis=2).reshape(tail.shape[0], -1))
            width = self.features_per_kernel[index]
            lost.append(np.repeat(8 * dilation * _is_unpadded(index), width))
        num_positions = jnp.maximum(length[:, None] - np.concatenate(lost), 1)
        total, dtype = state.counts + jnp.concatenate(tails, axis=1), state.recent.dtype
        # The barrier hides numbers known in advance, which XLA would turn into reciprocals.
        return total.astype(dtype) / jax.lax.optimization_barrier(num_positions).astype(dtype)

    def _map(
        self, x: Array, call: Call, *, every_step: bool = False
    ) -> tuple[Array, MiniRocketState]:
        """Computes features [B, F], or [B, T, F], and the state after the last observation."""
        if not every_step:
            after = self._absorb(x, call.mask, call.state)
            return self.read(after), after

        return self.scan_steps(x, call, lambda features, _: features)

    def scan_steps(
        self, x: Array, call: Call, read: Callable[[Array, Array], Any]
    ) -> tuple[Any, MiniRocketState]:
        """Computes ``read(features, num_observations)`` after every observation.

        Returns outputs, whose leaves are [B, T, ...], and the state after the last observation.
        """

        def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Any]:
            y, state = self._map_step(inputs[0], state, inputs[1])
            return state, read(y, state.num_observations)

        mask = jnp.ones(x.shape[:2], bool) if call.mask is None else call.mask
        inputs = jnp.swapaxes(x, 0, 1), jnp.swapaxes(mask, 0, 1)
        before: Any = call.state or self.init_state(x.shape[0], dtype=x.dtype)
        after, outputs = jax.lax.scan(step, before, inputs)
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), outputs), after

    def _map_step(
        self, x: Array, state: MiniRocketState, mask: Array | None
    ) -> tuple[Array, MiniRocketState]:
        """Computes features [B, F] and the new state."""
        mask = None if mask is None else mask[:, None]
        after = self._absorb(zero_padding(x[:, None], mask), mask, state)
        return self.read(after), after

    def _check_packs(self) -> None:
        """Raises a ValueError: packed sequences are not supported."""
        raise ValueError(
            "MiniRocketFeatures does not support packed sequences; pass each series in its own row."
        )

    def _absorb(
        self, x: Array, mask: Array | None, before: MiniRocketState | None
    ) -> MiniRocketState:
        """Returns the state after observations [B, T, C], which are 0 where masked."""
        batch_size, num_steps, _ = x.shape
        state = before or self.init_state(batch_size, dtype=x.dtype)
        num_valid = jnp.full(batch_size, num_steps, jnp.int32)
        if mask is not None:
            num_valid = jnp.sum(mask, axis=1, dtype=jnp.int32)
            order = jnp.argsort(~mask, axis=1, stable=True)  # valid observations come first
            x = jnp.take_along_axis(x, order[..., None], axis=1)
        history = state.recent.shape[1]
        recent = jnp.concatenate([state.recent, x.astype(state.recent.dtype)], axis=1)
        z, steps = _time_first(recent), np.arange(num_steps, dtype=np.int32)[:, None]
        position = state.num_observations + steps
        counts = []
        for index, dilation in enumerate(self.dilations):
            # An observation completes the convolutions centered 4 x dilation before it. They exist
            # after as many observations, or twice as many without padding. In a new series nothing
            # exists before.
            reach = 4 * dilation * (1 + _is_unpadded(index))
            first = min(4 * dilation, num_steps) if before is None else 0
            exists = (position[first:, :, None] >= reach) & (steps < num_valid)[first:, :, None]
            count = self._count(z[history - 8 * dilation + first :], exists, index)
            counts.append(count.reshape(batch_size, -1))
        if mask is None:
            recent = recent[:, num_steps:]
        else:
            last = num_valid[:, None] + np.arange(history, dtype=np.int32)
            recent = jnp.take_along_axis(recent, last[..., None], axis=1)
        return MiniRocketState(
            state.num_observations + num_valid,
            recent,
            state.counts + jnp.concatenate(counts, axis=1),
        )

    def _count(
        self, z: Array, exists: Array, index: int, kernels: slice = slice(None)
    ) -> Int[Array, "B K N"]:
        """Counts positions whose convolution exceeds each bias.

        Args:
            z: Observations of shape [P + 8 dilation, B, C + 1], see ``_time_first``.
            exists: Boolean array of shape [P, B, K] or [P, B, 1]; True marks positions to count.
            index: Index of the dilation.
            kernels: Kernels K to convolve by.
        """
        width = self.features_per_kernel[index]
        start = MINIROCKET_KERNELS * sum(self.features_per_kernel[:index])
        biases = self.biases[start : start + MINIROCKET_KERNELS * width]
        biases = biases.reshape(MINIROCKET_KERNELS, width)[kernels].T.astype(z.dtype)
        counts = jnp.zeros((z.shape[1], *biases.shape), jnp.int32)
        if not len(exists):
            return jnp.swapaxes(counts, 1, 2)
        y = z[..., :1]
        if self.num_channels > 1:
            y = sum_channels(z, self.channels[index, kernels])
        convolved = convolve(y, self.dilations[index], WEIGHTS[kernels])
        convolved = jnp.where(exists, convolved, -jnp.inf)

        def count(counts: Array, values: Array) -> tuple[Array, None]:
            return counts + (values[:, None] > biases).astype(jnp.int32), None

        # A sum over positions would be one line, but XLA takes ten times as long for it on a CPU.
        counts, _ = jax.lax.scan(count, counts, convolved)
        return jnp.swapaxes(counts, 1, 2)


def choose_dilations(
    series_length: int, features_per_kernel: int, max_dilations: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns dilations, and how many features of a kernel each of them has.

    Exponents are evenly spaced, up to the dilation whose kernel is as long as the series. Small
    dilations occur repeatedly when rounded down, and have as many more features.

    Example:
        >>> choose_dilations(30, 119, 32)
        ((1, 2, 3), (64, 37, 18))
    """
    count = min(features_per_kernel, max_dilations)
    max_exponent = np.log2((series_length - 1) / (KERNEL_SIZE - 1))
    powers = np.logspace(0, max_exponent, count, base=2).astype(np.int64)
    dilations, repeats = np.unique(powers, return_counts=True)
    widths = (repeats * (features_per_kernel / count)).astype(np.int64)
    # What rounding down leaves is given out from the smallest dilation.
    missing = features_per_kernel - widths.sum()
    widths += missing // len(widths) + (np.arange(len(widths)) < missing % len(widths))
    return tuple(dilations.tolist()), tuple(widths.tolist())


def convolve(y: A, dilation: int, weights: NDArray[np.float32]) -> A:
    """Convolves series [P + 8 dilation, ..., K] by kernels [K, 9], to [P, ..., K].

    The sum has a fixed order, and products with -1 and 2 are exact, so that NumPy and all programs
    of XLA, with fused multiply-add or without, give the same bits.

    Example:
        >>> convolve(np.arange(18, dtype=np.float32)[:, None], 2, WEIGHTS[:1]).tolist()
        [[-54.0], [-54.0]]
    """
    num_positions = y.shape[0] - (KERNEL_SIZE - 1) * dilation
    total: Any = 0
    for tap, weight in enumerate(weights.T.astype(y.dtype)):
        total = total + weight * y[tap * dilation : tap * dilation + num_positions]
    return total


def sum_channels(z: Array, channels: Int[Array, "K M"]) -> Float[Array, "P B K"]:
    """Sums the channels [K, M] of each kernel, in their order, of z [P, B, C].

    Example:
        >>> z = jnp.array([[[1.0, 10.0, 100.0]]])
        >>> sum_channels(z, jnp.array([[0, 1], [2, 0]])).tolist()
        [[[11.0, 101.0]]]
    """

    def add(total: Array, chosen: Array) -> tuple[Array, None]:
        return total + jnp.take(z, chosen, axis=2, mode="clip"), None

    total = jnp.zeros((*z.shape[:2], channels.shape[0]), z.dtype)
    return jax.lax.scan(add, total, channels.T)[0]


def _time_first(x: Array) -> Array:
    """Returns [P, B, C + 1] of observations [B, P, C]; the additional channel is 0."""
    return jnp.pad(jnp.swapaxes(x, 0, 1), ((0, 0), (0, 0), (0, 1)))


def _is_unpadded(index: int) -> NDArray[np.int32]:
    """Returns 1 for kernels [84] without padding at the dilation of this index, 0 for others."""
    return ((np.arange(MINIROCKET_KERNELS) + index) % 2).astype(np.int32)


@partial(jax.jit, static_argnums=(1, 2))  # one program instead of a dozen
def _sample_channels(key: Array, shape: tuple[int, ...], num_channels: int) -> Array:
    """Samples subsets of channels, int32 [*shape, M].

    The logarithm of a size is uniform; sizes range from 1 to M = min(C, 9). Entries beyond the size
    are C.
    """
    max_size = min(num_channels, MAX_CHANNELS)
    size_key, order_key = jax.random.split(key)
    exponents = jax.random.uniform(size_key, (*shape, 1)) * np.float32(np.log2(max_size + 1))
    sizes = jnp.minimum(jnp.exp2(exponents).astype(jnp.int32), max_size)
    order = jnp.argsort(jax.random.uniform(order_key, (*shape, num_channels)), axis=-1)
    channels = order[..., :max_size].astype(jnp.int32)
    return jnp.where(np.arange(max_size) < sizes, channels, np.int32(num_channels))


def move_valid_first(
    x: NDArray[np.float32], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Moves valid observations of series [N, T, C] to the front, and counts them, [N].

    Example:
        >>> x, lengths = move_valid_first(np.float32([[[5], [6], [7]]]), np.array([[0, 1, 1]]) > 0)
        >>> x[0, :, 0].tolist(), lengths.tolist()
        ([6.0, 7.0, 0.0], [2])
    """
    order = np.argsort(~valid, axis=1, kind="stable")
    x = np.take_along_axis(np.where(valid[..., None], x, 0), order[..., None], axis=1)
    return x, valid.sum(axis=1)


def _training_series(
    series: ArrayLike, mask: ArrayLike | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns series [N, T, C], 0 and valid observations first, and their lengths [N]."""
    check_array("[N, T, C]", series=series)
    x = np.asarray(series, np.float32)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"expected series [N, T, C], none of them 0, got shape {x.shape}.")
    lengths = np.full(len(x), x.shape[1])
    if mask is not None:
        valid = np.asarray(check_mask("mask", jnp.asarray(mask), x.shape[:2]))
        x, lengths = move_valid_first(x, valid)
    if lengths.min() < 1 or lengths.max() < KERNEL_SIZE:
        raise ValueError(
            f"expected series of which the longest has at least {KERNEL_SIZE} observations, and "
            f"the shortest 1, got lengths from {lengths.min()} to {lengths.max()}; remove series "
            "without observations, or pad short ones with zeros."
        )
    if not np.isfinite(x).all():
        raise ValueError("expected finite series, got NaN or infinity; fill missing values first.")
    return x, lengths


def _quantiles(
    values: NDArray[np.float32], lengths: NDArray[np.int64], levels: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Returns quantiles [K, N] at levels [K, N] of the first values of each row [K, T]."""
    values = np.sort(np.where(np.arange(values.shape[1]) < lengths[:, None], values, np.inf))
    place = levels * (lengths[:, None] - 1)
    lower = place.astype(np.int64)
    upper = np.minimum(lower + 1, lengths[:, None] - 1)
    low, high = (np.take_along_axis(values, i, axis=1).astype(np.float64) for i in (lower, upper))
    return (low + (high - low) * (place - lower)).astype(np.float32)
