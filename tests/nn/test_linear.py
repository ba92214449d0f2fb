"""Linear layers: weights of each position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from flax_linattn import nn
from tests.contract.tolerances import assert_close

POSITIONS, IN, OUT = 5, 4, 3


def test_each_position_has_its_own_weights():
    layer = nn.PositionLinear(POSITIONS, IN, OUT, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 7, POSITIONS, IN)).astype(np.float32)
    kernel, bias = (
        np.asarray(layer.kernel[...], np.float64),
        np.asarray(layer.bias[...], np.float64),
    )
    expected = np.stack([x[..., t, :] @ kernel[t] + bias[t] for t in range(POSITIONS)], axis=-2)
    assert_close(layer(x), expected, "float32")
    assert abs(kernel).max() <= IN**-0.5 and len(np.unique(kernel)) == kernel.size
    alone = nn.PositionLinear(POSITIONS, IN, OUT, use_bias=False, rngs=nnx.Rngs(0))
    assert alone.bias is None
    assert_close(alone(x), expected - bias, "float32")


def test_dtypes_are_those_of_linear():
    layer = nn.PositionLinear(POSITIONS, IN, OUT, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert layer.kernel.dtype == jnp.float32
    assert layer(jnp.ones((POSITIONS, IN))).dtype == jnp.bfloat16


def test_an_initializer_may_carry_a_sharding():
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("in", "out"))
    axes = (AxisType.Auto,) * 2
    with jax.set_mesh(jax.make_mesh((1, 1), ("in", "out"), axis_types=axes)):
        layer = nn.PositionLinear(POSITIONS, IN, OUT, kernel_init=init, rngs=nnx.Rngs(0))
    assert layer.kernel.out_sharding == (None, "in", "out")
    plain = nn.PositionLinear(
        POSITIONS, IN, OUT, kernel_init=nnx.initializers.lecun_normal(), rngs=nnx.Rngs(0)
    )
    np.testing.assert_array_equal(layer.kernel[...], plain.kernel[...])


@pytest.mark.parametrize("shape", [(IN,), (2, POSITIONS - 1, IN)])
def test_other_numbers_of_positions_are_refused(shape):
    layer = nn.PositionLinear(POSITIONS, IN, OUT, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected inputs of shape \[..., 5, 4\], one row per"):
        layer(jnp.ones(shape))
