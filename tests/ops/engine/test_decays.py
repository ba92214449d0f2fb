"""Sums of log-decays between tokens: against loops, wherever decays are nothing or all."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flax_linattn.ops.engine import decays
from tests.contract.tolerances import assert_close

DECAYS = st.sampled_from([0.0, -1e-6, -0.5, -13.8, -745.0, -1e30, -np.inf])
LENGTHS = [1, 2, 5, 8]


@st.composite
def log_decays(draw: Any, channels: int) -> Any:
    shape = (draw(st.sampled_from(LENGTHS)), channels)
    return draw(arrays(np.float64, shape, elements=DECAYS))


def test_no_tokens() -> None:
    none = jnp.zeros((2, 0, 3))
    assert decays.prefix_sums(none).shape == decays.exclusive_suffix_sums(none).shape == none.shape
    assert decays.decayed_products(none, none, none).shape == (2, 0, 0)
    assert decays.decayed_products(none, none, none[..., :1]).shape == (2, 0, 0)


@jax.jit
def all_sums(a: Any) -> Any:
    sums = (
        each(a)
        for each in (
            decays.prefix_sums,
            decays.exclusive_suffix_sums,
            decays.exclusive_prefix_sums,
            decays.suffix_sums,
        )
    )
    return *sums, decays.pairwise_sums(a[:, :1])


@given(log_decays(channels=2))
def test_sums_are_those_of_a_loop(a: Any) -> None:
    with jax.enable_x64(True):
        until, after, before, onwards, between = map(np.asarray, all_sums(a))
    for i in range(len(a)):
        assert_close(until[i], a[: i + 1].sum(axis=0), np.float64)
        assert_close(after[i], a[i + 1 :].sum(axis=0), np.float64)
        assert_close(before[i], a[:i].sum(axis=0), np.float64)
        assert_close(onwards[i], a[i:].sum(axis=0), np.float64)
        for j in range(len(a)):
            want = a[j + 1 : i + 1, 0].sum() if j <= i else -np.inf
            assert_close(between[i, j], want, np.float64)


@pytest.mark.parametrize("channels", [1, 3])
@given(data=st.data())
def test_products_are_those_of_a_loop(channels: int, data: Any) -> None:
    """One decay for all channels, or one each; no number is ever NaN."""
    a = data.draw(log_decays(channels))
    q, k = np.random.default_rng(0).normal(size=(2, len(a), 3))
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(decays.decayed_products)(q, k, a))
    want = np.zeros((len(a), len(a)))
    for i in range(len(a)):
        for j in range(i + 1):
            want[i, j] = np.sum(q[i] * k[j] * np.exp(a[j + 1 : i + 1].sum(axis=0)))
    assert_close(got, want, np.float64)


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_where_nothing_is_left(channels: int) -> None:
    """Those of -inf are 0, of all else as if it stood for -1,000; none is NaN."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 7, 3))
    a = -(10.0 ** rng.uniform(-6, 1, (7, channels)))
    weights = rng.normal(size=(7, 7))

    @jax.jit
    def gradients(q: Any, k: Any, a: Any) -> Any:
        return jax.grad(lambda *x: jnp.sum(weights * decays.decayed_products(*x)), (0, 1, 2))(
            q, k, a
        )

    with jax.enable_x64(True):
        reset, large = (np.where(np.arange(7)[:, None] == 3, x, a) for x in (-np.inf, -1e3))
        got, want = (jax.tree.map(np.asarray, gradients(q, k, x)) for x in (reset, large))
    assert_close(got, want, np.float64)
    assert not got[2][3].any()


def test_a_long_way_down_loses_no_digits() -> None:
    """After 100 tokens of -100 the next ones are apart by 1e-3 each, in float32."""
    a = np.full((110, 1), -1e-3, np.float32)
    a[:100] = -100
    got = np.asarray(jax.jit(decays.pairwise_sums)(a))[100:, 100:]
    apart = np.arange(10)[:, None] - np.arange(10)
    want = np.where(apart >= 0, -1e-3 * np.maximum(apart, 0), -np.inf)
    np.testing.assert_allclose(got, want, rtol=1e-6)
