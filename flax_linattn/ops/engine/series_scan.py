"""Causal EA-series: two forms, one hand-derived gradient.

In every channel, with c_n(q) = (2q)^n / n! and over the j <= i of the same packed segment,

    S_n = sum_j k_j^n exp(-k_j^2) v_j,   Z_n = sum_j k_j^n exp(-k_j^2),
    y_i = sum_n c_n(q_i) S_n / sum_n c_n(q_i) Z_n      (element-wise attention, equations 8-16)

with S and Z relative to the smallest |k| so far, as ``SeriesState`` says; it cancels, so gradients
take it for a constant. Whichever form ran forward, the backward pass needs of it y, 1 / D (D the
denominator), the slope dy/dq and the smallest |k|. With g the gradient of the outputs, that of q is
g dy/dq; from the right

    P_n = sum_{i >= j} c_n(q_i) g_i / D_i,      M_n = -sum_{i >= j} c_n(q_i) g_i y_i / D_i

are the gradients of S_n and Z_n, of which token j gets

    dv_j = exp(-k_j^2) sum_n k_j^n P_n
    dk_j = exp(-k_j^2) sum_n (n k_j^(n-1) - 2 k_j^(n+1)) (v_j P_n + M_n).

"recurrent" is a loop over tokens that writes in place. "parallel" cuts the tokens into tiles and
runs that loop over all tiles in lockstep: once for what each adds to the sums, and, when those have
been scanned, once for the outputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import vary_alike
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.forms import scan_form
from flax_linattn.ops.engine.series import (
    SeriesState,
    argument,
    geometric,
    merge,
    passage,
    polynomial_terms,
    read_sums,
    relative_to,
    smaller,
    stack,
    unit,
    unstack,
)
from flax_linattn.ops.engine.tiles import (
    after_each,
    at,
    before_each,
    fill,
    position,
    put,
    split,
    unsplit,
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
    """Outputs of all positions, and the state after the last token.

    Args:
        q: queries [B, T, H, K].
        k: keys [B, T, H, K].
        v: values [B, T, H, K].
        initial: the state before the first token.
        mask: as in ``exponential_scan``, like the rest.
        starts: bool [B, T].
        form: "chunked" is the same as "recurrent".
        chunk_size: of the parallel form alone.

    Returns:
        y [B, T, H, K], 0 where nothing is seen, and the state.

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
    tokens, initial = vary_alike((Tokens(q, k, v, mask, starts), initial))
    if form == "parallel":
        # Asked for by name: differentiated by JAX, forwards too, for more memory.
        rows, last = scan_form("series", "forward", form, _FORWARD, chunk_size)(tokens, initial)
        return rows.y, last
    return _scan(form, chunk_size, tokens, initial)


