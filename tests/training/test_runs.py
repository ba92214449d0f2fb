"""Several runs at once: each is the run that ``fit`` trains alone."""

import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_linattn.training import (
    Interrupted,
    NonFiniteLossError,
    Parallel,
    best_run,
    learning_curve,
    list_checkpoints,
    load_best,
    load_checkpoint,
    load_run,
    load_runs,
    read_runs,
)
from flax_linattn.training.step import CPU_CACHE_BYTES, map_runs
from tests.training import problem
from tests.training.problem import (
    Net,
    Source,
    bits,
    make_batches,
    poison_at,
    read_metrics,
    signal_at,
)

RUNS = 4
RATES = optax.inject_hyperparams(optax.sgd, hyperparam_dtype=np.float32)(
    learning_rate=0.1, momentum=0.5
)
SCHEDULED = optax.inject_hyperparams(optax.sgd)(learning_rate=lambda step: 0.1)


def train(run_dir, *, runs=RUNS, **options):
    return problem.train(run_dir, runs=runs, **options)


def batches_of_runs():
    return [make_batches(seed=r) for r in range(RUNS)]


def train_alone(run_dir, r, **options):
    """The single run that run r is to be."""
    alone = {"seed": 3 + r, "model": Net(r), "train": make_batches(seed=r)}
    return problem.train(run_dir, **alone, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs of three epochs, their models and what they came to; not to be changed."""
    run_dir = tmp_path_factory.mktemp("finished")
    return run_dir, *train(run_dir)


def assert_close(model, other):
    for a, b in zip(*map(jax.tree.leaves, map(nnx.state, (model, other))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "config", [{"epochs": 3}, pytest.param({"epochs": None, "steps": 12}, marks=pytest.mark.slow)]
)
def test_each_run_is_the_one_that_fit_trains(tmp_path, finished, config):
    models, result = train(tmp_path / "many", **config) if "steps" in config else finished[1:]
    for r, model in enumerate(models):
        alone, one = train_alone(tmp_path / f"alone{r}", r, **config)
        assert_close(model, alone)
        assert result.runs[r].best_step == one.best_step
        np.testing.assert_allclose(result.runs[r].best_value, one.best_value, rtol=1e-5)
        for line, expected in zip(result.history, one.history, strict=True):
            for name in ("train_loss", "validation_loss", "train_accuracy"):
                np.testing.assert_allclose(line["runs"][name][r], expected[name], rtol=1e-4)
    means = [np.mean(line["runs"]["validation_loss"]) for line in result.history]
    np.testing.assert_allclose(means, [line["validation_loss"] for line in result.history])
    assert result.steps == len(result.history) * 5 if "steps" not in config else 12


@pytest.mark.slow
def test_learning_rates_side_by_side(tmp_path):
    rates = [{"learning_rate": rate} for rate in (0.3, 0.1, 0.03, 0.01)]
    models, _ = train(tmp_path / "many", optimizer=RATES, hyperparameters=rates)
    for r, rate in enumerate(rates):
        alone, _ = train_alone(tmp_path / f"alone{r}", r, optimizer=optax.sgd(**rate, momentum=0.5))
        assert_close(models[r], alone)


def test_a_run_that_fails_ends_alone(tmp_path, finished):
    trains, healthy = batches_of_runs(), finished[1]
    trains[1] = poison_at(trains[1], 7)
    trains[2] = poison_at(trains[2], 0)
    models, result = train(tmp_path / "many", train=trains)
    assert [run.failed_step for run in result.runs] == [None, 8, 1, None]
    assert [run.best_step for run in result.runs][1:3] == [5, None]
    assert list(load_runs(Net(), tmp_path / "many")) == [0, 1, 3]
    assert result.runs[2].best_value is None
    for r in (0, 3):
        assert bits(models[r]) == bits(healthy[r])
    assert bits(models[2]) == bits(Net(2))
    assert result.history[-1]["runs"]["validation_loss"][1:3] == [None, None]
    assert np.isfinite([line["validation_loss"] for line in result.history]).all()


def test_if_all_runs_fail_it_is_an_error(tmp_path):
    poisoned = [poison_at(make_batches(seed=r), r) for r in range(RUNS)]
    before = [Net(r) for r in range(RUNS)]
    message = r"All 4 .* first in step 1 .* last in step 4"
    with pytest.raises(NonFiniteLossError, match=message) as raised:
        train(tmp_path, model=before, train=poisoned)
    assert raised.value.steps == (1, 2, 3, 4)
    assert [bits(m) for m in before] == [bits(Net(r)) for r in range(RUNS)]


def test_if_all_runs_fail_later_their_best_stay(tmp_path, capfd):
    """The result of a run does not depend on whether others fail, too."""
    poisoned = [poison_at(make_batches(seed=r), 5 + r) for r in range(RUNS)]
    models, result = train(tmp_path / "many", train=poisoned)
    assert [run.failed_step for run in result.runs] == [6, 7, 8, 9]
    assert [run.best_step for run in result.runs] == [5] * RUNS
    healthy, _ = train(tmp_path / "healthy", epochs=1)
    assert [bits(m) for m in models] == [bits(m) for m in healthy]
    assert read_metrics(tmp_path / "many")[-1]["validation_loss"] is None
    assert "damaged" not in capfd.readouterr().err  # the newest checkpoint, which has no mean


def test_a_validation_of_ones_own_fails_one_run(tmp_path):
    seen = []

    def validate(model, step):
        seen.append(step)
        return {"own": float("inf") if len(seen) == 2 else 1.0}  # of the second run

    _, result = train(tmp_path, validate=validate, monitor="own")
    assert [run.failed_step for run in result.runs] == [None, 5, None, None]
    assert [run.best_step for run in result.runs] == [15, None, 15, 15]


def test_batches_that_cannot_be_hashed(tmp_path):
    class Plain(Source):
        __hash__ = None

    plain = Plain(make_batches(seed=0), lambda step, batch: None)
    _, result = train(tmp_path, train=[plain] * RUNS, epochs=1)
    assert result.epochs == 1


def test_other_hyperparameters_cannot_go_on(tmp_path):
    rates = [{"learning_rate": rate} for rate in (0.1, 0.2, 0.3, 0.4)]
    train(tmp_path, optimizer=RATES, hyperparameters=rates)
    for others in (rates[::-1], None):
        with pytest.raises(ValueError, match=r"Run 0 of .* was started with the hyperparameter"):
            train(tmp_path, optimizer=RATES, hyperparameters=others, resume=True, epochs=4)
    _, result = train(tmp_path, optimizer=RATES, hyperparameters=rates, resume=True, epochs=4)
    assert result.epochs == 4


def test_patience_counts_for_each_run(tmp_path):
    rates = [{"learning_rate": rate} for rate in (0.3, 1e-9, 0.1, 1e-9)]

    def validate(model, step):
        return {"slow": abs(float(model.layers[0].kernel[0, 0])) + step * 1e-9}

    _, result = train(
        tmp_path / "many", optimizer=RATES, hyperparameters=rates, epochs=6, patience=2,
        monitor="slow", validate=validate,
    )  # fmt: skip
    stopped = [run.stopped_early for run in result.runs]
    assert stopped[1] and stopped[3]
    assert [run.best_step for run in result.runs][1::2] == [5, 5]
    last = result.history[-1]["runs"]["validation_slow"]
    assert [value is None for value in last][1::2] == [True, True] or result.epochs == 3


@pytest.mark.parametrize(
    "at_once, devices",
    [
        (4, 2),
        *(
            pytest.param(*even, marks=pytest.mark.slow)
            for even in ((1, 1), (2, 1), (4, 1), (2, 2), (3, 2))
        ),
    ],
)
def test_groups_of_runs_go_one_after_another(tmp_path, at_once, devices):
    """Six runs, of which 4 leave a smaller group over; three on each of two devices."""
    runs = 6
    settings = {"epochs": 2, "runs": runs}
    expected, one = train(
        tmp_path / "whole", parallel=Parallel("none", runs_at_once=99), **settings
    )
    mesh = ("jit", f"data={devices}") if devices > 1 else ("none",)
    parallel = Parallel(*mesh, runs_at_once=at_once)
    models, result = train(tmp_path / "groups", parallel=parallel, **settings)
    for model, other in zip(models, expected, strict=True):
        assert_close(model, other)
    for run, other in zip(result.runs, one.runs, strict=True):
        assert run.best_step == other.best_step
        np.testing.assert_allclose(run.best_value, other.best_value, rtol=1e-5)
    for line, other in zip(result.history, one.history, strict=True):
        for name in ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy"):
            np.testing.assert_allclose(line["runs"][name], other["runs"][name], rtol=1e-4)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_groups_go_on_to_equal_bits(tmp_path, devices):
    parallel = Parallel("jit", f"data={devices}", runs_at_once=1)
    whole, _ = train(tmp_path / "whole", parallel=parallel, epochs=2)
    first, *rest = batches_of_runs()
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", train=[signal_at(first, 6), *rest], parallel=parallel, epochs=2)
    resumed, _ = train(tmp_path / "parts", resume=True, parallel=parallel, epochs=2)
    assert [bits(m) for m in resumed] == [bits(m) for m in whole]


def test_a_run_that_fails_ends_alone_in_its_group(tmp_path):
    trains = batches_of_runs()
    parallel = Parallel("none", runs_at_once=2)
    healthy, _ = train(tmp_path / "healthy", parallel=parallel)
    trains[1] = poison_at(trains[1], 7)
    models, result = train(tmp_path / "many", train=trains, parallel=parallel)
    assert [run.failed_step for run in result.runs] == [None, 8, None, None]
    for r in (0, 2, 3):
        assert bits(models[r]) == bits(healthy[r])


def sizes_of_groups(function, *arrays, placement):
    """The lengths of the loops over groups that a program of many runs has."""
    jaxpr = jax.make_jaxpr(map_runs(function, placement))(*arrays)
    return [int(length) for length in re.findall(r"length=(\d+)", str(jaxpr))]


@pytest.mark.parametrize(
    "numbers, runs, loops",
    [
        (64, 16, []),  # all at once
        (CPU_CACHE_BYTES // 4 // 16, 16, []),
        (CPU_CACHE_BYTES // 4 // 4, 16, [4]),  # four at once
        (CPU_CACHE_BYTES // 4 // 4, 7, [7]),  # a number that no other divides
        (CPU_CACHE_BYTES, 6, [6]),  # one is larger than the cache
    ],
)
def test_on_a_cpu_groups_fit_the_cache(numbers, runs, loops):
    placement = Parallel("none").place(1, num_runs=runs)
    x = np.ones((runs, numbers), np.float32)
    assert sizes_of_groups(lambda x: (x + 1).sum(), x, placement=placement) == loops


def test_what_counts_is_the_largest_array_within(monkeypatch):
    """Also of what loops and compiled functions compute; on accelerators nothing does."""
    placement = Parallel("none").place(1, num_runs=4)
    x = np.ones((4, 3), np.float32)

    @jax.jit
    def inner(x):
        return jax.lax.fori_loop(0, 2, lambda i, y: jnp.tile(x, CPU_CACHE_BYTES // 6)[:3] + y, x)

    assert 4 in sizes_of_groups(inner, x, placement=placement)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert 4 not in sizes_of_groups(inner, x, placement=placement)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_devices_split_the_runs(tmp_path, finished, devices):
    alone = finished[1]
    mesh = Parallel("jit", f"data={devices}")
    models, result = train(tmp_path / "split", parallel=mesh)
    for model, other in zip(models, alone, strict=True):
        assert_close(model, other)
    with pytest.raises(Interrupted):
        first, *rest = batches_of_runs()
        stopping = [signal_at(first, 6, signal.SIGTERM), *rest]
        train(tmp_path / "stopped", train=stopping, parallel=mesh)
    resumed, _ = train(tmp_path / "stopped", resume=True, parallel=mesh)
    assert [bits(m) for m in resumed] == [bits(m) for m in models]
    assert len(result.runs) == RUNS


def test_folders_tell_what_the_runs_came_to(finished):
    run_dir, models, result = finished
    assert read_runs(run_dir) == result.runs
    for r, model in enumerate(models):
        loaded = Net(9)
        assert load_run(loaded, run_dir, r) == result.runs[r]
        assert bits(loaded) == bits(model)
    values = [run.best_value for run in result.runs]
    assert best_run(run_dir) == values.index(min(values))
    every = load_runs(Net(9), run_dir)
    assert list(every) == list(range(RUNS))
    assert [bits(every[r]) for r in every] == [bits(model) for model in models]
    assert learning_curve(run_dir).is_file()


def test_of_a_value_to_raise_the_best_is_the_largest(tmp_path):
    _, result = train(tmp_path, monitor="accuracy", mode="max", epochs=1)
    values = [run.best_value for run in result.runs]
    assert len(set(values)) > 1 and best_run(tmp_path) == values.index(max(values))


def test_before_any_validation_no_run_is_the_best(tmp_path):
    first, *rest = batches_of_runs()
    with pytest.raises(Interrupted):
        train(tmp_path, train=[signal_at(first, 1), *rest])
    for read in (best_run, lambda run_dir: load_runs(Net(), run_dir)):
        with pytest.raises(ValueError, match=r"No run in .* was validated yet"):
            read(tmp_path)


def test_reading_what_is_not_there(tmp_path, finished):
    many = finished[0]
    with pytest.raises(ValueError, match="seed_index"):
        load_run(Net(), many, RUNS)
    with pytest.raises(ValueError, match="holds 4 runs; read one of them with load_run"):
        load_best(Net(), many)
    with pytest.raises(ValueError, match="holds 4 runs"):
        load_checkpoint(Net(), list_checkpoints(many)[-1].path)
    train_alone(tmp_path / "one", 0)
    with pytest.raises(ValueError, match="single run; read it with load_best"):
        load_run(Net(), tmp_path / "one", 0)
    with pytest.raises(FileNotFoundError):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"variable|not the one"):
        load_run(Net(width=5), many, 0)


def test_another_number_of_runs_cannot_go_on(tmp_path, finished):
    shutil.copytree(finished[0], tmp_path / "many")
    with pytest.raises(ValueError, match=r"holds 4 run\(s\), but now there would be 2"):
        train(tmp_path / "many", runs=2, resume=True, epochs=4)
    models, result = train(tmp_path / "many", resume=True, epochs=4)
    assert result.epochs == 4 and len(models) == RUNS


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": []}, "expected one model, or a list .* got an empty list"),
        ({"train": [make_batches()] * 3}, "expected as many splits as models, 4, got 3"),
        ({"hyperparameters": [{}] * 2}, "expected as many hyperparameters as models, 4, got 2"),
        ({"model": [Net(0), Net(1), Net(2), Net(3, width=5)]}, "runs 0 and 3 differ in structure"),
        (
            {"hyperparameters": [{"learning_rate": 0.1}] * 4},
            "no hyperparameter .*inject_hyperparams",
        ),
        (
            {"hyperparameters": [{"learning_rate": 0.1}] * 4, "optimizer": SCHEDULED},
            "learning_rate follows a schedule",
        ),
        ({"seed": 2**32 - 2}, "too large for 4 runs"),
        ({"parallel": Parallel("pmap")}, "split over devices by runs only"),
        ({"parallel": Parallel("jit", "data=2,seq=2")}, "split over devices by runs only"),
        ({"parallel": Parallel("jit", "data=3")}, "4 runs cannot be split evenly over 3 dev"),
        (
            {"parallel": Parallel("none", accumulate=3)},
            "8 rows cannot be split into accumulate=3 equal",
        ),
        ({"monitor": "f1"}, "monitor"),
    ],
)
def test_what_does_not_fit_together(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **arguments)
    assert not list_checkpoints(tmp_path)


def test_batches_of_other_shapes(tmp_path):
    trains = batches_of_runs()
    trains[2] = make_batches(seed=2, size=10, count=50)
    with pytest.raises(ValueError, match="batches of the same shapes for each run"):
        train(tmp_path / "shapes", train=trains)
    trains[2] = make_batches(seed=2, count=60)
    with pytest.raises(ValueError, match="same number of batches per epoch"):
        train(tmp_path / "numbers", train=trains)
