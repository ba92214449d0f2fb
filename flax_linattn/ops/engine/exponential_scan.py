"""Causal means under exponential weights: three forms, one hand-derived gradient.

For scores s_j and values v_j, position i computes over the j <= i of its own packed segment

    m_i = max s_j,   u_i = sum exp(s_j - m_i),   w_i = sum exp(s_j - m_i) v_j,   y_i = w_i / u_i

(Feng et al., "Attention as an RNN", 2024, section 3.2). Whichever form ran forward, the backward
pass needs only its y, m and 1 / u. With dy the gradient of the outputs,

    W_i = dy_i / u_i + exp(m_i - m_{i+1}) W_{i+1}
    U_i = -(dy_i . y_i) / u_i + exp(m_i - m_{i+1}) U_{i+1}
    dv_j = exp(s_j - m_j) W_j
    ds_j = exp(s_j - m_j) (v_j . W_j + U_j)

and no exponent is above 0. W and U start from the gradient of the state after the last token; the
gradient of its maximum goes to the token that has this score.

With log-decays a_l <= 0 a score decays by the a_l of all later tokens (Lin et al., "Forgetting
Transformer", 2025, equation 5): m_{i-1} + a_i replaces m_{i-1} everywhere, and

    da_i = exp(m_{i-1} + a_i - m_i) (w_{i-1} . W_i + u_{i-1} U_i)

On paper da is also a running sum of ds, since the ds of a row sum to 0. In float32 its rounding
errors add up, and they are largest compared with da where decays are strong and da is nearly 0.

Tiles of C tokens are processed by their C x C weights, all tiles at once ("parallel") or one after
another ("chunked"); "recurrent" is a loop over tokens that writes in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.numerics import dot, einsum, match_varying_axes, safe_divide
from flax_linattn.ops.engine import decays, prefix
from flax_linattn.ops.engine.chunks import scan_chunks
from flax_linattn.ops.engine.decays import by_head
from flax_linattn.ops.engine.exponential import ExponentialState, ForgettingState, Level, Sums
from flax_linattn.ops.engine.forms import scan_form
from flax_linattn.ops.engine.tiles import (
    fill,
    join_tiles,
    put_token,
    shift_left,
    shift_right,
    split_tiles,
    take_position,
    take_token,
    trim,
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
) -> tuple[ScanOutputs, ExponentialState]:
    """Computes the causal means of all positions, and the state after the last token.

    Args:
        score: Scores of shape [B, T, H].
        v: Values of shape [B, T, H, V].
        initial: State before the first token: m [B, H], u [B, H], w [B, H, V].
        mask: Boolean array of shape [B, T]; False marks padding, where scores and values are
            finite.
        starts: Boolean array of shape [B, T]; True marks the first token of a packed segment.
        form: Name of the form: "parallel", "chunked", "recurrent" or "auto".
        chunk_size: Tokens per tile in the chunked form; maximum in the parallel form.

    Returns:
        Outputs, with y = 0 where no token is visible, and the state. The hand-derived gradient
        treats the level of the outputs as a constant (the parallel form, plain JAX, does not). So
        use them only in quantities that do not depend on the level, such as y and level + log u.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn.ops.engine import exponential
        >>> nothing = exponential.empty_state((1, 1), (1, 1, 1), jnp.float32)
        >>> v = jnp.array([1.0, 3.0, 8.0]).reshape(1, 3, 1, 1)
        >>> outputs, _ = exponential_scan(jnp.zeros((1, 3, 1)), v, nothing)
        >>> outputs.y.ravel().tolist()
        [1.0, 2.0, 4.0]
    """
    tokens = Tokens(_mask_scores(score, mask), v, starts, None)
    begin = Sums(Level(initial.m, None), initial.u, initial.w)
    outputs, last = _scan_in_form(form, chunk_size, tokens, begin)
    return outputs, ExponentialState(last.level.score, last.u, last.w)


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
) -> tuple[ScanOutputs, ForgettingState]:
    """Computes ``exponential_scan`` for scores that decay with every later token.

    Args:
        score: Scores of shape [B, T, H].
        v: Values of shape [B, T, H, V].
        log_decay: Log-decays of shape [B, T, H], at most 0, and 0 at padding.
        initial: State before the first token.
        mask: Boolean array of shape [B, T], as in ``exponential_scan``, like all further arguments.
        starts: Boolean array of shape [B, T].
        form: Name of the form.
        chunk_size: Tokens per tile.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> nothing = ops.get_mechanism("forgetting_aaren").init_state(1, 1, 1, 1)
        >>> v = jnp.array([1.0, 4.0]).reshape(1, 2, 1, 1)
        >>> halves = jnp.full((1, 2, 1), jnp.log(0.5))
        >>> outputs, state = forgetting_scan(0 * v[..., 0], v, halves, nothing)
        >>> outputs.y.ravel().tolist(), state.u.item()
        ([1.0, 3.0], 1.5)
    """
    tokens = Tokens(_mask_scores(score, mask), v, starts, log_decay)
    outputs, last = _scan_in_form(form, chunk_size, tokens, initial.sums)
    return outputs, ForgettingState.from_sums(
        _total_decay(log_decay, starts, initial.log_decay), last
    )


def _mask_scores(score: Array, mask: Array | None) -> Array:
    return score if mask is None else jnp.where(mask[..., None], score, -jnp.inf)


def _total_decay(log_decay: Array, starts: Array | None, before: Array) -> Array:
    """Sums the log-decays of the last segment, including those before the call."""
    span = prefix.Span(log_decay, None, starts)
    if starts is None or log_decay.shape[1] == 0:
        return decays.add_to_total(before, jnp.sum(log_decay, axis=1))
    last = span.segment_index[:, -1]
    own = jnp.sum(masks.zero_padding(log_decay, span.segment_mask(last)), axis=1)
    return decays.add_to_total(
        jax.tree.map(lambda b: masks.zero_padding(b, last == 0), before), own
    )


def _scan_in_form(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[ScanOutputs, Sums]:
    if tokens.score.shape[1] == 0:
        level = Level(tokens.score, tokens.log_decay)
        return ScanOutputs(tokens.v, level, tokens.score), initial
    tokens, initial = match_varying_axes((tokens, initial))
    if form == "parallel":
        # JAX itself differentiates the form requested by name: in forward mode too, but it stores
        # more than the hand-derived gradient does.
        return scan_form("exponential", "forward", form, _FORWARD, size)(tokens, initial)
    return _scan(form, size, tokens, initial)


class Tokens(NamedTuple):
    """Inputs of the forms for one tile or for all tokens, with leaves [B, C, ...].

    The forward pass uses the scores s [B, C, H], the values v [B, C, H, V], ``starts`` and the
    log-decays [B, C, H], if there are any. The backward pass also uses the levels m, the level
    ``before`` each token (-inf at starts), dy, inverse = 1 / u (dy times it is the gradient of w
    through a position's own output), du (the same gradient of u) and, with log-decays, ``past``:
    the sums before each token.
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
        """Levels of the tokens' own scores, before any decay."""
        return Level(self.score, None if self.log_decay is None else jnp.zeros_like(self.score))

    def level_before(self, initial: Level, m: Level) -> Level:
        """Returns the level before each token within its segment: -inf where one starts."""
        before = shift_right(initial, m).decay(self.log_decay)
        return before if self.starts is None else before.where(~self.starts)

    @property
    def segment_index(self) -> Array:
        """Integer array [B, C] of starts so far; 0 marks the segment that the carry belongs to."""
        if self.starts is None:
            return jnp.zeros((1, self.score.shape[1]), jnp.int32)
        return jnp.cumsum(self.starts, axis=1, dtype=jnp.int32)

    @property
    def pair_levels(self) -> Level:
        """Level of score s_j at position i, [B, H, C, C]; -inf where j is invisible."""
        size = self.score.shape[1]
        segment_index = None if self.starts is None else self.segment_index
        visible = masks.visible_rows(
            jnp.arange(size), size, is_causal=True, segment_index=segment_index
        )
        score = jnp.where(visible[:, None], jnp.moveaxis(self.score, 1, 2)[:, :, None], -jnp.inf)
        if self.log_decay is None:
            return Level(score, None)
        return Level(score, decays.pairwise_sums(by_head(self.log_decay)))

    def sets_level(self, level: Level, before: Level) -> Array:
        """Returns whether the level is the token's own score, Boolean [B, T, H]."""
        if level.fallen is None:
            return level.score > before.score
        return (level.score == self.score) & (level.fallen == 0) & (self.score > -jnp.inf)

    @property
    def decay_prefix(self) -> Array | None:
        """Decay [B, C, H] of the state before the tile, at each token."""
        return None if self.log_decay is None else decays.prefix_sums(self.log_decay)

    @property
    def decay_prefix_after_first(self) -> Array | None:
        """Decay of the sums at the first token, at each later token."""
        return (
            None if self.log_decay is None else decays.prefix_sums(self.log_decay.at[:, 0].set(0))
        )

    @property
    def decay_suffix(self) -> Array | None:
        """Decay [B, C, H] of each token until the last one."""
        return None if self.log_decay is None else decays.exclusive_suffix_sums(self.log_decay)

    def fill_to(self, size: int) -> Tokens:
        """Pads to a multiple of ``size`` tokens with invisible ones."""
        fills: dict[str, Any] = {name: {"mode": "edge"} for name in ("m", "before")}
        fills["score"] = {"constant_values": -jnp.inf}
        return Tokens(
            **{
                name: jax.tree.map(partial(fill, size=size, **fills.get(name, {})), x)
                for name, x in self._asdict().items()
            }
        )


class ScanOutputs(NamedTuple):
    """Results stored for gradients: y [B, T, H, V], level and 1 / u [B, T, H] of every position."""

    y: Array
    level: Level
    inverse: Array

    @classmethod
    def from_sums(cls, sums: Sums) -> ScanOutputs:
        """Makes the outputs of sums [B, ...]; u is at least 1 where any token is visible."""
        inverse = safe_divide(jnp.ones_like(sums.u), sums.u)
        return cls(sums.w * inverse[..., None], sums.level, inverse)


class Adjoint(NamedTuple):
    """Gradients W [B, H, V] and U [B, H] of the sums w and u at one position."""

    w: Array
    u: Array

    def dot(self, sums: Adjoint) -> Array:
        """Returns w . W + u U [...] for sums w and u."""
        return dot(self.w, sums.w) + self.u * sums.u


class Gradients(NamedTuple):
    """Gradients of scores, values and log-decays (None without these)."""

    score: Array
    v: Array
    log_decay: Array | None


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[ScanOutputs, Sums]:
    outputs, last = scan_form("exponential", "inference", form, _FORWARD, size)(tokens, initial)
    return outputs, last


def _scan_forward(form: str, size: int, tokens: Tokens, initial: Sums) -> tuple[Any, Any]:
    outputs, last = scan_form("exponential", "forward", form, _FORWARD, size)(tokens, initial)
    return (outputs, last), (tokens, initial, outputs, last)


def _scan_backward(form: str, size: int, residuals: Any, gradients: Any) -> Any:
    tokens, initial, outputs, last = residuals
    (dy, _, dinverse), dlast = gradients
    before = tokens.level_before(initial.level, outputs.level)
    # 1 / u is an output too: d(1 / u) = -du / u^2.
    du_own = -dinverse * outputs.inverse * outputs.inverse
    dtokens, first = scan_form("exponential", "backward", form, _BACKWARD, size)(
        tokens._replace(
            m=outputs.level,
            before=before,
            dy=dy,
            inverse=outputs.inverse,
            # Through y = w / u, the gradient of u is -(dy . y) / u.
            du=du_own - dot(dy, outputs.y) * outputs.inverse,
            past=None if tokens.log_decay is None else _sums_before_each(outputs, initial),
        ),
        Adjoint(dlast.w, dlast.u),
    )
    dscore, dv, dlog_decay = dtokens
    # The level of the last state is a maximum, so its gradient goes to one score: that of the last
    # token to set the level, or the initial level (highest = -1). The sums are relative to the
    # level: raising it scales u and w down, which is the part through_sums.
    through_sums = last.u * dlast.u + jnp.sum(last.w * dlast.w, axis=-1)
    dm = dlast.level.score - through_sums
    index = jnp.arange(dscore.shape[1], dtype=jnp.int32)[:, None]
    highest = jnp.max(
        jnp.where(tokens.sets_level(outputs.level, before), index, -1), axis=1
    )  # [B, H]
    zero = jnp.zeros_like(dm)
    dscore = dscore + jnp.where(index == highest[:, None], dm[:, None], zero[:, None])
    # Raising the initial level scales the initial sums up, relative to all later ones.
    from_sums = initial.u * first.u + jnp.sum(initial.w * first.w, axis=-1)
    dinitial = from_sums + jnp.where(highest < 0, dm, zero)
    if tokens.log_decay is None:
        return Tokens(dscore, dv, None, None), Sums(Level(dinitial, None), first.u, first.w)
    # fallen is the sum of the log-decays after that token: each of them gets its gradient.
    dfallen = dlast.level.fallen - through_sums
    since = index > highest[:, None]
    dlog_decay = dlog_decay + jnp.where(since, dfallen[:, None], zero[:, None])
    dinitial_fallen = from_sums + jnp.where(highest < 0, dfallen, zero)
    dlevel = Level(dinitial, dinitial_fallen)
    return Tokens(dscore, dv, None, dlog_decay), Sums(dlevel, first.u, first.w)


def _sums_before_each(outputs: ScanOutputs, initial: Sums) -> Adjoint:
    """Returns the sums w [B, T, H, V] and u [B, T, H] before each token, relative to its level."""
    u = safe_divide(jnp.ones_like(outputs.inverse), outputs.inverse)
    return shift_right(Adjoint(initial.w, initial.u), Adjoint(outputs.y * u[..., None], u))


_scan.defvjp(_scan_forward, _scan_backward)


# -- token by token, in place -----------------------------------------------------------


def _scan_levels(tokens: Tokens, initial: Level) -> Level:
    """Returns the level at each token [B, T, H]."""

    def body(t: Array, carry: tuple[Level, Level]) -> tuple[Level, Level]:
        before, levels = carry
        if tokens.log_decay is not None:
            before = before.decay(take_token(tokens.log_decay, t))
        if tokens.starts is not None:
            before = before.where(~take_token(tokens.starts, t))
        own = jax.tree.map(partial(take_token, t=t), tokens.level)
        now = before.maximum(own)
        return now, jax.tree.map(partial(put_token, t=t), levels, now)

    length = tokens.score.shape[1]
    nothing = jax.tree.map(jnp.zeros_like, tokens.level)
    return jax.lax.fori_loop(0, length, body, (initial, nothing))[1]


def _forward_tokens(size: int, tokens: Tokens, initial: Sums) -> tuple[ScanOutputs, Sums]:
    # A first loop finds the levels, so the loop over values has no exponentials, only products and
    # sums. Both exponents are at most 0: nothing overflows, and what underflows is negligible
    # compared with the token at the level, whose weight is 1.
    m = _scan_levels(tokens, initial.level)
    weight = tokens.level.exp_relative_to(m)
    decay = tokens.level_before(initial.level, m).exp_relative_to(m)

    def body(t: Array, carry: Any) -> Any:
        u, w, y, inverses = carry
        here, factor = take_token(weight, t), take_token(decay, t)
        u = factor * u + here
        w = factor[..., None] * w + here[..., None] * take_token(tokens.v, t)
        inverse = safe_divide(jnp.ones_like(u), u)
        return u, w, put_token(y, w * inverse[..., None], t=t), put_token(inverses, inverse, t=t)

    begin = initial.u, initial.w, jnp.zeros_like(tokens.v), jnp.zeros_like(weight)
    u, w, y, inverse = jax.lax.fori_loop(0, weight.shape[1], body, begin)
    return ScanOutputs(y, m, inverse), Sums(take_position(m, -1), u, w)


def _backward_tokens(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    length = tokens.score.shape[1]
    weight = tokens.level.exp_relative_to(tokens.m)
    decay = tokens.before.exp_relative_to(tokens.m)

    def body(i: Array, carry: Any) -> Any:
        t = length - 1 - i
        (w, u), (all_w, all_u) = carry
        w = w + take_token(tokens.dy, t) * take_token(tokens.inverse, t)[..., None]
        u = u + take_token(tokens.du, t)
        factor = take_token(decay, t)
        stored = Adjoint(put_token(all_w, w, t=t), put_token(all_u, u, t=t))
        return Adjoint(factor[..., None] * w, factor * u), stored

    # The loop computes only the adjoints: it is faster to multiply them by the values of all
    # tokens at once.
    nothing = Adjoint(jnp.zeros_like(tokens.v), jnp.zeros_like(weight))
    first, adjoint = jax.lax.fori_loop(0, length, body, (end, nothing))
    dscore = weight * (dot(tokens.v, adjoint.w) + adjoint.u)
    dlog_decay = None
    if tokens.log_decay is not None:
        # Multiply by the decay first: it is 0 at the start of a segment, where sums of the
        # previous segment may overflow.
        dlog_decay = Adjoint(decay[..., None] * adjoint.w, decay * adjoint.u).dot(tokens.past)
    return Gradients(dscore, weight[..., None] * adjoint.w, dlog_decay), first


# -- tile by tile -----------------------------------------------------------------------


def _tile_sums(tile: Tokens) -> Sums:
    """Computes the sums of every position over its tile alone, [B, C, ...]."""
    # Each row is relative to its own level: relative to the largest score of the tile, all weights
    # of an early row could underflow.
    levels = tile.pair_levels
    level = _row_maximum(levels)
    weight = levels.exp_relative_to(jax.tree.map(lambda x: x[..., None], level))
    w = einsum("bhij,bjhv->bihv", weight, tile.v)
    level = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 2), level)
    return Sums(level, jnp.moveaxis(jnp.sum(weight, -1), 1, 2), w)


