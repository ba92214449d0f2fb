"""Selection, early stopping, and what a run leaves alone."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_linattn.checks import OptionError
from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.training import (
    FitConfig,
    Objective,
    OptimizerOptions,
    TrainState,
    evaluate,
    list_checkpoints,
    load_checkpoint,
    make_optimizer,
    make_train_step,
)
from flax_linattn.training.history import History
from flax_linattn.training.state import split_model
from tests.training.problem import (
    OPTIMIZER,
    Net,
    bits,
    loss_fn,
    make_batches,
    read_metrics,
    train,
)


def progress_of(values, monitor="loss", mode="min", **config):
    """What a run came to in epochs of these validation losses, and after which it was over."""
    config = FitConfig(epochs=10, **config)
    objective = Objective(loss_fn, OPTIMIZER, monitor, mode)
    history = History.start(config, objective, steps_per_epoch=4, batch_size=8)
    over = []
    for value in values:
        history.seconds = 1.0
        step, metrics = 4 * (history.epochs_done + 1), [{monitor: value}]
        selection = history.select(step, metrics, [-1], config.patience)
        history.end_period(step, [{}], metrics, selection.counted)
        over.append(history.is_over(config))
    return history.runs[0], over


@pytest.mark.parametrize(
    ("values", "options", "epochs", "best"),
    [([3.0, 2.0, 2.5, 1.0, 1.5, 1.1], {"patience": 2}, 6, (4, 16, 1.0)),  # epochs in a row
     ([1.0, 2.0, 1.0, 2.0, 2.0], {"patience": 2}, 5, (3, 12, 1.0)),  # a tie counts as better
     ([0.5, 0.9, 0.7], {"monitor": "accuracy", "mode": "max"}, None, (2, 8, 0.9)),
     ([1.0] + [2.0] * 9, {}, 10, (1, 4, 1.0))],  # without patience all epochs run
)  # fmt: skip
def test_when_training_is_over_and_what_was_best(values, options, epochs, best):
    progress, over = progress_of(values, **options)
    assert over == [epoch == epochs for epoch in range(1, len(values) + 1)]
    assert (progress.best_epoch, progress.best_step, progress.best_value) == best


def test_stops_early_with_the_best_parameters(tmp_path):
    # Steps this large make the validation worse, after a first epoch.
    wild = optax.sgd(0.6)
    model, result = train(tmp_path, epochs=9, patience=2, optimizer=wild)
    losses = [line["validation_loss"] for line in result.history]
    assert result.stopped_early
    assert result.epochs == result.best_epoch + 2 < 9
    assert losses[result.best_epoch - 1] == min(losses) == result.best_value < losses[-1]
    assert evaluate(model, loss_fn, make_batches(count=10, seed=None))["loss"] == result.best_value

    best, last = Net(seed=5), Net(seed=5)
    load_checkpoint(best, result.best_checkpoint)
    load_checkpoint(last, list_checkpoints(tmp_path)[-1].path)
    assert bits(model) == bits(best) != bits(last)


def test_metrics_lines(tmp_path):
    _, result = train(tmp_path, epochs=2)
    lines = read_metrics(tmp_path)
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 5), (2, 10)]
    assert lines[0].keys() == {
        "epoch", "step", "monitor", "best_epoch",
        "train_loss", "train_accuracy", "validation_loss", "validation_accuracy",
    }  # fmt: skip
    assert result.history[0]["seconds"] >= 0 and result.history[0]["examples_per_second"] > 0
    # 38 examples, not the 40 rows of five batches of 8.
    assert (lines[0]["train_accuracy"] * 38) % 1 == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("graph_mode", [False, True])
def test_both_graph_modes(tmp_path, graph_mode):
    with nnx.set_graph_mode(graph_mode):
        # A loss function of its own: the steps compiled in the other mode are not used.
        model, result = train(tmp_path, epochs=4, loss=lambda *args: loss_fn(*args))
        losses = [line["train_loss"] for line in result.history]
        assert losses[-1] < losses[0]
        assert np.any(model.mean[...] != 0)  # what the forward pass did to it is kept


def test_the_step_donates_its_state_and_not_the_model():
    model = Net()
    graphdef, params, rest = split_model(model)
    before = bits(model)
    state = TrainState.create(params, rest, OPTIMIZER, ["accuracy", "loss"])
    after = make_train_step(graphdef, loss_fn, OPTIMIZER, seed=3)(state, make_batches().batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert int(after.step) == 1
    assert bits(model) == before


def test_each_step_draws_from_the_seed_and_its_number():
    """Never twice the same, and in a resumed run what it would have drawn."""

    def loss(model, batch, dropout_key):
        return jax.random.uniform(dropout_key) + 0.0 * loss_fn(model, batch, None)[0], {}

    graphdef, params, rest = split_model(Net())
    step = make_train_step(graphdef, loss, OPTIMIZER, seed=3)
    state = TrainState.create(params, rest, OPTIMIZER, ["loss"])
    want, sums = [], [0.0]
    for n in range(3):
        state = step(state, make_batches().batch(0))
        want.append(jax.random.uniform(jax.random.fold_in(jax.random.key(3), n)))
        sums.append(float(state.metrics["loss"][0]) / 8)  # of eight examples each
    np.testing.assert_allclose(np.diff(sums), want, rtol=1e-5)


def test_each_step_compiles_once(tmp_path):
    @chex.assert_max_traces(n=5)  # to train, to validate, and for each fit to name the metrics
    def traced(model, batch, dropout_key):
        return loss_fn(model, batch, dropout_key)

    chex.clear_trace_counter()
    train(tmp_path, epochs=2, loss=traced)
    train(tmp_path, epochs=4, loss=traced, resume=True)
    train(tmp_path / "seed", epochs=2, loss=traced, seed=4)


def test_equal_options_make_one_optimizer():
    """Its identity decides whether a step is compiled again."""
    assert make_optimizer(OptimizerOptions(), 90, 9) is make_optimizer(OptimizerOptions(), 80, 8)
    cosine = OptimizerOptions(schedule="cosine")
    assert make_optimizer(cosine, 90, 9) is make_optimizer(cosine, 90, 9)
    assert make_optimizer(cosine, 90, 9) is not make_optimizer(cosine, 80, 8)


def test_the_state_stays_on_one_of_eight_devices(tmp_path):
    assert jax.device_count() == 8
    device = jax.devices()[3]
    model = Net()
    nnx.update(model, jax.device_put(nnx.state(model), device))
    train(tmp_path, epochs=1, model=model)
    train(tmp_path, epochs=2, model=model, resume=True)
    assert {d for leaf in jax.tree.leaves(nnx.state(model)) for d in leaf.devices()} == {device}


def test_a_loss_without_metrics_is_counted_by_weight(tmp_path):
    def bare(model, batch, dropout_key):
        return loss_fn(model, batch, dropout_key)[0], {}

    batches = make_batches(seed=None)
    whole = evaluate(Net(), loss_fn, batches)
    assert evaluate(Net(), bare, batches)["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_evaluate_draws_nothing_and_changes_nothing():
    model = Net()
    before = bits(model)
    batches = make_batches()
    assert evaluate(model, loss_fn, batches) == evaluate(model, loss_fn, batches)
    assert bits(model) == before


@pytest.mark.parametrize(
    ("loss", "metrics", "message"),
    [(jnp.float32(0), {"hits": jnp.float32(1)}, "'hits' must be a pair"),
     (jnp.float32(0), {"hits": (jnp.zeros(2), jnp.zeros(()))}, "'hits' must be a pair"),
     (jnp.zeros(8), {}, r"must be a scalar, got shape \(8,\)")],
    ids=["single", "vector", "loss"],
)  # fmt: skip
def test_wrong_losses_and_metrics_are_named(loss, metrics, message):
    with pytest.raises(TypeError, match=message):
        evaluate(Net(), lambda *_: (loss, metrics), make_batches())


def test_an_unknown_monitor_names_the_known(tmp_path):
    with pytest.raises(ValueError, match=r"monitor is 'f1', but .* reports accuracy, loss"):
        train(tmp_path, monitor="f1")
    assert not any(tmp_path.iterdir())


def test_hyperparameters_are_for_several_runs(tmp_path):
    with pytest.raises(ValueError, match="for several runs, but there is one model"):
        train(tmp_path, hyperparameters=[{"learning_rate": 0.1}])


def test_a_model_without_parameters_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a model with nnx\.Param variables"):
        train(tmp_path, model=nnx.Module(), loss=lambda *_: (jnp.float32(0), {}))


@pytest.mark.parametrize(
    "bad",
    [{"epochs": 0}, {"epochs": 1.5}, {"patience": 0}, {"keep_latest": 0}, {"seed": -1},
     {"checkpoint_every_steps": True}, {"steps": 0}, {"validate_every": 0}],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_named(bad):
    (name,) = bad
    with pytest.raises((OptionError, TypeError), match=rf"{name} must be"):
        FitConfig(**{"epochs": 1, **bad})


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match=r"Objective\.mode must be 'min' or 'max', got 'best'"):
        Objective(loss_fn, OPTIMIZER, mode="best")


def test_a_model_without_parameters_needs_variables_that_are_fitted():
    class Maps(nnx.Module):
        def __init__(self, kind):
            self.kernel = kind(jnp.zeros(2))

    _, params, rest = split_model(Maps(FittedVariable))
    assert not params and jax.tree.leaves(rest)
    with pytest.raises(ValueError, match=r"expected a model with nnx.Param .* got a Maps without"):
        split_model(Maps(nnx.Variable))
