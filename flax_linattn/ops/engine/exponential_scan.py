"""Causal means under exponential weights: three forms, one hand-derived gradient.

For scores s_j and values v_j, position i gets, over the j <= i of its own packed segment,

    m_i = max s_j,   u_i = sum exp(s_j - m_i),   w_i = sum exp(s_j - m_i) v_j,   y_i = w_i / u_i

(Feng et al., "Attention as an RNN", 2024, section 3.2). Whichever form ran forward, the backward
pass needs y, m and 1 / u of it. With dy the gradient of the outputs,

    W_i = dy_i / u_i + exp(m_i - m_{i+1}) W_{i+1}
    U_i = -(dy_i . y_i) / u_i + exp(m_i - m_{i+1}) U_{i+1}
    dv_j = exp(s_j - m_j) W_j
    ds_j = exp(s_j - m_j) (v_j . W_j + U_j)

and no exponent is above 0. The gradient of the state after the last token is where W and U begin;
that of its maximum goes to the token whose score it is.

Tiles of tokens are worked off by their C x C weights, all tiles at once ("parallel") or one after
another ("chunked"); "recurrent" is a loop over tokens that writes in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import einsum, exp_difference, safe_divide, vary_alike
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.forms import scan_form
from flax_linattn.ops.engine.tiles import (
    after_each,
    at,
    before_each,
    cut,
    fill,
    position,
    put,
    split,
    unsplit,
)
from flax_linattn.typing import Array


def exponential_scan(
    score: Array,
    v: Array,
    initial: ExponentialState,
    *,
    mask: Array | None = None,
    starts: Array | None = None,
    form: str = "auto",
    chunk_size: int = 128,
) -> tuple[Array, ExponentialState]:
    """Means of all positions, and the state after the last token.

    Args:
        score: [B, T, H].
        v: values [B, T, H, V].
        initial: the state before the first token: m [B, H], u [B, H], w [B, H, V].
        mask: bool [B, T], False = padding, where scores and values are finite.
        starts: bool [B, T], True = a packed segment begins here.
        form: "parallel", "chunked", "recurrent" or "auto".
        chunk_size: tokens a tile of the chunked form; of the parallel one at most.

    Returns:
        y [B, T, H, V], 0 where nothing is seen, and the state.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn.ops.engine import exponential
        >>> nothing = exponential.empty((1, 1), (1, 1, 1), jnp.float32)
        >>> v = jnp.array([1.0, 3.0, 8.0]).reshape(1, 3, 1, 1)
        >>> y, _ = exponential_scan(jnp.zeros((1, 3, 1)), v, nothing)
        >>> y.ravel().tolist()
        [1.0, 2.0, 4.0]
    """
    if score.shape[1] == 0:
        return v, initial
    if mask is not None:
        score = jnp.where(mask[..., None], score, -jnp.inf)
    return _scan(form, chunk_size, *vary_alike((Tokens(score, v, starts), initial)))


class Tokens(NamedTuple):
    """What the forms work on, a stretch of tokens with leaves [B, C, ...].

    Forward it is the scores s [B, C, H], the values v [B, C, H, V] and ``starts``; backward also
    m, the maximum ``before`` each token (-inf at starts), dy, inverse = 1 / u, so that dy times it
    is the gradient of w through a row's own output, and du, the gradient of u likewise.
    """

    score: Array
    v: Array
    starts: Array | None
    m: Any = None
    before: Any = None
    dy: Any = None
    inverse: Any = None
    du: Any = None

    def since(self, initial: Array, m: Array) -> Array:
        """The maximum before each token, in its own segment: -inf where one starts."""
        before = before_each(initial, m)
        if self.starts is None:
            return before
        return jnp.where(self.starts[..., None], -jnp.inf, before)

    @property
    def run(self) -> Array:
        """Int [B, C], starts so far: 0 = of the segment that came in."""
        if self.starts is None:
            return jnp.zeros((1, self.score.shape[1]), jnp.int32)
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)

    @property
    def visible_score(self) -> Array:
        """[B, H, C, C]: s_j for all j that i sees, -inf for the others."""
        size = self.score.shape[1]
        run = None if self.starts is None else self.run
        visible = masks.visible_rows(jnp.arange(size), size, is_causal=True, run=run)
        return jnp.where(visible[:, None], jnp.moveaxis(self.score, 1, 2)[:, :, None], -jnp.inf)

    def filled(self, size: int) -> Tokens:
        """Padded to a multiple of ``size`` tokens, by some that nothing sees."""
        fills: dict[str, Any] = {name: {"mode": "edge"} for name in ("m", "before")}
        fills["score"] = {"constant_values": -jnp.inf}
        given = {name: x for name, x in self._asdict().items() if x is not None}
        return self._replace(
            **{name: fill(x, size, **fills.get(name, {})) for name, x in given.items()}
        )


class Rows(NamedTuple):
    """What the backward pass keeps of every position: y [B, T, H, V], m and 1 / u [B, T, H]."""

    y: Array
    m: Array
    inverse: Array

    @classmethod
    def of(cls, state: ExponentialState) -> Rows:
        """Those of states [B, ...]; u is at least 1 where anything is seen."""
        inverse = safe_divide(jnp.ones_like(state.u), state.u)
        return cls(state.w * inverse[..., None], state.m, inverse)


class Adjoint(NamedTuple):
    """The gradients W [B, H, V] and U [B, H] of the sums w and u at one position."""

    w: Array
    u: Array


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(
    form: str, size: int, tokens: Tokens, initial: ExponentialState
) -> tuple[Array, ExponentialState]:
    rows, last = scan_form("exponential", "inference", form, _FORWARD, size)(tokens, initial)
    return rows.y, last


def _scan_forward(
    form: str, size: int, tokens: Tokens, initial: ExponentialState
) -> tuple[Any, Any]:
    rows, last = scan_form("exponential", "forward", form, _FORWARD, size)(tokens, initial)
    return (rows.y, last), (tokens, initial, rows, last)


def _scan_backward(form: str, size: int, residuals: Any, gradients: Any) -> Any:
    tokens, initial, rows, last = residuals
    dy, dlast = gradients
    before = tokens.since(initial.m, rows.m)
    dtokens, first = scan_form("exponential", "backward", form, _BACKWARD, size)(
        tokens._replace(
            m=rows.m,
            before=before,
            dy=dy,
            inverse=rows.inverse,
            du=-jnp.sum(dy * rows.y, axis=-1) * rows.inverse,
        ),
        Adjoint(dlast.w, dlast.u),
    )
    dscore, dv = dtokens
    # The maximum of the last state is the score of one token, or was the initial one.
    dm = dlast.m - last.u * dlast.u - jnp.sum(last.w * dlast.w, axis=-1)
    index = jnp.arange(dscore.shape[1], dtype=jnp.int32)[:, None]
    highest = jnp.max(jnp.where(rows.m > before, index, -1), axis=1)  # [B, H]
    zero = jnp.zeros_like(dm)
    dscore = dscore + jnp.where(index == highest[:, None], dm[:, None], zero[:, None])
    from_sums = initial.u * first.u + jnp.sum(initial.w * first.w, axis=-1)
    dinitial = ExponentialState(
        m=from_sums + jnp.where(highest < 0, dm, zero), u=first.u, w=first.w
    )
    return Tokens(dscore, dv, None), dinitial


_scan.defvjp(_scan_forward, _scan_backward)


# -- token by token, in place -----------------------------------------------------------


def _maxima(tokens: Tokens, initial: Array) -> Array:
    """m [B, T, H]."""

    def body(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        before, m = carry
        if tokens.starts is not None:
            before = jnp.where(at(tokens.starts, t)[:, None], -jnp.inf, before)
        now = jnp.maximum(before, at(tokens.score, t))
        return now, put(m, now, t=t)

    length = tokens.score.shape[1]
    return jax.lax.fori_loop(0, length, body, (initial, jnp.zeros_like(tokens.score)))[1]


def _forward_tokens(
    size: int, tokens: Tokens, initial: ExponentialState
) -> tuple[Rows, ExponentialState]:
    # With the maxima known, the loop over values is left with products and sums alone. Both
    # exponents are at most 0: nothing overflows, and what underflows is lost beside a weight of 1.
    m = _maxima(tokens, initial.m)
    weight = exp_difference(tokens.score, m)
    decay = exp_difference(tokens.since(initial.m, m), m)

    def body(t: Array, carry: Any) -> Any:
        u, w, y, inverses = carry
        here, factor = at(weight, t), at(decay, t)
        u = factor * u + here
        w = factor[..., None] * w + here[..., None] * at(tokens.v, t)
        inverse = safe_divide(jnp.ones_like(u), u)
        return u, w, put(y, w * inverse[..., None], t=t), put(inverses, inverse, t=t)

    begin = initial.u, initial.w, jnp.zeros_like(tokens.v), jnp.zeros_like(m)
    u, w, y, inverse = jax.lax.fori_loop(0, m.shape[1], body, begin)
    return Rows(y, m, inverse), ExponentialState(m[:, -1], u, w)


def _backward_tokens(
    size: int, tokens: Tokens, end: Adjoint
) -> tuple[tuple[Array, Array], Adjoint]:
    length = tokens.score.shape[1]
    weight = exp_difference(tokens.score, tokens.m)
    decay = exp_difference(tokens.before, tokens.m)

    def body(i: Array, carry: Any) -> Any:
        t = length - 1 - i
        (w, u), dscore, dv = carry
        w = w + at(tokens.dy, t) * at(tokens.inverse, t)[..., None]
        u = u + at(tokens.du, t)
        here, factor = at(weight, t), at(decay, t)
        dscore = put(dscore, here * (jnp.sum(at(tokens.v, t) * w, axis=-1) + u), t=t)
        dv = put(dv, here[..., None] * w, t=t)
        return Adjoint(factor[..., None] * w, factor * u), dscore, dv

    nothing = jnp.zeros_like(tokens.score), jnp.zeros_like(tokens.v)
    first, *gradients = jax.lax.fori_loop(0, length, body, (end, *nothing))
    return (gradients[0], gradients[1]), first


# -- tile by tile -----------------------------------------------------------------------


def _sums(tile: Tokens) -> ExponentialState:
    """(m, u, w) of every position over the tile alone [B, C, ...]."""
    # Each row relative to its own maximum: by that of the tile, an early row could underflow.
    score = tile.visible_score
    m = jnp.max(score, axis=-1)
    weight = exp_difference(score, m[..., None])
    w = einsum("bhij,bjhv->bihv", weight, tile.v)
    return ExponentialState(jnp.moveaxis(m, 1, 2), jnp.moveaxis(jnp.sum(weight, -1), 1, 2), w)


def _with_past(tile: Tokens, sums: ExponentialState, past: ExponentialState) -> ExponentialState:
    """Adds the state before the tile to the positions that see it."""
    past = jax.tree.map(lambda p: p[:, None], past)
    # To a row of another segment the past is that of no token, whose maximum is -inf.
    past = past._replace(m=jnp.where((tile.run == 0)[..., None], past.m, -jnp.inf))
    return past.merge(sums)


def _forward_parallel(
    size: int, tokens: Tokens, initial: ExponentialState
) -> tuple[Rows, ExponentialState]:
    tiles = split(tokens.filled(size), size)
    sums = jax.vmap(_sums, 1, 1)(tiles)
    restarts = None if tiles.starts is None else jnp.any(tiles.starts, axis=2)
    totals = jax.vmap(partial(position, index=-1), 1, 1)(sums)
    after = prefix.scan(ExponentialState.merge, totals, initial, restarts)
    past = before_each(initial, after)
    state = unsplit(jax.vmap(_with_past, 1, 1)(tiles, sums, past), tokens.score.shape[1])
    return Rows.of(state), position(after, -1)


def _forward_chunked(
    size: int, tokens: Tokens, initial: ExponentialState
) -> tuple[Rows, ExponentialState]:
    def body(past: ExponentialState, tile: tuple[Tokens]) -> tuple[ExponentialState, Rows]:
        state = _with_past(tile[0], _sums(tile[0]), past)
        return position(state, -1), Rows.of(state)

    last, rows = over_chunks(body, initial, (tokens.filled(size),), size)
    return cut(rows, tokens.score.shape[1]), last


class Passage(NamedTuple):
    """How W and U pass a stretch from its end to its begin: factor [B, H] times them, plus own."""

    factor: Array
    own: Adjoint

    def __call__(self, after: Adjoint) -> Adjoint:
        w, u = self.own
        return Adjoint(w + self.factor[..., None] * after.w, u + self.factor * after.u)


def _own_gradients(tile: Tokens) -> tuple[Array, Array, Passage]:
    """From the tile's own rows: dv, the part of ds that comes through u, the passage."""
    weight = exp_difference(tile.visible_score, jnp.moveaxis(tile.m, 1, 2)[..., None])
    dw = tile.dy * tile.inverse[..., None]
    dv = einsum("bhij,bihv->bjhv", weight, dw)
    through_u = einsum("bhij,bih->bjh", weight, tile.du)
    # What the sums before the tile weigh in each row. Sums of rows come relative to their own
    # maxima, which only rise within a segment, so that reach is at most 1.
    reach = exp_difference(tile.before[:, :1], tile.m)
    reach = jnp.where((tile.run == 0)[..., None], reach, jnp.zeros_like(reach))
    own = Adjoint(einsum("bih,bihv->bhv", reach, dw), einsum("bih,bih->bh", reach, tile.du))
    return dv, through_u, Passage(reach[:, -1], own)


