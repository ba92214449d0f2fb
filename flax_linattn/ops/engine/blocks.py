"""Attention by weights of scores in blocks of queries and keys, with a hand-derived gradient.

For scores s_ij = scale q_i . k_j + a_i - b_j, weights w(s) >= 0 and the visible j,

    D_i = sum_j w(s_ij),   y_i = sum_j w(s_ij) v_j / D_i

Weights are relative to a level of their row, such as its maximum score, which cancels. One block of
weights exists at a time, and blocks above a causal diagonal are skipped. The backward pass stores
y, the levels and D, and recomputes the blocks: with dy the gradient of the outputs,

    dv_j = sum_i w(s_ij) / D_i dy_i
    ds_ij = w'(s_ij) / D_i dy_i . (v_j - y_i)
    da_i = sum_j ds_ij,   db_j = -sum_i ds_ij

(for softmax: Dao et al., "FlashAttention", 2022, appendix B). Most mechanisms have neither a nor b.
They require weights of differences of scores, as in softmax: products and offsets are subtracted
separately, because their sum would round away digits of the offset. Then da_i is 0 up to rounding.
It is returned all the same: db has the same rounding errors, and in a sum of both they cancel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.contract.numerics import einsum, match_varying_axes, safe_divide, scores
from flax_linattn.ops.engine.block_plan import BlockPlan, add_to_block, put_block, take_block
from flax_linattn.ops.engine.double_float import DoubleFloat
from flax_linattn.ops.engine.forms import BlockSizes, PerPlatform, block_sizes
from flax_linattn.ops.engine.tiles import fill, swap_heads
from flax_linattn.typing import Array


class Offsets(NamedTuple):
    """Offsets a_i - b_j added to the scores, such as the decay between two tokens.

    Only for weights of differences, w(s, level) = w(s - level, 0).

    Attributes:
        query: Offsets a of shape [B, T, H].
        key: Offsets b of shape [B, S, H].
    """

    query: DoubleFloat
    key: DoubleFloat

    def by_head(self) -> Offsets:
        """Moves heads before time: [B, H, T] and [B, H, S]."""
        by_head: Offsets = jax.tree.map(swap_heads, self)
        return by_head

    def differences(self) -> Array:
        """Returns the offsets of all pairs, [B, H, T, S], of offsets by head."""
        a = DoubleFloat(*(x[..., None] for x in self.query))
        return a.subtract(DoubleFloat(*(x[..., None, :] for x in self.key)))


class Scores(NamedTuple):
    """Scores as unevaluated sums of a product and an offset, or the levels of rows of scores.

    Attributes:
        product: Products scale q . k.
        offset: Offsets a - b; None means 0.
    """

    product: Array
    offset: Array | None

    @property
    def total(self) -> Array:
        """Sum of product and offset, rounded."""
        return self.product if self.offset is None else self.product + self.offset

    def relative_to(self, level: Scores) -> tuple[Array, Array]:
        """Returns the two arguments of a weight function, given scores and levels.

        With offsets these are the difference of score and level, and 0. As in ``exp_difference``, a
        level of -inf stands for "no token yet".
        """
        if self.offset is None or level.offset is None:
            return self.product, level.product
        is_empty = jnp.isneginf(level.product)
        finite = jnp.where(is_empty, jnp.zeros_like(level.product), level.product)
        difference = (self.product - finite) + (self.offset - level.offset)
        return difference, jnp.zeros_like(level.product)

    def level(self, weight_function: WeightFunction) -> Scores:
        """Returns the level of rows [..., S], which cancels and has no gradient."""
        if self.offset is None:
            return Scores(jax.lax.stop_gradient(weight_function.level(self.product)), None)
        # The level cancels, so it need not be the exact pair of the maximum score, only near it and
        # used consistently. Two maxima are several times as fast on a CPU as an argmax.
        total, offset = map(jax.lax.stop_gradient, (self.total, self.offset))
        max_total = jnp.max(total, axis=-1)
        offset = jnp.max(jnp.where(total >= max_total[..., None], offset, -jnp.inf), axis=-1)
        return Scores(max_total - offset, offset)

    def maximum(self, other: Scores) -> Scores:
        """Returns the larger of two levels, elementwise."""
        if self.offset is None or other.offset is None:
            return Scores(jnp.maximum(self.product, other.product), None)
        lead = self.total >= other.total
        return Scores(
            jnp.where(lead, self.product, other.product),
            jnp.where(lead, self.offset, other.offset),
        )


class WeightFunction(NamedTuple):
    """Function from scores to weights, with its derivative and its change with the level.

    Attributes:
        masked_score: Score of invisible keys; its weight and slope are 0.
        initial_level: Level of a row before its first key.
        level: Function from scores [..., S] to the level of the row [...]. The level of several
            blocks is the maximum of their levels.
        weight: Function (score, level) -> w relative to the level.
        slope: Function (score, level) -> dw / ds relative to the level.
        rescale: Function (old, new) -> factor that turns weights relative to ``old`` into weights
            relative to ``new``.
        cap: Limit of the scores, cap tanh(s / cap), before a bias and the weights; None means none.
    """

    masked_score: float
    initial_level: float
    level: Callable[[Array], Array]
    weight: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    rescale: Callable[[Array, Array], Array]
    cap: float | None = None

    def cap_scores(self, score: Array) -> Array:
        """Returns the scores within the cap."""
        return score if self.cap is None else self.cap * jnp.tanh(score / self.cap)

    def cap_slope(self, score: Array) -> Array | float:
        """Returns the derivative of ``cap_scores``, given its results, or the masked score."""
        # Masked scores are -inf, and 0 times infinity would be NaN.
        return 1.0 if self.cap is None else 1 - jnp.minimum(jnp.abs(score) / self.cap, 1) ** 2


def attend_in_blocks(
    weight_function: WeightFunction,
    q: Array,
    k: Array,
    v: Array,
    scale: float | Array,
    visibility: Visibility,
    max_block: int,
    offsets: Offsets | None = None,
) -> Array:
    """Computes the outputs of all queries, holding one block of weights at a time.

    Args:
        weight_function: Function from scores to weights.
        q: Queries of shape [B, T, H, K].
        k: Keys of shape [B, S, H, K].
        v: Values of shape [B, S, H, V].
        scale: Factor of the scores.
        visibility: Rule for which queries attend to which keys.
        max_block: Maximum number of queries, and of keys, per block.
        offsets: Offsets added to the scores; None means 0.

    Returns:
        Outputs of shape [B, T, H, V], 0 where no token is visible.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> from flax_linattn.ops.mechanisms.softmax import SOFTMAX
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 10, 2, 4))
        >>> y = attend_in_blocks(SOFTMAX, q, k, v, 0.5, Visibility(is_causal=True), max_block=4)
        >>> want = ops.get_mechanism("softmax").reference(q, k, v, is_causal=True)
        >>> bool(jnp.allclose(y, want, atol=1e-6))
        True
    """
    lengths = q.shape[1], k.shape[1]
    if 0 in (q.shape[0], *lengths):
        return jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype)
    sizes = block_sizes(q.shape[0], q.shape[2], max_block, *lengths)
    plans = PerPlatform(*(Plan(size, *lengths, weight_function) for size in sizes))
    scale = jnp.asarray(scale).astype(q.dtype)
    return _attend(plans, *match_varying_axes((Tokens(q, k, v, offsets), scale, visibility)))


class Tokens(NamedTuple):
    """Queries [B, T, H, K], keys and values [B, S, H, ...], and offsets of both."""

    q: Array
    k: Array
    v: Array
    offsets: Offsets | None

    def by_head(self, sizes: BlockSizes) -> Tokens:
        """Returns [B, H, T', ...] in whole blocks: products of this layout take half the time."""
        return self._each(_by_head, sizes.queries, sizes.keys)

    def by_token(self, queries: int, keys: int) -> Tokens:
        """Inverts ``by_head``: removes the filling and moves time before heads."""
        return self._each(_by_token, queries, keys)

    def _each(self, function: Callable[[Array, int], Array], queries: int, keys: int) -> Tokens:
        def apply(tree: Any, length: int) -> Any:
            return jax.tree.map(lambda x: function(x, length), tree)

        q, (k, v), offsets = apply(self.q, queries), apply((self.k, self.v), keys), self.offsets
        if offsets is not None:
            offsets = Offsets(apply(offsets.query, queries), apply(offsets.key, keys))
        return Tokens(q, k, v, offsets)


def _by_head(x: Array, size: int, filling: float = 0) -> Array:
    """Converts [B, T, H, ...] to [B, H, T', ...], filled up to a multiple of ``size``."""
    return swap_heads(fill(x, size, constant_values=filling))


def _by_token(x: Array, length: int) -> Array:
    """Converts [B, H, T', ...] to [B, T, H, ...]."""
    return swap_heads(x)[:, :length]


@dataclasses.dataclass(frozen=True)
class Plan(BlockPlan):
    """Block plan for scores that a weight function turns into weights."""

    weight_function: WeightFunction

    def scores(
        self, x: Tokens, scale: Array, visibility: Visibility, row: Array, column: Array
    ) -> Scores:
        """Computes the scores [B, H, rows, columns] of a block, with invisible pairs masked."""
        q, k = self.row(x.q, row), self.column(x.k, column)
        score = self.weight_function.cap_scores(scores(q * scale, k, "bhtk,bhsk->bhts"))
        hidden = jnp.asarray(self.weight_function.masked_score, score.dtype)
        score = jnp.where(self.visible(visibility, row, column)[:, None], score, hidden)
        if x.offsets is None:
            return Scores(score, None)
        a = DoubleFloat(*(self.row(part, row) for part in x.offsets.query))
        b = DoubleFloat(*(self.column(part, column) for part in x.offsets.key))
        return Scores(score, Offsets(a, b).differences())

    def row(self, x: Array, index: Array) -> Array:
        """Returns the block of queries ``index``."""
        return take_block(x, self.sizes.queries, index, axis=2)

    def column(self, x: Array, index: Array) -> Array:
        """Returns the block of keys ``index``."""
        return take_block(x, self.sizes.keys, index, axis=2)


class RunningMean(NamedTuple):
    """Weighted mean per query over the keys so far: y [B, H, T, V], level, and total weight."""

    y: Array
    level: Scores
    total: Array

    @classmethod
    def empty(
        cls, weight_function: WeightFunction, q: Array, v: Array, has_offsets: bool
    ) -> RunningMean:
        """Returns the mean over no keys, for queries [B, H, T, K] and values [..., V]."""
        zeros = jnp.zeros(q.shape[:3], q.dtype)
        level = jnp.full_like(zeros, weight_function.initial_level)
        return cls(
            jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype),
            Scores(level, zeros if has_offsets else None),
            zeros,
        )

    def update(
        self,
        weight_function: WeightFunction,
        score: Scores,
        v: Array,
        drop: Callable[[Array], Array] | None = None,
    ) -> RunningMean:
        """Includes one more block of keys, with scores [B, H, T, S] and values [B, H, S, V].

        ``drop`` applies dropout to the weights of the values, not to the sum that normalizes them.
        """
        # The level only rises, so earlier weights only shrink; it cancels, so it has no gradient.
        level = jax.lax.stop_gradient(self.level.maximum(score.level(weight_function)))
        weight = weight_function.weight(*score.relative_to(_expand_level(level)))
        before = weight_function.rescale(*self.level.relative_to(level)) * self.total
        total = before + jnp.sum(weight, axis=-1)
        inverse = safe_divide(jnp.ones_like(total), total)
        here = einsum("bhts,bhsv->bhtv", weight if drop is None else drop(weight), v)
        # y is stored as the mean so far, which is as large as the values; sums of weights times
        # values could be far larger.
        y = (before * inverse)[..., None] * self.y
        return RunningMean(y + inverse[..., None] * here, level, total)


