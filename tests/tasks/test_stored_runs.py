"""Runs in the formats of 0.1.0, made by an earlier commit, are tested and go on as they were."""

import json

import pytest

from flax_linattn import tasks
from tests.tasks import states
from tests.tasks.commands import fail, succeed


@pytest.fixture
def stored(tmp_path):
    states.extract_stored(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["classify", "classify-tslib", "forecast"])
def test_they_are_tested_as_they_were(stored, name):
    before = json.loads((stored / name / "test.json").read_text())
    report = tasks.evaluate_run(stored / name)
    tested = [n for n in before if n.startswith(("test_", "naive_"))]
    assert len(tested) >= 2
    assert {n: report[n] for n in tested} == pytest.approx({n: before[n] for n in tested}, rel=1e-4)


def test_options_are_those_that_were_stored(stored):
    kept = json.loads((stored / "classify-tslib" / "config.json").read_text())
    assert kept["select_on"] == "test" and kept["scaling"] == "each"
    config = tasks.load_run(stored / "classify-tslib").config
    assert config == config.of(**config.to_json())
    read = {"format": 2, "task": "classify", **config.to_json()}
    assert {name: read[name] for name in kept} == kept


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["classify", pytest.param("forecast", marks=pytest.mark.slow)])
def test_they_go_on(stored, name, capsys):
    """Parameters, optimizer and data position."""
    run = str(stored / name)
    succeed(capsys, "train", name, "--run", run, "--resume", "--epochs", "2", "--parallel", "none")
    lines = (stored / name / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert tasks.evaluate_run(run)["stream_max_error"] < 1e-4


def test_their_streams_go_on(stored, capsys):
    """After 120 rows; of a run whose parameters are the same."""
    more = stored / "more.csv"
    more.write_text("2024-01-06 00:00:00,0.5,0.5\n")
    args = ["stream", str(stored / "forecast"), "--input", str(more)]
    out = succeed(capsys, *args, "--state", str(stored / "state.npz"))
    assert out.splitlines()[1].startswith("121,2024-01-06 00:00:00,")


def test_a_preset_changes_no_run_that_goes_on(stored, capsys):
    args = ["train", "classify", "--run", str(stored / "classify"), "--resume"]
    message = fail(capsys, *args, "--preset", "tslib")
    assert "has --select-on validation, got 'test'; a resumed run may change only" in message
    assert "did you mean 'tslib'" in fail(capsys, "train", "classify", "--preset", "tslb")
