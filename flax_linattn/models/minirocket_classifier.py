"""Classifier on MiniRocket features with linear maps in closed form, and attention next to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.models.classifier import SequenceClassifier
from flax_linattn.models.closed_form import RidgeFit, fit_ridge, fit_weights
from flax_linattn.models.minirocket import (
    KERNEL_SIZE,
    MiniRocketFeatures,
    MiniRocketState,
    move_valid_first,
)
from flax_linattn.models.perceiver import PerceiverReader
from flax_linattn.models.sequence_model import SequenceModel
from flax_linattn.models.sizes import MINIROCKET_FEATURES, MINIROCKET_KERNELS
from flax_linattn.nn.call import Call
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array

NO_THRESHOLD = 2.0
"""Probability that no class reaches, so that a stream never decides."""
MIN_WEIGHT = 1e-3
"""Minimum weight of the scores of a linear map in the logits."""
MAX_BLOCK_NUMBERS = 2**26
"""Maximum numbers of a convolution of a block of series, in ``fit``."""
MAX_BLOCK_ROWS = 256
"""Maximum rows of a block of series, in ``fit``."""


@register_state
class MiniRocketClassifierState(NamedTuple):
    """States of the features and of the attention of a :class:`MiniRocketClassifier`.

    Attributes:
        features: State of the features.
        attention: State of the attention classifier; None without one.
    """

    features: MiniRocketState
    attention: Any


class MiniRocketClassifier(SequenceModel):
    """Classifies a time series after every observation, by MiniRocket features and attention.

    Linear maps from :class:`MiniRocketFeatures` to class scores are fitted in closed form: ridge
    regression to targets 1 and -1, as the authors of MiniRocket use it on small data. A feature of
    the first n observations has another distribution than of the whole series, so there is a map
    for each of several prefix lengths, fitted to the training series cut to that length. Between
    two prefix lengths the logits of their maps are interpolated linearly. If training series have
    different lengths, the map of the longer prefix is used instead, because it is fitted to series
    that end in between, too. Logits are a weighted sum of the scores and of the logarithms of the
    class frequencies; the weights minimize the cross-entropy of the leave-one-out scores.

    If training series have different lengths, the length of a finished series is informative.
    :meth:`finish` then uses a linear map that was fitted to whole series and their lengths.

    The logits of an attention classifier may be added. It is trained by gradients on its own,
    because the linear maps fit the training series almost perfectly. Before ``fit`` it answers
    alone, after ``fit`` the linear maps do; ``weights`` may then be set on held-out series.

    A call returns logits [B, classes] after the last observation. With ``ended=True``, they are the
    logits of finished series (see :meth:`finish`). With ``every_step`` it returns [B, T, classes]
    after every observation, by a loop over the observations.

    Args:
        num_channels: Number of channels C.
        num_classes: Number of classes.
        series_length: Length of the longest training series. It defines the dilations of the
            features, and the prefix lengths: fractions 1 / P, 2 / P, ..., 1 of it, rounded up.
        num_features: Maximum number of features, see :class:`MiniRocketFeatures`.
        max_dilations: Maximum number of dilations of a kernel.
        num_prefixes: Maximum number P of prefix lengths.
        attention: Classifier of the same channels and classes whose logits are added; default none.
        rngs: Random number generators; "params" initializes the parameters.

    Attributes:
        features: The features.
        prefix_lengths: Increasing prefix lengths; the last is ``series_length``.
        kernel: Linear maps float32 [P, F, classes].
        bias: Biases float32 [P, classes].
        whole_kernel: Linear map of whole series, float32 [2, F, classes]: of the features, and of
            their products with the length of the series divided by ``series_length``.
        whole_bias: Its bias, float32 [classes].
        weights: Weights of the logits of a linear map and of the attention, float32 [P, 2].
        interpolates: True if all training series have one length. Logits are then interpolated
            between prefix lengths, and :meth:`finish` returns them unchanged. bool [].
        held_out_accuracy: Leave-one-out accuracy of the linear maps at the end of the training
            series, float32 []; 0 before ``fit``.
        threshold: Probability of the most likely class at which a stream decides, float32 [];
            above 1 if it never does.

    Raises:
        ValueError: If an option is out of range, or the attention has other channels or classes.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> labels = np.arange(40) % 2
        >>> noise = np.random.default_rng(0).normal(size=(40, 30, 3)).astype("float32")
        >>> x = np.where(labels[:, None, None] == 1, noise.cumsum(axis=1), noise)
        >>> model = models.MiniRocketClassifier(3, 2, 30, rngs=nnx.Rngs(0))
        >>> held_out = model.fit(x, labels)                     # [N, prefixes + 1, classes]
        >>> bool(np.mean(held_out[:, -1].argmax(axis=-1) == labels) > 0.9)
        True
        >>> stream = inference.Stream(model, batch_size=40)
        >>> for t in range(30):
        ...     logits = stream.step(x[:, t])
        >>> bool(jnp.allclose(logits, model(jnp.asarray(x)), atol=1e-5))
        True
    """

    state_type = MiniRocketClassifierState
    option_names = (
        *("num_channels", "num_classes", "series_length", "num_features", "max_dilations"),
        *("num_prefixes", "attention"),
    )

    def __init__(
        self,
        num_channels: int,
        num_classes: int,
        series_length: int,
        *,
        num_features: int = MINIROCKET_FEATURES,
        max_dilations: int = 32,
        num_prefixes: int = 10,
        attention: SequenceClassifier | PerceiverReader | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(
            1, num_classes=num_classes, num_prefixes=num_prefixes, series_length=series_length
        )
        self.features = MiniRocketFeatures(
            num_channels,
            max(series_length, KERNEL_SIZE),
            num_features=num_features,
            max_dilations=max_dilations,
            rngs=rngs,
        )
        self.num_channels = int(num_channels)
        self.num_classes = int(num_classes)
        self.series_length = int(series_length)
        self.num_features = int(num_features)
        self.max_dilations = int(max_dilations)
        self.num_prefixes = int(num_prefixes)
        fractions = np.arange(1, self.num_prefixes + 1) / self.num_prefixes
        lengths = np.unique(np.ceil(self.series_length * fractions - 1e-6).astype(int))
        self.prefix_lengths: tuple[int, ...] = tuple(lengths.tolist())
        _check_attention(attention, self.num_channels, self.num_classes)
        self.attention: Any = attention
        shape = (len(lengths), self.features.num_features, self.num_classes)
        self.kernel = FittedVariable(jnp.zeros(shape, jnp.float32))
        self.bias = FittedVariable(jnp.zeros((len(lengths), self.num_classes), jnp.float32))
        self.whole_kernel = FittedVariable(jnp.zeros((2, *shape[1:]), jnp.float32))
        self.whole_bias = FittedVariable(jnp.zeros(self.num_classes, jnp.float32))
        # Before fit the linear maps are 0.
        weights = [1.0, 0.0] if attention is None else [0.0, 1.0]
        self.weights = FittedVariable(jnp.tile(jnp.array(weights), (len(lengths), 1)))
        self.interpolates = FittedVariable(jnp.ones((), bool))
        self.held_out_accuracy = FittedVariable(jnp.zeros((), jnp.float32))
        self.threshold = FittedVariable(jnp.full((), NO_THRESHOLD, jnp.float32))

    def fit(
        self,
        series: ArrayLike,
        labels: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        example_weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> NDArray[np.float32]:
        """Fits features, linear maps and weights of their scores; the attention is unchanged.

        Args:
            series: Training series of shape [N, T, C].
            labels: Classes [N], integers from 0.
            mask: Boolean array of shape [N, T]; True marks valid observations.
            example_weights: Positive weights [N] of the series in the ridge; default 1.
            seed: Seed of the features.

        Returns:
            Logits float32 [N, prefixes + 1, classes] of each series after each prefix length, or at
            its end if it is shorter, and by :meth:`finish`, all by linear maps that are fitted to
            the other series (leave-one-out).

        Raises:
            ValueError: If the shapes do not match, there are fewer than two series, series are
                empty, not finite or longer than ``series_length``, or a label or weight is out of
                range.
        """
        x, lengths, y = self._check_fit(series, labels, mask)
        factors = None if example_weights is None else np.asarray(example_weights, np.float64)
        if factors is not None and (
            factors.shape != y.shape or not np.isfinite(factors).all() or factors.min() <= 0
        ):
            raise ValueError(
                f"expected positive example_weights of shape {y.shape}, got shape {factors.shape} "
                "or numbers that are not positive and finite."
            )
        missing = max(KERNEL_SIZE - int(lengths.max()), 0)
        fitted = MiniRocketFeatures.fit(
            np.pad(x, ((0, 0), (0, missing), (0, 0))),
            mask=np.arange(x.shape[1] + missing) < lengths[:, None] + missing,
            num_features=self.num_features,
            max_dilations=self.max_dilations,
            series_length=self.features.series_length,
            seed=seed,
        )
        nnx.update(self.features, nnx.state(fitted))
        k = self.num_classes
        counts = np.bincount(y, factors, minlength=k)
        log_prior = np.log((counts + 1) / (counts + 1).sum())

        def fit_map(features: NDArray[np.float32]) -> RidgeFit:
            scale = features.std(axis=0, dtype=np.float64).astype(np.float32)
            # Standardized, a feature that varies only by rounding would be huge in other series.
            scale = np.where(scale > 1e-6 * np.abs(features).max(axis=0), scale, 1)
            fit = fit_ridge(features / scale, y, k, factors)
            # Without the prior, a small weight of unhelpful scores would make a uniform guess. A
            # weight of 0 would also lose which class has the highest score.
            scores = np.stack([fit.held_out_scores, np.broadcast_to(log_prior, (len(y), k))])
            weight, of_prior = np.maximum(fit_weights(scores, y), MIN_WEIGHT)
            return RidgeFit(
                weight * fit.kernel / scale[:, None],
                weight * fit.bias + of_prior * log_prior,
                weight * fit.held_out_scores + of_prior * log_prior,
            )

        maps, features = [], np.zeros(0, np.float32)
        for features in _iterate_features(self.features, x, lengths, self.prefix_lengths):
            maps.append(fit_map(features))
        whole, is_equal = maps[-1], bool(lengths.min() == self.series_length)
        if not is_equal:
            fraction = np.float32(lengths[:, None] / self.series_length)
            whole = fit_map(np.concatenate([features, features * fraction], axis=1))
            self.whole_kernel[...] = jnp.asarray(whole.kernel.reshape(2, -1, k), jnp.float32)
            self.whole_bias[...] = jnp.asarray(whole.bias, jnp.float32)
        self.kernel[...] = jnp.asarray(np.stack([each.kernel for each in maps]), jnp.float32)
        self.bias[...] = jnp.asarray(np.stack([each.bias for each in maps]), jnp.float32)
        self.interpolates[...] = jnp.asarray(is_equal)
        self.weights[...] = jnp.tile(jnp.array([1.0, 0.0]), (len(maps), 1))
        self.threshold[...] = jnp.full((), NO_THRESHOLD, jnp.float32)
        hits = whole.held_out_scores.argmax(axis=-1) == y
        self.held_out_accuracy[...] = jnp.float32(hits.mean())
        scores = [each.held_out_scores for each in (*maps, whole)]
        return np.stack(scores, axis=1).astype(np.float32)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.num_channels,)

    @property
    def streams(self) -> bool:
        return self.attention is None or self.attention.streams

    @property
    def num_positions(self) -> int | None:
        return None if self.attention is None else self.attention.num_positions

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> MiniRocketClassifierState:
        """Returns the state before the first observation; ``max_length`` is for the attention."""
        attention = None
        if self.attention is not None:
            attention = self.attention.init_state(batch_size, max_length, dtype=dtype)
        return MiniRocketClassifierState(
            self.features.init_state(batch_size, dtype=dtype), attention
        )

    def read(
        self, features: Float[Array, "B F"], num_observations: Int[Array, "B"]
    ) -> Float[Array, "B classes"]:
        """Computes the logits of the linear maps from features of the observations so far."""
        logits = jnp.einsum("bf,pfk->bpk", features, self.kernel[...].astype(features.dtype))
        logits = logits + self.bias[...].astype(logits.dtype)
        return jnp.einsum("bp,bpk->bk", self._coefficients(num_observations, logits.dtype), logits)

    def finish(
        self, logits: Float[Array, "B classes"], state: MiniRocketClassifierState
    ) -> Float[Array, "B classes"]:
        """Computes the logits of finished series.

        Replaces the linear map of the last prefix by the map of whole series, with the same weight.
        A length above ``series_length`` counts as ``series_length``.

        Args:
            logits: Logits after the last observation.
            state: State after the last observation.
        """
        features, count = self.features.read(state.features), state.features.num_observations
        weight = self._weights_at(count, features.dtype)[:, :1]
        change = self._end(self.read(features, count), features, count)
        return logits + (weight * change).astype(logits.dtype)

    def _end(self, logits: Array, features: Array, num_observations: Array) -> Array:
        """Computes what the map of whole series adds to the logits of ``read``."""
        kernel, bias = self.whole_kernel[...].astype(features.dtype), self.whole_bias[...]
        length = jnp.minimum(num_observations.astype(features.dtype) / self.series_length, 1)
        whole = features @ kernel[0] + length[:, None] * (features @ kernel[1])
        return jnp.where(self.interpolates[...], 0, whole + bias.astype(whole.dtype) - logits)

    def _weights_at(self, num_observations: Array, dtype: Any) -> Array:
        """Weights [B, 2] of the linear map and of the attention."""
        return self._coefficients(num_observations, dtype) @ self.weights[...].astype(dtype)

    def _coefficients(self, num_observations: Int[Array, "..."], dtype: Any) -> Array:
        """Coefficients [..., P] of the maps of the two nearest prefix lengths.

        The map of the longer prefix alone is bad just after a prefix length if all series go on:
        features of kernels that are as long as the series so far change abruptly.
        """
        lengths = np.asarray(self.prefix_lengths, dtype)
        beyond = num_observations[..., None].astype(dtype) - lengths[:-1]
        linear = jnp.clip(beyond / np.diff(lengths), 0, 1)
        steps = jnp.where(self.interpolates[...], linear, (beyond > 0).astype(dtype))
        place = jnp.sum(steps, axis=-1, keepdims=True)
        return jnp.maximum(1 - jnp.abs(place - np.arange(len(lengths), dtype=dtype)), 0)

    def _map(
        self, x: Array, call: Call, *, every_step: bool = False, ended: bool = False
    ) -> tuple[Array, MiniRocketClassifierState]:
        """Computes logits [B, classes], or [B, T, classes], and the state at the end.

        ``ended`` says that the series end here, see ``finish``.
        """
        if ended and every_step:
            raise ValueError("expected every_step or ended, got both; pass one of them.")
        state: MiniRocketClassifierState | None = call.state
        before = None if state is None else state.features
        own = Call(mask=call.mask, state=before)
        if every_step:
            (logits, counts), after = self.features.scan_steps(
                x, own, lambda features, count: (self.read(features, count), count)
            )
        else:
            features, after = self.features._map(x, own)
            counts = after.num_observations
            logits = self.read(features, counts)
            if ended:
                logits = logits + self._end(logits, features, counts)
        added = None
        if self.attention is not None:
            call = call.replace(state=None if state is None else state.attention)
            others, added = self.attention._map(x, call, every_step=every_step)
            logits = self._combine(logits, others, counts)
        return logits, MiniRocketClassifierState(after, added)

    def _map_step(
        self, x: Array, state: MiniRocketClassifierState, mask: Array | None
    ) -> tuple[Array, MiniRocketClassifierState]:
        """Computes logits [B, classes] and the new state."""
        features, after = self.features._map_step(x, state.features, mask)
        logits, added = self.read(features, after.num_observations), None
        if self.attention is not None:
            others, added = self.attention._map_step(x, state.attention, mask)
            logits = self._combine(logits, others, after.num_observations)
        return logits, MiniRocketClassifierState(after, added)

    def _combine(self, logits: Array, others: Array, num_observations: Array) -> Array:
        weights = self._weights_at(num_observations, logits.dtype)
        # Attention that overflows has no effect where it is not used.
        added = jnp.where(weights[..., 1:] > 0, others.astype(logits.dtype), 0)
        return weights[..., :1] * logits + weights[..., 1:] * added

    def _check_packs(self) -> None:
        """Raises a ValueError: packed sequences are not supported."""
        self.features._check_packs()

    def _check_streams(self) -> None:
        if self.attention is not None:
            self.attention._check_streams()

    def _check_fit(
        self, series: ArrayLike, labels: ArrayLike, mask: ArrayLike | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Returns series [N, T, C], valid observations first, their lengths [N] and labels [N]."""
        x, y = np.asarray(series, np.float32), np.asarray(labels)
        if x.ndim != 3 or x.shape[2] != self.num_channels or 0 in x.shape:
            raise ValueError(
                f"expected series [N, T, {self.num_channels}], none of them 0, got shape {x.shape}."
            )
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu" or len(y) < 2:
            raise ValueError(
                f"expected an integer label for each of at least two series, got labels of shape "
                f"{y.shape} and dtype {y.dtype} for {len(x)} series."
            )
        if y.min() < 0 or y.max() >= self.num_classes:
            raise ValueError(
                f"expected labels from 0 to {self.num_classes - 1}, got labels from {y.min()} to "
                f"{y.max()}."
            )
        valid = np.ones(x.shape[:2], bool) if mask is None else np.asarray(mask, bool)
        if valid.shape != x.shape[:2]:
            raise ValueError(f"expected a mask of shape {x.shape[:2]}, got {valid.shape}.")
        if (empty := ~valid.any(axis=1)).any():
            raise ValueError(
                f"expected an observation in each series, got none in series {empty.argmax()}; "
                "remove this series."
            )
        if (longest := int(valid.sum(axis=1).max())) > self.series_length:
            raise ValueError(
                f"expected series of at most series_length={self.series_length} observations, got "
                f"{longest}; make the model with series_length={longest}."
            )
        x, lengths = move_valid_first(x, valid)
        return x, lengths, y.astype(np.int64)