class Tokens(NamedTuple):
    """Queries, keys and values [B, T, H, K]; bool [B, T]: real tokens, first ones of a segment."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    starts: Array | None

    def at(self, t: Array) -> Tokens:
        """One token: [B, H, K], flags [B, 1, 1]."""
        flags = (None if x is None else at(x, t)[:, None, None] for x in self[3:])
        return Tokens(*(at(x, t) for x in self[:3]), *flags)

    def filled(self, size: int) -> Tokens:
        """Padded to a multiple of ``size`` tokens, by some that nothing sees."""
        if self.k.shape[1] % size == 0:
            return self
        mask = jnp.ones(self.k.shape[:2], bool) if self.mask is None else self.mask
        return jax.tree.map(partial(fill, size=size), self._replace(mask=mask))

    @property
    def size(self) -> Array:
        """|k|, infinite for padding; a constant to gradients."""
        size = jax.lax.stop_gradient(jnp.abs(self.k))
        return size if self.mask is None else jnp.where(self.mask, size, jnp.inf)

    def relative_to(self, smallest: Array) -> tuple[Array, Array]:
        """The weight, 0 for padding, and k / r."""
        return relative_to(self.k, smallest, self.mask)

    def since(self, smallest: Array) -> Array:
        """The smallest |k| before this token, in its own segment: inf where one starts."""
        return smallest if self.starts is None else jnp.where(self.starts, jnp.inf, smallest)


class Rows(NamedTuple):
    """What the backward pass keeps, each [B, T, H, K]: y, 1 / D, dy/dq, the smallest |k|."""

    y: Array
    inverse: Array
    slope: Array
    smallest: Array

    def filled(self, size: int) -> Rows:
        """Padded to a multiple of ``size``."""
        rows = jax.tree.map(partial(fill, size=size), self)
        return rows._replace(smallest=fill(self.smallest, size, mode="edge"))


# -- forward -----------------------------------------------------------------------------


class Sums(NamedTuple):
    """``SeriesState`` with an array for each exponent, so that a step is one fused loop."""

    smallest: Array
    s: list[Array]
    z: list[Array]

    def take_in(self, token: Tokens) -> Sums:
        """The sums with one more token."""
        before, order = token.since(self.smallest), len(self.s) - 1
        # Weights are relative to exp(-a^2) of the smallest |k|, a, which only falls: the token that
        # set it weighs 1, and none weighs more.
        smallest = smaller(before, token.size)
        factors = geometric(*passage(before, smallest), order)
        powers = geometric(*token.relative_to(jax.lax.stop_gradient(smallest)), order)
        s = zip(factors, self.s, powers, strict=True)
        z = zip(factors, self.z, powers, strict=True)
        return Sums(smallest, [f * x + p * token.v for f, x, p in s], [f * x + p for f, x, p in z])

    def read(self, q: Array) -> Rows:
        """What the backward pass keeps."""
        smallest = jax.lax.stop_gradient(self.smallest)
        return Rows(*read_sums(q, smallest, self.s, self.z), self.smallest)


def _unstacked(state: SeriesState) -> Sums:
    return Sums(state.smallest, unstack(state.s), unstack(state.z))


def _stacked(sums: Sums) -> SeriesState:
    return SeriesState(sums.smallest, stack(sums.s), stack(sums.z))


def _forward_tokens(size: int, tokens: Tokens, initial: SeriesState) -> tuple[Rows, SeriesState]:
    def body(t: Array, carry: tuple[Sums, Rows]) -> tuple[Sums, Rows]:
        sums, rows = carry
        now = tokens.at(t)
        sums = sums.take_in(now)
        return sums, Rows(*map(partial(put, t=t), rows, sums.read(now.q)))

    rows = Rows(*[jnp.zeros_like(tokens.v)] * 4)
    length = tokens.k.shape[1]
    sums, rows = jax.lax.fori_loop(0, length, body, (_unstacked(initial), rows))
    return rows, _stacked(sums)


def _total(tokens: Tokens, initial: SeriesState) -> SeriesState:
    """The state after the last token, without outputs."""

    def body(t: Array, sums: Sums) -> Sums:
        return sums.take_in(tokens.at(t))

    return _stacked(jax.lax.fori_loop(0, tokens.k.shape[1], body, _unstacked(initial)))


def _forward_parallel(size: int, tokens: Tokens, initial: SeriesState) -> tuple[Rows, SeriesState]:
    tiles = split(tokens.filled(size), size)
    smallest, s, z = initial
    nothing = SeriesState(jnp.full_like(smallest, jnp.inf), jnp.zeros_like(s), jnp.zeros_like(z))
    totals = jax.vmap(_total, (1, None), 1)(tiles, nothing)
    restarts = None if tiles.starts is None else jnp.any(tiles.starts, axis=2)
    after = prefix.scan(merge, totals, initial, restarts)
    rows, _ = jax.vmap(partial(_forward_tokens, size), 1, 1)(tiles, before_each(initial, after))
    return unsplit(rows, tokens.k.shape[1]), position(after, -1)


# -- backward ----------------------------------------------------------------------------


class Adjoint(NamedTuple):
    """P and M at one position, relative to its smallest |k|: an array for each exponent."""

    p: list[Array]
    m: list[Array]

    def with_row(self, q: Array, dy: Array, row: Rows) -> Adjoint:
        """Adds what the position's own output gives."""
        order = len(self.p) - 1
        x, f = argument(q, row.smallest, order)
        own = polynomial_terms(dy * row.inverse, x, f, order)
        return Adjoint(
            [p + term for p, term in zip(self.p, own, strict=True)],
            [m - term * row.y for m, term in zip(self.m, own, strict=True)],
        )

    def of_token(self, token: Tokens, smallest: Array) -> tuple[Array, Array]:
        """dk and dv."""
        weight, x = token.relative_to(smallest)
        both = [token.v * p + m for p, m in zip(self.p, self.m, strict=True)]
        dv, value, slope = self.p[-1], both[-1], jnp.zeros_like(x)
        for n in range(len(both) - 2, -1, -1):
            dv, slope, value = dv * x + self.p[n], slope * x + value, value * x + both[n]
        return weight * (slope / unit(smallest) - 2 * token.k * value), weight * dv

    def before(self, smallest: Array, earlier: Array) -> Adjoint:
        """Relative to the smallest |k| of an earlier position; 0 if that is infinite."""
        factors = geometric(*passage(earlier, smallest), len(self.p) - 1)
        p, m = ([f * x for f, x in zip(factors, sums, strict=True)] for sums in self)
        return Adjoint(p, m)


