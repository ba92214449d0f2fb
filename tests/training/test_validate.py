"""Validation by a function of the model and the step."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.training import Interrupted, NonFiniteLossError, Parallel, evaluate
from tests.training.problem import (
    STEPS_PER_EPOCH,
    Net,
    bits,
    fingerprint,
    loss_fn,
    make_batches,
    read_metrics,
    signal_at,
    train,
)


def simulate(model, step):
    """Draws inputs by the step, and tells how far the model is from the truth."""
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), step), (32, 3))
    error = model(x) - x @ jnp.array([1.0, -2.0, 0.5])
    return {"distance": jnp.mean(jnp.abs(error)), "worst": np.float32(jnp.max(jnp.abs(error)))}


def test_it_sees_the_model_of_each_step(tmp_path):
    """Batch statistics, too; and what it does to the model changes nothing."""
    losses = []

    def validate(model, step):
        loss = evaluate(model, loss_fn, make_batches(count=10, seed=None))["loss"]
        losses.append((step, loss))
        model.layers[0].kernel[...] = jnp.full((3, 4), jnp.nan)
        return {"again": loss}

    train(tmp_path / "with", validate=validate)
    train(tmp_path / "without")
    lines = read_metrics(tmp_path / "with")
    assert losses == [(line["step"], line["validation_loss"]) for line in lines]
    assert [line.pop("validation_again") for line in lines] == [loss for _, loss in losses]
    assert lines == read_metrics(tmp_path / "without")
    arrays = [fingerprint(tmp_path / name)["arrays"] for name in ("with", "without")]
    assert arrays[0] == arrays[1]


def test_its_numbers_select_the_best(tmp_path):
    rewards = {5: 1.0, 10: 3.0, 15: 3.0, 20: 2.0, 25: 0.5, 30: 9.0}
    _, result = train(
        tmp_path, epochs=6, patience=2, monitor="reward", mode="max",
        validate=lambda model, step: {"reward": rewards[step]},
    )  # fmt: skip
    assert (result.best_epoch, result.best_step, result.best_value) == (3, 15, 3.0)
    assert result.stopped_early and result.steps == 25
    assert [line["validation_reward"] for line in result.history] == [1.0, 3.0, 3.0, 2.0, 0.5]


def test_a_resumed_run_comes_to_the_same_bits(tmp_path):
    how = {"validate": simulate, "monitor": "distance"}
    whole, _ = train(tmp_path / "whole", **how)
    for step in (3, 9):
        with pytest.raises(Interrupted):
            train(tmp_path / "parts", train=signal_at(make_batches(), step), resume=step > 3, **how)
    model, _ = train(tmp_path / "parts", resume=True, **how)
    assert bits(model) == bits(whole)
    assert fingerprint(tmp_path / "parts")["metrics"] == fingerprint(tmp_path / "whole")["metrics"]


@pytest.mark.parametrize(
    "parallel",
    [
        pytest.param(
            Parallel("jit", "data=2", shard_parameters=True), id="fsdp", marks=pytest.mark.slow
        ),
        pytest.param(Parallel("pmap", "data=2"), id="pmap"),
    ],
)
def test_on_several_devices(tmp_path, parallel):
    train(tmp_path / "one", epochs=1, validate=simulate)
    train(tmp_path / "more", epochs=1, validate=simulate, parallel=parallel)
    one, more = (read_metrics(tmp_path / name)[0] for name in ("one", "more"))
    # Dropout is drawn a device under pmap: only the names, and that the numbers are there.
    assert one.keys() == more.keys()
    assert np.isfinite(more["validation_distance"])


def test_a_signal_before_it_is_heeded_and_one_during_it_waits(tmp_path):
    calls = []

    def validate(model, step):
        calls.append(step)
        return {"distance": 1.0}

    last = make_batches(count=10, seed=None)  # two batches
    with pytest.raises(Interrupted):
        train(tmp_path / "a", validation=signal_at(last, 1), validate=validate)
    assert calls == []
    assert read_metrics(tmp_path / "a") == []

    def interrupted(model, step):
        calls.append(step)
        if step == STEPS_PER_EPOCH:
            signal_at(make_batches(), 0).batch(0)
        return {"distance": 1.0}

    with pytest.raises(Interrupted):
        train(tmp_path / "b", validate=interrupted)
    assert calls == [STEPS_PER_EPOCH]
    assert len(read_metrics(tmp_path / "b")) == 1


def test_a_number_that_is_none(tmp_path):
    """NaN is null in metrics.jsonl, and ends the run where it is monitored."""
    train(tmp_path / "other", epochs=1, validate=lambda model, step: {"success": float("nan")})
    assert read_metrics(tmp_path / "other")[0]["validation_success"] is None
    with pytest.raises(
        NonFiniteLossError, match=r"metric 'success' is nan after step 5 .*Objective\.validate"
    ):
        train(tmp_path / "monitored", monitor="success",
              validate=lambda model, step: {"success": float("nan")})  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "kind", "message"),
    [
        ({"success": float("inf")}, NonFiniteLossError, "returned success=inf after step 5"),
        ({"accuracy": 1.0}, ValueError, "the loss function both report accuracy"),
        ({"success": "often"}, TypeError, "names and numbers, got {'success': 'often'}"),
        ({"success": np.zeros(2)}, TypeError, "names and numbers"),
        (1.0, TypeError, "names and numbers, got 1.0"),
        (None, TypeError, "names and numbers, got None"),
    ],
    ids=["infinite", "taken", "text", "vector", "number", "none"],
)
def test_other_results_are_refused(tmp_path, returned, kind, message):
    with pytest.raises(kind, match=message):
        train(tmp_path, validate=lambda model, step: returned)


def test_an_unknown_monitor_names_both_sources(tmp_path):
    with pytest.raises(ValueError, match="validate report accuracy, distance, loss, worst"):
        train(tmp_path, monitor="reward", validate=simulate)


def test_an_error_in_it_leaves_the_model_alone(tmp_path):
    def fail(model, step):
        raise KeyError("no simulator")

    model = Net()
    before = bits(model)
    with pytest.raises(KeyError, match="no simulator"):
        train(tmp_path, model=model, validate=fail)
    assert bits(model) == before


def test_its_time_is_no_training_time(tmp_path, monkeypatch):
    clock, hours = time.perf_counter, []

    def slow(model, step):
        hours.append(3600)
        return {}

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(hours))
    _, result = train(tmp_path, validate=slow)
    assert len(hours) == 3
    assert all(line["seconds"] + line["saving_seconds"] < 3600 for line in result.history)