def _check_attention(attention: Any, num_channels: int, num_classes: int) -> None:
    if attention is None:
        return
    outputs = getattr(attention, "num_classes", getattr(attention, "num_outputs", None))
    given = attention.observation_shape, outputs
    if given != ((num_channels,), num_classes):
        raise OptionError(
            f"expected attention of {num_channels} channels and {num_classes} classes, got "
            f"observations of shape {given[0]} and {given[1]} classes.",
            "attention",
        )


def _iterate_features(
    model: MiniRocketFeatures,
    x: NDArray[np.float32],
    lengths: NDArray[np.integer],
    prefix_lengths: Sequence[int],
) -> Iterator[NDArray[np.float32]]:
    """Yields the features [N, F] of series [N, T, C] after each prefix length.

    Blocks of series have states, which continue from prefix to prefix. All blocks have one shape,
    so that the program is compiled once.
    """
    parts = nnx.split(model)
    begins, ends = (0, *prefix_lengths[:-1]), prefix_lengths
    width = int(np.max(np.subtract(ends, begins)))
    height = MAX_BLOCK_NUMBERS // (MINIROCKET_KERNELS * width)
    height = max(1, min(height, MAX_BLOCK_ROWS, len(x)))
    blocks = [
        np.minimum(np.arange(first, first + height), len(x) - 1)
        for first in range(0, len(x), height)
    ]
    states: list[Any] = [model.init_state(height) for _ in blocks]
    missing = max(ends[-1] - x.shape[1], 0)
    x = np.pad(x, ((0, 0), (0, missing + width), (0, 0)))
    for begin, end in zip(begins, ends, strict=True):
        steps, features = np.arange(begin, begin + width), []
        for index, rows in enumerate(blocks):
            mask = (steps < end) & (steps < lengths[rows, None])
            y, states[index] = _call(*parts, x[rows, begin : begin + width], mask, states[index])
            features.append(np.asarray(y))
        yield np.concatenate(features)[: len(x)]


@partial(jax.jit, static_argnums=0)
def _call(
    graphdef: nnx.GraphDef[Any], variables: Any, x: Array, mask: Array, state: MiniRocketState
) -> tuple[Array, MiniRocketState]:
    model: MiniRocketFeatures = nnx.merge(graphdef, variables)
    return model(x, mask=mask, state=state, return_state=True)