def _expand_level(level: Scores) -> Scores:
    """Adds a trailing axis to a level, to broadcast it against the scores of its row."""
    expanded: Scores = jax.tree.map(lambda r: r[..., None], level)
    return expanded


def _forward(plan: Plan, tokens: Tokens, scale: Array, visibility: Visibility) -> RunningMean:
    """Returns the running mean of every query after all keys, by token."""
    weight_function, pairs = plan.weight_function, plan.block_pairs(visibility)

    def some_heads(visibility: Visibility, tokens: Tokens) -> RunningMean:
        x = tokens.by_head(plan.sizes)

        def body(p: Array, means: RunningMean) -> RunningMean:
            row, column = jnp.asarray(pairs)[p]
            score = plan.scores(x, scale, visibility, row, column)
            here: RunningMean = jax.tree.map(lambda r: plan.row(r, row), means)
            here = here.update(weight_function, score, plan.column(x.v, column))
            return jax.tree.map(lambda r, new: put_block(r, new, row, axis=2), means, here)

        begin = RunningMean.empty(weight_function, x.q, x.v, x.offsets is not None)
        means = jax.lax.fori_loop(0, len(pairs), body, match_varying_axes((begin, x))[0])
        return jax.tree.map(lambda r: _by_token(r, plan.queries), means)

    begin = RunningMean.empty(weight_function, tokens.q, tokens.v, tokens.offsets is not None)
    return plan.map_heads(some_heads, begin, visibility, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plans: PerPlatform[Plan], tokens: Tokens, scale: Array, visibility: Visibility
) -> Array:
    return plans.run(_forward, tokens, scale, visibility).y


