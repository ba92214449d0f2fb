"""The layer around mechanisms with gates: projections of its own, first decays, dtypes, models."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import models, nn, ops
from flax_linattn.ops.engine.gates import log_spaced_memories
from tests.contract.tolerances import assert_close
from tests.meshes import make_mesh
from tests.nn.cases import (
    HEADS,
    WIDTH,
    attention,
    call,
    make_attention,
    moved,
    normal,
    run_steps,
)

BATCH, LENGTH = 2, 5
GATED = ["forgetting_aaren", "forgetting", "gated_linear", "retention", "gated_delta", "rwkv"]
WITH_ARGUMENTS = [name for name in GATED if ops.get_mechanism(name).token_arguments]


def gates(layer: nn.Attention, x: Any) -> dict[str, Any]:
    """What the layer makes of its inputs for its mechanism."""
    return layer._token_arguments(x)


def test_without_arguments_there_are_no_projections() -> None:
    for name in ("softmax", "retention", "rwkv"):
        layer = nn.Attention(WIDTH, HEADS, mechanism=name, rngs=nnx.Rngs(0))
        assert not layer.token_projections


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_gates_have_a_bias_and_the_range_that_is_named(name: str) -> None:
    """Also where the layer has none; for inputs of any size."""
    layer = make_attention(name, use_bias=False)
    assert layer.key_projection.bias is None
    assert set(layer.token_projections) == {each.name for each in layer.mechanism.token_arguments}
    for size in (1.0, 1e3, 1e30):
        for x in gates(layer, size * normal(2, BATCH, LENGTH, WIDTH)).values():
            assert not np.isnan(x).any()
    for argument in layer.mechanism.token_arguments:
        projection = layer.token_projections[argument.name]
        assert projection.bias is not None
        expected = math.prod(argument.shape(HEADS, WIDTH // HEADS, WIDTH // HEADS))
        assert projection.kernel[...].shape == (WIDTH, expected)


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
@pytest.mark.parametrize(
    "param_dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.bfloat16]
)
def test_gates_are_float32_beside_bfloat16(name: str, param_dtype: Any) -> None:
    """Of inputs and parameters of few digits: a log-decay of -1/1024 has no room for rounding."""
    options: Any = {"dtype": jnp.bfloat16, "param_dtype": param_dtype, "rngs": nnx.Rngs(0)}
    layer = nn.Attention(WIDTH, HEADS, mechanism=name, **options)
    x = normal(2, BATCH, LENGTH, WIDTH).astype(jnp.bfloat16)
    for gate in gates(layer, x).values():
        assert gate.dtype == jnp.float32
    y = call(layer, x, is_causal=True)
    assert y.dtype == jnp.bfloat16 and np.isfinite(y.astype(np.float32)).all()
    stepped, _ = run_steps(layer, x, layer.init_state(BATCH, LENGTH))
    assert_close(stepped, y, jnp.bfloat16)


@pytest.mark.parametrize("name", ["forgetting_aaren", "forgetting", "gated_delta"])
def test_first_decays_are_the_memories_that_are_named(name: str) -> None:
    """-1 / memory for inputs of 0, from 8 tokens of the first head to 1,024 of the last."""
    layer = nn.Attention(4 * WIDTH, 8, mechanism=name, rngs=nnx.Rngs(0))
    log_decay = gates(layer, jnp.zeros((1, 1, 4 * WIDTH)))["log_decay"][0, 0]
    assert log_decay.shape == (8,)
    np.testing.assert_allclose(-1 / log_decay, np.geomspace(8, 1024, 8), rtol=2e-4)
    # What was the whole memory has faded to 1 / e after 8 tokens.
    np.testing.assert_allclose(np.exp(8 * log_decay[0]), np.exp(-1), rtol=1e-5)


def test_first_decays_of_gated_linear_attention() -> None:
    """log sigmoid(0) / 16 for every channel: 23 tokens."""
    layer = nn.Attention(WIDTH, HEADS, mechanism="gated_linear", rngs=nnx.Rngs(0))
    log_decay = gates(layer, jnp.zeros((1, 1, WIDTH)))["log_decay"]
    np.testing.assert_allclose(log_decay, np.log(0.5) / 16, rtol=1e-6)


def test_memories_of_one_head_and_of_channels() -> None:
    for shape in ((1,), (3,), (3, 2)):
        bias = log_spaced_memories(jax.random.key(0), shape)
        memory = -1 / jax.nn.log_sigmoid(bias)
        assert memory.shape == shape
        first, last = (8, 1024) if shape[0] > 1 else (np.sqrt(8 * 1024),) * 2
        np.testing.assert_allclose(memory[0], first, rtol=1e-4)
        np.testing.assert_allclose(memory[-1], last, rtol=1e-3)
    assert log_spaced_memories(jax.random.key(0), (2,), jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", GATED)
def test_equal_layers_have_equal_graphs(name: str) -> None:
    """So that one compiled program serves both."""

    def make() -> nn.Attention:
        return nn.Attention(WIDTH, HEADS, mechanism=name, rngs=nnx.Rngs(1))

    one, other = nnx.graphdef(attention(name)), nnx.graphdef(nnx.eval_shape(make))
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize("name", GATED)
def test_on_a_mesh(name: str) -> None:
    """Rows over two devices: as on one."""
    layer, x = attention(name), normal(2, BATCH, LENGTH, WIDTH)
    mesh = make_mesh(data=2)
    apart = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    assert_close(call(layer, apart, is_causal=True), call(layer, x, is_causal=True), "float32")


def test_a_model_streams_as_it_runs_in_parallel() -> None:
    """``tests/models/contract`` has slow cases of other models and gates."""
    layers = models.Layers(
        features=8, num_layers=2, num_heads=2, hidden_features=12, mechanism="gated_delta"
    )
    model = moved(models.LanguageModel(7, layers=layers, max_length=LENGTH, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(1).integers(0, 7, (BATCH, LENGTH)).astype(np.int32)
    outputs, state = call(model, x, return_state=True)
    stepped, after = run_steps(model, x, model.init_state(BATCH))
    assert_close(stepped, outputs, "float32")
    assert_close(after, state, "float32")