def _row_maximum(levels: Level) -> Level:
    """Reduces [B, H, C, C] to the largest decayed score of each row, [B, H, C]."""
    if levels.fallen is None:
        return Level(jnp.max(levels.score, axis=-1), None)
    place = jnp.argmax(levels.score + levels.fallen, axis=-1, keepdims=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, place, axis=-1)[..., 0], levels)


def _add_past(tile: Tokens, sums: Sums, past: Sums) -> Sums:
    """Merges the state before the tile into the positions of its segment."""
    past = jax.tree.map(lambda p: p[:, None], past).decay(tile.decay_prefix)
    # For rows of a later segment the past is empty, which a level of -inf says.
    return past._replace(level=past.level.where(tile.segment_index == 0)).merge(sums)


def _forward_parallel(size: int, tokens: Tokens, initial: Sums) -> tuple[ScanOutputs, Sums]:
    tiles = split_tiles(tokens.fill_to(size), size)
    sums = jax.vmap(_tile_sums, 1, 1)(tiles)
    restarts = None if tiles.starts is None else jnp.any(tiles.starts, axis=2)
    totals = jax.vmap(partial(take_position, index=-1), 1, 1)(sums)
    past = shift_right(initial, _scan_tiles(tiles, totals, initial, restarts))
    state = join_tiles(jax.vmap(_add_past, 1, 1)(tiles, sums, past), tokens.score.shape[1])
    return ScanOutputs.from_sums(state), take_position(state, -1)


