"""Plain implementations of the papers' formulations, with which the mechanisms are compared.

Arguments are q, k, v [B, T, H, K]; Aaren takes scores [B, T, H] and v. No masks, no states.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array


def aaren_scan(score: Array, v: Array) -> Array:
    """Aaren by its operator on (m, u, w) under ``associative_scan`` (section 3.2)."""

    def merge(a: Any, b: Any) -> Any:
        m = jnp.maximum(a[0], b[0])
        x, y = jnp.exp(a[0] - m), jnp.exp(b[0] - m)
        return m, x * a[1] + y * b[1], x[..., None] * a[2] + y[..., None] * b[2]

    leaves = (score, jnp.ones_like(score), v)
    _, u, w = jax.lax.associative_scan(merge, leaves, axis=1)
    return w / u[..., None]


def elementwise_series_cumsum(
    q: Array, k: Array, v: Array, order: int = 6, *, products: bool = False
) -> Array:
    """EA-series by cumulative sums of all powers (equations 7-11, figure 2).

    Args:
        q: [B, T, H, K].
        k: [B, T, H, K].
        v: [B, T, H, K].
        order: highest exponent.
        products: powers by multiplication; otherwise by ``pow`` of exponents, as figure 2 does.
    """
    exponent = jnp.arange(order + 1)
    factorial = jnp.asarray([math.factorial(n) for n in range(order + 1)], q.dtype)

    def power(x: Array) -> Array:
        if not products:
            return x[..., None] ** exponent
        ascending = [jnp.ones_like(x)]
        for _ in range(order):
            ascending.append(ascending[-1] * x)
        return jnp.stack(ascending, axis=-1)

    powers = power(k) * jnp.exp(-jnp.square(k))[..., None]
    s = jnp.cumsum(powers * v[..., None], axis=1)
    z = jnp.cumsum(powers, axis=1)
    terms = power(2 * q) / factorial
    return jnp.sum(terms * s, axis=-1) / jnp.sum(terms * z, axis=-1)


def taylorshift_algorithm_1(q: Array, k: Array, v: Array) -> Array:
    """Efficient TaylorShift as printed: all d^2 products of all tokens at once."""
    length, dim = q.shape[1], q.shape[-1]
    alpha = dim**0.25
    q, k = (alpha * x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    ones = jnp.full_like(v[..., :1], (dim / length) ** 0.5)
    v = jnp.concatenate([ones, v], axis=-1) / length

    def box(x: Array) -> Array:
        return (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], dim * dim)

    a = jnp.einsum("bshf,bshv->bhfv", box(k), v)
    y = jnp.einsum("bthf,bhfv->bthv", box(q), a) / 2
    y = y + alpha**2 * jnp.einsum("bthk,bhkv->bthv", q, jnp.einsum("bshk,bshv->bhkv", k, v))
    y = y + alpha**4 * jnp.sum(v, axis=1, keepdims=True)
    return y[..., 1:] / y[..., :1]


def expressive_dense(q: Array, k: Array, v: Array) -> Array:
    """Causal expressive attention by its T x T weights (equation 2)."""
    z = jnp.einsum("bthk,bshk->bhts", q, k)
    weight = jnp.square(z) / (1 + jnp.square(z))
    weight = jnp.where(jnp.tril(jnp.ones(z.shape[-2:], bool)), weight, 0)
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    return jnp.einsum("bhts,bshv->bthv", weight, v)


def taylorshift_equation_1(q: Array, k: Array, v: Array) -> Array:
    """Direct TaylorShift as printed: all T x T weights (equation 1, with section 3.3)."""
    length, dim = q.shape[1], q.shape[-1]
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    x = jnp.einsum("bthk,bshk->bhts", q, k)
    weight = 1 + x + jnp.square(x) / 2
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    return jnp.einsum("bhts,bshv->bthv", weight, v) * (length / dim) ** 0.5
