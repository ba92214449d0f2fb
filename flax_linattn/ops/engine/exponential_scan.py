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

With log-decays a_l <= 0 a score falls by the a_l of all later tokens (Lin et al., "Forgetting
Transformer", 2025, equation 5): m_{i-1} + a_i stands wherever m_{i-1} does, and

    da_i = exp(m_{i-1} + a_i - m_i) (w_{i-1} . W_i + u_{i-1} U_i)

Running sums of ds would do as well, since those of a row sum to 0, but not in float32: their
rounding errors would add up where decays are strong, and the gradient itself is nearly 0.

Tiles of tokens are worked off by their C x C weights, all tiles at once ("parallel") or one after
another ("chunked"); "recurrent" is a loop over tokens that writes in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import einsum, safe_divide, vary_alike
from flax_linattn.ops.engine import decays, prefix
from flax_linattn.ops.engine.chunks import over_chunks
from flax_linattn.ops.engine.decays import by_head
from flax_linattn.ops.engine.exponential import ExponentialState, ForgettingState, Level, Sums
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
) -> tuple[Rows, ExponentialState]:
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
        The rows, with y 0 where nothing is seen, and the state. Gradients that flow through y and
        1 / u take the level for a constant, but for those of the parallel form, which is plain JAX:
        fit for what is the same for any, as level + log u is.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn.ops.engine import exponential
        >>> nothing = exponential.empty((1, 1), (1, 1, 1), jnp.float32)
        >>> v = jnp.array([1.0, 3.0, 8.0]).reshape(1, 3, 1, 1)
        >>> rows, _ = exponential_scan(jnp.zeros((1, 3, 1)), v, nothing)
        >>> rows.y.ravel().tolist()
        [1.0, 2.0, 4.0]
    """
    tokens = Tokens(_masked(score, mask), v, starts, None)
    begin = Sums(Level(initial.m, None), initial.u, initial.w)
    rows, last = _run(form, chunk_size, tokens, begin)
    return rows, ExponentialState(last.level.score, last.u, last.w)


def forgetting_scan(
    score: Array,
    v: Array,
    log_decay: Array,
    initial: ForgettingState,
    *,
    mask: Array | None = None,
    starts: Array | None = None,
    form: str = "auto",
    chunk_size: int = 128,
) -> tuple[Rows, ForgettingState]:
    """``exponential_scan`` where all earlier scores fall with every token.

    Args:
        score: [B, T, H].
        v: values [B, T, H, V].
        log_decay: [B, T, H], how far they fall, at most 0 and 0 at padding.
        initial: the state before the first token.
        mask: as in ``exponential_scan``, like the rest.
        starts: bool [B, T].
        form: "parallel", "chunked", "recurrent" or "auto".
        chunk_size: tokens a tile.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> nothing = ops.get_mechanism("forgetting_aaren").init_state(1, 1, 1, 1)
        >>> v = jnp.array([1.0, 4.0]).reshape(1, 2, 1, 1)
        >>> halves = jnp.full((1, 2, 1), jnp.log(0.5))
        >>> rows, state = forgetting_scan(0 * v[..., 0], v, halves, nothing)
        >>> rows.y.ravel().tolist(), state.u.item()
        ([1.0, 3.0], 1.5)
    """
    tokens = Tokens(_masked(score, mask), v, starts, log_decay)
    rows, last = _run(form, chunk_size, tokens, initial.sums)
    return rows, ForgettingState.of(_total_decay(log_decay, starts, initial.log_decay), last)


def _masked(score: Array, mask: Array | None) -> Array:
    return score if mask is None else jnp.where(mask[..., None], score, -jnp.inf)


def _total_decay(log_decay: Array, starts: Array | None, before: Array) -> Array:
    """The sum over the tokens [B, T, ...] of the last segment, with what came in with it."""
    span = prefix.Span(log_decay, None, starts)
    if starts is None or log_decay.shape[1] == 0:
        return before + jnp.sum(log_decay, axis=1)
    last = span.run[:, -1]
    own = jnp.sum(masks.zero_padding(log_decay, span.of_run(last)), axis=1)
    return own + masks.zero_padding(before, last == 0)


def _run(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[Rows, Sums]:
    if tokens.score.shape[1] == 0:
        level = Level(tokens.score, tokens.log_decay)
        return Rows(tokens.v, level, tokens.score), initial
    tokens, initial = vary_alike((tokens, initial))
    if form == "parallel":
        # Asked for by name: differentiated by JAX, forwards too, for more memory.
        return scan_form("exponential", "forward", form, _FORWARD, size)(tokens, initial)
    return _scan(form, size, tokens, initial)


class Tokens(NamedTuple):
    """What the forms work on, a stretch of tokens with leaves [B, C, ...].

    Forward it is the scores s [B, C, H], the values v [B, C, H, V], ``starts`` and the log-decays
    [B, C, H], if there are any. Backward it is also the levels m, the level ``before`` each token
    (-inf at starts), dy, inverse = 1 / u, so that dy times it is the gradient of w through a row's
    own output, du, the gradient of u likewise, and with log-decays ``past``, the sums before each.
    """

    score: Array
    v: Array
    starts: Array | None
    log_decay: Array | None
    m: Any = None
    before: Any = None
    dy: Any = None
    inverse: Any = None
    du: Any = None
    past: Any = None

    @property
    def level(self) -> Level:
        """The scores of the tokens, none of which has fallen."""
        return Level(self.score, None if self.log_decay is None else jnp.zeros_like(self.score))

    def since(self, initial: Level, m: Level) -> Level:
        """The level before each token, in its own segment: -inf where one starts."""
        before = before_each(initial, m).fall(self.log_decay)
        return before if self.starts is None else before.among(~self.starts)

    @property
    def run(self) -> Array:
        """Int [B, C], starts so far: 0 = of the segment that came in."""
        if self.starts is None:
            return jnp.zeros((1, self.score.shape[1]), jnp.int32)
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)

    @property
    def seen(self) -> Level:
        """[B, H, C, C]: s_j, and how far it has fallen, for all j that i sees, else -inf."""
        size = self.score.shape[1]
        run = None if self.starts is None else self.run
        visible = masks.visible_rows(jnp.arange(size), size, is_causal=True, run=run)
        score = jnp.where(visible[:, None], jnp.moveaxis(self.score, 1, 2)[:, :, None], -jnp.inf)
        if self.log_decay is None:
            return Level(score, None)
        return Level(score, decays.between(by_head(self.log_decay)))

    def is_new(self, level: Level, before: Level) -> Array:
        """Bool [B, T, H]: whether the level is the score of the token itself."""
        if level.fallen is None:
            return level.score > before.score
        return (level.score == self.score) & (level.fallen == 0) & (self.score > -jnp.inf)

    @property
    def decay_until(self) -> Array | None:
        """[B, C, H]: what the past of the tile has lost at each token."""
        return None if self.log_decay is None else decays.until(self.log_decay)

    @property
    def decay_since_first(self) -> Array | None:
        """The same, but for what it lost at the first token."""
        return None if self.log_decay is None else decays.until(self.log_decay.at[:, 0].set(0))

    @property
    def decay_after(self) -> Array | None:
        """[B, C, H]: what each token has lost at the last one."""
        return None if self.log_decay is None else decays.after(self.log_decay)

    def filled(self, size: int) -> Tokens:
        """Padded to a multiple of ``size`` tokens, by some that nothing sees."""
        fills: dict[str, Any] = {name: {"mode": "edge"} for name in ("m", "before")}
        fills["score"] = {"constant_values": -jnp.inf}
        return Tokens(
            **{
                name: jax.tree.map(partial(fill, size=size, **fills.get(name, {})), x)
                for name, x in self._asdict().items()
            }
        )


class Rows(NamedTuple):
    """Of every position what is kept for gradients: y [B, T, H, V], level and 1 / u [B, T, H]."""

    y: Array
    level: Level
    inverse: Array

    @classmethod
    def of(cls, sums: Sums) -> Rows:
        """Those of sums [B, ...]; u is at least 1 where anything is seen."""
        inverse = safe_divide(jnp.ones_like(sums.u), sums.u)
        return cls(sums.w * inverse[..., None], sums.level, inverse)


class Adjoint(NamedTuple):
    """The gradients W [B, H, V] and U [B, H] of the sums w and u at one position."""

    w: Array
    u: Array

    def of(self, sums: Adjoint) -> Array:
        """w . W + u U [...] of sums w and u."""
        return jnp.sum(self.w * sums.w, axis=-1) + self.u * sums.u


class Gradients(NamedTuple):
    """Into scores, values and log-decays, None without these."""

    score: Array
    v: Array
    log_decay: Array | None


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[Rows, Sums]:
    rows, last = scan_form("exponential", "inference", form, _FORWARD, size)(tokens, initial)
    return rows, last


def _scan_forward(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[Any, Any]:
    rows, last = scan_form("exponential", "forward", form, _FORWARD, size)(tokens, initial)
    return (rows, last), (tokens, initial, rows, last)


def _scan_backward(form: str, size: int, residuals: Any, gradients: Any) -> Any:
    tokens, initial, rows, last = residuals
    (dy, _, dinverse), dlast = gradients
    before = tokens.since(initial.level, rows.level)
    du_own = -dinverse * rows.inverse * rows.inverse
    dtokens, first = scan_form("exponential", "backward", form, _BACKWARD, size)(
        tokens._replace(
            m=rows.level,
            before=before,
            dy=dy,
            inverse=rows.inverse,
            du=du_own - jnp.sum(dy * rows.y, axis=-1) * rows.inverse,
            past=None if tokens.log_decay is None else _past(rows, initial),
        ),
        Adjoint(dlast.w, dlast.u),
    )
    dscore, dv, dlog_decay = dtokens
    # The level of the last state is the score of one token, or was the initial one.
    through_sums = last.u * dlast.u + jnp.sum(last.w * dlast.w, axis=-1)
    dm = dlast.level.score - through_sums
    index = jnp.arange(dscore.shape[1], dtype=jnp.int32)[:, None]
    highest = jnp.max(jnp.where(tokens.is_new(rows.level, before), index, -1), axis=1)  # [B, H]
    zero = jnp.zeros_like(dm)
    dscore = dscore + jnp.where(index == highest[:, None], dm[:, None], zero[:, None])
    from_sums = initial.u * first.u + jnp.sum(initial.w * first.w, axis=-1)
    dinitial = from_sums + jnp.where(highest < 0, dm, zero)
    if tokens.log_decay is None:
        return Tokens(dscore, dv, None, None), Sums(Level(dinitial, None), first.u, first.w)
    dfallen = dlast.level.fallen - through_sums
    since = index > highest[:, None]
    dlog_decay = dlog_decay + jnp.where(since, dfallen[:, None], zero[:, None])
    of_fallen = from_sums + jnp.where(highest < 0, dfallen, zero)
    dlevel = Level(dinitial, of_fallen)
    return Tokens(dscore, dv, None, dlog_decay), Sums(dlevel, first.u, first.w)


def _past(rows: Rows, initial: Sums) -> Adjoint:
    """The sums w [B, T, H, V] and u [B, T, H] before each token, relative to the level there."""
    u = safe_divide(jnp.ones_like(rows.inverse), rows.inverse)
    return before_each(Adjoint(initial.w, initial.u), Adjoint(rows.y * u[..., None], u))


_scan.defvjp(_scan_forward, _scan_backward)


# -- token by token, in place -----------------------------------------------------------


def _levels(tokens: Tokens, initial: Level) -> Level:
    """The level at each token [B, T, H]."""

    def body(t: Array, carry: tuple[Level, Level]) -> tuple[Level, Level]:
        before, levels = carry
        if tokens.log_decay is not None:
            before = before.fall(at(tokens.log_decay, t))
        if tokens.starts is not None:
            before = before.among(~at(tokens.starts, t))
        own = jax.tree.map(partial(at, t=t), tokens.level)
        now = before.larger(own)
        return now, jax.tree.map(partial(put, t=t), levels, now)

    length = tokens.score.shape[1]
    nothing = jax.tree.map(jnp.zeros_like, tokens.level)
    return jax.lax.fori_loop(0, length, body, (initial, nothing))[1]


def _forward_tokens(size: int, tokens: Tokens, initial: Sums) -> tuple[Rows, Sums]:
    # With the levels known, the loop over values is left with products and sums alone. Both
    # exponents are at most 0: nothing overflows, and what underflows is lost beside a weight of 1.
    m = _levels(tokens, initial.level)
    weight = tokens.level.over(m)
    decay = tokens.since(initial.level, m).over(m)

    def body(t: Array, carry: Any) -> Any:
        u, w, y, inverses = carry
        here, factor = at(weight, t), at(decay, t)
        u = factor * u + here
        w = factor[..., None] * w + here[..., None] * at(tokens.v, t)
        inverse = safe_divide(jnp.ones_like(u), u)
        return u, w, put(y, w * inverse[..., None], t=t), put(inverses, inverse, t=t)

    begin = initial.u, initial.w, jnp.zeros_like(tokens.v), jnp.zeros_like(weight)
    u, w, y, inverse = jax.lax.fori_loop(0, weight.shape[1], body, begin)
    return Rows(y, m, inverse), Sums(position(m, -1), u, w)


def _backward_tokens(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    length = tokens.score.shape[1]
    weight = tokens.level.over(tokens.m)
    decay = tokens.before.over(tokens.m)

    def body(i: Array, carry: Any) -> Any:
        t = length - 1 - i
        (w, u), (dscore, dv, dlog_decay) = carry
        w = w + at(tokens.dy, t) * at(tokens.inverse, t)[..., None]
        u = u + at(tokens.du, t)
        here, factor = at(weight, t), at(decay, t)
        dscore = put(dscore, here * (jnp.sum(at(tokens.v, t) * w, axis=-1) + u), t=t)
        dv = put(dv, here[..., None] * w, t=t)
        before = Adjoint(factor[..., None] * w, factor * u)
        if dlog_decay is not None:
            dlog_decay = put(
                dlog_decay, before.of(jax.tree.map(partial(at, t=t), tokens.past)), t=t
            )
        return before, Gradients(dscore, dv, dlog_decay)

    given = Gradients(tokens.score, tokens.v, tokens.log_decay)
    nothing = jax.tree.map(jnp.zeros_like, given)
    first, gradients = jax.lax.fori_loop(0, length, body, (end, nothing))
    return gradients, first


# -- tile by tile -----------------------------------------------------------------------


def _sums(tile: Tokens) -> Sums:
    """Those of every position over the tile alone [B, C, ...]."""
    # Each row relative to its own level: by that of the tile, an early row could underflow.
    seen = tile.seen
    level = _largest(seen)
    weight = seen.over(jax.tree.map(lambda x: x[..., None], level))
    w = einsum("bhij,bjhv->bihv", weight, tile.v)
    level = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 2), level)
    return Sums(level, jnp.moveaxis(jnp.sum(weight, -1), 1, 2), w)


def _largest(seen: Level) -> Level:
    """[B, H, C, C] -> [B, H, C]: the largest score of each row as it has fallen."""
    if seen.fallen is None:
        return Level(jnp.max(seen.score, axis=-1), None)
    place = jnp.argmax(seen.score + seen.fallen, axis=-1, keepdims=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, place, axis=-1)[..., 0], seen)


def _with_past(tile: Tokens, sums: Sums, past: Sums) -> Sums:
    """Adds the state before the tile to the positions that see it."""
    past = jax.tree.map(lambda p: p[:, None], past).fall(tile.decay_until)
    # To a row of another segment the past is that of no token, whose level is -inf.
    return past._replace(level=past.level.among(tile.run == 0)).merge(sums)


def _forward_parallel(size: int, tokens: Tokens, initial: Sums) -> tuple[Rows, Sums]:
    tiles = split(tokens.filled(size), size)
    sums = jax.vmap(_sums, 1, 1)(tiles)
    restarts = None if tiles.starts is None else jnp.any(tiles.starts, axis=2)
    totals = jax.vmap(partial(position, index=-1), 1, 1)(sums)
    past = before_each(initial, _joined(tiles, totals, initial, restarts))
    state = unsplit(jax.vmap(_with_past, 1, 1)(tiles, sums, past), tokens.score.shape[1])
    return Rows.of(state), position(state, -1)


def _joined(tiles: Tokens, totals: Sums, initial: Sums, restarts: Array | None) -> Sums:
    """The state after each tile, of the totals [B, tiles, ...] of each alone."""
    if tiles.log_decay is None:
        return prefix.scan(Sums.merge, totals, initial, restarts)
    lost = jnp.sum(tiles.log_decay, axis=2)
    begin = ForgettingState.of(jnp.zeros_like(initial.u), initial)
    after = prefix.scan(ForgettingState.merge, ForgettingState.of(lost, totals), begin, restarts)
    return after.sums


def _forward_chunked(size: int, tokens: Tokens, initial: Sums) -> tuple[Rows, Sums]:
    def body(past: Sums, tile: tuple[Tokens]) -> tuple[Sums, Rows]:
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


class Own(NamedTuple):
    """From a tile's own rows: dv, the part of ds that comes through u, that of log-decays.

    ``reach`` [B, C, H] is what the sums before the tile weigh in each row.
    """

    v: Array
    through_u: Array
    log_decay: Array | None
    reach: Array


def _own_gradients(tile: Tokens) -> tuple[Own, Passage]:
    """The gradients of its own rows, and the passage."""
    weight = tile.seen.over(jax.tree.map(lambda x: jnp.moveaxis(x, 1, 2)[..., None], tile.m))
    dw = tile.dy * tile.inverse[..., None]
    dv = einsum("bhij,bihv->bjhv", weight, dw)
    through_u = einsum("bhij,bih->bjh", weight, tile.du)
    # Sums of rows come relative to their own levels, none of which is below that of the sums
    # before, as they have fallen, so that reach is at most 1.
    first = jax.tree.map(lambda x: x[:, :1], tile.before)
    reach = first.fall(tile.decay_since_first).over(tile.m)
    reach = jnp.where((tile.run == 0)[..., None], reach, jnp.zeros_like(reach))
    own = Adjoint(einsum("bih,bihv->bhv", reach, dw), einsum("bih,bih->bh", reach, tile.du))
    dlog_decay = None
    if tile.log_decay is not None:
        # Of each pair j < i, to all decays between the two; of the past and i, to all until i.
        pairs = weight * (einsum("bihv,bjhv->bhij", dw, tile.v) + by_head(tile.du))
        past = jax.tree.map(lambda x: x[:, :1], tile.past)
        of_past = reach * Adjoint(dw, tile.du).of(past)
        dlog_decay = _crossing(pairs) + decays.onwards(of_past)
    return Own(dv, through_u, dlog_decay, reach), Passage(reach[:, -1], own)


def _crossing(pairs: Array) -> Array:
    """[B, H, C, C] -> [B, C, H]: for each l the sum over i >= l and j < l."""
    index = jnp.arange(pairs.shape[-1])
    before = decays.before(jnp.swapaxes(pairs, -1, -2))  # [B, H, l, i], over j < l
    later = index >= index[:, None]
    return jnp.moveaxis(jnp.sum(jnp.where(later, before, jnp.zeros_like(before)), axis=3), 1, 2)


def _with_future(tile: Tokens, own: Own, after: Adjoint) -> Gradients:
    """Adds what comes from behind the tile."""
    # W and U after the tile are relative to its last maximum: exponents are at most 0 again.
    last = jax.tree.map(lambda x: x[:, -1:], tile.m)
    weight = tile.level.fall(tile.decay_after).over(last)
    weight = jnp.where((tile.run == tile.run[:, -1:])[..., None], weight, jnp.zeros_like(weight))
    dv = own.v + weight[..., None] * after.w[:, None]
    dscore = jnp.sum(tile.v * dv, axis=-1) + own.through_u + weight * after.u[:, None]
    if own.log_decay is None:
        return Gradients(dscore, dv, None)
    after = jax.tree.map(lambda x: x[:, None], after)
    ones = jnp.ones_like(weight)
    of_tokens = weight * after.of(Adjoint(tile.v, ones))
    of_past = own.reach[:, -1:] * after.of(jax.tree.map(lambda x: x[:, :1], tile.past))
    return Gradients(dscore, dv, own.log_decay + decays.before(of_tokens) + of_past)


def _backward_parallel(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    tiles = split(tokens.filled(size), size)
    own, passages = jax.vmap(_own_gradients, 1, 1)(tiles)

    def join(later: Passage, earlier: Passage) -> Passage:
        return Passage(later.factor * earlier.factor, earlier(later.own))

    passages = jax.lax.associative_scan(join, passages, axis=1, reverse=True)
    begins = jax.vmap(Passage.__call__, (1, None), 1)(passages, end)
    gradients = jax.vmap(_with_future, 1, 1)(tiles, own, after_each(begins, end))
    return unsplit(gradients, tokens.score.shape[1]), position(begins, 0)


def _backward_chunked(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    def body(after: Adjoint, tile: tuple[Tokens]) -> tuple[Adjoint, Gradients]:
        own, passage = _own_gradients(tile[0])
        return passage(after), _with_future(tile[0], own, after)

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
