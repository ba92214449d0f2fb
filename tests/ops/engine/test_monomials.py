"""Features of polynomials of any order."""

import functools
import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn.ops.engine.monomials import monomials, num_monomials

FEW = [(1, 3), (5, 2), (2, 6)]
"""Dimensions and orders of which one channel, halves that differ and a high order are."""


@pytest.mark.parametrize(
    ("dim", "order"),
    [
        pytest.param(dim, order, marks=() if (dim, order) in FEW else pytest.mark.slow)
        for dim in (1, 2, 5, 8)
        for order in (1, 2, 3, 6)
    ],
)
@pytest.mark.parametrize("over_factorials", [False, True])
def test_they_are_all_products(dim: int, order: int, over_factorials: bool) -> None:
    """Each once, by ascending degree: sorted within each, as numbers drawn tell them apart."""
    x, unit = np.random.default_rng(0).normal(size=dim), 0.5
    want = []
    for degree in range(order + 1):
        factors = list(itertools.combinations_with_replacement(range(dim), degree))
        products = [math.prod(x[list(each)]) * unit ** (order - degree) for each in factors]
        if over_factorials:
            factorials = [math.prod(map(math.factorial, map(f.count, {*f}))) for f in factors]
            products = [p / f for p, f in zip(products, factorials, strict=True)]
        want.append(np.sort(products))
    run = jax.jit(functools.partial(monomials, order=order, over_factorials=over_factorials))
    with jax.enable_x64(True):
        got = run(np.asarray([x, 2 * x]), unit=np.array([[0.5], [1.0]]))
    assert got.shape == (2, num_monomials(dim, order)) == (2, math.comb(dim + order, order))
    np.testing.assert_allclose(got[1], 2.0**order * np.asarray(got[0]), rtol=1e-14)
    ends = np.cumsum([len(each) for each in want])
    parts = np.split(np.asarray(got[0]), ends[:-1])
    for part, products in zip(parts, want, strict=True):
        np.testing.assert_allclose(np.sort(part), products, rtol=1e-13)


@pytest.mark.parametrize(("dim", "order"), [(1, 2), (3, 4), (4, 7)])
def test_their_products_are_the_polynomial(dim: int, order: int) -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 10, dim))

    @jax.jit
    def run(q: Any, k: Any) -> Any:
        return monomials(q, order, over_factorials=True), monomials(k, order)

    with jax.enable_x64(True):
        of_q, of_k = run(q, k)
    x = np.sum(q * k, axis=1)
    want = sum(x**n / math.factorial(n) for n in range(order + 1))
    np.testing.assert_allclose(np.sum(np.asarray(of_q) * np.asarray(of_k), axis=1), want)
