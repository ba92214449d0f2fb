"""Poolings as monoids, and the precision of means over long streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import models
from flax_linattn.models.pooling import identity
from tests.contract.tolerances import assert_close
from tests.nn.cases import normal

NUMPY = {
    "last": lambda h: h[-1],
    "mean": lambda h: h.mean(axis=0),
    "flatten": lambda h: h.sum(axis=0),
}


@pytest.mark.parametrize("name", models.POOLINGS)
def test_any_bracketing_gives_the_pooled_vector(name):
    pooling = models.POOLINGS[name]()
    h = normal(1, 6, 1, 3)
    tokens = [pooling.lift(token) for token in h]
    nothing = identity(1, 3)
    merge = pooling.merge
    from_left = nothing
    for token in tokens:
        from_left = merge(from_left, token)
    from_right = nothing
    for token in tokens[::-1]:
        from_right = merge(token, from_right)
    a, b, c, d, e, f = tokens
    balanced = merge(merge(merge(a, b), nothing), merge(merge(c, d), merge(e, f)))
    want = NUMPY[name](np.asarray(h, np.float64)[:, 0])[None]
    for state in (from_left, from_right, balanced):
        assert_close(pooling.read(state), want, "float32")
        assert state.num_tokens.tolist() == [6]
    assert_close(merge(nothing, nothing), nothing, "float32")


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_mean_of_a_long_stream_keeps_its_precision(offset):
    """200,000 tokens one by one, to float32's relative precision of a few hundred roundings."""
    pooling = models.MeanPooling()
    h = np.random.default_rng(0).normal(offset, 1.0, (200_000, 1, 4)).astype(np.float32)

    @jax.jit
    def stream(h):
        def step(state, token):
            return (pooling.merge(state, pooling.lift(token)), None)

        return jax.lax.scan(step, identity(1, 4), h)[0]

    got = np.asarray(pooling.read(stream(jnp.asarray(h))), np.float64)
    want = h.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-5 * max(1.0, offset))


def test_mean_goes_on_where_a_sum_would_stand_still():
    """Beyond 2**24 tokens of 1.0 a float32 sum no longer grows, and its mean falls."""
    pooling = models.MeanPooling()
    state = identity(1, 4)._replace(value=jnp.ones((1, 4)), num_tokens=jnp.array([3 << 24]))
    for _ in range(3):
        state = pooling.merge(state, pooling.lift(jnp.ones((1, 4))))
    assert state.num_tokens.tolist() == [(3 << 24) + 3]
    np.testing.assert_array_equal(pooling.read(state), 1.0)


def test_poolings_of_one_kind_are_equal():
    """So that models of equal options share their compilations."""
    assert models.MeanPooling() == models.MeanPooling()
    assert models.MeanPooling() != models.LastPooling()
    assert hash(models.MeanPooling()) == hash(models.MeanPooling())
