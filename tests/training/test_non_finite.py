"""A run that meets NaN stops, says why, and keeps its last finite parameters."""

import functools

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
    Source,
    bits,
    loss_fn,
    make_batches,
    poison_at,
    read_metrics,
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


@functools.cache
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
        ("update", "the gradient was finite, but the new parameters were not"),
    ],
)
@pytest.mark.parametrize(("accumulate", "step"), [(1, 7), (2, 2)])
def test_what_went_wrong_is_named(tmp_path, part, message, accumulate, step):
    """In the first epoch, or in the second, when there is a checkpoint."""
    loss, optimizer = explode_at(step, part)

    marked = Source(make_batches(), lambda at, batch: batch | {"bad": np.full(8, at == step)})
    with pytest.raises(NonFiniteLossError, match=f"in step {step + 1} .*{message}"):
        train(
            tmp_path,
            loss=loss,
            optimizer=optimizer,
            train=marked,
            validation=marked,
            parallel=Parallel("none", accumulate=accumulate),
        )


@pytest.mark.parametrize("part", ["loss", "gradient", "update"])
def test_nothing_changes_from_the_bad_step_on(part):
    loss, optimizer = explode_at(2, part)
    graphdef, params, rest = split_model(Net())
    step = make_train_step(graphdef, loss, optimizer, seed=3)
    state = TrainState.create(params, rest, optimizer, ["accuracy", "loss"])
    seen = []
    for index in range(5):
        batch = make_batches().batch(index) | {"bad": np.full(8, index == 2)}
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


def test_some_updates_may_be_left_out(tmp_path):
    train(tmp_path / "two", train=poison_at(make_batches(), 3, 7), max_skipped_steps=2)
    lines = read_metrics(tmp_path / "two")
    assert [line.get("skipped_steps") for line in lines] == [1, 2, 2]
    with pytest.raises(NonFiniteLossError, match=r"in step 12 \(epoch 3\)"):
        train(tmp_path / "three", train=poison_at(make_batches(), 3, 7, 11), max_skipped_steps=2)


def test_a_left_out_update_changes_nothing():
    """Two steps of which one is left out come to what the other alone comes to."""
    graphdef, params, rest = split_model(Net())
    optimizer = optax.sgd(0.1)
    step = make_train_step(graphdef, loss_fn, optimizer, seed=0, max_skipped=1)

    def run(*batches):
        state = TrainState.create(params, rest, optimizer, ["accuracy", "loss"])
        for batch in batches:
            state = step(state, batch)
        return state

    bad = poison_at(make_batches(), 5).batch(5)
    got, want = run(make_batches().batch(0), bad), run(make_batches().batch(0))
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (int(got.step), int(got.skipped), int(got.first_bad_step)) == (2, 1, -1)
    assert int(run(bad, bad).first_bad_step) == 1


def test_a_loss_scale_finds_its_size():
    """Halved where float16 gradients overflow, without ending the run; gradients keep theirs."""

    def loss(model, batch, dropout_key):
        return jnp.sum(model.bias[...].astype(jnp.float32) * 1e-3), {}

    half = nnx.Linear(2, 1, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    graphdef, params, rest = split_model(half)
    optimizer = optax.sgd(1.0)
    step = make_train_step(graphdef, loss, optimizer, seed=0)
    state = TrainState.create(params, rest, optimizer, ["loss"], loss_scale=2.0**27)
    scales = []
    for index in range(4):
        state = step(state, make_batches().batch(index))
        scales.append(float(state.loss_scale.value))
    assert scales == [2.0**26, 2.0**25, 2.0**25, 2.0**25]  # 2**26 * 1e-3 > 65504
    assert (int(state.step), int(state.skipped), int(state.first_bad_step)) == (4, 0, -1)
    (bias,) = nnx.merge(graphdef, state.params, state.model_state).bias[...]
    assert float(bias) == pytest.approx(-2e-3, rel=1e-3)
    nan = TrainState.create(params, rest, optimizer, ["loss"], loss_scale=2.0**10)
    spoiled = make_train_step(graphdef, lambda *a: (jnp.nan * loss(*a)[0], {}), optimizer, seed=0)
    assert int(spoiled(nan, make_batches().batch(0)).first_bad_step) == 0
