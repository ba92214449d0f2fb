"""Gated delta rule: Yang et al., "Gated Delta Networks", 2024 (ICLR 2025).

A token first erases the value stored at its key, then writes its own value there:

    S_t = exp(a_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,   y_t = scale q_t S_t

=========  ==================================================================
here       paper
=========  ==================================================================
log_decay  a_t = log alpha_t (equation 10)
beta       beta_t, the fraction of the old value that is replaced, in [0, 1]; or
           in [0, 2] with ``allow_neg_eigval``
value      S_t^T (equation 10): here keys come first, [K, V]
transition the product of all exp(a) (I - beta k k^T) of a span [K, K]
chunked    the WY form (section 3.3; Yang et al., "Parallelizing linear
           transformers with the delta rule", 2024)
=========  ==================================================================

With beta up to 2, I - beta k k^T has the eigenvalue 1 - beta in [-1, 1] instead of [0, 1]: a token
may negate what its key stores, so that one layer can count modulo 2 (Grazzi et al., "Unlocking
state-tracking in linear RNNs through negative eigenvalues", ICLR 2025).

Spans merge as affine maps, S -> M S + N, so a mergeable state also has ``transition``: K more
numbers per key channel than ``step`` needs and layers store.

Keys and queries should have length 1, as layers make them. For longer keys 1 - beta |k|^2 can be
below -1, and the state grows without bound, as in the formula.

Departures: a layer's decay is log sigmoid(x W + b), the paper's is -A softplus(x W + b); the
paper's short convolutions, normalization and output gate are not included.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import einsum
from flax_linattn.ops.contract.recurrences import reference_recurrence
from flax_linattn.ops.contract.state import StateSizes, register_state
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.engine import decays, prefix
from flax_linattn.ops.engine.decays import by_head
from flax_linattn.ops.engine.gated import GatedMechanism, tokens_with_resets
from flax_linattn.ops.engine.gates import LOG_DECAY
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@register_state
class GatedDeltaState(NamedTuple):
    """Affine map of a span, S -> transition S + value.

    Attributes:
        transition: Matrix M of shape [B, H, K, K]; None if the state is not mergeable.
        value: Matrix N of shape [B, H, K, V], equal to S if nothing came before the span.
    """

    transition: Float[Array, "B H K K"]
    value: Float[Array, "B H K V"]


def twice_sigmoid(x: Array) -> Array:
    """Computes 2 sigmoid(x), as flash-linear-attention does with ``allow_neg_eigval``."""
    return 2 * jax.nn.sigmoid(x)


BETA = TokenArgument("beta", "H", low=0.0, high=1.0, activation=jax.nn.sigmoid)
BETA_UP_TO_2 = dataclasses.replace(BETA, high=2.0, activation=twice_sigmoid)


@dataclasses.dataclass(frozen=True)
class GatedDelta(GatedMechanism):
    """Gated delta rule (module docstring: symbols, departures).

    Attributes:
        allow_neg_eigval: Whether ``beta`` may be up to 2, so that transitions have eigenvalues
            down to -1; a layer then computes 2 sigmoid(x W + b) instead of sigmoid(x W + b).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> delta = ops.get_mechanism("gated_delta:scale=1.0")
        >>> k = jnp.eye(2)[None, jnp.array([0, 1, 0]), None]      # two keys, the first one twice
        >>> v = jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
        >>> y = delta.attend(k, k, v, is_causal=True, log_decay=jnp.zeros((1, 3, 1)),
        ...                  beta=jnp.ones((1, 3, 1)))
        >>> y.ravel().tolist()                                    # 3 replaces 1
        [1.0, 2.0, 3.0]
    """

    name: ClassVar[str] = "gated_delta"
    about: ClassVar[str] = "delta-rule fast-weight memory with a gate (Yang et al., 2024)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, noncausal=False, cross=False, mergeable=True, unit_vectors=True
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale",)
    merge_field: ClassVar[str] = "transition"

    allow_neg_eigval: bool = False

    @property
    def token_arguments(self) -> tuple[TokenArgument, ...]:
        return LOG_DECAY, BETA_UP_TO_2 if self.allow_neg_eigval else BETA

    def _init_state(self, sizes: StateSizes) -> GatedDeltaState:
        rows, keys = (sizes.batch_size, sizes.num_heads), sizes.key_dim
        one = jnp.broadcast_to(jnp.eye(keys, dtype=sizes.dtype), (*rows, keys, keys))
        return GatedDeltaState(one, jnp.zeros((*rows, keys, sizes.value_dim), sizes.dtype))

    def _merge(self, state_a: GatedDeltaState, state_b: GatedDeltaState) -> GatedDeltaState:
        after = partial(einsum, "...ij,...jv->...iv", state_b.transition)
        transition, value = jax.tree.map(after, state_a)
        return GatedDeltaState(transition, value + state_b.value)

    def chunk_state(self, tokens: dict[str, Array], before: GatedDeltaState) -> GatedDeltaState:
        return self._chunk_state(tokens, _solve_writes(tokens), before)

    def chunk_outputs(self, q: Array, tokens: dict[str, Array], before: GatedDeltaState) -> Array:
        return self._chunk_outputs(q, tokens, _solve_writes(tokens), before)

    def span_state_and_outputs(
        self, q: Array, span: prefix.Span, before: GatedDeltaState
    ) -> tuple[GatedDeltaState, Array]:
        # The transition covers the last segment only, which needs its own triangular system.
        needs_own_system = span.starts is not None and before.transition is not None
        if needs_own_system or span.size[1] == 1:
            return super().span_state_and_outputs(q, span, before)
        tokens = tokens_with_resets(span)
        writes = _solve_writes(tokens)  # the triangular system is solved once for both
        state = self._chunk_state(tokens, writes, self.segment_carry(span, before))
        return state, self._chunk_outputs(q, tokens, writes, before)

    def _chunk_state(
        self, tokens: dict[str, Array], writes: DeltaWrites, before: GatedDeltaState
    ) -> GatedDeltaState:
        k, a = by_head(tokens["k"]), by_head(tokens["log_decay"])
        keys, left = (
            k * jnp.exp(decays.exclusive_suffix_sums(a)),
            jnp.exp(jnp.sum(a, axis=2))[..., None],
        )
        added, transition = writes.after(before.value), before.transition
        if transition is not None:
            forgotten = einsum("bhck,bhkl->bhcl", writes.erased, transition)
            transition = left * transition - einsum("bhck,bhcl->bhkl", keys, forgotten)
        value = left * before.value + einsum("bhck,bhcv->bhkv", keys, added)
        return GatedDeltaState(transition, value)

    def _chunk_outputs(
        self, q: Array, tokens: dict[str, Array], writes: DeltaWrites, before: GatedDeltaState
    ) -> Array:
        q, k, a = map(by_head, (q, tokens["k"], tokens["log_decay"]))
        past = einsum("bhck,bhkv->bchv", q * jnp.exp(decays.prefix_sums(a)), before.value)
        weight = decays.decayed_products(q, k, a)
        return past + einsum("bhij,bhjv->bihv", weight, writes.after(before.value))

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        q, k, v = self.prepare(q, k, v, parameters)

        def token(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            q, k, v, a, beta = now
            state = jnp.exp(a)[..., None, None] * state
            old = jnp.sum(k[..., None] * state, axis=-2)
            new = beta[..., None] * (v - old)
            state = state + k[..., None] * new[..., None, :]
            return state, jnp.sum(q[..., None] * state, axis=-2)

        batch, _, heads, key_dim = k.shape
        nothing = jnp.zeros((batch, heads, key_dim, v.shape[-1]), v.dtype)
        gates = (parameters[each.name].astype(v.dtype) for each in self.token_arguments)
        return reference_recurrence(token, nothing, (q, k, v, *gates), visible)


class DeltaWrites(NamedTuple):
    """Values that the tokens of a chunk write at their keys, as a function of the state before.

    Token i writes u_i = new_i - erased_i S for the state S before the chunk. By the delta rule u_i
    is beta_i times v_i minus the value stored at k_i by then, which depends on the u of earlier
    tokens: a triangular system. It is linear in S, so it is solved once for ``new`` and ``erased``.

    Attributes:
        new: Values of shape [B, H, C, V].
        erased: Keys of shape [B, H, C, K].
    """

    new: Array
    erased: Array

    def after(self, past: Array) -> Array:
        """Returns u [B, H, C, V] for the state before the chunk."""
        return self.new - einsum("bhck,bhkv->bhcv", self.erased, past)


def _solve_writes(tokens: dict[str, Array]) -> DeltaWrites:
    k, v, a, beta = map(by_head, (tokens[each] for each in ("k", "v", "log_decay", "beta")))
    new, erased = beta * v, beta * k * jnp.exp(decays.prefix_sums(a))
    if k.shape[2] == 1:  # no earlier token
        return DeltaWrites(new, erased)
    inverse = invert_unit_lower(decays.decayed_products(beta * k, k, a))
    return DeltaWrites(
        einsum("bhij,bhjv->bhiv", inverse, new), einsum("bhij,bhjk->bhik", inverse, erased)
    )


def invert_unit_lower(below: Array) -> Array:
    """Inverts I + L, where L [..., C, C] is the strictly lower triangle of ``below``.

    Diagonal blocks of doubling size are inverted by products of matrices,

        [[A, 0], [L, B]]^-1 = [[A^-1, 0], [-B^-1 L A^-1, B^-1]],

    as accurate as forward substitution. XLA for CPUs calls LAPACK for ``solve_triangular``, whose
    batches wait for the threads that they run on: training on two cores hung (jaxlib 0.10.2).

    Example:
        >>> import jax.numpy as jnp
        >>> invert_unit_lower(jnp.full((3, 3), 2.0)).tolist()
        [[1.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [2.0, -2.0, 1.0]]
    """
    *rows, size, _ = below.shape
    full = 1 << (size - 1).bit_length()
    below = jnp.pad(below, [*((0, 0) for _ in rows), (0, full - size), (0, full - size)])
    inverse = jnp.ones((*rows, full, 1, 1), below.dtype)
    half = 1
    while half < full:
        count = full // (2 * half)
        blocks = below.reshape(*rows, count, 2 * half, count, 2 * half)
        is_diagonal = jnp.eye(count, dtype=bool)[:, None, :, None]
        diagonal = jnp.sum(jnp.where(is_diagonal, blocks, 0), axis=-2)
        pairs = inverse.reshape(*rows, count, 2, half, half)
        first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
        product = einsum("...ij,...jk->...ik", diagonal[..., half:, :half], first)
        corner = -einsum("...ij,...jk->...ik", second, product)
        above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([above, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        half *= 2
    return inverse[..., 0, :size, :size]
