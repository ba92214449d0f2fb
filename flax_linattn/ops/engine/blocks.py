"""Attention by weights of scores in blocks of queries and keys, with a hand-derived gradient.

For scores s_ij = scale q_i . k_j + a_i - b_j, weights w(s) >= 0 and the visible j,

    D_i = sum_j w(s_ij),   y_i = sum_j w(s_ij) v_j / D_i

Weights are relative to a level of their row, such as its largest score, which cancels. A block of
them exists at a time, and none above a causal diagonal is made. The backward pass keeps y, the
levels and 1 / D, and makes the blocks again: with dy the gradient of the outputs,

    dv_j = sum_i w(s_ij) / D_i dy_i
    ds_ij = w'(s_ij) / D_i dy_i . (v_j - y_i)
    da_i = sum_j ds_ij,   db_j = -sum_i ds_ij

(for softmax: Dao et al., "FlashAttention", 2022, appendix B). Most mechanisms have neither a nor b.
Only weights of differences of scores, as those of softmax, may have them: there a score and its
offset are kept apart, or else a large score would take digits of the offset. So da_i is 0 but for
rounding, which is passed on all the same: it is that of db, whose sums it makes cancel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.contract.numerics import einsum, safe_divide, scores, vary_alike
from flax_linattn.ops.engine.block_plan import BlockPlan, add_block, block, put_block
from flax_linattn.ops.engine.double_float import TwoFloats
from flax_linattn.ops.engine.forms import BlockSizes, PerPlatform, block_sizes
from flax_linattn.ops.engine.tiles import fill
from flax_linattn.typing import Array


class Offsets(NamedTuple):
    """What scores get beside the products: a_i - b_j, such as the decay between two tokens.

    For weighings of differences alone, w(s, level) = w(s - level, 0).

    Attributes:
        query: a, [B, T, H].
        key: b, [B, S, H].
    """

    query: TwoFloats
    key: TwoFloats

    def by_head(self) -> Offsets:
        """[B, H, T] and [B, H, S]."""
        by_head: Offsets = jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), self)
        return by_head

    def between(self) -> Array:
        """Of all pairs, for offsets by head: [B, H, T, S]."""
        a = TwoFloats(*(x[..., None] for x in self.query))
        return a.minus(TwoFloats(*(x[..., None, :] for x in self.key)))


class Scores(NamedTuple):
    """Scores as sums of two numbers that are kept apart, or the level of rows of them.

    Attributes:
        product: scale q . k.
        offset: what is added; None = nothing.
    """

    product: Array
    offset: Array | None

    @property
    def total(self) -> Array:
        """The score, rounded."""
        return self.product if self.offset is None else self.product + self.offset

    def over(self, level: Scores) -> tuple[Array, Array]:
        """What a weighing is given of a score and a level; with offsets, their difference and 0.

        As in ``exp_difference``, a level of -inf stands for "no token yet".
        """
        if self.offset is None or level.offset is None:
            return self.product, level.product
        unseen = jnp.isneginf(level.product)
        finite = jnp.where(unseen, jnp.zeros_like(level.product), level.product)
        difference = (self.product - finite) + (self.offset - level.offset)
        return difference, jnp.zeros_like(level.product)

    def level(self, weighing: Weighing) -> Scores:
        """The level of rows [..., S]: no gradient passes it, since it cancels."""
        if self.offset is None:
            return Scores(jax.lax.stop_gradient(weighing.level(self.product)), None)
        # Any two numbers near those of the largest score will do, as long as they are used alike:
        # two maxima are several times as fast on a CPU as an argmax.
        total, offset = map(jax.lax.stop_gradient, (self.total, self.offset))
        most = jnp.max(total, axis=-1)
        offset = jnp.max(jnp.where(total >= most[..., None], offset, -jnp.inf), axis=-1)
        return Scores(most - offset, offset)

    def larger(self, other: Scores) -> Scores:
        """The larger of two levels."""
        if self.offset is None or other.offset is None:
            return Scores(jnp.maximum(self.product, other.product), None)
        lead = self.total >= other.total
        return Scores(
            jnp.where(lead, self.product, other.product),
            jnp.where(lead, self.offset, other.offset),
        )


class Weighing(NamedTuple):
    """How scores become weights.

    Attributes:
        hidden: the score of what is not seen; its weight and slope are 0.
        lowest: the level of a row that has seen nothing.
        level: scores [..., S] -> the level of the row [...]; of several spans it is the largest.
        weight: (score, level) -> w relative to the level.
        slope: (score, level) -> dw / ds relative to the level.
        rescale: (old, new) -> weights relative to ``new`` over those relative to ``old``.
    """

    hidden: float
    lowest: float
    level: Callable[[Array], Array]
    weight: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    rescale: Callable[[Array, Array], Array]


def attend_in_blocks(
    weighing: Weighing,
    q: Array,
    k: Array,
    v: Array,
    scale: float | Array,
    visibility: Visibility,
    most: int,
    offsets: Offsets | None = None,
) -> Array:
    """Outputs of all queries.

    Args:
        weighing: how scores become weights.
        q: queries [B, T, H, K].
        k: keys [B, S, H, K].
        v: values [B, S, H, V].
        scale: factor of the scores.
        visibility: who sees whom.
        most: queries a block, and keys, at most.
        offsets: what is added to the scores; None = nothing.

    Returns:
        y [B, T, H, V], 0 where nothing is seen.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> from flax_linattn.ops.mechanisms.softmax import SOFTMAX
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 10, 2, 4))
        >>> y = attend_in_blocks(SOFTMAX, q, k, v, 0.5, Visibility(is_causal=True), most=4)
        >>> want = ops.get_mechanism("softmax").reference(q, k, v, is_causal=True)
        >>> bool(jnp.allclose(y, want, atol=1e-6))
        True
    """
    lengths = q.shape[1], k.shape[1]
    if 0 in (q.shape[0], *lengths):
        return jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype)
    sizes = block_sizes(q.shape[0], q.shape[2], most, *lengths)
    plans = PerPlatform(*(Plan(size, *lengths, weighing) for size in sizes))
    scale = jnp.asarray(scale).astype(q.dtype)
    return _attend(plans, *vary_alike((Tokens(q, k, v, offsets), scale, visibility)))


class Tokens(NamedTuple):
    """What is given of queries and keys: q [B, T, H, K], k and v [B, S, H, ...], and offsets."""

    q: Array
    k: Array
    v: Array
    offsets: Offsets | None

    def by_head(self, sizes: BlockSizes) -> Tokens:
        """[B, H, T', ...] in whole blocks: as they lie there products take half of the time."""
        return self._each(_by_head, sizes.queries, sizes.keys)

    def by_token(self, queries: int, keys: int) -> Tokens:
        """``by_head`` undone."""
        return self._each(_by_token, queries, keys)

    def _each(self, function: Callable[[Array, int], Array], queries: int, keys: int) -> Tokens:
        def of(tree: Any, length: int) -> Any:
            return jax.tree.map(lambda x: function(x, length), tree)

        q, (k, v), offsets = of(self.q, queries), of((self.k, self.v), keys), self.offsets
        if offsets is not None:
            offsets = Offsets(of(offsets.query, queries), of(offsets.key, keys))
        return Tokens(q, k, v, offsets)


def _by_head(x: Array, size: int, filling: float = 0) -> Array:
    """[B, T, H, ...] -> [B, H, T', ...], filled up to a multiple of ``size``."""
    return jnp.swapaxes(fill(x, size, constant_values=filling), 1, 2)


def _by_token(x: Array, length: int) -> Array:
    """[B, H, T', ...] -> [B, T, H, ...]."""
    return jnp.swapaxes(x, 1, 2)[:, :length]


@dataclasses.dataclass(frozen=True)
class Plan(BlockPlan):
    """Blocks of scores, and how these become weights."""

    weighing: Weighing

    def scores(
        self, x: Tokens, scale: Array, visibility: Visibility, row: Array, column: Array
    ) -> Scores:
        """[B, H, rows, columns] of tokens by head; hidden ones set apart."""
        q, k = self.row(x.q, row), self.column(x.k, column)
        score = scores(q * scale, k, "bhtk,bhsk->bhts")
        hidden = jnp.asarray(self.weighing.hidden, score.dtype)
        score = jnp.where(self.visible(visibility, row, column)[:, None], score, hidden)
        if x.offsets is None:
            return Scores(score, None)
        a = TwoFloats(*(self.row(part, row) for part in x.offsets.query))
        b = TwoFloats(*(self.column(part, column) for part in x.offsets.key))
        return Scores(score, Offsets(a, b).between())

    def row(self, x: Array, index: Array) -> Array:
        """The block of queries ``index``."""
        return block(x, self.sizes.queries, index, axis=2)

    def column(self, x: Array, index: Array) -> Array:
        """The block of keys ``index``."""
        return block(x, self.sizes.keys, index, axis=2)


class Rows(NamedTuple):
    """Of every query, by head: y [B, H, T, V], the level of its weights, D relative to it."""

    y: Array
    level: Scores
    total: Array

    @classmethod
    def nothing_seen(cls, weighing: Weighing, q: Array, v: Array, has_offsets: bool) -> Rows:
        """Before the first block of keys, for queries [B, H, T, K] and values [..., V].

        Of queries [B, T, H, K] it is that by token.
        """
        zeros = jnp.zeros(q.shape[:3], q.dtype)
        lowest = jnp.full_like(zeros, weighing.lowest)
        return cls(
            jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype),
            Scores(lowest, zeros if has_offsets else None),
            zeros,
        )

    def see(
        self, weighing: Weighing, score: Scores, v: Array, sums: Callable[..., Array] | None = None
    ) -> Rows:
        """After a block of keys, of these scores [B, H, T, S] and values [B, H, S, V].

        ``sums`` adds values up by weights, for those who know a faster product.
        """
        # The level only rises, so that earlier weights shrink; it cancels, a constant to gradients.
        level = jax.lax.stop_gradient(self.level.larger(score.level(weighing)))
        weight = weighing.weight(*score.over(_of_row(level)))
        before = weighing.rescale(*self.level.over(level)) * self.total
        total = before + jnp.sum(weight, axis=-1)
        inverse = safe_divide(jnp.ones_like(total), total)
        here = einsum("bhts,bhsv->bhtv", weight, v) if sums is None else sums(weight, v)
        # y is always the mean of what has been seen, which is of the size of the values, as sums
        # of weights times values need not be.
        y = (before * inverse)[..., None] * self.y
        return Rows(y + inverse[..., None] * here, level, total)


