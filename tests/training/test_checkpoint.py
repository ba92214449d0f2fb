"""Retention, damage, and models that do not match."""

import os
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from flax_linattn import storage
from flax_linattn.checkpoint.arrays import read_json, write_json
from flax_linattn.training import (
    CorruptCheckpointError,
    checkpointer,
    list_checkpoints,
    load_best,
    load_checkpoint,
)
from tests.power_loss import PowerLoss
from tests.training.problem import Net, Source, bits, fingerprint, make_batches, signal_at, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three epochs, each better than the one before."""
    run_dir = tmp_path_factory.mktemp("finished")
    model, _ = train(run_dir)
    return run_dir, bits(model), fingerprint(run_dir)


@pytest.fixture
def run_dir(finished, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(finished[0], tmp_path / "run")


def names(run_dir):
    return [checkpoint.path.name for checkpoint in list_checkpoints(run_dir)]


def remove_folder(path):
    shutil.rmtree(path / "arrays" / "model")


def remove_progress(path):
    (path / "progress.json").unlink()


def cut_progress(path):
    file = path / "progress.json"
    file.write_bytes(file.read_bytes()[:100])


def change_progress(path):
    file = path / "progress.json"
    file.write_text(file.read_text().replace('"bad_epochs": 0', '"bad_epochs": 1'))


def grow_progress(path):
    os.truncate(path / "progress.json", 10**11)  # a sparse file: more than the memory


def garble_largest(path):
    file = max(
        (path / "arrays" / "training").rglob("*"), key=lambda p: p.stat().st_size * p.is_file()
    )
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def empty_all(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


DAMAGES = [
    remove_folder,
    remove_progress,
    cut_progress,
    change_progress,
    grow_progress,
    garble_largest,
    empty_all,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_falls_back_to_the_one_before(run_dir, finished, capfd, damage):
    newest = list_checkpoints(run_dir)[-1].path
    damage(newest)
    model, result = train(run_dir, resume=True)
    assert bits(model) == finished[1]
    assert fingerprint(run_dir) == finished[2]
    assert result.epochs == 3
    warning = next(x for x in capfd.readouterr().err.splitlines() if x.startswith("warning: "))
    assert str(newest) in warning
    assert "Falling back to step_000000010_epoch_00002" in warning
    assert newest.with_name(f"corrupt_{newest.name}").is_dir()


OBSTACLES = {
    "file": Path.touch,
    "pipe": os.mkfifo,
    "broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("obstruct", OBSTACLES.values(), ids=OBSTACLES)
def test_replaces_files_with_the_name_of_a_checkpoint(run_dir, obstruct):
    """Files and links are replaced that have the name of a new or a damaged checkpoint."""
    newest = list_checkpoints(run_dir)[-1].path
    remove_progress(newest)
    obstruct(newest.with_name(f"corrupt_{newest.name}"))
    following = newest.with_name("step_000000020_epoch_00004")

    def obstruct_following(step, batch):
        if step == 16:  # once the run has begun, which sets aside what it cannot read
            obstruct(following)

    train(run_dir, resume=True, epochs=4, train=Source(make_batches(), obstruct_following))
    assert newest.with_name(f"corrupt_{newest.name}").is_dir()
    assert (following / "progress.json").is_file() and not following.is_symlink()


@pytest.mark.slow
def test_falls_back_where_orbax_cannot_read(run_dir, finished, monkeypatch):
    """And frees the name, so that the run can save that step again."""
    newest = list_checkpoints(run_dir)[-1].path
    restore = ocp.Checkpointer.restore

    def refuse(self, path, *args, **kwargs):
        if newest in Path(path).parents and not newest.with_name(f"corrupt_{newest.name}").exists():
            raise KeyError("written by another version")
        return restore(self, path, *args, **kwargs)

    monkeypatch.setattr(ocp.Checkpointer, "restore", refuse)
    model, _ = train(run_dir, resume=True)
    assert bits(model) == finished[1]
    assert fingerprint(run_dir) == finished[2]


def test_every_damaged_byte_is_noticed(finished, tmp_path):
    source = list_checkpoints(finished[0])[-1].path
    arrays = [p.relative_to(source) for p in (source / "arrays").rglob("*") if p.is_file()]
    rng = np.random.default_rng(0)
    for name in [Path("progress.json"), *arrays]:
        path = shutil.copytree(source, tmp_path / name.as_posix().replace("/", "-"))
        content = bytearray((path / name).read_bytes())
        if content:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            (path / name).write_bytes(content)
        else:
            (path / name).unlink()
        model = Net(seed=1)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_checkpoint(model, path)
        assert bits(model) == bits(Net(seed=1))


@pytest.mark.parametrize("best", [1, 2, 3])
def test_a_command_parses_no_validation(finished, tmp_path, monkeypatch, best):
    """The best one is found in the text, also after the history was edited; a wrong one is not."""
    path = shutil.copytree(list_checkpoints(finished[0])[-1].path, tmp_path / "newest")
    file = path / "progress.json"
    values = read_json(file)
    values["record"] |= {"best_step": 5 * best, "best_epoch": best}
    write_json(file, values)
    with monkeypatch.context() as patched:
        patched.setattr(checkpointer.History, "from_json", None)
        progress = checkpointer.read_progress(path)
    assert progress.best_path == path.with_name(f"step_{5 * best:09d}_epoch_{best:05d}")
    assert progress.history.runs == checkpointer.read_history(path).runs
    values["record"] |= {"best_step": 7}
    write_json(file, values)
    for read in (checkpointer.read_progress, checkpointer.read_history):
        with pytest.raises(CorruptCheckpointError, match="holds no history"):
            read(path)


def test_a_history_whose_values_fill_the_memory_is_refused(finished, tmp_path, monkeypatch):
    """Its checksum is valid; each 3 bytes of its text would take 80 bytes."""
    path = shutil.copytree(list_checkpoints(finished[0])[-1].path, tmp_path / "newest")
    file = path / "progress.json"
    values = read_json(file) | {"spare": [[]] * 2**20}
    with monkeypatch.context() as patched:
        patched.setattr(storage, "_MAX_JSON_CONTAINERS", 2**21)
        write_json(file, values)
    for read in (checkpointer.read_progress, checkpointer.read_history):
        with pytest.raises(CorruptCheckpointError, match=r"progress\.json") as caught:
            read(path)
        assert "1,048,576 lists" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("limit", "measure"),
    [("MAX_JSON_BYTES", len), ("_MAX_JSON_CONTAINERS", lambda x: x.count(b"[") + x.count(b"{"))],
)
def test_a_history_that_nobody_could_read_is_not_written(run_dir, monkeypatch, limit, measure):
    """The checkpoints before it stay."""
    before = list_checkpoints(run_dir)
    size = measure((before[-1].path / "progress.json").read_bytes())
    monkeypatch.setattr(storage, limit, size)
    with pytest.raises(OSError, match=r"progress\.json would be too .* validate less often"):
        train(run_dir, resume=True, epochs=9)
    assert list_checkpoints(run_dir) == before


def test_reads_parameters_of_another_width(finished, capfd):
    half, exact = Net(seed=1), Net()
    nnx.update(half, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(half)))
    load_checkpoint(exact, load_best(half, finished[0]))
    for got, want in zip(*(jax.tree.leaves(nnx.state(m)) for m in (half, exact)), strict=True):
        np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
    assert "are converted from float32 to bfloat16." in capfd.readouterr().err


def test_none_readable(run_dir):
    before = names(run_dir)
    for checkpoint in list_checkpoints(run_dir):
        empty_all(checkpoint.path)
    with pytest.raises(ValueError, match=r"None of the 2 checkpoints in .* can be read"):
        train(run_dir, resume=True)
    with pytest.raises(CorruptCheckpointError, match=r"None of the 2 checkpoints in .* can be"):
        load_best(Net(), run_dir)
    assert names(run_dir) == before


def test_what_a_kill_left_unfinished_is_cleared(run_dir, finished):
    left = run_dir / "checkpoints" / "step_000000020_epoch_00004.partial"
    (left / "arrays").mkdir(parents=True)
    train(run_dir, resume=True)
    assert not left.exists()
    assert fingerprint(run_dir) == finished[2]


def test_keeps_the_latest_and_the_best(tmp_path, monkeypatch):
    """And a power loss leaves each one from the moment on that the older ones are removed."""
    power_loss, run_dir, lost = PowerLoss(tmp_path, monkeypatch), tmp_path / "runs" / "a", []
    remove_old = checkpointer._remove_old

    def check(*args):
        lost.append(power_loss.lost(run_dir / "checkpoints"))
        remove_old(*args)

    monkeypatch.setattr(checkpointer, "_remove_old", check)
    # The wrong way round: the loss falls, so that the first epoch stays the best.
    _, result = train(run_dir, epochs=5, mode="max")
    assert lost == [[]] * 5 and power_loss.lost() == []
    assert result.best_epoch == 1
    assert names(run_dir) == [
        "step_000000005_epoch_00001",
        "step_000000020_epoch_00004",
        "step_000000025_epoch_00005",
    ]


def test_keep_latest_and_steps_within_the_epoch(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path, train=signal_at(make_batches(), 8), checkpoint_every_steps=2, keep_latest=3)
    assert names(tmp_path) == [
        "step_000000005_epoch_00001",  # a new best
        "step_000000006_epoch_00001",
        "step_000000008_epoch_00001",
        "step_000000009_epoch_00001",  # saved by the interrupt
    ]


def test_load_best_into_a_fresh_model(run_dir, finished):
    model = Net(seed=1)
    assert load_best(model, run_dir).name == "step_000000015_epoch_00003"
    assert bits(model) == finished[1]


def test_load_best_names_what_differs(run_dir):
    model = Net(width=6)
    before = bits(model)
    with pytest.raises(ValueError, match=r"layers\.0\.bias: saved .*\[4\], requested .*\[6\]"):
        load_best(model, run_dir)
    with pytest.raises(ValueError, match=r"kernel: saved not, requested float32\[2, 2\]"):
        load_best(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), run_dir)
    assert bits(model) == before


def test_load_best_needs_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run folder .*nowhere"):
        load_best(Net(), tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        load_best(Net(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder .*nowhere"):
        load_checkpoint(Net(), tmp_path / "nowhere")


def test_load_best_needs_a_finished_epoch(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path, train=signal_at(make_batches(), 2))
    with pytest.raises(ValueError, match=r"No epoch of the run in .* has finished"):
        load_best(Net(), tmp_path)


def test_load_best_with_the_best_damaged(run_dir):
    empty_all(list_checkpoints(run_dir)[-1].path)
    # The one before it has a best of its own: itself.
    assert load_best(Net(), run_dir).name == "step_000000010_epoch_00002"
    remove_folder(list_checkpoints(run_dir)[0].path)
    with pytest.raises(CorruptCheckpointError, match="epoch_00002 is damaged: arrays/model"):
        load_best(Net(), run_dir)


def test_a_sparse_file_is_refused_before_it_is_read(run_dir):
    path = list_checkpoints(run_dir)[-1].path
    os.truncate(next(file for file in (path / "arrays").rglob("*") if file.is_file()), 2**40)
    with pytest.raises(CorruptCheckpointError, match=r"arrays has 1,099,\d{3},\d{3},\d{3} bytes"):
        load_checkpoint(Net(), path)


def test_another_format_is_refused(run_dir):
    for checkpoint in list_checkpoints(run_dir):
        file = checkpoint.path / "progress.json"
        file.write_text(file.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(ValueError, match="has format 1, but this version reads format 2"):
        load_best(Net(), run_dir)
    file.write_text('{"format": 3, "history": {}}')
    with pytest.raises(ValueError, match="has format 3, but this version reads format 2"):
        read_json(file)
