"""Kernel mechanisms: weights are products of features, so the state is a sum over tokens.

With features phi the weight of key j for query i is phi_q(q_i) . phi_k(k_j), and

    y_i = sum_j phi_q(q_i) . phi_k(k_j) v_j / sum_j phi_q(q_i) . phi_k(k_j)

depends on the keys only through ``value`` = sum_j phi_k(k_j) v_j and ``normalizer`` =
sum_j phi_k(k_j) (Katharopoulos et al., "Transformers are RNNs", 2020). Chunks are processed by
matrix products: inside a chunk by the weights themselves, across chunks by the state, so only the
weights and features of one chunk exist at a time.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.numerics import einsum, match_varying_axes, safe_divide
from flax_linattn.ops.contract.state import StateSizes, register_state
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.forms import MAX_CACHED_FEATURES, PerPlatform, chunk_sizes
from flax_linattn.ops.engine.kernel_scan import kernel_scan, plain_scan
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.engine.tiles import swap_heads
from flax_linattn.typing import Array, Outputs, OutputStep, State


@register_state
class KernelState(NamedTuple):
    """Sums of features over the tokens so far.

    Attributes:
        value: Sum of phi_k(k) v [B, H, F, V].
        normalizer: Sum of phi_k(k) [B, H, F].
    """

    value: Float[Array, "B H F V"]
    normalizer: Float[Array, "B H F"]


def _columns(features: Array) -> Array:
    """Transposes [..., T, F] to [..., F, T] once, for all products that use it.

    Without the barrier compilers transpose again for each product.
    """
    return jax.lax.optimization_barrier(jnp.swapaxes(features, -1, -2))


def _order_after(first: Array, x: Array) -> Array:
    """Returns ``x`` unchanged, in a program that must compute ``first`` before it.

    An ``optimization_barrier`` is removed before a CPU's compiler decides what to copy.
    """
    return jnp.where(first > jnp.inf, first.astype(x.dtype), x)


def _map_heads(function: Callable[..., Any], size: Any, *arrays: Array | None) -> Any:
    """Calls ``function``, head by head if the features exceed a CPU's cache.

    ``size`` is the number of features.
    """
    if not (isinstance(size, int) and size > MAX_CACHED_FEATURES):  # unknown in symbolic shapes
        return function(*arrays)

    def one_by_one(*arrays: Array | None) -> Any:
        heads = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), arrays)
        # The backward pass also recomputes the features of one head instead of storing all.
        rematerialized = jax.checkpoint(function, prevent_cse=False)
        y = jax.lax.map(lambda head: rematerialized(*head), heads)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), y)

    return jax.lax.platform_dependent(*arrays, cpu=one_by_one, default=function)


@dataclasses.dataclass(frozen=True)
class KernelMechanism(StreamingMechanism):
    """Base class of mechanisms defined by features; ``lift``, ``merge`` and ``read`` follow.

    Attributes:
        features_first: Whether the features are products of coordinates, computed with coordinates
            first; they are then multiplied in that layout.
    """

    features_first: ClassVar[bool] = False

    @abc.abstractmethod
    def query_features(self, q: Array) -> Array:
        """Computes phi_q, [..., K] to [..., F]."""

    @abc.abstractmethod
    def key_features(self, k: Array) -> Array:
        """Computes phi_k, [..., K] to [..., F]."""

    def kernel(self, q: Array, k: Array) -> Array:
        """Computes the weights phi_q(q) . phi_k(k), [B, H, T, S].

        Override it if the weights have a form that needs no features.
        """
        return einsum("bhtf,bhsf->bhts", self.query_features(q), self.key_features(k))

    def finish(self, value: Array, normalizer: Array, count: Array, key_dim: int) -> Array:
        """Computes the outputs [..., H, V] from weighted sums.

        Args:
            value: Sum of weight times v [..., H, V].
            normalizer: Sum of the weights [..., H].
            count: Number of tokens that the row attends to [..., H]; see ``count``.
            key_dim: Channels of a key, K.
        """
        return safe_divide(value, normalizer[..., None])

    def count(self, state: KernelState) -> Array:
        """Returns the number of tokens in the state [..., H], if ``finish`` needs it."""
        return jnp.zeros_like(state.normalizer[..., 0])

    # -- the monoid ----------------------------------------------------------------

    def _init_state(self, sizes: StateSizes) -> KernelState:
        keys = (sizes.batch_size, sizes.num_heads, sizes.key_dim)
        shape = jax.eval_shape(self.key_features, jax.ShapeDtypeStruct(keys, sizes.dtype)).shape
        return KernelState(
            value=jnp.zeros((*shape, sizes.value_dim), sizes.dtype),
            normalizer=jnp.zeros(shape, sizes.dtype),
        )

    def lift(self, k: Array, v: Array, query: Array | None = None) -> KernelState:
        features = self.key_features(k)
        return KernelState(features[..., None] * v[..., None, :], features)

    def _merge(self, state_a: KernelState, state_b: KernelState) -> KernelState:
        return jax.tree.map(jnp.add, state_a, state_b)

    def read(self, q: Array | None, state: KernelState) -> Array:
        q = self._require_query(q)
        return self.finish(*self._read_sums(q, state), q.shape[-1])

    def _read_sums(self, q: Array, state: KernelState) -> tuple[Array, Array, Array]:
        if q.ndim == 4 and state.normalizer.shape[1] == 1:  # one state for all queries
            shared = jax.tree.map(lambda s: s[:, 0], state)
            value, normalizer, count = map(swap_heads, self._shared_sums(swap_heads(q), shared))
            return value, normalizer, count
        features = self.query_features(q)
        value = einsum("...f,...fv->...v", features, state.value)
        normalizer = einsum("...f,...f->...", features, state.normalizer)
        return value, normalizer, jnp.broadcast_to(self.count(state), normalizer.shape)

    def _shared_sums(self, q: Array, state: KernelState) -> tuple[Array, Array, Array]:
        """Computes value, normalizer and count of queries [B, H, T, K] that share a state."""

        def head(q: Array, value: Array, normalizer: Array) -> tuple[Array, Array]:
            features = self.query_features(q)
            if self.features_first:
                columns = _columns(features)
                value = einsum("...fv,...ft->...vt", value, columns)
                return value, einsum("...f,...ft->...t", normalizer, columns)
            value = einsum("...tf,...fv->...tv", features, value)
            return value, einsum("...tf,...f->...t", features, normalizer)

        value, normalizer = _map_heads(head, q.shape[2] * state.normalizer.size, q, *state)
        if self.features_first:  # not in ``head``, where the product would be slower
            value = jnp.swapaxes(value, -1, -2)
        count = jnp.broadcast_to(self.count(state)[..., None], normalizer.shape)
        return value, normalizer, count

    # -- one chunk by matrix products ------------------------------------------------

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, State]:
        identity = self._identity_state(call.k, call.v)
        state = identity if call.state is None else call.state
        if call.k.shape[1] == 0:
            return tokens["v"], state
        chunk_size = self._chunk_size(call, identity)
        arrays = match_varying_axes((q, prefix.Span(tokens, call.mask, call.starts), state))
        if call.form == "parallel":  # by name: JAX differentiates it, in forward mode too
            state, sums = plain_scan(self, chunk_size, *arrays)
        else:
            sizes = PerPlatform(chunk_size, chunk_size)
            if call.form == "auto":
                sizes = chunk_sizes("kernel", call.k.shape[1], chunk_size, self.chunk_size)
            state, sums = kernel_scan(self, sizes, *arrays)
        value, normalizer, count = sums
        return self.finish(value, normalizer, count, q.shape[-1]), state

    def span_sums(self, q: Array, span: prefix.Span, before: State) -> tuple[Array, Array, Array]:
        """Computes the causal sums of a chunk (``LinearChunk``): value, normalizer, count."""
        return self._weighted_sums(
            q, span.tokens, span.visible(True), span.outside_states(before, None)
        )

    def span_state(self, span: prefix.Span, before: State) -> State:
        """Returns the state after a chunk (``LinearChunk``)."""
        k, v = span.tokens["k"], span.tokens["v"]
        return prefix.advance(self._make_monoid(k, self._identity_state(k, v)), span, before)

    def _make_monoid(self, q: Array, identity: State) -> prefix.Monoid:
        def outputs(
            q: Array | None,
            span: prefix.Span,
            before: State,
            after: State | None,
            is_causal: bool,
        ) -> tuple[State, Array]:
            q = self._require_query(q)
            outside = span.outside_states(before, after)
            sums = self._weighted_sums(q, span.tokens, span.visible(is_causal), outside)
            return self.span_state(span, before), self.finish(*sums, q.shape[-1])

        return prefix.Monoid(
            identity=identity,
            merge=self._merge,
            read=self.read,
            reduce=self._reduce_tokens,
            state_and_outputs=outputs,
        )

    def _floats_per_token(self, identity: KernelState) -> int:
        return identity.normalizer.size  # features: the state exists once per chunk

    def _reduce_tokens(self, tokens: dict[str, Array], keep: Array | None) -> KernelState:
        k, v = tokens["k"], tokens["v"]

        def head(k: Array, v: Array, keep: Array | None) -> KernelState:
            features = masks.zero_padding(self.key_features(k), keep)
            if self.features_first:
                columns = _columns(features)
                value = einsum("...fs,...sv->...fv", columns, v)
                return KernelState(value, jnp.sum(columns, axis=-1))
            value = einsum("...sf,...sv->...fv", features, v)
            return KernelState(value, jnp.sum(features, axis=-2))

        if keep is not None:
            keep = jnp.broadcast_to(keep[:, None], (k.shape[0], k.shape[2], k.shape[1]))
        size = k.shape[1] * self._identity_state(k, v).normalizer.size
        return _map_heads(head, size, swap_heads(k), swap_heads(v), keep)

    def _weighted_sums(
        self,
        q: Array,
        tokens: dict[str, Array],
        visible: Array,
        outside: list[tuple[KernelState, Array | None]],
    ) -> tuple[Array, Array, Array]:
        """Sums over the visible tokens, plus states that some rows also read."""
        q, k, v = map(swap_heads, (q, tokens["k"], tokens["v"]))
        weight = self.kernel(q, k)
        weight = jnp.where(visible[:, None], weight, jnp.zeros_like(weight))
        normalizer = jnp.sum(weight, axis=3)
        count = jnp.sum(visible, axis=2, dtype=normalizer.dtype)[:, None]
        sums = (
            einsum("bhts,bhsv->bhtv", weight, v),
            normalizer,
            # One for each query, not broadcast: jax.vmap over queries multiplies the gradient of a
            # custom_vjp function's output without the mapped axis by its size.
            jnp.where(jnp.isnan(normalizer), count, count),
        )
        for state, rows in outside:
            row_mask = None if rows is None else jnp.broadcast_to(rows[:, None], normalizer.shape)
            more = self._shared_sums(q, state)
            sums = jax.tree.map(lambda a, b, m=row_mask: a + masks.zero_padding(b, m), sums, more)
        value, normalizer, count = map(swap_heads, sums)
        return value, normalizer, count

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        q, token = self._prepare(call)
        # As in a chunk of one: the token's own weight is exact, without features.
        own_token = jnp.ones((1, 1, 1), bool)
        alone = jax.tree.map(lambda x: x[:, None], token)
        sums = self._weighted_sums(q[:, None], alone, own_token, [(call.state, None)])
        # Read the state before it is overwritten: otherwise a compiler copies a donated state.
        token = token | {"v": _order_after(sums[0][:, 0], token["v"])}
        merged = self._merge(call.state, self._lift_tokens(q, token))
        if call.mask is not None:
            merged = prefix.select(call.mask, merged, call.state)
        return self.finish(*sums, q.shape[-1])[:, 0], merged