def _of_row(level: Scores) -> Scores:
    """[...] -> [..., 1], beside the scores of the row."""
    of_row: Scores = jax.tree.map(lambda r: r[..., None], level)
    return of_row


def _forward(plan: Plan, tokens: Tokens, scale: Array, visibility: Visibility) -> Rows:
    """Rows by token."""
    weighing, pairs = plan.weighing, plan.pairs(visibility)

    def of_heads(visibility: Visibility, tokens: Tokens) -> Rows:
        x = tokens.by_head(plan.sizes)

        def body(p: Array, rows: Rows) -> Rows:
            row, column = jnp.asarray(pairs)[p]
            score = plan.scores(x, scale, visibility, row, column)
            here: Rows = jax.tree.map(lambda r: plan.row(r, row), rows)
            here = here.see(weighing, score, plan.column(x.v, column))
            return jax.tree.map(lambda r, new: put_block(r, new, row, axis=2), rows, here)

        begin = Rows.nothing_seen(weighing, x.q, x.v, x.offsets is not None)
        rows = jax.lax.fori_loop(0, len(pairs), body, vary_alike((begin, x))[0])
        return jax.tree.map(lambda r: _by_token(r, plan.queries), rows)

    begin = Rows.nothing_seen(weighing, tokens.q, tokens.v, tokens.offsets is not None)
    return plan.over_heads(of_heads, begin, visibility, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plans: PerPlatform[Plan], tokens: Tokens, scale: Array, visibility: Visibility
) -> Array:
    return plans.run(_forward, tokens, scale, visibility).y


