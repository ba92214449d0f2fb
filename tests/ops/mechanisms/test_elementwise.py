"""What the element-wise attention paper says, and where its text and its listing differ."""

import math
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import compile_as_users


def normal(*shape: int, size: float = 1.0, seed: int = 0, dtype: Any = np.float64) -> Any:
    return jnp.asarray(size * np.random.default_rng(seed).normal(size=shape), dtype)


def qkv(length: int, size: float = 1.0, dtype: Any = np.float64, channels: int = 32) -> Any:
    shape = (1, length, 1, channels)
    return [normal(*shape, size=s, seed=i, dtype=dtype) for i, s in enumerate((size, size, 1.0))]


def listing(q: Any, k: Any, v: Any, terms: int, is_causal: bool) -> np.ndarray:
    """The paper's figure 2, in numpy, with 0^0 = 1."""
    q, k, v = (np.asarray(x)[0, :, 0] for x in (q, k, v))
    exponent = np.arange(terms)[:, None, None]
    coefficient = np.array([2**i / math.factorial(i) for i in range(terms)])[:, None, None]
    den = k**exponent * np.exp(-(k**2))
    num = den * v
    accumulate = (lambda x: np.cumsum(x, axis=1)) if is_causal else (lambda x: x.sum(1)[:, None])
    powers = q**exponent * coefficient
    return np.sum(powers * accumulate(num), 0) / np.sum(powers * accumulate(den), 0)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("terms", [1, 2, 3, 6])
def test_terms_reproduce_the_listing(terms: int, is_causal: bool) -> None:
    series = ops.get_mechanism("elementwise_series", terms=terms)
    assert series.order == terms - 1
    with jax.enable_x64(True):
        q, k, v = qkv(20, size=0.3)
        y = jax.jit(partial(series.attend, is_causal=is_causal))(q, k, v)[0, :, 0]
    np.testing.assert_allclose(y, listing(q, k, v, terms, is_causal), rtol=1e-11)


def test_even_orders_are_positive_and_odd_ones_are_not() -> None:
    """The n-th truncation of exp has no zero if and only if n is even."""
    x = np.linspace(-30, 30, 6001)

    def smallest(order: int) -> float:
        return min(sum(x**n / math.factorial(n) for n in range(order + 1)))

    assert [round(smallest(order), 3) for order in (2, 4, 6)] == [0.5, 0.27, 0.149]
    assert all(smallest(order) < -28 for order in (1, 3, 5, 7))


@pytest.mark.parametrize(("order", "positive"), [(1, False), (2, True), (5, False), (6, True)])
def test_denominators_of_orders(order: int, positive: bool) -> None:
    """A witness for odd orders: negative weights, and outputs beyond all values seen."""
    series = ops.get_mechanism("elementwise_series", order=order, allow_odd_order=True)
    with jax.enable_x64(True):
        q, k, v = qkv(64)
        run = jax.jit(
            lambda q, k, v: (
                ops.weights(series, q, k, is_causal=True),
                series.attend(q, k, v, is_causal=True),
            )
        )
        weight, y = map(np.asarray, run(q, k, v))
        v = np.asarray(v)
    assert (weight >= 0).all() == positive
    lowest, highest = np.minimum.accumulate(v, axis=1), np.maximum.accumulate(v, axis=1)
    inside = (y >= lowest - 1e-9) & (y <= highest + 1e-9)
    assert inside.all() == positive


def test_odd_orders_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"order 5 is odd.*take 4 or 6, or allow_odd_order=True"):
        ops.get_mechanism("elementwise_series", order=5)
    assert ops.get_mechanism("elementwise_series", order=5, allow_odd_order=True).order == 5
    with pytest.raises(ValueError, match="order must be at least 0, got -2"):
        ops.get_mechanism("elementwise_series", order=-2)
    with pytest.raises(ValueError, match="terms must be at least 1, got 0"):
        ops.get_mechanism("elementwise_series", terms=0)
    with pytest.raises(ValueError, match="not both; got order=4 and terms=3"):
        ops.get_mechanism("elementwise_series", order=4, terms=3)


@pytest.mark.slow
def test_the_series_converges_to_the_exact_form() -> None:
    """As the order grows; the size of q and k says how fast."""
    exact = jax.jit(ops.get_mechanism("elementwise").attend)

    @cache
    def series(order: int) -> Any:
        return jax.jit(ops.get_mechanism("elementwise_series", order=order).attend)

    def error(order: int, size: float) -> Any:
        tokens = qkv(64, size=size)
        difference = np.asarray(series(order)(*tokens)) - np.asarray(exact(*tokens))
        return np.sqrt(np.mean(difference**2))

    with jax.enable_x64(True):
        at_03 = [error(order, 0.3) for order in (2, 6, 12)]
        at_1 = [error(order, 1.0) for order in (6, 12, 30)]
    assert at_03[0] < 1e-1 and at_03[1] < 1e-3 and at_03[2] < 1e-7
    assert at_1[0] > 1e-2 and at_1[1] < at_1[0] and at_1[2] < 1e-2


