"""The decoder block, in parallel and step by step with its memory projected once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, nn
from tests.contract.tolerances import assert_close
from tests.nn.cases import CAUSAL, call, normal, run_steps

slow = pytest.mark.slow
MECHANISMS = [case for case in CAUSAL if case.id != "aft"]


# A norm stands where it does whatever the mechanism: each fast mechanism has one of them.
NORM = {"softmax": "pre", "aaren": "post", "taylorshift": "pre"}
BLOCKS = [
    pytest.param(
        *case.values,
        norm,
        id=f"{case.id}-{norm}",
        marks=case.marks or (() if NORM[case.id] == norm else slow),
    )
    for case in MECHANISMS
    for norm in ("pre", "post")
]


@partial(jax.jit, static_argnums=0)
def prefill(graph, variables, x, state):
    return nnx.merge(graph, variables).prefill(x, state)


@pytest.mark.parametrize(("mechanism", "norm"), BLOCKS)
def test_block_is_the_loop_of_steps(mechanism, norm):
    block = nn.DecoderBlock(8, 2, mechanism=mechanism, norm=norm, rngs=nnx.Rngs(0))
    x, memory = normal(1, 2, 5, 8), normal(2, 2, 7, 8)
    real = np.arange(7) < np.array([[7], [4]])
    y = call(block, x, memory, memory_mask=real)
    state = block.init_state(jnp.asarray(memory), 5, memory_mask=jnp.asarray(real))
    stepped, _ = run_steps(block, x, state)
    assert_close(stepped, y, "float32")
    head, state = prefill(*nnx.split(block), x[:, :3], state)
    assert_close(head, y[:, :3], "float32")
    tail, _ = run_steps(block, x[:, 3:], state)
    assert_close(tail, y[:, 3:], "float32")
    alone = call(block, x[1:], memory[1:, :4])
    assert_close(y[1:], alone, "float32")


@pytest.mark.parametrize("num_covariates", [pytest.param(0, marks=slow), 2])
@pytest.mark.parametrize(
    "mechanism", ["softmax", "aaren", pytest.param("elementwise_series", marks=slow)]
)
def test_encoder_decoder_steps_over_its_horizon(mechanism, num_covariates):
    """With causal embeddings; the forecasts of one call, one after another."""
    model = models.EncoderDecoder(
        3, 4, label_length=2, num_covariates=num_covariates, targets=(1, 2), features=8,
        num_heads=2,
        num_layers=1, hidden_features=12, mechanism=mechanism, embedding_padding="causal",
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    values = jnp.asarray(normal(1, 2, 6, 3))
    marks = jnp.asarray(normal(2, 2, 10, num_covariates)) if num_covariates else None
    want = call(model, values, marks)
    state = jax.jit(model.init_state)(values, None if marks is None else marks[:, :6])
    step = jax.jit(model.step)
    for h in range(4):
        y, state = step(None if marks is None else marks[:, 6 + h], state)
        assert_close(y, want[:, h], "float32")


def test_circular_encoder_decoder_does_not_step():
    model = models.EncoderDecoder(2, 3, label_length=2, features=8, num_heads=2, rngs=nnx.Rngs(0))
    assert not model.streams
    with pytest.raises(ValueError, match="decodes the whole horizon at once"):
        model.init_state(jnp.ones((1, 4, 2)))