def _scan_tiles(tiles: Tokens, totals: Sums, initial: Sums, restarts: Array | None) -> Sums:
    """Computes the state after each tile from the totals [B, tiles, ...] of each tile alone."""
    if tiles.log_decay is None:
        return prefix.scan(Sums.merge, totals, initial, restarts)
    # In a tile with a start this sum reaches behind it, but the scan drops what it would decay.
    tile_decay = jnp.sum(tiles.log_decay, axis=2)
    begin = ForgettingState.from_sums(jnp.zeros_like(initial.u), initial)
    after = prefix.scan(
        ForgettingState.merge, ForgettingState.from_sums(tile_decay, totals), begin, restarts
    )
    return after.sums


def _forward_chunked(size: int, tokens: Tokens, initial: Sums) -> tuple[ScanOutputs, Sums]:
    def body(past: Sums, tile: tuple[Tokens]) -> tuple[Sums, ScanOutputs]:
        state = _add_past(tile[0], _tile_sums(tile[0]), past)
        return take_position(state, -1), ScanOutputs.from_sums(state)

    last, outputs = scan_chunks(body, initial, (tokens.fill_to(size),), size)
    return trim(outputs, tokens.score.shape[1]), last


class AdjointMap(NamedTuple):
    """Affine map of (W, U) from the end of a tile to its start: factor [B, H] times it plus own."""

    factor: Array
    own: Adjoint

    def __call__(self, after: Adjoint) -> Adjoint:
        w, u = self.own
        return Adjoint(w + self.factor[..., None] * after.w, u + self.factor * after.u)


