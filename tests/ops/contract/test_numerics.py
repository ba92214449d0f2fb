"""Guarded arithmetic: the right numbers and gradients where plain arithmetic gives NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.ops.contract.numerics import accumulation_dtype, exp_difference, safe_divide


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


@pytest.mark.parametrize(
    ("score", "maximum", "want"),
    [(-np.inf, -np.inf, 0), (-np.inf, 3.0, 0), (2.0, 2.0, 1), (-1e4, 1e4, 0), (-1e4, -1e4, 1)],
)
def test_exp_difference(score: float, maximum: float, want: float) -> None:
    value, gradients = jax.value_and_grad(exp_difference, argnums=(0, 1))(score, maximum)
    assert value == want
    # The derivative of exp is exp; into a maximum of -inf there is none.
    assert gradients == (want, 0 if np.isneginf(maximum) else -want)
