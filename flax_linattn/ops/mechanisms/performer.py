"""Performer (FAVOR+): softmax attention by positive orthogonal random features.

Choromanski et al., "Rethinking Attention with Performers", 2021. Symbols against the paper's:

==============  =============================================================
here            paper
==============  =============================================================
x               q or k times sqrt(scale), that is K**-0.25 by default
projection      omega_1 ... omega_m, orthogonal Gaussian vectors (section
                2.4), one sample shared by queries, keys, heads and
                layers
log features    omega . x - |x|^2 / 2; SM+ of lemma 1
==============  =============================================================

The sum over keys of exp(log feature) is stored as the exponential state (m, u, w) of each feature,
so no key overflows or underflows. Departures from the code that the TaylorShift experiments ran: no
1e-4 is added to the features and no maximum over all keys is subtracted, which a causal form could
not know; the random sample is fixed by ``seed`` instead of renewed every 1,000 steps (pass
``projection`` to renew it). Queries and keys are clipped to 7e10, so that their squares fit
float32.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import MAX_SEED, check_integers
from flax_linattn.ops.contract.averages import average_by_token
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import einsum, exp_difference, safe_divide, score_scale
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import exponential, prefix
from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.features import clip_key
from flax_linattn.ops.engine.forms import even_chunk_size
from flax_linattn.ops.engine.random_features import orthogonal_gaussian
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.engine.tiles import fill
from flax_linattn.typing import Array, Keys, Outputs, Parameters, State, Values, Visible

TILE_TOKENS = 16
"""Tokens per tile, within which weights are computed for pairs of tokens. Larger tiles read and
write fewer states, but compute more pairs."""

BLOCK_TOKENS = 4
"""Tokens per block of a tile, within which features are computed for pairs of tokens. On a CPU,
gradients take the same time with blocks of 1 or 2 tokens (which take longer to compile), and 1.2
times as long with 8."""


@dataclasses.dataclass(frozen=True)
class Performer(StreamingMechanism):
    """FAVOR+ attention (module docstring: symbols, departures).

    Attributes:
        chunk_size: Tokens per causal chunk, which stores the state before each of its tiles of
            ``TILE_TOKENS``.
        scale: Positive factor of the scores if a call passes none; None means K**-0.5.
        num_features: Number of features M; None means int(K ln K), at least 1.
        seed: Seed of the random projection if a call passes no ``projection`` of shape [M, K].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> q, k, v = 0.5 * jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> performer = ops.get_mechanism("performer", num_features=512)
        >>> error = performer.attend(q, k, v) - ops.get_mechanism("softmax").attend(q, k, v)
        >>> bool(jnp.abs(error).max() < 0.05)
        True
    """

    name: ClassVar[str] = "performer"
    about: ClassVar[str] = (
        "FAVOR+: softmax attention by positive random features (Choromanski et al., 2021)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(constant_memory=True, mergeable=True)
    parameters: ClassVar[tuple[str, ...]] = ("scale", "projection")

    chunk_size: int = 512
    scale: float | None = None
    num_features: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, num_features=self.num_features)
        check_integers(0, MAX_SEED, seed=self.seed)

    def _init_state(self, sizes: StateSizes) -> ExponentialState:
        shape = (sizes.batch_size, sizes.num_heads, self._features(sizes.key_dim))
        return exponential.empty_state(shape, (*shape, sizes.value_dim), sizes.dtype)

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        # From here on queries and keys are their log features [..., H, M].
        q, k = self._log_features(clip_key(q), clip_key(k), parameters)
        return q, k, v

    def lift(self, k: Array, v: Array, query: Array | None = None) -> ExponentialState:
        w = jnp.broadcast_to(v[..., None, :], (*k.shape, v.shape[-1]))
        return ExponentialState(m=k, u=jnp.ones_like(k), w=w)

    def read(self, q: Array | None, state: ExponentialState) -> Array:
        log_weight = self._require_query(q) + state.m
        weight = exp_difference(log_weight, jnp.max(log_weight, axis=-1, keepdims=True))
        value = einsum("...m,...mv->...v", weight, state.w)
        return safe_divide(value, jnp.sum(weight * state.u, axis=-1)[..., None])

    # -- one chunk by matrix products ------------------------------------------------

    def _make_monoid(self, q: Array, identity: ExponentialState) -> prefix.Monoid:
        scanned = super()._make_monoid(q, identity)

        def outputs(
            q: Array | None, span: prefix.Span, before: State, after: State | None, is_causal: bool
        ) -> tuple[State, Array]:
            length = span.size[1]
            if is_causal and TILE_TOKENS < length <= self.chunk_size:
                return scan_chunks(
                    tile, before, (q, prefix.mask_filling(span, TILE_TOKENS)), TILE_TOKENS
                )
            if length > TILE_TOKENS:  # too many pairs
                return scanned.state_and_outputs(q, span, before, after, is_causal)
            outside = span.outside_states(before, after)
            visible, q = span.visible(is_causal), self._require_query(q)
            y = self._tile_outputs(q, span.tokens, visible, outside, is_causal)
            return prefix.advance(monoid, span, before), y

        def tile(before: State, now: tuple[Array | None, prefix.Span]) -> tuple[State, Array]:
            return outputs(*now, before, None, True)

        monoid = scanned._replace(reduce=self._reduce_tokens, state_and_outputs=outputs)
        return monoid

    def _chunk_size(self, call: Call, identity: State) -> int | None:
        if call.form in ("auto", "chunked") and (call.is_causal or call.starts is not None):
            # Packed noncausal chunks are single tiles: a scan of states would cost V times as much.
            limit = self.chunk_size if call.is_causal else min(TILE_TOKENS, self.chunk_size)
            return even_chunk_size(call.k.shape[1], limit)
        return super()._chunk_size(call, identity)

    def _reduce_tokens(self, tokens: dict[str, Array], keep: Array | None) -> ExponentialState:
        k, v = tokens["k"], tokens["v"]
        if keep is not None:
            k = jnp.where(keep[..., None, None], k, -jnp.inf)
        m = jnp.max(k, axis=1)
        weight = exp_difference(k, m[:, None])
        return ExponentialState(m, jnp.sum(weight, axis=1), einsum("bshm,bshv->bhmv", weight, v))

    def _tile_outputs(
        self,
        q: Array,
        tokens: dict[str, Array],
        visible: Visible,
        outside: list[tuple[State, Array | None]],
        is_causal: bool,
    ) -> Array:
        """Computes outputs from the visible tokens, and from states that some rows also read.

        Features are products of two factors, of a query and of a key relative to the maximum over
        keys. This maximum must not include a key that the query cannot attend to: relative to it,
        all visible keys could underflow. Therefore a tile is split in halves recursively, down to
        blocks of pairs. Queries of one half that attend to the other half attend to the same keys.
        """
        size, full = q.shape[1], max(BLOCK_TOKENS, 1 << (q.shape[1] - 1).bit_length())
        q, k, v = (fill(x, full) for x in (q, tokens["k"], tokens["v"]))
        visible = jnp.pad(visible, ((0, 0), (0, full - size), (0, full - size)))
        split = full // BLOCK_TOKENS, BLOCK_TOKENS
        blocks = [x.reshape(len(x), *split, *x.shape[2:]) for x in (q, k, v)]
        pairs = visible.reshape(len(visible), *split, *split)
        pair_mask = jnp.moveaxis(jnp.diagonal(pairs, axis1=1, axis2=3), 3, 1)[..., None, None]
        within = jnp.where(pair_mask, blocks[0][:, :, :, None] + blocks[1][:, :, None], -jnp.inf)
        level = jnp.max(within, axis=(3, 5)).reshape(q.shape[:-1])
        across, more = [], []
        for length in (1 << i for i in range(BLOCK_TOKENS.bit_length() - 1, full.bit_length() - 1)):
            halves = full // length // 2, 2, length
            pairs = visible.reshape(len(visible), *halves, *halves)
            for at in (1,) if is_causal else (1, 0):
                keys, values = (_half(x, length, 1 - at) for x in (k, v))
                pair_mask = jnp.diagonal(pairs[:, :, at, :, :, 1 - at], axis1=1, axis2=3)
                readers, keep = (
                    jnp.moveaxis(jnp.any(pair_mask, i), 2, 1)[..., None, None] for i in (2, 1)
                )
                keys = jnp.where(keep, keys, -jnp.inf)
                m = jax.lax.stop_gradient(jnp.max(keys, axis=2, keepdims=True))  # it cancels
                own = jnp.where(readers, _half(q, length, at) + m, -jnp.inf)
                level = jnp.maximum(level, _place(jnp.max(own, axis=-1), at, -jnp.inf))
                across.append((at, own, exp_difference(keys, m), values))
        for state, rows in outside:
            own = q + state.m[:, None]
            if rows is not None:
                own = jnp.where(fill(rows, full)[..., None, None], own, -jnp.inf)
            more.append((own, state))
            level = jnp.maximum(level, jnp.max(own, axis=-1))
        level = jax.lax.stop_gradient(level)[..., None]  # it cancels
        row_level = level.reshape(*within.shape[:3], 1, q.shape[2], 1)
        weight = jnp.sum(exp_difference(within, row_level), axis=-1)
        total = jnp.sum(weight, axis=3).reshape(q.shape[:-1])
        value = einsum("bntsh,bnshv->bnthv", weight, blocks[2]).reshape(v.shape)
        for at, own, keys, values in across:
            features = exp_difference(own, _half(level, own.shape[2], at))
            weight = einsum("bnthm,bnshm->bnths", features, keys)
            value = value + _place(einsum("bnths,bnshv->bnthv", weight, values), at)
            total = total + _place(jnp.sum(weight, axis=-1), at)
        for own, state in more:
            features = exp_difference(own, level)
            value = value + einsum("bthm,bhmv->bthv", features, state.w)
            total = total + einsum("bthm,bhm->bth", features, state.u)
        return safe_divide(value, total[..., None])[:, :size]

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        q, k = self._log_features(q, k, parameters)
        score = q[:, :, None] + k[:, None]  # [B, T, S, H, M]
        score = jnp.where(visible[..., None, None], score, -jnp.inf)
        weight = exp_difference(score, jnp.max(score, axis=(2, 4), keepdims=True)).sum(axis=4)
        return average_by_token(weight, v)

    def _features(self, key_dim: int) -> int:
        if self.num_features is not None:
            return self.num_features
        return max(1, int(key_dim * math.log(key_dim)))

    def _log_features(self, q: Array, k: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Computes log features: omega . x - |x|^2 / 2, where |x|^2 of queries cancels."""
        key_dim = q.shape[-1]
        shape = (self._features(key_dim), key_dim)
        projection = parameters.get("projection")
        if projection is None:
            projection = jnp.asarray(orthogonal_gaussian(*shape, self.seed), q.dtype)
        elif projection.shape != shape:
            raise ValueError(
                f"projection must have shape [num_features, K] = {shape}, got {projection.shape}."
            )
        scale = score_scale(parameters.get("scale"), self.scale, key_dim)
        if not isinstance(scale, jax.core.Tracer) and scale <= 0:
            raise ValueError(f"scale must be positive, its root scales q and k; got {scale}.")
        factor = jnp.sqrt(jnp.asarray(scale).astype(q.dtype))
        q, k = q * factor, k * factor
        omega = projection.astype(q.dtype)
        q_log, k_log = einsum("...k,mk->...m", q, omega), einsum("...k,mk->...m", k, omega)
        return q_log, k_log - jnp.sum(k * k, axis=-1, keepdims=True) / 2


def _half(x: Array, length: int, at: int) -> Array:
    """Takes one half [B, n, length, ...] of all spans of 2 ``length`` tokens of [B, T, ...]."""
    return x.reshape(len(x), x.shape[1] // length // 2, 2, length, *x.shape[2:])[:, :, at]


def _place(x: Array, at: int, filling: float = 0) -> Array:
    """Inverts ``_half``: returns [B, T, ...] with ``filling`` in the other halves."""
    sides = ((0, 0), (0, 0), (at, 1 - at), *((0, 0),) * (x.ndim - 2))
    x = jnp.pad(x[:, :, None], sides, constant_values=filling)
    return x.reshape(len(x), math.prod(x.shape[1:4]), *x.shape[4:])