class TileGradients(NamedTuple):
    """Gradients through the outputs of the same tile: dv, the part of ds through u, and da.

    ``reach`` [B, C, H] is the weight of the sums before the tile in each row.
    """

    v: Array
    through_u: Array
    log_decay: Array | None
    reach: Array


def _tile_gradients(tile: Tokens) -> tuple[TileGradients, AdjointMap]:
    """Computes the gradients through the tile's own outputs, and its adjoint map."""
    weight = tile.pair_levels.exp_relative_to(
        jax.tree.map(lambda x: jnp.moveaxis(x, 1, 2)[..., None], tile.m)
    )
    dw = tile.dy * tile.inverse[..., None]
    dv = einsum("bhij,bihv->bjhv", weight, dw)
    through_u = einsum("bhij,bih->bjh", weight, tile.du)
    # reach is the weight, in each row, of the sums before the tile. A row's level is never below
    # the decayed level of those sums, so reach is at most 1.
    first = jax.tree.map(lambda x: x[:, :1], tile.before)
    reach = first.decay(tile.decay_prefix_after_first).exp_relative_to(tile.m)
    reach = jnp.where((tile.segment_index == 0)[..., None], reach, jnp.zeros_like(reach))
    own = Adjoint(einsum("bih,bihv->bhv", reach, dw), einsum("bih,bih->bh", reach, tile.du))
    dlog_decay = None
    if tile.log_decay is not None:
        # A pair (i, j) decays by every a_l with j < l <= i, so its gradient goes to all of these;
        # the past decays until i, so the gradient of its weight in row i goes to all l <= i.
        pairs = weight * (einsum("bihv,bjhv->bhij", dw, tile.v) + by_head(tile.du))
        past = jax.tree.map(lambda x: x[:, :1], tile.past)
        from_past = reach * Adjoint(dw, tile.du).dot(past)
        dlog_decay = _sum_spanning_pairs(pairs) + decays.suffix_sums(from_past)
    return TileGradients(dv, through_u, dlog_decay, reach), AdjointMap(reach[:, -1], own)


