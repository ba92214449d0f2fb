"""A run that meets NaN stops, says why, and keeps its last finite parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_linattn.training import (
    NonFiniteLossError,
    Parallel,
    TrainState,
    list_checkpoints,
    make_train_step,
)
from flax_linattn.training.state import split_model
from tests.training.problem import (
    Net,
    bits,
    loss_fn,
    make_batches,
    poison_at,
    train,
)


def test_the_step_and_the_array_are_named(tmp_path):
    model = Net()
    before = bits(model)
    with pytest.raises(NonFiniteLossError) as caught:
        train(tmp_path, model=model, train=poison_at(make_batches(), 7))
    message = str(caught.value)
    last = list_checkpoints(tmp_path)[-1]
    assert last.step == 5
    assert "in step 8 (epoch 2)" in message
    assert "The loss was nan." in message
    assert "The data holds NaN or inf: 'x' at index (0, 0)" in message
    assert f"last finite checkpoint: {last.path}." in message
    assert bits(model) == before


def test_a_learning_rate_too_high(tmp_path):
    with pytest.raises(
        NonFiniteLossError, match=r"batch itself is finite.*learning rate.*none was"
    ):
        train(tmp_path, optimizer=optax.sgd(1e20))


def test_bad_validation_data_are_named(tmp_path):
    with pytest.raises(NonFiniteLossError, match="validation batch 1: 'y' at index"):
        train(tmp_path, validation=poison_at(make_batches(count=10, seed=None), 1, name="y"))


def explode_at(step, part):
    """An optimizer or a loss that turns one thing to NaN in one step, and nothing else."""
    if part == "update":

        def update(updates, state, params=None):
            bad = jnp.where(state == step, jnp.nan, 0.0)
            return jax.tree.map(lambda u: u + bad, updates), state + 1

        nan = optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)
        return loss_fn, optax.chain(optax.sgd(0.01), nan)

    @jax.custom_vjp
    def spoil(loss, bad):
        return loss

    def forward(loss, bad):
        return loss, bad

    def backward(bad, g):
        return jnp.where(bad, jnp.nan, g), None

    spoil.defvjp(forward, backward)

    def loss(model, batch, dropout_key):
        value, metrics = loss_fn(model, batch, dropout_key)
        bad = jnp.all(batch["bad"])
        if part == "loss":
            return jnp.where(bad, jnp.inf, value), metrics
        return spoil(value, bad), metrics

    return loss, optax.sgd(0.01)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("loss", "The loss was inf"),
        ("gradient", r"gradient was not finite in layers\.0\.bias, layers\.0\.kernel, layers\.1"),
        ("update", "the gradient finite, but the updated parameters were not"),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_went_wrong_is_named(tmp_path, part, message, accumulate):
    loss, optimizer = explode_at(7, part)

    class Marked:
        def __init__(self):
            self.batches = make_batches()

        def __len__(self):
            return len(self.batches)

        def batch(self, step):
            return self.batches.batch(step) | {"bad": np.full(8, step == 7)}

    with pytest.raises(NonFiniteLossError, match=f"in step 8 .*{message}"):
        train(
            tmp_path,
            loss=loss,
            optimizer=optimizer,
            train=Marked(),
            validation=Marked(),
            parallel=Parallel("none", accumulate=accumulate),
        )


@pytest.mark.parametrize("part", ["loss", "gradient", "update"])
def test_nothing_changes_from_the_bad_step_on(part):
    loss, optimizer = explode_at(2, part)
    graphdef, params, rest = split_model(Net())
    step = make_train_step(graphdef, loss, optimizer, seed=0)
    state = TrainState.create(params, rest, optimizer, ["accuracy", "loss"])
    seen = []
    for index in range(5):
        batch = make_batches().batch(index) | {"bad": np.array([index == 2])}
        state = step(state, batch)
        seen.append(([np.asarray(x).tobytes() for x in jax.tree.leaves(state.params)],
                     float(state.metrics["loss"][0]), int(state.step)))  # fmt: skip
    assert int(state.first_bad_step) == 2
    assert seen[0] != seen[1] == seen[2] == seen[3] == seen[4]
    assert seen[4][2] == 2
    assert np.isfinite(seen[4][1])


def test_half_precision_gradients_may_be_large():
    """Finite float16 gradients whose squares overflow are no error."""

    def loss(model, batch, dropout_key):
        return 1e4 * jnp.sum(model.bias[...]).astype(jnp.float32), {}

    half = nnx.Linear(2, 1, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    graphdef, params, rest = split_model(half)
    small = optax.sgd(1e-6)
    step = make_train_step(graphdef, loss, small, seed=0)
    state = TrainState.create(params, rest, small, ["loss"])
    assert int(step(state, make_batches().batch(0)).first_bad_step) == -1
