"""Causal EA-series: two forms, one hand-derived gradient.

In every channel, with c_n(q) = (2q)^n / n! and over the j <= i of the same packed segment,

    S_n = sum_j k_j^n exp(-k_j^2) v_j,   Z_n = sum_j k_j^n exp(-k_j^2),
    y_i = sum_n c_n(q_i) S_n / sum_n c_n(q_i) Z_n      (element-wise attention, equations 8-16)

S and Z are stored relative to the smallest |k| so far (``SeriesState``), which cancels, so it is a
constant to gradients. Whichever form ran forward, the backward pass needs only its y, 1 / D (D is
the denominator), slope dy/dq and smallest |k|. With g the gradient of the outputs, dq = g dy/dq,
and from the right

    P_n = sum_{i >= j} c_n(q_i) g_i / D_i,      M_n = -sum_{i >= j} c_n(q_i) g_i y_i / D_i

are the gradients of S_n and Z_n, which give token j

    dv_j = exp(-k_j^2) sum_n k_j^n P_n
    dk_j = exp(-k_j^2) sum_n (n k_j^(n-1) - 2 k_j^(n+1)) (v_j P_n + M_n).

"recurrent" is a loop over tokens that writes in place. "parallel" splits the tokens into tiles and
runs that loop over all tiles in lockstep: once for the sums of each tile, and, after a scan of
these, once for the outputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import match_varying_axes
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.forms import scan_form
from flax_linattn.ops.engine.series import (
    SeriesState,
    first_minimum,
    geometric_terms,
    key_unit,
    merge,
    polynomial_terms,
    read_sums,
    rescaling,
    scaled_argument,
    stack,
    unstack,
    weights_and_powers_base,
)
from flax_linattn.ops.engine.tiles import (
    fill,
    join_tiles,
    put_token,
    shift_left,
    shift_right,
    split_tiles,
    take_position,
    take_token,
)
from flax_linattn.typing import Array


def series_scan(
    q: Array,
    k: Array,
    v: Array,
    initial: SeriesState,
    *,
    mask: Array | None = None,
    starts: Array | None = None,
    form: str = "auto",
    chunk_size: int = 128,
) -> tuple[Array, SeriesState]:
    """Computes the causal outputs of all positions, and the state after the last token.

    Args:
        q: Queries of shape [B, T, H, K].
        k: Keys of shape [B, T, H, K].
        v: Values of shape [B, T, H, K].
        initial: State before the first token.
        mask: Boolean array of shape [B, T]; False marks padding.
        starts: Boolean array of shape [B, T]; True marks the first token of a packed segment.
        form: Name of the form, as in ``exponential_scan``; "chunked" is the same as "recurrent".
        chunk_size: Maximum number of tokens per tile in the parallel form.

    Returns:
        Outputs of shape [B, T, H, K], 0 where no token is visible, and the state after the last
        token.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 10, 2, 4))
        >>> series = ops.get_mechanism("elementwise_series")
        >>> y, state = series_scan(q, k, v, series.init_state(1, 2, 4, 4))
        >>> bool(jnp.allclose(y, series.reference(q, k, v, is_causal=True), atol=1e-5))
        True
    """
    if k.shape[1] == 0:
        return v, initial
    tokens, initial = match_varying_axes((Tokens(q, k, v, mask, starts), initial))
    if form == "parallel":
        # JAX itself differentiates the form requested by name: in forward mode too, but it stores
        # more than the hand-derived gradient does.
        outputs, last = scan_form("series", "forward", form, _FORWARD, chunk_size)(tokens, initial)
        return outputs.y, last
    return _scan(form, chunk_size, tokens, initial)


class Tokens(NamedTuple):
    """Queries, keys and values [B, T, H, K], with masks [B, T] of valid tokens and starts."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    starts: Array | None

    def token(self, t: Array) -> Tokens:
        """Returns token ``t``, [B, H, K], with flags [B, 1, 1]."""
        flags = (None if x is None else take_token(x, t)[:, None, None] for x in self[3:])
        return Tokens(*(take_token(x, t) for x in self[:3]), *flags)

    def fill_to(self, size: int) -> Tokens:
        """Pads to a multiple of ``size`` tokens with invisible ones."""
        if self.k.shape[1] % size == 0:
            return self
        mask = jnp.ones(self.k.shape[:2], bool) if self.mask is None else self.mask
        return jax.tree.map(partial(fill, size=size), self._replace(mask=mask))

    @property
    def magnitude(self) -> Array:
        """Magnitudes |k|, infinite for padding; constants to gradients."""
        magnitude = jax.lax.stop_gradient(jnp.abs(self.k))
        return magnitude if self.mask is None else jnp.where(self.mask, magnitude, jnp.inf)

    def weights_and_powers_base(self, min_magnitude: Array) -> tuple[Array, Array]:
        """Returns the weights, 0 for padding, and k / r."""
        return weights_and_powers_base(self.k, min_magnitude, self.mask)

    def minimum_before(self, min_magnitude: Array) -> Array:
        """Returns the smallest |k| before this token within its segment: inf where one starts."""
        return (
            min_magnitude if self.starts is None else jnp.where(self.starts, jnp.inf, min_magnitude)
        )