def _sum_spanning_pairs(pairs: Array) -> Array:
    """Sums pairs [B, H, C, C] over i >= l and j < l for each l, giving [B, C, H]."""
    index = jnp.arange(pairs.shape[-1])
    before = decays.exclusive_prefix_sums(jnp.swapaxes(pairs, -1, -2))  # [B, H, l, i], over j < l
    later = index >= index[:, None]
    return jnp.moveaxis(jnp.sum(jnp.where(later, before, jnp.zeros_like(before)), axis=3), 1, 2)


def _add_future(tile: Tokens, own: TileGradients, after: Adjoint) -> Gradients:
    """Adds the gradients through the outputs after the tile."""
    # W and U after the tile are relative to the level of its last row, which is not below the
    # decayed score of any token of that segment: exponents are at most 0 again.
    last = jax.tree.map(lambda x: x[:, -1:], tile.m)
    weight = tile.level.decay(tile.decay_suffix).exp_relative_to(last)
    weight = jnp.where(
        (tile.segment_index == tile.segment_index[:, -1:])[..., None],
        weight,
        jnp.zeros_like(weight),
    )
    dv = own.v + weight[..., None] * after.w[:, None]
    dscore = dot(tile.v, dv) + own.through_u + weight * after.u[:, None]
    if own.log_decay is None:
        return Gradients(dscore, dv, None)
    after = jax.tree.map(lambda x: x[:, None], after)
    ones = jnp.ones_like(weight)
    # Token j decays by every l > j until the end of the tile, the past by every l of the tile.
    from_tokens = weight * after.dot(Adjoint(tile.v, ones))
    from_past = own.reach[:, -1:] * after.dot(jax.tree.map(lambda x: x[:, :1], tile.past))
    return Gradients(
        dscore, dv, own.log_decay + decays.exclusive_prefix_sums(from_tokens) + from_past
    )