@cache
def causal_series(order: int) -> Any:
    """Two functions of tokens: outputs and the gradients of their sum; the reference."""
    series = ops.get_mechanism("elementwise_series", order=order)

    def run(q: Any, k: Any, v: Any) -> Any:
        y, pull = jax.vjp(lambda *x: series.attend(*x, is_causal=True), q, k, v)
        return y, pull(jnp.ones_like(y))

    return jax.jit(run), jax.jit(partial(series.reference, is_causal=True))


@pytest.mark.parametrize(("order", "size"), [(0, 10), (2, 100), (6, 10), (6, 1000), (12, 1000)])
def test_large_keys_in_float32(order: int, size: float) -> None:
    """e^(-k^2) underflows beyond 10, and k^12 overflows: values and gradients stay right."""
    q, k, v = (np.asarray(x) for x in qkv(50, dtype=np.float32, channels=8))
    q, k = np.float32(size) * q, np.float32(size) * k
    attend, reference = causal_series(order)
    y, gradient = attend(q, k, v)
    assert all(np.isfinite(g).all() for g in gradient)
    with jax.enable_x64(True):
        want = reference(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(y, want, atol=2e-5)


def test_zero_to_the_zero_is_one() -> None:
    """Zeros among keys and queries: finite gradients, and the mean of the values."""
    series = ops.get_mechanism("elementwise_series", order=6)
    zero, v = np.zeros((1, 4, 1, 3), np.float32), np.asarray(normal(1, 4, 1, 3, dtype=np.float32))

    @jax.jit
    def run(*tokens: Any) -> Any:
        y, pull = jax.vjp(series.attend, *tokens)
        return y, pull(jnp.ones_like(y))

    y, gradient = run(zero, zero, v)
    np.testing.assert_allclose(y, np.broadcast_to(v.mean(axis=1, keepdims=True), y.shape), 1e-6)
    assert all(np.isfinite(g).all() for g in gradient)


@pytest.mark.parametrize("name", ["elementwise", "elementwise_series"])
def test_values_need_as_many_channels_as_keys(name: str) -> None:
    q, v = jnp.ones((1, 3, 2, 4)), jnp.ones((1, 3, 2, 5))
    with pytest.raises(ValueError, match="as many channels as k, got 5 and 4"):
        ops.get_mechanism(name).attend(q, q, v)


def test_the_exact_form_takes_memory_linear_in_time() -> None:
    """Never a T x T x C tensor: temporary memory grows with T, at fixed block sizes.

    The contract asks the same of training.
    """
    elementwise = ops.get_mechanism("elementwise", chunk_size=32)

    def temporary(length: int) -> int:
        x = jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)

        def run(q: Any, k: Any, v: Any) -> Any:
            return elementwise.attend(q, k, v, is_causal=True, form="chunked")

        return compile_as_users(run, x, x, x).memory_analysis().temp_size_in_bytes

    short, long = temporary(512), temporary(2048)
    assert long < 6 * short
    assert long < 2048 * 2048 * 16  # a quarter of the tensor


@cache
def with_gradients(form: str) -> Any:
    """(q, k, v) -> outputs and their gradients: of a form as users compile it, or the reference."""
    mechanism = ops.get_mechanism("elementwise", chunk_size=4)
    is_form = form != "reference"
    attend = partial(mechanism.attend, form=form) if is_form else mechanism.reference

    def run(*tokens: Any) -> Any:
        y, pull = jax.vjp(lambda *tokens: attend(*tokens, is_causal=True), *tokens)
        return y, pull(y)

    return compile_as_users(run, *qkv(13, dtype=np.float32)) if is_form else jax.jit(run)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("size", [1e5, 1e10, 1e20, 1e30])
def test_the_nearest_of_far_keys_counts(form: str, size: float) -> None:
    """Squares of distances would be rounded, or infinite."""
    q, k, v = (
        np.asarray(x) * np.float32(s)
        for x, s in zip(qkv(13, dtype=np.float32), (1, size, 1), strict=True)
    )
    got = with_gradients(form)(q, k, v)
    with jax.enable_x64(True):
        want = with_gradients("reference")(*(x.astype(np.float64) for x in (q, k, v)))
    # Gradients into q and k sum terms as large as the distances, which cancel.
    terms = [1, 4 * size, 4 * size, 1]
    for g, w, term in zip(jax.tree.leaves(got), jax.tree.leaves(want), terms, strict=True):
        np.testing.assert_allclose(np.asarray(g) / term, np.asarray(w) / term, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_distances_of_float64_have_its_range(form: str) -> None:
    """The nearer of two keys takes all, at distances that float32 does not hold, too."""
    mechanism = ops.get_mechanism("elementwise")
    with jax.enable_x64(True):
        q = jnp.zeros((1, 1, 1, 1), jnp.float64)
        k = jnp.array([3e40, 2e40]).reshape(1, 2, 1, 1)
        v = jnp.array([1.0, 5.0]).reshape(1, 2, 1, 1)
        assert mechanism.attend(q, k, v, form=form).item() == 5.0
        assert mechanism.reference(q, k, v).item() == 5.0
