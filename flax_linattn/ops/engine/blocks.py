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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.contract.numerics import einsum, safe_divide, scores, vary_alike
from flax_linattn.ops.engine.forms import block_sizes
from flax_linattn.ops.engine.tiles import fill
from flax_linattn.ops.engine.two_floats import TwoFloats
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

    def between(self) -> Array:
        """Of all pairs: [B, H, T, S]."""
        a = TwoFloats(*(jnp.moveaxis(x, 1, 2)[..., None] for x in self.query))
        return a.minus(TwoFloats(*(jnp.moveaxis(x, 1, 2)[..., None, :] for x in self.key)))


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
    queries, keys = q.shape[1], k.shape[1]
    rows, columns = (block_sizes(q.shape[0] * q.shape[2], most, n) for n in (queries, keys))

    def plans(which: str) -> Plans:
        sizes = zip(rows[which].values(), columns[which].values(), strict=True)
        return Plans(*(Plan(weighing, row, column, queries, keys) for row, column in sizes))

    passes = Passes(plans("forward"), plans("backward"))
    q = _whole_blocks(q, rows)
    k, v = (_whole_blocks(x, columns) for x in (k, v))
    if offsets is not None:
        a, b = (
            TwoFloats(*(_whole_blocks(x, sizes) for x in half))
            for half, sizes in ((offsets.query, rows), (offsets.key, columns))
        )
        offsets = Offsets(a, b)
    scale = jnp.asarray(scale).astype(q.dtype)
    x, visibility = vary_alike((Arguments(q, k, v, scale, offsets), visibility))
    return _attend(passes, x, visibility)[:, :queries]


def _whole_blocks(x: Array, sizes: dict[str, dict[str, int]]) -> Array:
    return fill(x, max(size for platforms in sizes.values() for size in platforms.values()))


class Arguments(NamedTuple):
    """What has a gradient: q, k, v and offsets in whole blocks, and the scale."""

    q: Array
    k: Array
    v: Array
    scale: Array
    offsets: Offsets | None


