"""Several seeds in a folder: trained at once, tested together, loaded and streamed one by one."""

import json
import shutil
import signal
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, tasks, training
from flax_linattn.tasks import Report, Run
from flax_linattn.tasks.classify import ClassifyConfig, ClassifyTask
from flax_linattn.tasks.config_file import read_config
from flax_linattn.tasks.evaluate import report_on
from flax_linattn.tasks.synthetic import SyntheticConfig
from tests.contract.tolerances import assert_same_bits
from tests.tasks.commands import FEW_FEATURES, SIZES, fail, flags, succeed
from tests.training.problem import poison_at, signal_at

pytestmark = pytest.mark.usefixtures("no_figures")

RUNS = 3
OPTIONS = SIZES | {"batch_size": 90, "epochs": 2, "learning_rate": 0.01, "seed": 5, "runs": RUNS}
ALONE = training.Parallel("none")


def train(run_dir, *, resume=False, parallel=ALONE, **options):
    session = training.Session(run_dir, resume=resume, progress=False, parallel=parallel)
    return tasks.train("classify", ClassifyConfig.of(**OPTIONS | options), session)


def train_symbols(run_dir, *, parallel=ALONE, **options):
    """The same with the smallest of all tasks, whose seed splits no data."""
    sizes = {"base": 4, "delay": 1, "context": 8, "features": 4, "test_series": 2}
    config = SyntheticConfig.of(**sizes | {"epochs": 2, "seed": OPTIONS["seed"]} | options)
    session = training.Session(run_dir, progress=False, parallel=parallel)
    return tasks.train("synthetic", config, session)


def train_by_command(run_dir):
    """Trains the default model, attention and a closed-form part; returns the exit status."""
    options = [*flags(OPTIONS | FEW_FEATURES | {"num_prefixes": 3}), "--parallel", "none"]
    return cli.main(["train", "classify", "--run", str(run_dir), *options])


