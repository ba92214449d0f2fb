"""Channelwise softmax in blocks of queries and keys, with a hand-derived gradient.

Every channel c has its own weights. For weights w_ijc of query i and key j,

    D_ic = sum_j w_ijc,   y_ic = sum_j w_ijc v_jc / D_ic

Weights are relative to the maximum of their row, which cancels. One block of weights exists at a
time, and blocks above a causal diagonal are skipped. The backward pass stores y, the maxima and D,
and recomputes the blocks: with dy the gradient of the outputs,

    dv_jc = sum_i w_ijc dy_ic / D_ic
    dw_ijc = (v_jc - y_ic) dy_ic / D_ic

and JAX derives the gradients of the block's queries, keys and biases from dw.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.contract.numerics import match_varying_axes, safe_divide
from flax_linattn.ops.engine import exponential
from flax_linattn.ops.engine.block_plan import BlockPlan, add_to_block, put_block, take_block
from flax_linattn.ops.engine.cache import Positions
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.forms import PerPlatform, block_sizes
from flax_linattn.ops.engine.tiles import fill, trim
from flax_linattn.typing import Array, Visible


class ChannelWeightFunction(Protocol):
    """Interface of ``ChannelwiseSoftmax`` to the blocks: hashable, hence static."""

    def scores(self, q: Array, k: Array, bias: Array | None) -> Array: ...

    def relative_weight(self, score: Array, maximum: Array) -> Array: ...

    def log_weight(self, q: Array, k: Array, bias: Array | None) -> Array: ...


class Tokens(NamedTuple):
    """Queries [B, T, ...], keys and values [B, S, ...]; all further axes are channels."""

    q: Array
    k: Array
    v: Array


class PairContext(NamedTuple):
    """Visibility and positions of the tokens, which all channels share."""

    visibility: Visibility
    positions: Positions | None


def masked_scores(
    weight_function: ChannelWeightFunction,
    q: Array,
    k: Array,
    bias: Array | None,
    visible: Visible,
) -> Array:
    """Computes scores [B, T, S, ...], -inf where a query does not attend to a key."""
    bias = None if bias is None else bias.astype(k.dtype)
    score = weight_function.scores(q[:, :, None], k[:, None], bias)
    hidden = jnp.asarray(-jnp.inf, score.dtype)
    return jnp.where(expand_to_channels(visible, score), score, hidden)


def expand_to_channels(pairwise: Array, channels: Array) -> Array:
    """Adds axes of size 1 to [B, T, S, ...], to broadcast it against ``channels``."""
    return pairwise.reshape(pairwise.shape + (1,) * (channels.ndim - pairwise.ndim))


def update_sums(
    weight_function: ChannelWeightFunction,
    sums: ExponentialState,
    tokens: Tokens,
    bias: Array | None,
    visible: Visible,
) -> ExponentialState:
    """Includes more keys in the sums [B, T, ...]."""
    score = masked_scores(weight_function, tokens.q, tokens.k, bias, visible)
    here = exponential.summarize(
        score, tokens.v[:, None], axis=2, weigh=weight_function.relative_weight
    )
    return sums.merge(here, weight_function.relative_weight)


def gather_bias(table: Array | None, positions: Positions | None) -> Array | None:
    """Gathers biases [B, T, S] from a table [N, N] by positions; NaN for positions beyond it.

    Under ``jit`` NaN is the only way to report such a position.
    """
    if table is None or positions is None:
        return None
    query, key = positions
    at = table.at[query[:, :, None], key[:, None, :]]
    return at.get(mode="fill", fill_value=jnp.nan)


def attend_by_channel(
    weight_function: ChannelWeightFunction,
    tokens: Tokens,
    table: Array | None,
    visibility: Visibility,
    positions: Positions | None,
    max_block: int,
) -> Array:
    """Computes the outputs of all queries, holding one block of weights at a time.

    Args:
        weight_function: Functions that compute scores and weights.
        tokens: Queries, keys and values.
        table: Biases of shape [N, N], added to the scores of a pair of positions; None means 0.
        visibility: Rule for which queries attend to which keys.
        positions: Positions of queries and keys in the table; None without a table.
        max_block: Maximum number of queries, and of keys, per block.

    Returns:
        Outputs of shape [B, T, H, K], 0 where no token is visible.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> mechanism = ops.get_mechanism("elementwise")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 10, 2, 4))
        >>> visible = Visibility(is_causal=True)
        >>> y = attend_by_channel(mechanism, Tokens(q, k, v), None, visible, None, max_block=4)
        >>> want = mechanism.reference(q, k, v, is_causal=True)
        >>> bool(jnp.allclose(y, want, atol=1e-6))
        True
    """
    shape, lengths = tokens.q.shape, (tokens.q.shape[1], tokens.k.shape[1])
    if 0 in (shape[0], *lengths):
        return jnp.zeros_like(tokens.q)
    if table is not None:
        # No position lies beyond the keys, so the rest of a large table needs no gradient.
        table = table[: lengths[1], : lengths[1]].astype(tokens.k.dtype)
    # All channels on one axis, as the heads of a block: a CPU took 1.5 times as long with an axis
    # of size 1 before them, and 4 times as long with one after them.
    tokens = Tokens(*(x.reshape(*x.shape[:2], -1) for x in tokens))
    sizes = block_sizes(shape[0], tokens.q.shape[2], max_block, *lengths)
    plans = PerPlatform(*(Plan(size, *lengths, weight_function) for size in sizes))
    context = PairContext(visibility, None if table is None else positions)
    return _attend(plans, *match_varying_axes((tokens, table, context))).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Plan(BlockPlan):
    """Block plan for weights that differ by channel."""

    weight_function: ChannelWeightFunction

    def fill_blocks(self, tokens: Tokens, context: PairContext) -> tuple[Tokens, Positions | None]:
        """Fills tokens and their positions up to whole blocks."""
        q, k, v = tokens
        tokens = Tokens(self.fill_queries(q), self.fill_keys(k), self.fill_keys(v))
        if context.positions is None:
            return tokens, None
        query, key = context.positions
        return tokens, Positions(self.fill_queries(query), self.fill_keys(key))

    def fill_queries(self, x: Array) -> Array:
        """Fills [B, T, ...] up to whole blocks of queries."""
        return fill(x, self.sizes.queries)

    def fill_keys(self, x: Array) -> Array:
        """Fills [B, S, ...] up to whole blocks of keys."""
        return fill(x, self.sizes.keys)

    def row(self, x: Array, index: Array) -> Array:
        """Returns the block of queries ``index``."""
        return take_block(x, self.sizes.queries, index, axis=1)

    def column(self, x: Array, index: Array) -> Array:
        """Returns the block of keys ``index``."""
        return take_block(x, self.sizes.keys, index, axis=1)

    def take_pair(
        self, tokens: Tokens, positions: Positions | None, row: Array, column: Array
    ) -> tuple[Tokens, Positions | None]:
        """Returns a block of queries and a block of keys, of filled tokens and positions."""
        q, k, v = tokens
        tokens = Tokens(self.row(q, row), self.column(k, column), self.column(v, column))
        if positions is None:
            return tokens, None
        query, key = positions
        return tokens, Positions(self.row(query, row), self.column(key, column))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plans: PerPlatform[Plan], tokens: Tokens, table: Array | None, context: PairContext
) -> Array:
    sums: ExponentialState = plans.run(_forward, tokens, table, context)
    return sums.mean


def _attend_forward(
    plans: PerPlatform[Plan], tokens: Tokens, table: Array | None, context: PairContext
) -> tuple[Array, Any]:
    sums: ExponentialState = plans.run(_forward, tokens, table, context)
    y = sums.mean
    return y, (tokens, table, context, y, sums.m, sums.u)


def _attend_backward(plans: PerPlatform[Plan], residuals: Any, dy: Array) -> Any:
    tokens, table, context, y, maximum, total = residuals
    dy = dy * safe_divide(jnp.ones_like(total), total)
    return *plans.run(_backward, tokens, table, context, y, maximum, dy), None


_attend.defvjp(_attend_forward, _attend_backward)


def _forward(
    plan: Plan, tokens: Tokens, table: Array | None, context: PairContext
) -> ExponentialState:
    """Returns the sums of every query, [B, T, C]."""
    pairs = plan.block_pairs(context.visibility)

    def some_heads(context: PairContext, tokens: Tokens) -> ExponentialState:
        filled, positions = plan.fill_blocks(tokens, context)

        def body(p: Array, sums: ExponentialState) -> ExponentialState:
            row, column = jnp.asarray(pairs)[p]
            here, places = plan.take_pair(filled, positions, row, column)
            visible = plan.visible(context.visibility, row, column)
            before: ExponentialState = jax.tree.map(lambda x: plan.row(x, row), sums)
            after = update_sums(
                plan.weight_function, before, here, gather_bias(table, places), visible
            )
            return jax.tree.map(lambda x, new: put_block(x, new, row, axis=1), sums, after)

        begin = exponential.empty_state(filled.q.shape, filled.q.shape, filled.q.dtype)
        begin = match_varying_axes((begin, filled, context))[0]
        return trim(jax.lax.fori_loop(0, len(pairs), body, begin), plan.queries)

    begin = exponential.empty_state(tokens.q.shape, tokens.q.shape, tokens.q.dtype)
    sums: ExponentialState = plan.map_heads(some_heads, begin, context, tokens)
    return sums


def _backward(
    plan: Plan,
    tokens: Tokens,
    table: Array | None,
    context: PairContext,
    y: Array,
    maximum: Array,
    dy: Array,
) -> tuple[Tokens, Array | None]:
    """Computes the gradients of tokens and table; ``dy`` is the outputs' gradient over D."""
    pairs = plan.block_pairs(context.visibility)

    def some_heads(
        dtable: Array | None,
        context: PairContext,
        tokens: Tokens,
        y: Array,
        maximum: Array,
        dy: Array,
    ) -> tuple[Tokens, Array | None]:
        filled, positions = plan.fill_blocks(tokens, context)
        y, maximum, dy = map(plan.fill_queries, (y, maximum, dy))

        def body(p: Array, gradients: tuple[Tokens, Array | None]) -> tuple[Tokens, Array | None]:
            dx, dtable = gradients
            row, column = jnp.asarray(pairs)[p]
            (q, k, v), places = plan.take_pair(filled, positions, row, column)
            visible = plan.visible(context.visibility, row, column)
            mean, row_max, dmean = (plan.row(x, row)[:, :, None] for x in (y, maximum, dy))

            bias = gather_bias(table, places)
            score = masked_scores(plan.weight_function, q, k, bias, visible)
            weight = plan.weight_function.relative_weight(score, row_max) * dmean
            _, backward = jax.vjp(plan.weight_function.log_weight, q[:, :, None], k[:, None], bias)
            dq, dk, dbias = backward(weight * v[:, None] - weight * mean)
            if dtable is not None and places is not None:  # both or none are there
                at = dtable.at[places.query[:, :, None], places.key[:, None, :]]
                dtable = at.add(dbias, mode="drop")
            dx = Tokens(
                add_to_block(dx.q, dq[:, :, 0], row, axis=1),
                add_to_block(dx.k, dk[:, 0], column, axis=1),
                add_to_block(dx.v, jnp.sum(weight, axis=1), column, axis=1),
            )
            return dx, dtable

        begin = jax.tree.map(jnp.zeros_like, filled), dtable
        dx, dtable = jax.lax.fori_loop(0, len(pairs), body, begin)
        return Tokens(trim(dx.q, plan.queries), *trim((dx.k, dx.v), plan.keys)), dtable

    begin = jax.tree.map(jnp.zeros_like, (tokens, table))
    dtokens: Tokens
    dtable: Array | None
    dtokens, dtable = plan.map_heads_with_sums(some_heads, *begin, context, tokens, y, maximum, dy)
    return dtokens, dtable