def _attend_forward(
    plans: PerPlatform[Plan], tokens: Tokens, scale: Array, visibility: Visibility
) -> tuple[Array, Any]:
    rows: Rows = plans.run(_forward, tokens, scale, visibility)
    return rows.y, (tokens, scale, visibility, rows)


def _attend_backward(plans: PerPlatform[Plan], residuals: Any, dy: Array) -> Any:
    dtokens, dscale = plans.run(_backward, *residuals, dy)
    return dtokens, jnp.sum(dscale), None


def _backward(
    plan: Plan, tokens: Tokens, scale: Array, visibility: Visibility, rows: Rows, dy: Array
) -> tuple[Tokens, Array]:
    """Gradients of the tokens, and of the scale [B, 1, H] by batch and head."""
    weighing, pairs, size = plan.weighing, plan.pairs(visibility), plan.sizes.queries

    def of_heads(
        visibility: Visibility, tokens: Tokens, rows: Rows, dy: Array
    ) -> tuple[Tokens, Array]:
        x = tokens.by_head(plan.sizes)
        y, dy, total, offset = (
            jax.tree.map(lambda r: _by_head(r, size), r)
            for r in (rows.y, dy, rows.total, rows.level.offset)
        )
        levels = Scores(_by_head(rows.level.product, size, weighing.lowest), offset)
        inverse = safe_divide(jnp.ones_like(total), total)
        mean = einsum("bhtv,bhtv->bht", dy, y)

        def body(p: Array, gradients: tuple[Tokens, Array]) -> tuple[Tokens, Array]:
            dx, dscale = gradients
            row, column = jnp.asarray(pairs)[p]
            score = plan.scores(x, scale, visibility, row, column)
            factor, center = (plan.row(r, row)[..., None] for r in (inverse, mean))
            level = _of_row(jax.tree.map(lambda r: plan.row(r, row), levels))
            q, here = plan.row(x.q, row), plan.row(dy, row)
            k, v = plan.column(x.k, column), plan.column(x.v, column)
            weight = weighing.weight(*score.over(level)) * factor
            slope = weighing.slope(*score.over(level)) * factor
            dscore = slope * (einsum("bhtv,bhsv->bhts", here, v) - center)
            dq = einsum("bhts,bhsk->bhtk", dscore, k)
            dx = Tokens(
                add_block(dx.q, dq * scale, row, axis=2),
                add_block(dx.k, einsum("bhts,bhtk->bhsk", dscore, q * scale), column, axis=2),
                add_block(dx.v, einsum("bhts,bhtv->bhsv", weight, here), column, axis=2),
                _add_offsets(dx.offsets, dscore, row, column),
            )
            return dx, dscale + jnp.sum(dq * q, axis=(2, 3))[:, None]

        begin = jax.tree.map(jnp.zeros_like, (x, total[:, None, :, 0]))
        dx, dscale = jax.lax.fori_loop(0, len(pairs), body, begin)
        return dx.by_token(plan.queries, plan.keys), dscale

    begin = jax.tree.map(jnp.zeros_like, (tokens, rows.total[:, :1]))
    return plan.over_heads(of_heads, begin, visibility, tokens, rows, dy)


def _add_offsets(
    gradients: Offsets | None, dscore: Array, row: Array, column: Array
) -> Offsets | None:
    """Both floats of a number have its gradient."""
    if gradients is None:
        return None
    da, db = jnp.sum(dscore, axis=3), -jnp.sum(dscore, axis=2)
    return Offsets(
        TwoFloats(*(add_block(x, da, row, axis=2) for x in gradients.query)),
        TwoFloats(*(add_block(x, db, column, axis=2) for x in gradients.key)),
    )


_attend.defvjp(_attend_forward, _attend_backward)
