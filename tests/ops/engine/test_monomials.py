"""Features of polynomials of any order."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.ops.engine.monomials import monomials, num_monomials, taylor_weights


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_they_are_all_products_in_lexical_order(dim: int, order: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, dim))
    unit = np.array([[1.0], [0.5], [2.0]])
    factors = np.concatenate([unit, x], axis=1)
    choices = itertools.combinations_with_replacement(range(dim + 1), order)
    want = np.stack([factors[:, list(each)].prod(axis=1) for each in choices], axis=1)
    with jax.enable_x64(True):
        got = monomials(jnp.asarray(x), order, jnp.asarray(unit))
    assert got.shape == (3, num_monomials(dim, order)) == (3, math.comb(dim + order, order))
    np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize(("dim", "order"), [(1, 2), (3, 4), (4, 7)])
def test_their_products_are_the_polynomial(dim: int, order: int) -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 10, dim))
    with jax.enable_x64(True):
        of_q, of_k = (monomials(jnp.asarray(x), order) for x in (q, k))
    got = np.sum(np.asarray(of_q) * taylor_weights(dim, order) * np.asarray(of_k), axis=1)
    x = np.sum(q * k, axis=1)
    np.testing.assert_allclose(got, sum(x**n / math.factorial(n) for n in range(order + 1)))
