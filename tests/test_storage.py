"""Files that are whole or not there, and locks."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flax_linattn import storage
from tests.power_loss import PowerLoss

ROOT = Path(__file__).parents[1]


def test_an_error_leaves_the_file_before_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    with pytest.raises(KeyError), storage.atomic_write(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'$") as caught:
        storage.write_text(tmp_path / "a.txt", "text")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_share_an_unfinished_file(tmp_path):
    """With one name for both, the second would end with the first's bytes, or with none."""
    path = tmp_path / "a.txt"
    with storage.atomic_write(path) as first:
        first.write(b"first")
        with storage.atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_and_its_folder_are_synced_around_the_replacement(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    storage.write_text(tmp_path / "a.txt", "text")
    assert done[0].startswith(str(tmp_path / "a.txt."))
    assert done[1:] == ["replace", str(tmp_path)]


def test_a_power_loss_leaves_new_folders_and_the_files_in_them(tmp_path, monkeypatch):
    power_loss = PowerLoss(tmp_path, monkeypatch)
    folder = tmp_path / "runs" / "a" / "checkpoints"
    with storage.file_lock(tmp_path / "runs" / "a" / "run.lock"):
        assert power_loss.lost() == []
    for number in range(2):
        storage.append_text(tmp_path / "runs" / "lines.txt", f"{number}\n")
        assert power_loss.lost() == []
    storage.make_folder(folder)
    assert power_loss.lost() == []
    storage.write_text(tmp_path / "states" / "a" / "state.txt", "text")
    assert power_loss.lost() == []
    (folder / "b").mkdir()
    (folder / "b" / "c").write_text("text")
    assert sorted(power_loss.lost()) == [f"runs/a/checkpoints/{name}" for name in ("b", "b/c")]
    storage.sync_folder(folder / "b")
    assert power_loss.lost() == ["runs/a/checkpoints/b"]


def test_a_lock_says_who_holds_it(tmp_path):
    path = tmp_path / "new" / "lock"
    with storage.file_lock(path, "the run"):
        me = f"process {os.getpid()} on {socket.gethostname()}, since 2"
        message = rf"uses the run \({me}[^)]*\); wait until"
        with pytest.raises(storage.LockedError, match=message), storage.file_lock(path, "the run"):
            pass
    assert path.read_text() == ""
    with storage.file_lock(path):
        pass


@pytest.mark.parametrize("content", ["", "[" * 9, "5", "\xff", '{"host": 1}'])
def test_a_lock_file_that_says_nothing_is_a_lock_as_well(tmp_path, content):
    path = tmp_path / "lock"
    with storage.file_lock(path):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(ValueError, match="uses it; wait"), storage.file_lock(path, "it"):
            pass


def test_a_process_that_is_killed_lets_go(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys, time\n"
        "from flax_linattn import storage\n"
        "with storage.file_lock(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(300)"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process"), storage.file_lock(path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with storage.file_lock(path):
        pass
    with storage.file_lock(path, wait=True):
        pass


def test_a_lock_of_nothing_named_says_its_file(tmp_path):
    path = tmp_path / "lock"
    message = re.escape(f"another process uses {path} (process ")
    with storage.file_lock(path), pytest.raises(ValueError, match=message), storage.file_lock(path):
        pass


@pytest.mark.parametrize("content", [b"PK\x03\x04 and so on", b"[1]", b"x"])
def test_a_file_of_something_else_is_no_lock(tmp_path, content):
    """It would be emptied."""
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    message = re.escape(f"{path} is not a lock file, and would be overwritten; choose")
    with pytest.raises(ValueError, match=message), storage.file_lock(path):
        pass
    assert path.read_bytes() == content


def test_a_lock_file_of_a_stranger_is_no_link_and_no_pipe(tmp_path):
    """A link could empty its target, and a pipe would wait for a writer."""
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path, what in {link: "a symbolic link", pipe: "a pipe or a device"}.items():
        message = rf"expected a lock file, but .*{path.name} is {what}.* remove "
        with pytest.raises(ValueError, match=message), storage.file_lock(path):
            pass
    assert not target.exists()


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"Not a regular file: '.*pipe'"):
        storage.open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("left", ['{"host": "a", "process": 3}\n', '{"ho'])
def test_what_a_kill_has_left_in_a_lock_file_is_replaced(tmp_path, left):
    path = tmp_path / "lock"
    path.write_text(left)
    with storage.file_lock(path):
        assert json.loads(path.read_text())["process"] == os.getpid()


def test_a_file_system_without_locks_is_noted(tmp_path, monkeypatch, capsys):
    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(storage.fcntl, "flock", none)
    with storage.file_lock(tmp_path / "lock", "the run"):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()
    assert "locks nothing (No locks available); nothing keeps" in capsys.readouterr().err


def test_what_a_kill_has_left_of_one_file_is_cleared(tmp_path):
    """Not what another one, of a longer name, is being written to."""
    others = [
        "state.npz",
        "state.npz.tmp",
        "state.npz.lock.0a1b2c3d.tmp",
        "my-state.npz.0a1b2c3d.tmp",
    ]
    for name in [*others, "state.npz.0a1b2c3d.tmp"]:
        (tmp_path / name).touch()
    storage.remove_unfinished(tmp_path / "state.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_folder_named_like_an_unfinished_file_is_left(tmp_path):
    (tmp_path / "state.npz.0a1b2c3d.tmp").mkdir()
    storage.remove_unfinished(tmp_path)
    storage.remove_unfinished(tmp_path / "state.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz.0a1b2c3d.tmp"]