def _with_future(tile: Tokens, dv: Array, through_u: Array, after: Adjoint) -> tuple[Array, Array]:
    """Adds what comes from behind the tile: ds and dv of its tokens."""
    # W and U after the tile are relative to its last maximum: exponents are at most 0 again.
    weight = exp_difference(tile.score, tile.m[:, -1:])
    weight = jnp.where((tile.run == tile.run[:, -1:])[..., None], weight, jnp.zeros_like(weight))
    dv = dv + weight[..., None] * after.w[:, None]
    return jnp.sum(tile.v * dv, axis=-1) + through_u + weight * after.u[:, None], dv


def _backward_parallel(
    size: int, tokens: Tokens, end: Adjoint
) -> tuple[tuple[Array, Array], Adjoint]:
    tiles = split(tokens.filled(size), size)
    dv, through_u, passages = jax.vmap(_own_gradients, 1, 1)(tiles)

    def join(later: Passage, earlier: Passage) -> Passage:
        return Passage(later.factor * earlier.factor, earlier(later.own))

    passages = jax.lax.associative_scan(join, passages, axis=1, reverse=True)
    begins = jax.vmap(Passage.__call__, (1, None), 1)(passages, end)
    gradients = jax.vmap(_with_future, 1, 1)(tiles, dv, through_u, after_each(begins, end))
    return unsplit(gradients, tokens.score.shape[1]), position(begins, 0)


def _backward_chunked(
    size: int, tokens: Tokens, end: Adjoint
) -> tuple[tuple[Array, Array], Adjoint]:
    def body(after: Adjoint, tile: tuple[Tokens]) -> tuple[Adjoint, tuple[Array, Array]]:
        dv, through_u, passage = _own_gradients(tile[0])
        return passage(after), _with_future(tile[0], dv, through_u, after)

    first, gradients = over_chunks(body, end, (tokens.filled(size),), size, reverse=True)
    return cut(gradients, tokens.score.shape[1]), first


_FORWARD = {
    "parallel": _forward_parallel,
    "chunked": _forward_chunked,
    "recurrent": _forward_tokens,
}
_BACKWARD = {
    "parallel": _backward_parallel,
    "chunked": _backward_chunked,
    "recurrent": _backward_tokens,
}
