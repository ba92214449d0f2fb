"""Weights that are polynomials of scores, for attention in blocks (``engine/blocks.py``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp

from flax_linattn.ops.engine.blocks import WeightFunction
from flax_linattn.typing import Array


def homogeneous_polynomial(coefficients: Sequence[float], x: Array, unit: Array | float) -> Array:
    """Evaluates c_n x^n + c_{n-1} x^{n-1} u + ... + c_0 u^n by Horner's scheme.

    Args:
        coefficients: Coefficients, c_n first.
        x: Array of any shape.
        unit: Unit u in which x is measured; the result is homogeneous of degree n in (x, u).

    Example:
        >>> taylor = (0.5, 1.0, 1.0)
        >>> homogeneous_polynomial(taylor, 2.0, 1.0), homogeneous_polynomial(taylor, 20.0, 10.0)
        (5.0, 500.0)
    """
    highest, *lower = coefficients
    y: Any = highest
    for lacking, coefficient in enumerate(lower, 1):
        y = y * x + math.prod([unit] * lacking, start=coefficient)
    return y


@cache
def polynomial_weights(coefficients: tuple[float, ...]) -> WeightFunction:
    """Makes the weight function of a polynomial of the score.

    Weights are relative to the n-th power of the row's largest magnitude above 1, which keeps them
    finite.

    Args:
        coefficients: Coefficients, that of the highest power first; at least two.

    Example:
        >>> import jax.numpy as jnp
        >>> taylor = polynomial_weights((0.5, 1.0, 1.0))
        >>> taylor.weight(jnp.array([2.0, -jnp.inf]), jnp.array(1.0)).tolist()
        [5.0, 0.0]
        >>> taylor.weight(jnp.array([2e30]), jnp.array(1e30)).tolist()
        [2.0]
    """
    degree = len(coefficients) - 1
    slopes = tuple(power * c for power, c in zip(range(degree, 0, -1), coefficients, strict=False))

    def relative(of: tuple[float, ...], score: Array, level: Array) -> Array:
        hidden = jnp.isneginf(score)
        unit = 1 / level
        value = homogeneous_polynomial(
            of, jnp.where(hidden, jnp.zeros_like(score), score) * unit, unit
        )
        return jnp.where(hidden, jnp.zeros_like(score), value)

    def level(score: Array) -> Array:
        size = jnp.where(jnp.isneginf(score), jnp.ones_like(score), jnp.abs(score))
        return jnp.maximum(jnp.max(size, axis=-1), 1)

    return WeightFunction(
        masked_score=-math.inf,
        initial_level=1.0,
        level=level,
        weight=lambda score, level: relative(coefficients, score, level),
        slope=lambda score, level: relative(slopes, score, level) / level,
        rescale=lambda old, new: (old / new) ** degree,
    )
