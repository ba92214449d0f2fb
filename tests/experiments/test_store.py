"""Stored runs: found by their options, whatever options and defaults come later."""

import errno
import json
import os
from typing import ClassVar

import pytest

from experiments import options, report, store
from experiments.experiment import data_folder
from flax_linattn import storage, training


class Config:
    """A configuration that says how its run ends."""

    known: ClassVar = {"outcome": 0.0, "width": 8}

    def __init__(self, seed=0, **values):
        self.seed, self.values = seed, {**self.known, **values}

    def to_json(self):
        return {"seed": self.seed, "csv": "somewhere", **self.values}


@pytest.fixture
def trained(monkeypatch):
    """Outcomes of what was trained, in a task whose training only says how it ends."""
    outcomes = []

    def train(task, config, session):
        outcomes.append(config.values["outcome"])
        if config.values["outcome"] < 0:
            raise training.NonFiniteLossError("the loss was nan")
        return {"test_mse": config.values["outcome"]}

    monkeypatch.setattr(store, "train", train)
    monkeypatch.setattr(store, "defaults", lambda task: options.run_options(Config()))
    monkeypatch.setattr(Config, "known", dict(Config.known))
    return outcomes


def opened(tmp_path, **wanted):
    return store.Store(tmp_path / "runs.json", "ends", wanted)


def test_a_result_of_other_options_is_replaced_and_a_failure_kept(tmp_path, trained):
    first, second = opened(tmp_path), opened(tmp_path)
    first.train("r", "a", Config(outcome=1.0), tmp_path, "")
    second.train("r", "b", Config(outcome=-1.0), tmp_path, "")  # knows nothing of the first yet
    first.train("r", "a", Config(outcome=1.0), tmp_path, "")
    first.train("r", "a", Config(outcome=2.0), tmp_path, "")
    assert trained == [1.0, -1.0, 2.0]
    again = opened(tmp_path)
    assert again.of("r", "a")[0]["report"] == {"test_mse": 2.0}
    assert not again.of("r", "b") and again.num_failures("r", "b") == 1


def test_what_differs_from_the_defaults_is_stored_and_the_defaults_once(tmp_path, trained):
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    stored = json.loads((tmp_path / "runs.json").read_text())
    assert stored["defaults"] == {"outcome": 0.0, "width": 8}
    assert stored["runs"][0]["options"] == {"outcome": 1.0}


def test_an_option_that_comes_later_leaves_the_runs_stored(tmp_path, trained):
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    Config.known["depth"] = 2
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    assert trained == [1.0]
    opened(tmp_path).train("r", "a", Config(outcome=1.0, depth=3), tmp_path, "")
    assert trained == [1.0, 1.0]


@pytest.mark.parametrize("written_since", [False, True])
def test_a_default_that_changes_does_not_change_what_was_stored(tmp_path, trained, written_since):
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    Config.known["width"] = 16
    if written_since:
        opened(tmp_path).train("r", "b", Config(outcome=2.0), tmp_path, "")
    runs = opened(tmp_path)
    assert runs.of("r", "a")[0]["options"]["width"] == 8
    assert opened(tmp_path, width=8).num_stale == written_since
    runs.train("r", "a", Config(outcome=1.0, width=8), tmp_path, "")
    assert trained == [1.0, 2.0][: 1 + written_since]
    runs.train("r", "a", Config(outcome=1.0), tmp_path, "")
    assert trained[-1] == 1.0 and runs.of("r", "a")[0]["options"]["width"] == 16


def test_the_default_of_a_new_option_is_kept_before_it_changes(tmp_path, trained):
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    Config.known["depth"] = 2
    opened(tmp_path).keep_defaults()
    Config.known["depth"] = 4
    assert opened(tmp_path).of("r", "a")[0]["options"]["depth"] == 2


def test_results_of_other_options_are_left_out(tmp_path, trained):
    for seed in range(2):
        opened(tmp_path).train("r", "a", Config(seed, outcome=1.0), tmp_path, "")
    assert opened(tmp_path).num_stale == 0 and opened(tmp_path).num_seeds == 2
    other = opened(tmp_path, width=16)
    assert not other.of("r", "a") and other.num_stale == 2


def test_two_processes_do_not_train_one_cell(tmp_path, monkeypatch, capsys):
    def train(task, config, session):
        opened(tmp_path).train("r", "a", config, tmp_path, "")  # as another process might
        return {"test_mse": 1.0}

    monkeypatch.setattr(store, "train", train)
    monkeypatch.setattr(store, "defaults", lambda task: options.run_options(Config()))
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    assert "another process runs it" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "runs.json").read_text())["runs"]) == 1


def test_a_file_system_without_locks_trains_all_the_same(tmp_path, trained, monkeypatch, capsys):
    """With a note, as everywhere."""

    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(storage.fcntl, "flock", none)
    opened(tmp_path).train("r", "a", Config(outcome=1.0), tmp_path, "")
    assert trained == [1.0]
    assert "locks nothing (No locks available)" in capsys.readouterr().err


@pytest.mark.parametrize("table", report.tables(), ids=lambda table: table.module)
def test_every_published_run_has_the_options_that_its_table_asks_for(table):
    for scale in table.sizes:
        stored = table.stored(scale)
        if not stored.is_file():
            continue
        runs = table.store(scale)
        assert runs.num_stale == 0
        for cell in table.cells(data_folder()):
            if cell.config is not None:  # its data are at hand
                for seed, run in runs.of(cell.row, cell.column).items():
                    config = cell.config.replace(seed=seed, **table.options(scale))
                    assert run["options"] == options.run_options(config)
        file = json.loads(stored.read_text())
        assert {(run["row"], run["column"]) for run in file["runs"]} <= {
            (cell.row, cell.column) for cell in table.cells(None)
        }
        missing = options.defaults(table.task).keys() - file["defaults"].keys()
        assert not missing, "python -m experiments.report writes the defaults of new options down"