class ScanOutputs(NamedTuple):
    """Results stored for gradients, each [B, T, H, K]: y, 1 / D, dy/dq, the smallest |k|."""

    y: Array
    inverse: Array
    slope: Array
    min_magnitude: Array

    def fill_to(self, size: int) -> ScanOutputs:
        """Pads to a multiple of ``size`` positions."""
        outputs = jax.tree.map(partial(fill, size=size), self)
        return outputs._replace(min_magnitude=fill(self.min_magnitude, size, mode="edge"))


# -- forward -----------------------------------------------------------------------------


class Sums(NamedTuple):
    """``SeriesState`` with one array per exponent, so that a step is one fused loop."""

    min_magnitude: Array
    s: list[Array]
    z: list[Array]

    def update(self, token: Tokens) -> Sums:
        """Returns the sums with one more token."""
        before, order = token.minimum_before(self.min_magnitude), len(self.s) - 1
        # Weights are relative to exp(-a^2) for the smallest |k| so far, a. It never rises, so the
        # token that set it has weight 1, and no other has more: earlier sums shrink, never
        # overflow.
        min_magnitude = first_minimum(before, token.magnitude)
        factors = geometric_terms(*rescaling(before, min_magnitude), order)
        powers = geometric_terms(
            *token.weights_and_powers_base(jax.lax.stop_gradient(min_magnitude)), order
        )
        s = zip(factors, self.s, powers, strict=True)
        z = zip(factors, self.z, powers, strict=True)
        return Sums(
            min_magnitude, [f * x + p * token.v for f, x, p in s], [f * x + p for f, x, p in z]
        )

    def read(self, q: Array) -> ScanOutputs:
        """Reads the sums and returns what the backward pass stores."""
        min_magnitude = jax.lax.stop_gradient(self.min_magnitude)
        return ScanOutputs(*read_sums(q, min_magnitude, self.s, self.z), self.min_magnitude)


def _unstack_state(state: SeriesState) -> Sums:
    return Sums(state.min_magnitude, unstack(state.s), unstack(state.z))


def _stack_state(sums: Sums) -> SeriesState:
    return SeriesState(sums.min_magnitude, stack(sums.s), stack(sums.z))


def _forward_tokens(
    size: int, tokens: Tokens, initial: SeriesState
) -> tuple[ScanOutputs, SeriesState]:
    def body(t: Array, carry: tuple[Sums, ScanOutputs]) -> tuple[Sums, ScanOutputs]:
        sums, outputs = carry
        now = tokens.token(t)
        sums = sums.update(now)
        return sums, ScanOutputs(*map(partial(put_token, t=t), outputs, sums.read(now.q)))

    outputs = ScanOutputs(*[jnp.zeros_like(tokens.v)] * 4)
    length = tokens.k.shape[1]
    sums, outputs = jax.lax.fori_loop(0, length, body, (_unstack_state(initial), outputs))
    return outputs, _stack_state(sums)


def _tile_state(tokens: Tokens, initial: SeriesState) -> SeriesState:
    """Returns the state after the last token, without outputs."""

    def body(t: Array, sums: Sums) -> Sums:
        return sums.update(tokens.token(t))

    return _stack_state(jax.lax.fori_loop(0, tokens.k.shape[1], body, _unstack_state(initial)))