def parameters(run_dir):
    return [nnx.state(run.model) for run in tasks.load_runs(run_dir)]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished folder of three runs, made by the command line."""
    folder = tmp_path_factory.mktemp("runs") / "many"
    assert train_by_command(folder) == 0
    return folder


@contextmanager
def training_batches(change, of_runs):
    """Those of some runs are changed before they are given out."""
    batches = ClassifyTask.batches

    def changed(task, data, config, data_spec, sequence_shards):
        splits = batches(task, data, config, data_spec, sequence_shards)
        if config.seed - OPTIONS["seed"] not in of_runs:
            return splits
        return splits._replace(train=change(splits.train))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassifyTask, "batches", changed)
        yield


def test_the_report_is_of_all_runs(run_dir):
    report = json.loads((run_dir / "test.json").read_text())
    rows = report["runs"]
    assert [(row["run"], row["seed"]) for row in rows] == [(0, 5), (1, 6), (2, 7)]
    for name in ("test_accuracy", "test_loss", "test_macro_f1"):
        values = [row[name] for row in rows]
        assert report[name] == pytest.approx(np.mean(values)) and len(set(values)) > 1
        assert report[f"{name}_sd"] == pytest.approx(np.std(values, ddof=1))
    assert (report["num_test"], report["num_runs"], report["num_failed"]) == (370, RUNS, 0)
    assert "num_test_sd" not in report and "num_test" not in rows[0]
    assert report["constant_accuracy"] == 88 / 370 and "constant_accuracy_sd" not in report
    # Accuracies that differ by rounding alone are equal.
    behind = report["test_accuracy"] < report["ridge_accuracy"] * (1 - 1e-6)
    assert ("ridge" in report["beaten_by"]) == behind
    assert {"confusion", "classes", "best_epoch"}.isdisjoint(report)
    results = training.read_runs(run_dir)
    assert [row["best_value"] for row in rows] == [result.best_value for result in results]
    assert (run_dir / "confusion.png").is_file() and (run_dir / "learning_curve.png").is_file()
    assert json.loads((run_dir / "config.json").read_text())["runs"] == RUNS


def test_evaluate_repeats_it(run_dir, capsys):
    stored = json.loads((run_dir / "test.json").read_text())
    report = tasks.evaluate_run(run_dir)
    assert stored.keys() - report.keys() == {"epochs", "train_seconds"}
    same = report.keys() & stored.keys()
    assert {name: report[name] for name in same} == {name: stored[name] for name in same}
    assert 0 < report["stream_max_error"] < 1e-4
    shown = succeed(capsys, "evaluate", str(run_dir)).splitlines()
    heads = [i for i, line in enumerate(shown) if line.startswith("run  seed  test_accuracy")]
    assert [line.split()[:2] for line in shown[heads[0] + 1 :]] == [
        ["0", "5"],
        ["1", "6"],
        ["2", "7"],
    ]


@pytest.mark.slow
def test_a_run_is_the_single_one_of_its_seed(tmp_path):
    five = {"steps": 5, "validate_every": 5}
    train_symbols(tmp_path / "many", runs=2, **five)
    train_symbols(tmp_path / "one", runs=1, seed=OPTIONS["seed"] + 1, **five)
    many, (one,) = tasks.load_runs(tmp_path / "many")[1], tasks.load_runs(tmp_path / "one")
    assert (many.seed_index, one.seed_index) == (1, None)
    for name, (value, other) in _pairs(many.model, one.model):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6, err_msg=name)


def _pairs(model, other):
    flat, others = (dict(nnx.to_flat_state(nnx.state(m))) for m in (model, other))
    return {str(path): (flat[path][...], others[path][...]) for path in flat}.items()


def test_one_run_of_many(run_dir):
    rows = json.loads((run_dir / "test.json").read_text())["runs"]
    best = tasks.load_run(run_dir)
    assert best.seed_index == min(range(RUNS), key=lambda index: rows[index]["best_value"])
    every = tasks.load_runs(run_dir)
    assert [run.seed_index for run in every] == list(range(RUNS))
    for index, row in enumerate(rows):
        run = tasks.load_run(run_dir, index)
        assert_same_bits(nnx.state(run.model), nnx.state(every[index].model))
        tested = run.task.test(run, run.task.test_batches(run, None)).values
        assert tested["test_accuracy"] == pytest.approx(row["test_accuracy"])
    with pytest.raises(ValueError, match="seed_index must be at most 2, got 3"):
        tasks.load_run(run_dir, RUNS)


def test_the_run_of_a_folder_of_one(classify_run, tmp_path):
    shutil.copytree(classify_run, tmp_path, dirs_exist_ok=True)
    own = read_config(tmp_path).flat()
    assert "runs" not in json.loads((tmp_path / "test.json").read_text())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["runs"]  # as the folders of before
    (tmp_path / "config.json").write_text(json.dumps(config))
    (run,) = tasks.load_runs(tmp_path)
    assert run.seed_index is None
    assert_same_bits(nnx.state(run.model), nnx.state(tasks.load_run(tmp_path, 0).model))
    with pytest.raises(ValueError, match="holds a single run, got seed_index=1"):
        tasks.load_run(tmp_path, 1)
    with pytest.raises(ValueError, match="has runs=1, got 3; a resumed run may change only"):
        train(tmp_path, resume=True, **own | {"runs": RUNS})
    assert train(tmp_path, resume=True, **own | {"epochs": 3})["epochs"] == 3


def test_streams_of_runs(run_dir, tmp_path, capsys):
    args = ["stream", str(run_dir), "--sequence", "3"]
    outputs = [succeed(capsys, *args, "--seed-index", str(index)) for index in range(RUNS)]
    assert len(set(outputs)) == RUNS
    best = tasks.load_run(run_dir).seed_index
    assert cli.main(args) == 0
    streams = capsys.readouterr()
    assert streams.out == outputs[best]
    assert f"# run {best} of 3, which has the best validation value (--seed-index)" in streams.err
    kept = [*args, "--state", str(tmp_path / "state.npz")]
    assert succeed(capsys, *kept, "--seed-index", "0") == outputs[0]
    message = fail(capsys, *kept, "--seed-index", "1")
    assert "is the state of another stream" in message and "--seed-index" in message
    assert "seed_index is 0" in message and "expected 1" in message
    assert "seed_index must be at most 2, got 3. (--seed-index)" in fail(
        capsys, *args, "--seed-index", "3"
    )


@pytest.mark.slow
def test_resume_goes_on_to_the_same_bits(run_dir, tmp_path, capsys):
    stopping = training_batches(partial(signal_at, step=4, signum=signal.SIGTERM), of_runs=[1])
    with stopping:
        assert train_by_command(tmp_path) == 128 + signal.SIGTERM
    assert not (tmp_path / "test.json").exists()
    again = ["train", "classify", "--run", str(tmp_path), "--resume", "--parallel", "none"]
    message = fail(capsys, *again, "--runs", "4")
    assert "has --runs 3, got 4; a resumed run may change only" in message
    assert cli.main(again) == 0
    streams = capsys.readouterr()
    assert "\n3 runs, seeds 5-to-7\non one of 8 devices\n" in streams.err
    assert "of 3 runs at their best" in streams.err
    for resumed, whole in zip(parameters(tmp_path), parameters(run_dir), strict=True):
        assert_same_bits(resumed, whole)
    tests = [json.loads((folder / "test.json").read_text()) for folder in (tmp_path, run_dir)]
    assert tests[0]["runs"] == tests[1]["runs"]


def test_a_run_that_fails_is_told_and_not_tested(tmp_path, capsys):
    def poisoned(batches):
        return poison_at(batches, 1, name="values")

    with training_batches(poisoned, of_runs=[1]):
        report = train(tmp_path, epochs=1)
    row = report["runs"][1]
    assert (row["failed_step"], row["best_step"], row["test_accuracy"]) == (2, None, None)
    assert (report["num_runs"], report["num_failed"]) == (RUNS, 1)
    others = [report["runs"][index]["test_accuracy"] for index in (0, 2)]
    assert report["test_accuracy"] == pytest.approx(np.mean(others))
    assert tasks.evaluate_run(tmp_path)["runs"][1] == row
    assert [run.seed_index for run in tasks.load_runs(tmp_path)] == [0, 2]
    assert tasks.load_run(tmp_path).seed_index in (0, 2)
    message = fail(capsys, "stream", str(tmp_path), "--seed-index", "1", "--sequence", "0")
    assert "run 1 in" in message and "failed in step 2, before it was validated" in message
    all_fail = pytest.raises(training.NonFiniteLossError, match="All 3 runs became NaN")
    with training_batches(poisoned, of_runs=range(RUNS)), all_fail:
        train(tmp_path / "all", epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"runs": 1025}, "runs must be at most 1024, got 1025"),
        ({"runs": 3, "seed": 2**32 - 2}, "seed must be at most 4294967293"),
        ({"runs": 2, "buckets": 2}, "several runs need batches of one length"),
    ],
)
def test_options_that_no_runs_have(options, message):
    with pytest.raises(ValueError, match=message):
        ClassifyConfig.of(**options)


@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_names_tell_the_seeds(task):
    config = tasks.get_task(task).Config.of(seed=4)
    assert config.name.endswith("-4") and config.run_config(0) == config
    many = config.replace(runs=3)
    assert many.name.endswith("-4-to-6") and many.run_config(2) == config.replace(seed=6)


class Told(ClassifyTask):
    """A task whose test is what the model says."""

    def test(self, run, batches):
        return Report(run.model, tables=("rows",), figures={"a.png": print})

    def test_baselines(self, run, batches):
        return {"guess": 0.25, "rows": [{"b": 2}]}


def summary(tmp_path, monkeypatch, *values):
    """The report on runs whose tests gave these values."""
    results = [training.RunResult(1, 5, -float(i), None, False) for i, _ in enumerate(values)]
    monkeypatch.setattr(training, "read_runs", lambda run_dir: results)
    monkeypatch.setattr(training, "best_run", lambda run_dir: 0)
    config = ClassifyConfig.of(runs=len(values))
    runs = [Run(Told(), config, None, v, seed_index=index) for index, v in enumerate(values)]
    return report_on(tmp_path, runs, [])


def test_what_is_averaged(tmp_path, monkeypatch):
    """Numbers that differ, and all that are no integers; texts only where they agree."""
    both = {"data": "waves", "count": 9, "rows": [{"a": 1}], "rate": 1.0, "none": None}
    report = summary(
        tmp_path,
        monkeypatch,
        {**both, "hits": 4, "error": 1.0, "name": "a", "some": None, "bad": float("nan")},
        {**both, "hits": 7, "error": 2.0, "name": "b", "some": 3.0, "bad": 1.0},
    )
    values = dict(report.values)
    rows = values.pop("runs")
    assert values.pop("bad") != values.pop("bad_sd")  # NaN, which hides no failure
    assert values == {
        **{"data": "waves", "count": 9, "rate": 1.0, "rate_sd": 0.0, "none": None, "guess": 0.25},
        **{"hits": 5.5, "hits_sd": pytest.approx(4.5**0.5), "some": 3.0},
        **{"error": 1.5, "error_sd": pytest.approx(0.5**0.5), "num_runs": 2, "num_failed": 0},
    }
    assert [(row["name"], row["hits"], row["some"]) for row in rows] == [
        ("a", 4, None),
        ("b", 7, 3.0),
    ]
    assert report.tables == ("runs",) and list(report.figures) == ["a.png"]


def test_tables_of_baselines_join_those_of_the_model(tmp_path):
    """Of a single run; a table that the model does not have is left out."""
    run = Run(Told(), ClassifyConfig.of(), None, {"rows": [{"a": 1}]})
    assert report_on(tmp_path, [run], []).values == {"rows": [{"a": 1, "b": 2}], "guess": 0.25}
    assert report_on(tmp_path, [run._replace(model={"x": 1})], []).values == {"x": 1, "guess": 0.25}
