"""Continuing from a run: what of it a new run takes over, and what does not fit."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import data, tasks
from flax_linattn.checks import OptionError
from flax_linattn.tasks.events.data import EventsSpec
from flax_linattn.tasks.forecast.spec import SeriesInfo
from flax_linattn.tasks.init_run import Initializer, InitRun
from tests.contract.tolerances import assert_same_bits
from tests.tasks.commands import no_training
from tests.tasks.states import untrained_run


def new_model(run, **options):
    """Options and a new model of other parameters, for data that differ by options."""
    config = run.config.replace(**options)
    data_spec = run.task.describe(run.task.load(config), config)
    return config, run.task.model(config.replace(seed=9), data_spec)


@pytest.fixture(scope="module")
def forecaster():
    return untrained_run("forecast")


def test_another_horizon_is_refused_by_name(forecaster):
    config, model = new_model(forecaster, horizon=3)
    before = nnx.state(model)
    init = Initializer(InitRun(forecaster), forecaster.task, config)
    with pytest.raises(OptionError) as error:
        init.fill([model])
    assert str(error.value) == (
        "2 of 22 arrays of the model do not match the arrays of the given run:\n"
        "  head.bias: expected float32[21], got float32[14]\n"
        "  head.kernel: expected float32[8, 21], got float32[8, 14]\n"
        "Data options that differ: horizon=3 (was 2). Use the options and data of that run, "
        "or pass reinitialize_mismatched=True to initialize these arrays."
    )
    assert error.value.options == ("reinitialize_mismatched",)
    assert_same_bits(nnx.state(model), before)


def test_what_does_not_fit_is_initialized_and_named(forecaster):
    config, model = new_model(forecaster, horizon=3)
    head = jax.tree.map(np.array, nnx.state(model.head))
    given = InitRun(forecaster, reinitialize_mismatched=True)
    init = Initializer(given, forecaster.task, config)
    init.fill([model])
    assert_same_bits(nnx.state(model.head), head)
    assert_same_bits(nnx.state(model.backbone), nnx.state(forecaster.model.backbone))
    assert init.notes == [
        "initialized because the shape differs: head.bias: expected float32[21], got float32[14]",
        "initialized because the shape differs: head.kernel: expected float32[8, 21], got "
        "float32[8, 14]",
    ]


def test_scales_stay_or_are_fitted_again(forecaster):
    config = forecaster.config.replace(split="400/60/100")
    data_spec = forecaster.task.describe(forecaster.task.load(config), config)
    kept, refit = (
        Initializer(InitRun(forecaster, refit_scales=refit), forecaster.task, config).spec(
            data_spec
        )
        for refit in (False, True)
    )
    assert kept.standardizer is forecaster.data_spec.standardizer
    assert refit.standardizer is data_spec.standardizer
    assert kept.checksum == data_spec.checksum and kept.split == data_spec.split


def test_a_panel_keeps_the_scales_of_its_series(forecaster):
    def member(name, mean):
        return SeriesInfo(name, (mean,), (1.0,), ((0, 8),) * 3, (None,), "")

    one = dataclasses.replace(
        forecaster.data_spec,
        channels=("value",),
        targets=(0,),
        standardizer=data.Standardizer(np.zeros(1), np.ones(1)),
        members=(member("a", 1.0), member("b", 2.0)),
        missing_flags=True,
    )
    usual = data.Standardizer(np.full(1, 9.0), np.ones(1))
    more = dataclasses.replace(
        one, members=(member("b", 5.0), member("c", 6.0)), standardizer=usual, missing_flags=False
    )
    spec = more.continue_from(one)
    assert [own.mean for own in spec.members] == [(2.0,), (6.0,)]
    assert spec.standardizer is one.standardizer and spec.missing_flags
    assert more.continue_from(one, refit_scales=True).members == more.members
    single = dataclasses.replace(more, dataset="b", members=())
    assert single.continue_from(one).standardizer.mean.tolist() == [2.0]


def test_a_new_series_takes_the_scale_of_covariates_that_all_share(forecaster):
    def data_spec(names, own, shared):
        members = tuple(
            SeriesInfo(name, (own, shared), (1.0, shared), ((0, 3), (3, 4), (4, 5)), (None,), "0")
            for name in names
        )
        return dataclasses.replace(
            forecaster.data_spec,
            channels=("value", "price"),
            targets=(0,),
            known_future=(1,),
            standardizer=data.Standardizer(np.array([own, shared]), np.array([1.0, shared])),
            members=members,
        )

    old, new = data_spec("ab", 1.0, 10.0), data_spec("ac", 5.0, 77.0)
    spec = new.continue_from(old)
    assert [(one.mean, one.std) for one in spec.members] == [
        ((1.0, 10.0), (1.0, 10.0)),
        ((5.0, 10.0), (1.0, 10.0)),
    ]
    assert new.continue_from(old, refit_scales=True).members == new.members


def test_other_outputs_are_refused(forecaster):
    data_spec = forecaster.data_spec
    fewer = dataclasses.replace(data_spec, targets=(0,))
    expected = (
        r"expected data with the same targets as the run to continue \(\[0, 1.*\), got \[0\]; pass"
    )
    with pytest.raises(OptionError, match=expected):
        fewer.continue_from(data_spec)
    spec = EventsSpec("a", ("x", "y"), False, 1.0, 1.0, 1.0, (), (), (8,))
    with pytest.raises(
        OptionError, match=r"event_type_names as the run to continue \(\['x', 'y'\]\)"
    ):
        dataclasses.replace(spec, event_type_names=("x", "z")).continue_from(spec)


def test_sequences_stay_as_long_as_the_model_takes():
    run = untrained_run("classify")
    shorter = dataclasses.replace(run.data_spec, lengths=(11,), classes=run.data_spec.classes)
    assert shorter.continue_from(run.data_spec).lengths == (11, run.data_spec.max_length)
    assert run.data_spec.continue_from(shorter).lengths == run.data_spec.lengths


def test_the_state_of_an_optimizer_is_in_a_folder(forecaster):
    given = InitRun(forecaster, keep_optimizer=True)
    with pytest.raises(OptionError, match="needs the folder of a single run"):
        Initializer(given, forecaster.task, forecaster.config)


@pytest.mark.slow
def test_seeds_continue_one_by_one(tmp_path, capsys):
    """A single run may start several; others than those of the folder are refused."""
    task = tasks.get_task("synthetic")
    config = task.Config.of(
        **{"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8, "context": 6},
        **{"base": 8, "delay": 1, "batch_size": 8, "test_series": 2, "epochs": 1, "runs": 2},
    )

    def states(folder):
        return [nnx.state(run.model) for run in tasks.load_runs(folder)]

    one, two, three, again = (tmp_path / name for name in ("one", "two", "three", "again"))
    with no_training():
        tasks.train(task, config, two)
        tasks.train(task, config.replace(seed=7), again, init_run=two)
        tasks.train(task, config.replace(runs=1), one, init_run=two)
        tasks.train(task, config.replace(runs=3), three, init_run=one)
    first, second = states(two)
    kernels = [np.asarray(jax.tree.leaves(state)[-1]) for state in (first, second)]
    assert not np.array_equal(*kernels)
    for state, before in zip(states(again), (first, second), strict=True):
        assert_same_bits(state, before)
    assert len(json.loads((again / "init_run.json").read_text())["origins"]) == 2
    best = nnx.state(tasks.load_run(two).model)
    for state in (*states(one), *states(three)):
        assert_same_bits(state, best)
    with pytest.raises(OptionError, match=r"holds 2 runs, got runs=3; continue each of them"):
        tasks.train(task, config.replace(runs=3), tmp_path / "no", init_run=two)
    with pytest.raises(OptionError, match="needs the folder of a single run"):
        tasks.train(task, config, tmp_path / "no", init_run=InitRun(two, keep_optimizer=True))