def _forward_parallel(
    size: int, tokens: Tokens, initial: SeriesState
) -> tuple[ScanOutputs, SeriesState]:
    # Two passes: the state of each tile alone, which a scan joins, then the outputs of all tiles in
    # lockstep, each from the state before it. No C x C weights: each channel has its own.
    tiles = split_tiles(tokens.fill_to(size), size)
    min_magnitude, s, z = initial
    nothing = SeriesState(
        jnp.full_like(min_magnitude, jnp.inf), jnp.zeros_like(s), jnp.zeros_like(z)
    )
    totals = jax.vmap(_tile_state, (1, None), 1)(tiles, nothing)
    restarts = None if tiles.starts is None else jnp.any(tiles.starts, axis=2)
    after = prefix.scan(merge, totals, initial, restarts)
    outputs, _ = jax.vmap(partial(_forward_tokens, size), 1, 1)(tiles, shift_right(initial, after))
    return join_tiles(outputs, tokens.k.shape[1]), take_position(after, -1)


# -- backward ----------------------------------------------------------------------------


class Adjoint(NamedTuple):
    """Gradients P and M at one position, relative to its smallest |k|: one array per exponent."""

    p: list[Array]
    m: list[Array]

    def add_output(self, q: Array, dy: Array, row: ScanOutputs) -> Adjoint:
        """Adds the gradient through the position's own output."""
        order = len(self.p) - 1
        x, f = scaled_argument(q, row.min_magnitude, order)
        # From y = sum c_n S_n / D: dS_n = c_n g / D and dZ_n = -c_n g y / D. x and f carry a common
        # factor of all c_n, which 1 / D, made with the same x and f, has inverted.
        own = polynomial_terms(dy * row.inverse, x, f, order)
        return Adjoint(
            [p + term for p, term in zip(self.p, own, strict=True)],
            [m - term * row.y for m, term in zip(self.m, own, strict=True)],
        )

    def token_gradients(self, token: Tokens, min_magnitude: Array) -> tuple[Array, Array]:
        """Returns the gradients dk and dv of a token."""
        weight, x = token.weights_and_powers_base(min_magnitude)
        both = [token.v * p + m for p, m in zip(self.p, self.m, strict=True)]
        # One pass of Horner's scheme: dv is the polynomial of P; value is that of v P + M, and
        # slope its derivative. exp(-k^2) adds -2 k value, as in the formula of dk above.
        dv, value, slope = self.p[-1], both[-1], jnp.zeros_like(x)
        for n in range(len(both) - 2, -1, -1):
            dv, slope, value = dv * x + self.p[n], slope * x + value, value * x + both[n]
        return weight * (slope / key_unit(min_magnitude) - 2 * token.k * value), weight * dv

    def before(self, min_magnitude: Array, earlier: Array) -> Adjoint:
        """Rescales to the smallest |k| of an earlier position; 0 if that is infinite."""
        factors = geometric_terms(*rescaling(earlier, min_magnitude), len(self.p) - 1)
        p, m = ([f * x for f, x in zip(factors, sums, strict=True)] for sums in self)
        return Adjoint(p, m)


class AdjointMap(NamedTuple):
    """Affine map of (P, M) from the end of a tile to its start: f r^n times it, plus own parts."""

    factor: Array
    ratio: Array
    p: Array
    m: Array

    def __call__(self, p: Array, m: Array) -> tuple[Array, Array]:
        factors = stack(geometric_terms(self.factor, self.ratio, p.shape[-3] - 1))
        return self.p + factors * p, self.m + factors * m

    def compose(self, earlier: AdjointMap) -> AdjointMap:
        """Composes with the map of the tile before this one."""
        factor, ratio = self.factor * earlier.factor, self.ratio * earlier.ratio
        # A factor of 0 means no token before: a ratio that overflowed would make 0 * inf = NaN.
        return AdjointMap(factor, jnp.where(factor > 0, ratio, 1), *earlier(self.p, self.m))


class BackwardInputs(NamedTuple):
    """Inputs of the backward pass for one tile or for all tokens.

    ``before`` [B, H, K] is the smallest |k| before the first of them.
    """

    tokens: Tokens
    outputs: ScanOutputs
    dy: Array
    before: Array

    def token(self, t: Array) -> BackwardInputs:
        """Returns the inputs of token ``t``."""
        before = jnp.where(
            t > 0, take_token(self.outputs.min_magnitude, jnp.maximum(t - 1, 0)), self.before
        )
        now, row = self.tokens.token(t), ScanOutputs(*(take_token(x, t) for x in self.outputs))
        return BackwardInputs(now, row, take_token(self.dy, t), now.minimum_before(before))