class Plan(NamedTuple):
    """What is known when the program is made: rows and columns of a block, lengths."""

    weighing: Weighing
    rows: int
    columns: int
    queries: int
    keys: int

    def pairs(self, visibility: Visibility) -> np.ndarray[Any, Any]:
        """Int [pairs, 2], the blocks of queries and keys to make, one row of blocks at a time."""
        row, column = np.indices((-(-self.queries // self.rows), -(-self.keys // self.columns)))
        made = np.ones_like(row, bool)
        if visibility.is_causal:  # the block's first key comes before its last query
            made = column * self.columns - visibility.cached < (row + 1) * self.rows
        if visibility.window is not None:  # its last key comes within the first query's window
            last = (column + 1) * self.columns - 1 - visibility.cached
            made &= row * self.rows - visibility.window < last
        return np.stack([row[made], column[made]], axis=1).astype(np.int32)

    def scores(self, x: Arguments, visibility: Visibility, row: Array, column: Array) -> Scores:
        """[B, H, rows, columns]; hidden ones set apart."""
        visible = visibility.block(
            row * self.rows + jnp.arange(self.rows, dtype=jnp.int32),
            column * self.columns + jnp.arange(self.columns, dtype=jnp.int32),
            self.keys,
        )
        q, k = self.row(x.q, row), self.column(x.k, column)
        score = scores(q * x.scale, k)
        hidden = jnp.asarray(self.weighing.hidden, score.dtype)
        score = jnp.where(visible[:, None], score, hidden)
        if x.offsets is None:
            return Scores(score, None)
        a = TwoFloats(*(self.row(part, row) for part in x.offsets.query))
        b = TwoFloats(*(self.column(part, column) for part in x.offsets.key))
        return Scores(score, Offsets(a, b).between())

    def row(self, x: Array, index: Array, axis: int = 1) -> Array:
        """The block of queries ``index``."""
        return jax.lax.dynamic_slice_in_dim(x, index * self.rows, self.rows, axis)

    def column(self, x: Array, index: Array) -> Array:
        """The block of keys ``index``."""
        return jax.lax.dynamic_slice_in_dim(x, index * self.columns, self.columns, 1)


class Plans(NamedTuple):
    """A plan for each platform."""

    cpu: Plan
    accelerator: Plan

    def run(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """``function`` of the plan of the platform that it is compiled for, and of arrays."""
        if self.cpu == self.accelerator:
            return function(self.cpu, *arrays)
        return jax.lax.platform_dependent(
            *arrays,
            cpu=partial(function, self.cpu),
            default=partial(function, self.accelerator),
        )


class Passes(NamedTuple):
    """The plans of both passes."""

    forward: Plans
    backward: Plans


class Rows(NamedTuple):
    """Of every query: y [B, T, H, V], the level of its weights, and D relative to it [B, H, T]."""

    y: Array
    level: Scores
    total: Array

    @classmethod
    def nothing_seen(cls, weighing: Weighing, q: Array, v: Array, has_offsets: bool) -> Rows:
        """Before the first block of keys, for queries [B, T, H, K] and values [B, S, H, V]."""
        batch, length, heads = q.shape[:3]
        zeros = jnp.zeros((batch, heads, length), q.dtype)
        lowest = jnp.full_like(zeros, weighing.lowest)
        return cls(
            jnp.zeros((batch, length, heads, v.shape[-1]), v.dtype),
            Scores(lowest, zeros if has_offsets else None),
            zeros,
        )

    def see(
        self, weighing: Weighing, score: Scores, v: Array, sums: Callable[..., Array] | None = None
    ) -> Rows:
        """After a block of keys, of these scores [B, H, T, S] and values.

        ``sums`` adds values up by weights, for those who know a faster product.
        """
        # The level only rises, so that earlier weights shrink; it cancels, a constant to gradients.
        level = jax.lax.stop_gradient(self.level.larger(score.level(weighing)))
        weight = weighing.weight(*score.over(_of_row(level)))
        before = weighing.rescale(*self.level.over(level)) * self.total
        total = before + jnp.sum(weight, axis=-1)
        inverse = safe_divide(jnp.ones_like(total), total)
        here = einsum("bhts,bshv->bthv", weight, v) if sums is None else sums(weight, v)
        # y is always the mean of what has been seen, which is of the size of the values, as sums
        # of weights times values need not be.
        y = _by_token(before * inverse) * self.y
        return Rows(y + _by_token(inverse) * here, level, total)


def _by_token(x: Array) -> Array:
    """[B, H, T] -> [B, T, H, 1]."""
    return jnp.moveaxis(x, 1, 2)[..., None]


def _of_row(level: Scores) -> Scores:
    """[...] -> [..., 1], beside the scores of the row."""
    of_row: Scores = jax.tree.map(lambda r: r[..., None], level)
    return of_row


def _put(x: Array, block: Array, index: Array, axis: int = 1) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(x, block, index * block.shape[axis], axis)


def _add(x: Array, block: Array, index: Array) -> Array:
    size = block.shape[1]
    return _put(x, jax.lax.dynamic_slice_in_dim(x, index * size, size, 1) + block, index)


def _forward(plan: Plan, x: Arguments, visibility: Visibility) -> Rows:
    weighing, pairs = plan.weighing, plan.pairs(visibility)

    def body(p: Array, rows: Rows) -> Rows:
        row, column = jnp.asarray(pairs)[p]
        score = plan.scores(x, visibility, row, column)
        here = Rows(
            plan.row(rows.y, row),
            jax.tree.map(lambda r: plan.row(r, row, 2), rows.level),
            plan.row(rows.total, row, 2),
        ).see(weighing, score, plan.column(x.v, column))
        level = jax.tree.map(lambda r, new: _put(r, new, row, 2), rows.level, here.level)
        return Rows(_put(rows.y, here.y, row), level, _put(rows.total, here.total, row, 2))

    begin = Rows.nothing_seen(weighing, x.q, x.v, x.offsets is not None)
    return jax.lax.fori_loop(0, len(pairs), body, vary_alike((begin, x))[0])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(passes: Passes, x: Arguments, visibility: Visibility) -> Array:
    return passes.forward.run(_forward, x, visibility).y


def _attend_forward(passes: Passes, x: Arguments, visibility: Visibility) -> tuple[Array, Any]:
    rows: Rows = passes.forward.run(_forward, x, visibility)
    return rows.y, (x, visibility, rows)


def _attend_backward(passes: Passes, residuals: Any, dy: Array) -> Any:
    return passes.backward.run(_backward, *residuals, dy), None


def _backward(plan: Plan, x: Arguments, visibility: Visibility, rows: Rows, dy: Array) -> Arguments:
    weighing, pairs = plan.weighing, plan.pairs(visibility)
    inverse = safe_divide(jnp.ones_like(rows.total), rows.total)
    mean = einsum("bthv,bthv->bht", dy, rows.y)

    def body(p: Array, gradients: Arguments) -> Arguments:
        row, column = jnp.asarray(pairs)[p]
        score = plan.scores(x, visibility, row, column)
        factor, center = (plan.row(r, row, 2)[..., None] for r in (inverse, mean))
        level = _of_row(jax.tree.map(lambda r: plan.row(r, row, 2), rows.level))
        here, k, v = plan.row(dy, row), plan.column(x.k, column), plan.column(x.v, column)
        weight = weighing.weight(*score.over(level)) * factor
        slope = weighing.slope(*score.over(level)) * factor
        dscore = slope * (einsum("bthv,bshv->bhts", here, v) - center)
        q = plan.row(x.q, row)
        dq = einsum("bhts,bshk->bthk", dscore, k)
        return Arguments(
            _add(gradients.q, dq * x.scale, row),
            _add(gradients.k, einsum("bhts,bthk->bshk", dscore, q * x.scale), column),
            _add(gradients.v, einsum("bhts,bthv->bshv", weight, here), column),
            gradients.scale + jnp.sum(dq * q),
            _add_offsets(gradients.offsets, dscore, row, column),
        )

    return jax.lax.fori_loop(0, len(pairs), body, jax.tree.map(jnp.zeros_like, x))


def _add_offsets(
    gradients: Offsets | None, dscore: Array, row: Array, column: Array
) -> Offsets | None:
    """Both floats of a number have its gradient."""
    if gradients is None:
        return None
    da = jnp.moveaxis(jnp.sum(dscore, axis=3), 1, 2)
    db = -jnp.moveaxis(jnp.sum(dscore, axis=2), 1, 2)
    return Offsets(
        TwoFloats(*(_add(x, da, row) for x in gradients.query)),
        TwoFloats(*(_add(x, db, column) for x in gradients.key)),
    )


_attend.defvjp(_attend_forward, _attend_backward)
