"""Guarded arithmetic: the right numbers and gradients where plain arithmetic gives NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.ops.contract.numerics import (
    accumulation_dtype,
    exp_difference,
    multiply_by_scalar,
    safe_divide,
)
from tests.compilation import compile_as_users


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_sums_are_float32_or_wider(dtype: jnp.dtype) -> None:
    assert accumulation_dtype(dtype) == jnp.float32
    assert accumulation_dtype(jnp.float64) == np.float64


def test_safe_divide() -> None:
    numerator, denominator = jnp.array([1.0, 0.0, 3.0]), jnp.array([0.0, 0.0, 2.0])
    np.testing.assert_array_equal(safe_divide(numerator, denominator), [0.0, 0.0, 1.5])
    gradients = jax.grad(lambda n, d: safe_divide(n, d).sum(), argnums=(0, 1))(
        numerator, denominator
    )
    np.testing.assert_allclose(gradients[0], [0, 0, 0.5])
    np.testing.assert_allclose(gradients[1], [0, 0, -0.75])


def test_safe_divide_of_any_size_as_users_compile_it() -> None:
    """Beside its gradients and, where they are finite, theirs; no squares of the denominator."""

    def both(x: jax.Array, d: jax.Array) -> jax.Array:
        return jnp.concatenate([jax.jit(safe_divide)(x, d), safe_divide(x, d[:, :1])], axis=-1)

    def all_of(n: jax.Array, d: jax.Array) -> list[jax.Array]:
        gradients = jax.grad(lambda n, d: safe_divide(n, d).sum(), argnums=(0, 1))(n, d)
        forward = jax.jvp(safe_divide, (n, d), (jnp.zeros_like(n), d))[1]
        return [both(n, d), *gradients, forward]

    # One denominator a value, of the same shape as the numerators: V = 1.
    d = np.array([[1e-30], [1e-20], [1.0], [1e20], [1e30]], np.float32)
    got = compile_as_users(all_of, d, d)(2 * d, d)
    want = [np.full((5, 2), 2.0), 1 / d, -2 / d, np.full((5, 1), -2.0)]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_safe_divide_twice_differentiated() -> None:
    def hessians(n: jax.Array, d: jax.Array) -> list[jax.Array]:
        return [jax.hessian(safe_divide, argnums=(0, 1))(x, y) for x, y in ((n, d), (n, 0 * d))]

    n, d = np.float32(3), np.float32(2)
    right, empty = compile_as_users(hessians, n, d)(n, d)
    np.testing.assert_allclose(right, [[0, -1 / d**2], [-1 / d**2, 2 * n / d**3]], rtol=1e-6)
    np.testing.assert_array_equal(empty, np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("score", "maximum", "want"),
    [(-np.inf, -np.inf, 0), (-np.inf, 3.0, 0), (2.0, 2.0, 1), (-1e4, 1e4, 0), (-1e4, -1e4, 1)],
)
def test_exp_difference(score: float, maximum: float, want: float) -> None:
    value, gradients = jax.value_and_grad(exp_difference, argnums=(0, 1))(score, maximum)
    assert value == want
    # The derivative of exp is exp; into a maximum of -inf there is none.
    assert gradients == (want, 0 if np.isneginf(maximum) else -want)


def test_the_gradient_of_a_factor_is_summed_in_pairs() -> None:
    """Of 3,024 positive terms, to a rounding; those of a plain product lose up to 5."""

    @jax.jit
    def gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
        return jax.grad(lambda factor: jnp.sum(dy * multiply_by_scalar(x, factor)))(
            jnp.float32(0.7)
        )

    for seed in range(4):
        x, dy = np.random.default_rng(seed).uniform(size=(2, 8, 63, 2, 3)).astype(np.float32)
        want = np.sum(x.astype(np.float64) * dy)
        np.testing.assert_allclose(gradient(x, dy), want, rtol=1.2e-7)


def test_a_factor_of_any_kind_and_shape() -> None:
    for shape in ((0, 2, 3), (5, 2, 3), (2, 3, 2, 4)):
        x = jnp.ones(shape, jnp.bfloat16)
        for factor in (0.5, np.float32(0.5), jnp.float32(0.5)):
            y = jax.jit(multiply_by_scalar)(x, factor)
            assert y.dtype == x.dtype and y.shape == shape
            np.testing.assert_array_equal(y, 0.5 * x)