def _backward_tokens(
    size: int, inputs: BackwardInputs, p: Array, m: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    length = inputs.dy.shape[1]

    def body(i: Array, carry: Any) -> Any:
        after, gradients = carry
        t = length - 1 - i
        now = inputs.token(t)
        here = after.add_output(now.tokens.q, now.dy, now.outputs)
        own = here.token_gradients(now.tokens, now.outputs.min_magnitude)
        gradients = tuple(map(partial(put_token, t=t), gradients, own))
        return here.before(now.outputs.min_magnitude, now.before), gradients

    nothing = jnp.zeros_like(inputs.dy)
    carry = Adjoint(unstack(p), unstack(m)), (nothing, nothing)
    first, gradients = jax.lax.fori_loop(0, length, body, carry)
    return gradients, (stack(first.p), stack(first.m))


def _tile_map(inputs: BackwardInputs, nothing: Array) -> AdjointMap:
    """Returns the adjoint map of a whole tile; ``nothing`` [B, N, H, K] is zero."""
    length = inputs.dy.shape[1]

    def body(i: Array, after: Adjoint) -> Adjoint:
        now = inputs.token(length - 1 - i)
        here = after.add_output(now.tokens.q, now.dy, now.outputs)
        return here.before(now.outputs.min_magnitude, now.before)

    own = jax.lax.fori_loop(0, length, body, Adjoint(unstack(nothing), unstack(nothing)))
    before, starts = inputs.before, inputs.tokens.starts
    if starts is not None:
        before = jnp.where(jnp.any(starts, axis=1)[:, None, None], jnp.inf, before)
    factor, ratio = rescaling(before, inputs.outputs.min_magnitude[:, -1])
    return AdjointMap(factor, ratio, stack(own.p), stack(own.m))


def _backward_parallel(
    size: int, inputs: BackwardInputs, p: Array, m: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    length = inputs.dy.shape[1]
    arrays = inputs.tokens.fill_to(size), inputs.outputs.fill_to(size), fill(inputs.dy, size)
    tokens, outputs, dy = split_tiles(arrays, size)
    before = shift_right(inputs.before, outputs.min_magnitude[:, :, -1])
    tiles = BackwardInputs(tokens, outputs, dy, before)
    maps = jax.vmap(_tile_map, (1, None), 1)(tiles, jnp.zeros_like(p))
    maps = jax.lax.associative_scan(AdjointMap.compose, maps, axis=1, reverse=True)
    adjoints = jax.vmap(AdjointMap.__call__, (1, None, None), 1)(maps, p, m)
    gradients, _ = jax.vmap(partial(_backward_tokens, size), 1, 1)(
        tiles, *shift_left(adjoints, (p, m))
    )
    return join_tiles(gradients, length), take_position(adjoints, 0)


# -- the gradient ------------------------------------------------------------------------

_FORWARD = {
    "parallel": _forward_parallel,
    "chunked": _forward_tokens,
    "recurrent": _forward_tokens,
}
_BACKWARD = {
    "parallel": _backward_parallel,
    "chunked": _backward_tokens,
    "recurrent": _backward_tokens,
}


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(form: str, size: int, tokens: Tokens, initial: SeriesState) -> tuple[Array, SeriesState]:
    outputs, last = scan_form("series", "inference", form, _FORWARD, size)(tokens, initial)
    return outputs.y, last


def _scan_forward(form: str, size: int, tokens: Tokens, initial: SeriesState) -> tuple[Any, Any]:
    outputs, last = scan_form("series", "forward", form, _FORWARD, size)(tokens, initial)
    return (outputs.y, last), (tokens, initial.min_magnitude, outputs)


def _scan_backward(form: str, size: int, residuals: Any, gradients: Any) -> Any:
    tokens, min_magnitude, outputs = residuals
    dy, dlast = gradients
    backward = scan_form("series", "backward", form, _BACKWARD, size)
    (dk, dv), (ds, dz) = backward(
        BackwardInputs(tokens, outputs, dy, min_magnitude), dlast.s, dlast.z
    )
    # The smallest |k| is a constant, except where it is still that of the initial state: there its
    # gradient passes through unchanged.
    is_initial = outputs.min_magnitude[:, -1] == min_magnitude
    if tokens.starts is not None:
        is_initial = is_initial & ~jnp.any(tokens.starts, axis=1)[:, None, None]
    dmin_magnitude = jnp.where(is_initial, dlast.min_magnitude, 0)
    return Tokens(dy * outputs.slope, dk, dv, None, None), SeriesState(dmin_magnitude, ds, dz)


_scan.defvjp(_scan_forward, _scan_backward)