def _backward_parallel(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    tiles = split_tiles(tokens.fill_to(size), size)
    own, maps = jax.vmap(_tile_gradients, 1, 1)(tiles)

    # Gradients flow from the right: the map of the later tile is applied first.
    def join(later: AdjointMap, earlier: AdjointMap) -> AdjointMap:
        return AdjointMap(later.factor * earlier.factor, earlier(later.own))

    maps = jax.lax.associative_scan(join, maps, axis=1, reverse=True)
    adjoints = jax.vmap(AdjointMap.__call__, (1, None), 1)(maps, end)
    gradients = jax.vmap(_add_future, 1, 1)(tiles, own, shift_left(adjoints, end))
    return join_tiles(gradients, tokens.score.shape[1]), take_position(adjoints, 0)


def _backward_chunked(size: int, tokens: Tokens, end: Adjoint) -> tuple[Gradients, Adjoint]:
    def body(after: Adjoint, tile: tuple[Tokens]) -> tuple[Adjoint, Gradients]:
        own, adjoint_map = _tile_gradients(tile[0])
        return adjoint_map(after), _add_future(tile[0], own, after)

    first, gradients = scan_chunks(body, end, (tokens.fill_to(size),), size, reverse=True)
    return trim(gradients, tokens.score.shape[1]), first


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
