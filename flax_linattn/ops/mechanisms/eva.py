"""EVA: Zheng, Yuan, Wang and Kong, "Efficient Attention via Control Variates", 2023.

One softmax over the tokens of a query's window, exactly, and over C chunks of the sequence, each of
which is a control variate: a query attends to one key and one value of chunk c,

    y_i = [sum over j in E(i) of e^(q_i k_j) v_j + sum_c e^(q_i kbar_c) beta_c(omega_c)] / Z
    beta_c(omega) = sum over j in c of xi(k_j, omega) v_j / sum over j in c of xi(k_j, omega)

with Z the sum of both kinds of weights. Symbols against the paper's:

=============  ==============================================================
here           paper
=============  ==============================================================
window_size w  E(i): windows of w tokens divide the sequence; token i attends
               to its own window and to ``overlap`` tokens on both sides
num_chunks     C; chunk c, P_c, also reaches ``overlap`` tokens beyond
x              q or k times sqrt(scale), that is K**-0.25 by default
xi(k, omega)   exp(omega . k - |k|^2 / 2), the positive random feature
kbar_c         A_k mean_c(k) + b_k, with A_k ``mean_key_kernel`` (transposed),
               b_k ``mean_key_bias``; learned, shared by the heads
omega_c        (A_q mean_c(q) + b_q + kbar_c) / 2 + ``noise``
=============  ==============================================================

This is the variant of the official code that the TaylorShift experiments ran: windows of 8 that
overlap by half, 49 chunks, linear maps without normalization ("no-ln"), no position biases. As
there, means divide by the width of a chunk with both overlaps, even beyond the ends of the
sequence; and scale is in xi once, so ``noise`` has K**-0.25 times the paper's standard deviation.
Without ``noise`` omega is its mean, as in that code's evaluation: attention is a function of its
arguments, and layers never pass noise, not even in training.

Departures: positions count valid tokens, so padding anywhere changes nothing; C chunks divide them
evenly, where that code takes N // C tokens at a time, which may give more than C chunks, omits
tokens, and fails below C tokens; a query ignores chunks within its window, whose tokens it attends
to exactly (chunks that overlap it have their whole weight, as there); ``noise`` is one sample for
all sequences of a batch. Keys and omega are clipped to 7e10 in xi, since their squares must fit
float32.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.numerics import (
    ScoreScale,
    einsum,
    exp_difference,
    safe_divide,
    scores,
)
from flax_linattn.ops.engine.features import clip_key
from flax_linattn.ops.engine.stateless import Sequences, StatelessMechanism
from flax_linattn.ops.engine.tiles import fill, gather_time, join_tiles, split_tiles
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible

_MAPS = {
    "mean_query_kernel": ("K", "K"),
    "mean_query_bias": ("K",),
    "mean_key_kernel": ("K", "K"),
    "mean_key_bias": ("K",),
}
_AXES = {**_MAPS, "noise": ("H", "num_chunks", "K")}


class _Chunks(NamedTuple):
    """Keys and values of the chunks' control variates.

    Attributes:
        key: Keys kbar of shape [B, C, H, K].
        value: Values beta of shape [B, C, H, V].
        first: Integer array of shape [B, C], position of the first token of a chunk.
        last: Position after the last token of a chunk; equal to ``first`` if the chunk is empty.
    """

    key: Array
    value: Array
    first: Array
    last: Array


@dataclasses.dataclass(frozen=True)
class EVA(ScoreScale, StatelessMechanism):
    """Windowed attention with control variates (module docstring: symbols, departures).

    Further arguments of ``attend``: ``mean_query_kernel`` and ``mean_key_kernel`` [K, K],
    ``mean_query_bias`` and ``mean_key_bias`` [K], which layers learn (default: identity maps),
    ``noise`` [H, C, K] of standard normal numbers (default: none), and ``scale``.

    Attributes:
        window_size: Tokens per window, w.
        num_chunks: Number of chunks C; with fewer tokens, each token is a chunk.
        overlap: Number of tokens by which windows and chunks reach beyond their borders; None means
            half a window, at least 1.
        scale: Positive factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> eva = ops.get_mechanism("eva", window_size=4, num_chunks=3)
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 20, 4, 8))
        >>> y = eva.attend(q, k, v)
        >>> y.shape
        (2, 20, 4, 8)
        >>> noise = jax.random.normal(jax.random.key(1), (4, 3, 8))
        >>> bool(jnp.allclose(eva.attend(q, k, v, noise=noise), y))
        False
        >>> eva.attend(q, k, v, is_causal=True)
        Traceback (most recent call last):
        ...
        ValueError: 'eva' has no causal form; use is_causal=False.
    """

    name: ClassVar[str] = "eva"
    about: ClassVar[str] = (
        "windowed softmax attention with control variates for the rest, for whole sequences only "
        "(Zheng et al., 2023)"
    )
    capabilities: ClassVar[Capabilities] = dataclasses.replace(
        StatelessMechanism.capabilities, cross=False
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale", *_MAPS, "noise")

    window_size: int = 8
    num_chunks: int = 49
    overlap: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        check_integers(1, window_size=self.window_size, num_chunks=self.num_chunks)
        check_integers(0, overlap=self.overlap)
        _check_scale(self.scale)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        kernel, bias = jax.nn.initializers.normal(0.02), jax.nn.initializers.zeros
        return {
            name: LearnedParameter((key_dim,) * len(axes), kernel if len(axes) == 2 else bias)
            for name, axes in _MAPS.items()
        }

    def mix(self, whole: Sequences) -> Outputs:
        mask, parameters = whole.mask, whole.parameters
        rank = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        count = rank[:, -1] + 1
        order = jnp.argsort(~mask, axis=1, stable=True)  # valid tokens move to the front
        q, k, v = (gather_time(x, order) for x in (whole.q, whole.k, whole.v))
        scale = self._scale(q, parameters)
        chunks = self._chunks(q, k, v, count, scale, parameters)
        y = self._windows(q * scale, k, v, count, chunks)
        y = gather_time(y, jnp.maximum(rank, 0))
        return jnp.where(mask[:, :, None, None], y, jnp.zeros_like(y))

    def _chunks(
        self, q: Array, k: Array, v: Array, count: Array, scale: Array, parameters: Parameters
    ) -> _Chunks:
        """Computes the chunks of sequences of ``count`` [B] tokens, which come first."""
        (batch, length), overlap = k.shape[:2], self._overlap()
        max_chunks = min(self.num_chunks, length)
        number = jnp.arange(max_chunks + 1, dtype=jnp.int32)
        used = jnp.clip(count, 1, max_chunks)[:, None]
        border = -(-jnp.minimum(number, used) * count[:, None] // used)
        start, end = border[:, :-1], border[:, 1:]
        there = start < end
        first = jnp.where(there, jnp.maximum(start - overlap, 0), 0)
        last = jnp.where(there, jnp.minimum(end + overlap, count[:, None]), 0)

        widest = min(-(-length // max_chunks) + 2 * overlap, length)
        place = first[..., None] + jnp.arange(widest, dtype=jnp.int32)  # [B, C, tokens]
        inside = (place < last[..., None])[..., None, None]
        place = jnp.minimum(place, length - 1).reshape(batch, max_chunks * widest)

        def tokens(x: Array) -> Array:
            x = gather_time(x, place).reshape(batch, max_chunks, widest, *x.shape[2:])
            return jnp.where(inside, x, jnp.zeros_like(x))

        q, k, v = tokens(q), tokens(k), tokens(v)
        width = jnp.maximum(end - start + 2 * overlap, 1)[..., None, None].astype(k.dtype)
        q_mean, k_mean = (jnp.sum(x, axis=2) / width for x in (q, k))
        omega, key = self._proposal(q_mean, k_mean, parameters)
        omega, k = clip_key(omega), clip_key(k)
        # One product, because ``scores`` rounds a large one alike wherever it is used.
        omega = jnp.concatenate([omega, jnp.full_like(omega[..., :1], -0.5)], axis=-1)
        k = jnp.concatenate([k, jnp.sum(k * k, axis=-1, keepdims=True)], axis=-1)
        log_feature = scores(scale * omega, k, "bchk,bcshk->bcsh")
        weight = jax.nn.softmax(log_feature, axis=2, where=inside[..., 0])
        return _Chunks(key, einsum("bcsh,bcshv->bchv", weight, v), first, last)

    def _windows(self, q: Array, k: Array, v: Array, count: Array, chunks: _Chunks) -> Outputs:
        length, width, overlap = q.shape[1], self.window_size, self._overlap()
        begin = jnp.arange(-(-length // width), dtype=jnp.int32)[:, None] * width - overlap
        place = begin + jnp.arange(width + 2 * overlap, dtype=jnp.int32)  # [windows, tokens]

        def take_window(x: Array) -> Array:
            x = jnp.pad(fill(x, width), ((0, 0), (overlap, overlap), (0, 0), (0, 0)))
            return x[:, place + overlap]

        visible = (place >= 0) & (place < count[:, None, None])
        first, last = chunks.first[:, None], chunks.last[:, None]
        exact = (first >= begin) & (last <= begin + width + 2 * overlap)
        attended = jnp.concatenate([visible, (first < last) & ~exact], axis=2)[:, :, None, None]

        q, k, v = split_tiles(fill(q, width), width), take_window(k), take_window(v)
        local = scores(q, k, "bwthk,bwshk->bwhts")
        score = jnp.concatenate([local, scores(q, chunks.key, "bwthk,bchk->bwhtc")], axis=-1)
        score = jnp.where(attended, score, jnp.asarray(-jnp.inf, score.dtype))
        level = jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True))
        weight = exp_difference(score, level)
        weight = safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))
        tokens, rest = jnp.split(weight, [place.shape[1]], axis=-1)
        y = einsum("bwhts,bwshv->bwthv", tokens, v)
        return join_tiles(y + einsum("bwhtc,bchv->bwthv", rest, chunks.value), length)

    def _proposal(
        self, q_mean: Array, k_mean: Array, parameters: Parameters
    ) -> tuple[Array, Array]:
        """Computes omega and kbar of chunks, [..., C, H, K]."""
        heads, key_dim = k_mean.shape[-2:]
        sizes = {"H": heads, "num_chunks": self.num_chunks, "K": key_dim}
        own = {}
        for name, axes in _AXES.items():
            given = parameters.get(name)
            if given is None:
                continue
            shape = tuple(sizes[axis] for axis in axes)
            if given.shape != shape:
                raise ValueError(
                    f"{name} must have shape [{', '.join(axes)}] = {shape}, got {given.shape}."
                )
            own[name] = given.astype(k_mean.dtype)

        def mapped(x: Array, kernel: str, bias: str) -> Array:
            x = einsum("...k,kj->...j", x, own[kernel]) if kernel in own else x
            return x + own[bias] if bias in own else x

        query = mapped(q_mean, "mean_query_kernel", "mean_query_bias")
        key = mapped(k_mean, "mean_key_kernel", "mean_key_bias")
        omega = (query + key) / 2
        if "noise" in own:
            omega = omega + jnp.swapaxes(own["noise"], 0, 1)[: omega.shape[-3]]
        return omega, key

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        real = jnp.broadcast_to(jnp.any(visible, axis=1), k.shape[:2])
        scale, overlap = self._scale(q, parameters), self._overlap()
        number = jnp.arange(self.num_chunks)[:, None]

        def one_example(q: Array, k: Array, v: Array, real: Array) -> Array:
            n, rank = jnp.sum(real), jnp.cumsum(real) - 1
            used = jnp.minimum(n, self.num_chunks)
            # Token number r belongs to chunk c where c n <= r C < (c + 1) n.
            core = (number * n <= rank * used) & (rank * used < (number + 1) * n) & real
            first = jnp.min(jnp.where(core, rank, len(k)), axis=1, keepdims=True) - overlap
            last = jnp.max(jnp.where(core, rank, -1), axis=1, keepdims=True) + overlap
            chunk = jnp.any(core, axis=1, keepdims=True) & (first <= rank) & (rank <= last) & real
            begin = rank[:, None] // self.window_size * self.window_size - overlap
            window = (begin <= rank) & (rank < begin + self.window_size + 2 * overlap) & real
            beyond = jnp.einsum("cs,ts->tc", chunk.astype(q.dtype), (~window).astype(q.dtype))

            of_chunk = chunk[:, :, None, None].astype(q.dtype)
            width = jnp.maximum(jnp.sum(core, axis=1) + 2 * overlap, 1).astype(q.dtype)
            q_mean, k_mean = (jnp.sum(of_chunk * x, axis=1) / width[:, None, None] for x in (q, k))
            omega, key = self._proposal(q_mean, k_mean, parameters)
            # The square adds the constant -|omega|^2 / 2 to the exponent of xi: it cancels in beta.
            log_feature = -scale * jnp.sum(jnp.square(omega[:, None] - k), axis=-1) / 2
            beta = einsum("csh,shv->chv", softmax(log_feature, chunk[:, :, None], 1), v)
            score = jnp.concatenate(
                [einsum("thk,shk->ths", q * scale, x) for x in (k, key)], axis=2
            )
            weight = softmax(score, jnp.concatenate([window, beyond > 0], axis=1)[:, None], 2)
            return einsum("ths,shv->thv", weight, jnp.concatenate([v, beta]))

        def softmax(score: Array, there: Array, axis: int) -> Array:
            score = jnp.where(there, score, -jnp.inf)
            weight = exp_difference(score, jnp.max(score, axis=axis, keepdims=True))
            return safe_divide(weight, jnp.sum(weight, axis=axis, keepdims=True))

        y = jax.vmap(one_example)(q, k, v, real)
        return jnp.where(real[:, :, None, None], y, jnp.zeros_like(y))

    def _check_parameters(self, parameters: Parameters) -> None:
        _check_scale(parameters.get("scale"))

    def _overlap(self) -> int:
        return max(1, self.window_size // 2) if self.overlap is None else self.overlap


def _check_scale(scale: Array | float | None) -> None:
    if scale is None or isinstance(scale, jax.core.Tracer) or jnp.ndim(scale):
        return  # an array with axes is rejected where it is used
    if scale <= 0:
        raise ValueError(f"scale must be positive, its root scales q and k; got {scale}.")
