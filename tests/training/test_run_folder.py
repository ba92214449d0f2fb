"""One process a folder, disks that are full, a best checkpoint that is damaged."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_linattn import checkpoint
from flax_linattn.checks import OptionError
from flax_linattn.training import (
    CorruptCheckpointError,
    Session,
    fit,
    list_checkpoints,
    load_best,
)
from tests.training import problem
from tests.training.problem import (
    Net,
    Source,
    bits,
    fingerprint,
    make_batches,
    read_metrics,
    signal_at,
    train,
)

PAIRS = int(os.environ.get("FLAX_LINATTN_PAIRS", "20"))
CHILD = "tests.training.pair"
EPOCHS = 12


# Two processes


def whole_run(run_dir: Path, epochs: int) -> None:
    """One line an epoch, and checkpoints of the run that config and metrics are of."""
    assert [line["epoch"] for line in read_metrics(run_dir)] == list(range(1, epochs + 1))
    newest = list_checkpoints(run_dir)[-1].path
    record = json.loads((newest / "progress.json").read_text())["progress"]["record"]
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert record["history"] == [json.loads(line) for line in lines]
    assert str(record["seed"]) == (run_dir / "seed").read_text()
    assert not list(run_dir.rglob("*.partial")) and not list(run_dir.rglob("*.tmp"))


def refused(pair) -> None:
    """One trains, and the other is told in a line why it does not."""
    statuses = sorted(process.wait() for process in pair)
    assert statuses == [0, 2], [process.stderr for process in pair]
    (other,) = [process for process in pair if process.wait() == 2]
    (line,) = other.stderr.splitlines()
    assert "another process uses the run" in line or "already holds checkpoints" in line


@pytest.mark.parametrize("pairs", [1, pytest.param(PAIRS, marks=pytest.mark.slow)])
def test_processes_that_start_at_once(children, tmp_path, pairs):
    for number in range(pairs):
        run_dir, go = tmp_path / f"run{number}", tmp_path / f"go{number}"
        pair = [children.start(CHILD, run_dir, EPOCHS, seed, go) for seed in (1, 2)]
        go.touch()
        refused(pair)
        whole_run(run_dir, EPOCHS)


@pytest.mark.slow  # in a line: test_a_second_one_leaves_what_the_first_is_writing
def test_many_processes_that_resume_at_once(children, tmp_path):
    (tmp_path / "now").touch()
    begun = tmp_path / "begun"
    assert children.start(CHILD, begun, 2, 1, tmp_path / "now").wait() == 0
    for number in range(PAIRS):
        run_dir = shutil.copytree(begun, tmp_path / f"resumed{number}")
        go = tmp_path / f"go_on{number}"
        pair = [children.start(CHILD, run_dir, EPOCHS, 1, go, "resume") for _ in range(2)]
        go.touch()
        statuses = sorted(process.wait() for process in pair)
        # The second may find the run finished, and then reads its best.
        assert statuses in ([0, 2], [0, 0]), [process.stderr for process in pair]
        whole_run(run_dir, EPOCHS)


def test_a_second_one_leaves_what_the_first_is_writing(tmp_path):
    """Its unfinished checkpoint among it."""
    train(tmp_path, epochs=1)
    left = tmp_path / "checkpoints" / "step_000000010_epoch_00002.partial"
    left.mkdir()
    (tmp_path / "config.json.0a1b2c3d.tmp").touch()
    with Session(tmp_path).holding():
        left.mkdir()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ValueError, match=rf"uses the run .*process {os.getpid()} on"):
            train(tmp_path, epochs=2, resume=True)
        assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path / "config.json.0a1b2c3d.tmp").exists()
    train(tmp_path, epochs=2, resume=True)
    assert not left.exists()


def test_only_checkpoints_are_removed(tmp_path):
    """In the folder of a stranger, ``checkpoints`` and what is in it may be links."""
    train(tmp_path, epochs=1)
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    (elsewhere / "inside").mkdir(parents=True)
    (folder / "download.partial").mkdir()
    for name in ("step_000000001_epoch_00000", "step_000000010_epoch_00002.partial"):
        (folder / name).symlink_to(elsewhere)
    train(tmp_path, epochs=3, resume=True)
    assert (elsewhere / "inside").is_dir()
    left = {*folder.iterdir()} - {checkpoint.path for checkpoint in list_checkpoints(tmp_path)}
    assert left == {folder / "download.partial"}


def test_a_file_named_like_a_checkpoint_is_removed(tmp_path):
    """It would be in the way of the checkpoint that is written next, or never be removed."""
    train(tmp_path, epochs=1)
    folder = tmp_path / "checkpoints"
    (folder / "step_000000010_epoch_00002.partial").touch()
    (tmp_path / "config.json.0a1b2c3d.tmp").mkdir()
    (folder / "step_000000001_epoch_00000").touch()
    train(tmp_path, epochs=3, resume=True)
    assert all(path.is_dir() for path in folder.iterdir())
    assert (tmp_path / "config.json.0a1b2c3d.tmp").is_dir()


def test_a_session_may_hold_its_folder_around_a_training(tmp_path):
    session = Session(tmp_path, progress=False, parallel=problem.Parallel("none"))
    splits = problem.Splits(make_batches(), make_batches(count=10, seed=None))
    objective = problem.Objective(problem.loss_fn, problem.OPTIMIZER)
    with session.holding(), session.holding():
        fit(Net(), objective, splits, config=problem.FitConfig(epochs=1), session=session)
        with pytest.raises(ValueError, match="another process"), Session(tmp_path).holding():
            pass
    with Session(tmp_path).holding():
        pass


def test_a_hundred_thousand_validations_are_found(tmp_path):
    (tmp_path / "checkpoints" / "step_1000000000_epoch_100000").mkdir(parents=True)
    (found,) = list_checkpoints(tmp_path)
    assert (found.step, found.epochs_done) == (10**9, 100_000)


# Damage


@pytest.fixture(scope="module")
def first_is_best(tmp_path_factory):
    """Five epochs, of which the first is the best, and the fourth the next best that is kept."""
    run_dir = tmp_path_factory.mktemp("first_is_best")
    train(run_dir, epochs=5, mode="max")
    return run_dir


@pytest.mark.parametrize("epochs", [5, 6])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_best_is_found_before_training(first_is_best, tmp_path, capfd, epochs, gone):
    run_dir = shutil.copytree(first_is_best, tmp_path / "run")
    best = list_checkpoints(run_dir)[0].path
    shutil.rmtree(best if gone else best / "arrays" / "model")
    with pytest.raises(
        CorruptCheckpointError, match=r"is the best checkpoint of the run: restore it .*resume"
    ):
        load_best(Net(), run_dir)
    _, result = train(run_dir, epochs=epochs, mode="max", resume=True)
    assert result.epochs == epochs
    assert (result.best_step, result.best_epoch) == (20, 4)
    assert load_best(Net(), run_dir) == result.best_checkpoint
    assert result.best_checkpoint.name == "step_000000020_epoch_00004"
    stderr = capfd.readouterr().err
    assert f"{best} is damaged" in stderr and "after step 20, is selected instead" in stderr


def test_a_damaged_best_and_nothing_in_its_place(tmp_path, capfd):
    """The one that is left was saved within an epoch: the next validation selects."""
    with pytest.raises(SystemExit):
        train(tmp_path, train=signal_at(make_batches(), 7), mode="max", keep_latest=1)
    shutil.rmtree(list_checkpoints(tmp_path)[0].path / "arrays")
    _, result = train(tmp_path, mode="max", resume=True)
    assert result.best_step == 10
    assert "the next validation selects the best again" in capfd.readouterr().err


def _rewrite(path: Path, text: str) -> None:
    (path / "progress.json").write_bytes(text.encode("latin-1"))


@pytest.mark.parametrize("text", ['"format": 2', "[", "\xff", "signed"])
def test_no_byte_of_the_newest_prevents_falling_back(tmp_path, capfd, text):
    """A number of another format, lists of lists, no UTF-8; a record of nothing, well signed."""
    train(tmp_path, epochs=2)
    before = fingerprint(tmp_path)
    newest = list_checkpoints(tmp_path)[-1].path
    content = (newest / "progress.json").read_text()
    if text == "signed":
        checkpoint.write_json(newest / "progress.json", {"record": {"seed": 0}})
    elif text in content:
        _rewrite(newest, content.replace(text, '"format": 6') if len(text) > 1 else "[" * 100_000)
    else:
        _rewrite(newest, text)
    assert load_best(Net(), tmp_path).name == "step_000000005_epoch_00001"
    train(tmp_path, epochs=2, resume=True)
    assert fingerprint(tmp_path) == before
    assert "Falling back to step_000000005_epoch_00001" in capfd.readouterr().err


# Full disks


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files may not become larger: the system says so to every library."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _full(run_dir: Path, epochs: int = 3, **options) -> OSError:
    with pytest.raises(OSError, match=r"\S") as caught, largest_file(40_000):
        train(run_dir, epochs=epochs, model=Net(width=8192), **options)
    return caught.value


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capfd):
    """And once there is room, the run goes on to the end that it would have had."""
    train(tmp_path / "whole", epochs=2, model=Net(width=8192))
    full = tmp_path / "full"
    train(full, epochs=1, model=Net(width=8192))
    last = list_checkpoints(full)[-1].path
    for _ in range(2):  # resuming while it is still full says the same
        error = _full(full, epochs=2, resume=True)
        assert str(error) == (
            "The checkpoint after step 10 could not be written: File too large. The last one is "
            f"{last}. Make room if the disk is full, then resume the run."
        )
        assert list((full / "checkpoints").iterdir()) == [last]
    assert capfd.readouterr().err == ""
    train(full, epochs=2, model=Net(width=8192), resume=True)
    assert fingerprint(full) == fingerprint(tmp_path / "whole")


def test_no_room_is_seen_before_anything_is_written(tmp_path, monkeypatch, capfd):
    train(tmp_path, epochs=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(OSError, match="after step 10 could not be written: No space left on dev"):
        train(tmp_path, epochs=2, resume=True)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """metrics.jsonl, which is written anew where the run goes on."""

    def cut(step, batch):
        path = tmp_path / "metrics.jsonl"
        if step == 6 and path.is_file() and not path.is_symlink() and path.stat().st_size:
            path.unlink()
            path.symlink_to("/dev/full")

    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        train(tmp_path, epochs=3, train=Source(make_batches(), cut))
    train(tmp_path, epochs=3, resume=True)
    assert [line["epoch"] for line in read_metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of open files in /proc")
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, named = set(), []
    fsync, rename = os.fsync, Path.rename

    def note(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def check(path, target):
        below = {str(p) for p in [path, *path.rglob("*")]}
        named.append(below - synced)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    train(tmp_path, epochs=1)
    assert named == [set()]
    assert str(tmp_path / "checkpoints") in synced
    assert str(tmp_path / "metrics.jsonl") in synced


def test_the_record_of_a_best_that_is_gone(tmp_path):
    """Patience counts from the one that takes its place."""
    train(tmp_path, epochs=5, mode="max", keep_latest=3)
    shutil.rmtree(list_checkpoints(tmp_path)[0].path)
    _, result = train(tmp_path, epochs=9, mode="max", keep_latest=3, patience=3, resume=True)
    assert (result.best_step, result.stopped_early, result.epochs) == (15, True, 6)
    assert np.isfinite(result.best_value)


@pytest.mark.parametrize("mode", ["min", "max"])  # the best parameters are the last, or the first
def test_the_best_parameters_of_a_run_that_is_not_saved(mode, tmp_path):
    saved, of_saved = train(tmp_path / "saved", mode=mode)
    model, result = train(tmp_path / "not", mode=mode, checkpoints=False)
    assert bits(model) == bits(saved) and result.best_step == of_saved.best_step
    assert result.best_checkpoint is None and list_checkpoints(tmp_path / "not") == []
    split, _ = train(
        tmp_path / "split",
        mode=mode,
        checkpoints=False,
        parallel=problem.Parallel("jit", shard_parameters=True),
    )
    assert {x.sharding for x in jax.tree.leaves(split)} == {
        x.sharding for x in jax.tree.leaves(saved)
    }
    with pytest.raises(OptionError, match="needs checkpoints=True"):
        train(tmp_path / "not", resume=True, checkpoints=False)