class Passage(NamedTuple):
    """P and M before a stretch are f r^n times those after it, plus its own: [B, N, H, K]."""

    factor: Array
    ratio: Array
    p: Array
    m: Array

    def __call__(self, p: Array, m: Array) -> tuple[Array, Array]:
        factors = stack(geometric(self.factor, self.ratio, p.shape[-3] - 1))
        return self.p + factors * p, self.m + factors * m

    def then(self, earlier: Passage) -> Passage:
        """Through this stretch, and then through the one before it."""
        factor, ratio = self.factor * earlier.factor, self.ratio * earlier.ratio
        return Passage(factor, jnp.where(factor > 0, ratio, 1), *earlier(self.p, self.m))


class Given(NamedTuple):
    """What the backward pass gets of a stretch of tokens.

    ``before`` [B, H, K] is the smallest |k| before it.
    """

    tokens: Tokens
    rows: Rows
    dy: Array
    before: Array

    def at(self, t: Array) -> Given:
        """One token."""
        before = jnp.where(t > 0, at(self.rows.smallest, jnp.maximum(t - 1, 0)), self.before)
        now, row = self.tokens.at(t), Rows(*(at(x, t) for x in self.rows))
        return Given(now, row, at(self.dy, t), now.since(before))


def _backward_tokens(
    size: int, given: Given, p: Array, m: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    length = given.dy.shape[1]

    def body(i: Array, carry: Any) -> Any:
        after, gradients = carry
        t = length - 1 - i
        now = given.at(t)
        here = after.with_row(now.tokens.q, now.dy, now.rows)
        own = here.of_token(now.tokens, now.rows.smallest)
        gradients = tuple(map(partial(put, t=t), gradients, own))
        return here.before(now.rows.smallest, now.before), gradients

    nothing = jnp.zeros_like(given.dy)
    carry = Adjoint(unstack(p), unstack(m)), (nothing, nothing)
    first, gradients = jax.lax.fori_loop(0, length, body, carry)
    return gradients, (stack(first.p), stack(first.m))


def _passage(given: Given, nothing: Array) -> Passage:
    """That of a whole tile; ``nothing`` [B, N, H, K] is zero."""
    length = given.dy.shape[1]

    def body(i: Array, after: Adjoint) -> Adjoint:
        now = given.at(length - 1 - i)
        here = after.with_row(now.tokens.q, now.dy, now.rows)
        return here.before(now.rows.smallest, now.before)

    own = jax.lax.fori_loop(0, length, body, Adjoint(unstack(nothing), unstack(nothing)))
    before, starts = given.before, given.tokens.starts
    if starts is not None:
        before = jnp.where(jnp.any(starts, axis=1)[:, None, None], jnp.inf, before)
    factor, ratio = passage(before, given.rows.smallest[:, -1])
    return Passage(factor, ratio, stack(own.p), stack(own.m))


def _backward_parallel(
    size: int, given: Given, p: Array, m: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    length = given.dy.shape[1]
    arrays = given.tokens.filled(size), given.rows.filled(size), fill(given.dy, size)
    tokens, rows, dy = split(arrays, size)
    before = before_each(given.before, rows.smallest[:, :, -1])
    tiles = Given(tokens, rows, dy, before)
    passages = jax.vmap(_passage, (1, None), 1)(tiles, jnp.zeros_like(p))
    passages = jax.lax.associative_scan(Passage.then, passages, axis=1, reverse=True)
    begins = jax.vmap(Passage.__call__, (1, None, None), 1)(passages, p, m)
    gradients, _ = jax.vmap(partial(_backward_tokens, size), 1, 1)(
        tiles, *after_each(begins, (p, m))
    )
    return unsplit(gradients, length), position(begins, 0)


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
    rows, last = scan_form("series", "inference", form, _FORWARD, size)(tokens, initial)
    return rows.y, last


def _scan_forward(form: str, size: int, tokens: Tokens, initial: SeriesState) -> tuple[Any, Any]:
    rows, last = scan_form("series", "forward", form, _FORWARD, size)(tokens, initial)
    return (rows.y, last), (tokens, initial.smallest, rows)


def _scan_backward(form: str, size: int, residuals: Any, gradients: Any) -> Any:
    tokens, smallest, rows = residuals
    dy, dlast = gradients
    backward = scan_form("series", "backward", form, _BACKWARD, size)
    (dk, dv), (ds, dz) = backward(Given(tokens, rows, dy, smallest), dlast.s, dlast.z)
    # The smallest |k| itself has a gradient where it is still that of the initial state.
    kept = rows.smallest[:, -1] == smallest
    if tokens.starts is not None:
        kept = kept & ~jnp.any(tokens.starts, axis=1)[:, None, None]
    dsmallest = jnp.where(kept, dlast.smallest, 0)
    return Tokens(dy * rows.slope, dk, dv, None, None), SeriesState(dsmallest, ds, dz)


_scan.defvjp(_scan_forward, _scan_backward)