def _attend_forward(
    plans: PerPlatform[Plan], tokens: Tokens, scale: Array, visibility: Visibility
) -> tuple[Array, Any]:
    means: RunningMean = plans.run(_forward, tokens, scale, visibility)
    return means.y, (tokens, scale, visibility, means)


def _attend_backward(plans: PerPlatform[Plan], residuals: Any, dy: Array) -> Any:
    dtokens, dscale = plans.run(_backward, *residuals, dy)
    return dtokens, jnp.sum(dscale), None


def _backward(
    plan: Plan, tokens: Tokens, scale: Array, visibility: Visibility, means: RunningMean, dy: Array
) -> tuple[Tokens, Array]:
    """Computes the gradients of the tokens, and of the scale [B, 1, H] per batch and head."""
    weight_function, pairs, size = (
        plan.weight_function,
        plan.block_pairs(visibility),
        plan.sizes.queries,
    )

    def some_heads(
        visibility: Visibility, tokens: Tokens, means: RunningMean, dy: Array
    ) -> tuple[Tokens, Array]:
        x = tokens.by_head(plan.sizes)
        y, dy, total, offset = (
            jax.tree.map(lambda r: _by_head(r, size), r)
            for r in (means.y, dy, means.total, means.level.offset)
        )
        # Filled rows get the initial level, because weight functions may divide by a level.
        levels = Scores(_by_head(means.level.product, size, weight_function.initial_level), offset)
        inverse = safe_divide(jnp.ones_like(total), total)
        mean = einsum("bhtv,bhtv->bht", dy, y)

        def body(p: Array, gradients: tuple[Tokens, Array]) -> tuple[Tokens, Array]:
            dx, dscale = gradients
            row, column = jnp.asarray(pairs)[p]
            score = plan.scores(x, scale, visibility, row, column)
            factor, center = (plan.row(r, row)[..., None] for r in (inverse, mean))
            level = _expand_level(jax.tree.map(lambda r: plan.row(r, row), levels))
            q, here = plan.row(x.q, row), plan.row(dy, row)
            k, v = plan.column(x.k, column), plan.column(x.v, column)
            weight = weight_function.weight(*score.relative_to(level)) * factor
            slope = weight_function.slope(*score.relative_to(level)) * factor
            # The stored levels and 1 / D make the same weights as the forward pass. Subtracting
            # center = dy . y is the gradient through D.
            dscore = slope * (einsum("bhtv,bhsv->bhts", here, v) - center)
            dscore = dscore * weight_function.cap_slope(score.product)
            dq = einsum("bhts,bhsk->bhtk", dscore, k)
            dx = Tokens(
                add_to_block(dx.q, dq * scale, row, axis=2),
                add_to_block(dx.k, einsum("bhts,bhtk->bhsk", dscore, q * scale), column, axis=2),
                add_to_block(dx.v, einsum("bhts,bhtv->bhsv", weight, here), column, axis=2),
                _add_offsets(dx.offsets, dscore, row, column),
            )
            return dx, dscale + jnp.sum(dq * q, axis=(2, 3))[:, None]

        begin = jax.tree.map(jnp.zeros_like, (x, total[:, None, :, 0]))
        dx, dscale = jax.lax.fori_loop(0, len(pairs), body, begin)
        return dx.by_token(plan.queries, plan.keys), dscale

    begin = jax.tree.map(jnp.zeros_like, (tokens, means.total[:, :1]))
    return plan.map_heads(some_heads, begin, visibility, tokens, means, dy)


def _add_offsets(
    gradients: Offsets | None, dscore: Array, row: Array, column: Array
) -> Offsets | None:
    """Adds the gradients of one block to the gradients of the offsets, in both floats."""
    if gradients is None:
        return None
    da, db = jnp.sum(dscore, axis=3), -jnp.sum(dscore, axis=2)
    return Offsets(
        DoubleFloat(*(add_to_block(x, da, row, axis=2) for x in gradients.query)),
        DoubleFloat(*(add_to_block(x, db, column, axis=2) for x in gradients.key)),
    )


_attend.defvjp(_attend_forward, _attend_backward)
