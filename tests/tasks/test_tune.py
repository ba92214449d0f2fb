"""Studies: trials are runs, which continue after a kill, and are pruned by their validation."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flax_linattn import cli, tasks, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks import Range, tune
from flax_linattn.tasks.files import read_json
from flax_linattn.tasks.study import _check_search
from flax_linattn.training.checkpointer import read_newest_progress

SMALL = {"features": 8, "num_layers": 1, "num_heads": 2, "epochs": 2, "batch_size": 64, "runs": 2}


def config(**options: Any) -> Any:
    return tasks.get_task("classify").Config.of(**SMALL | options)


class Kill:
    """Tracker that fails at the second validation, after the checkpoint of the first one."""

    def log(self, step: int, values: Any) -> None:
        if step > 5 and "validation_loss" in values:
            raise RuntimeError("killed")

    def close(self) -> None:
        pass


def test_a_study_continues_after_a_kill(tmp_path: Path, capsys: Any) -> None:
    """The unfinished trial keeps its options and its checkpoint; the rows are in order."""

    def killed(run_dir: Any, *, resume: bool, trackers: Any) -> training.Session:
        return training.Session(run_dir, resume, progress=False, trackers=(*trackers, Kill()))

    resumed = []

    def quiet(run_dir: Any, *, resume: bool, trackers: Any) -> training.Session:
        resumed.append(resume)
        return training.Session(run_dir, resume, progress=False, trackers=trackers)

    search = {"learning_rate": Range(1e-3, 1e-1, log=True)}
    with pytest.raises(RuntimeError, match="killed"):
        tune("classify", config(), search, tmp_path, num_trials=2, new_session=killed)
    begun = read_json(tmp_path / "trial-0000" / "config.json")["learning_rate"]
    rows = tune("classify", config(), search, tmp_path, num_trials=2, new_session=quiet)
    assert resumed == [True, False]
    assert {row["trial"] for row in rows} == {0, 1} and rows[0]["value"] <= rows[1]["value"]
    (first,) = (row for row in rows if row["trial"] == 0)
    assert first["options"]["learning_rate"] == begun
    best = [run.best_value for run in read_newest_progress(first["run"])[1].history.runs]
    assert first["value"] == pytest.approx(sum(best) / 2, rel=1e-12)
    assert not Path(first["run"], "test.json").exists()
    assert "trial 1: learning_rate" in capsys.readouterr().err
    assert tune("classify", config(), search, tmp_path, num_trials=1) == rows  # no further trial
    with pytest.raises(OptionError, match="another value of epochs; continue with the value"):
        tune("classify", config(epochs=3), search, tmp_path)
    with pytest.raises(OptionError, match="another value of search"):
        tune("classify", config(), {"dropout_rate": (0.0, 0.1)}, tmp_path)


@pytest.mark.slow
def test_trials_are_pruned_or_fail(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A slow learner is stopped after its first validation; what cannot be built is named."""
    monkeypatch.setattr(sys.modules[tune.__module__], "NUM_STARTUP_TRIALS", 1)
    search = {"learning_rate": (1e-9, 1e-2), "num_heads": (2, 3)}
    rows = tune("classify", config(runs=1), search, tmp_path, num_trials=3)
    err = capsys.readouterr().err
    assert "failed: features must be a multiple of num_heads" in err
    assert "pruned" in err
    assert rows[0]["options"] == {"learning_rate": 1e-2, "num_heads": 2}
    with pytest.raises(ValueError, match="none of 1 trials finished"):
        tune("classify", config(runs=1), {"num_heads": (3,)}, tmp_path / "none", num_trials=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected an option to search, got none"),
        (("--search", "featurs=8,16"), "did you mean 'features'?"),
        (("--search", "features"), "1e-2:log, got 'features'"),
        (("--search", "features=8..x"), "expected a value of features, got 'x'"),
        (("--search", "mechanism=aaren..softmax"), "mechanism is not a number; list its values"),
        (("--search", "features=16..8"), "expected a range from a number to a larger one"),
        (("--search", "learning_rate=0..1:log"), "a logarithmic range needs positive numbers"),
        (("--search", "seed=0,1"), "seed is not a hyperparameter"),
        (("--search", "features=8,16", "--trials", "0"), "num_trials must be at least 1"),
    ],
)
def test_bad_searches_end_before_the_first_trial(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: Any
) -> None:
    command = ["tune", "classify", "--study", str(tmp_path / "study"), *words]
    assert cli.main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_study_needs_a_task(capsys: Any) -> None:
    assert cli.main(["tune", "--trials", "3"]) == 2
    assert "expected a task, one of classify" in capsys.readouterr().err
    assert cli.main(["tune", "clasify"]) == 2
    assert "did you mean 'classify'?" in capsys.readouterr().err


def test_values_of_another_type_are_refused() -> None:
    with pytest.raises(OptionError, match="features"):
        _check_search({"features": ("wide",)}, config())
    with pytest.raises(OptionError, match="expected values of features, got"):
        _check_search({"features": ()}, config())


def test_models_in_closed_form_have_no_validation(tmp_path: Path) -> None:
    options = tasks.get_task("classify").Config.of(model="closed-form", epochs=1)
    with pytest.raises(ValueError, match="no validation by which trials can be compared"):
        tune("classify", options, {"num_features": (84, 168)}, tmp_path, num_trials=1)
