"""Results on disk: continued when interrupted, replaced when finished."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flax_linattn import storage
from flax_linattn.bench import Journal
from flax_linattn.bench.journal import lock_results


def measured(path: Path, head: dict[str, Any], *, finish: bool) -> int:
    """How many of two rows were measured."""
    calls: list[int] = []
    journal = Journal(path, head, progress=False)
    for n in (1, 2):
        journal.row({"n": n}, lambda n=n: calls.append(n) or {"square": n * n})
    if finish:
        journal.finish()
    return len(calls)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    path, head = tmp_path / "results.json", {"command": "c", "commit": "abc", "date": "today"}
    assert measured(path, head, finish=False) == 2
    assert json.loads(path.read_text())["rows"][1] == {"n": 2, "square": 4}
    assert measured(path, {**head, "date": "tomorrow"}, finish=True) == 0
    assert json.loads(path.read_text())["finished"]


def test_a_finished_or_different_run_is_replaced(tmp_path: Path) -> None:
    path, head = tmp_path / "results.json", {"command": "c", "commit": "abc"}
    measured(path, head, finish=False)
    assert measured(path, {**head, "commit": "def"}, finish=True) == 2
    assert measured(path, {**head, "commit": "def"}, finish=True) == 2
    for _ in range(2):  # what was changed is not known
        assert measured(path, {**head, "commit": "def-dirty"}, finish=False) == 2


def test_rows_of_another_setting_are_not_lost(tmp_path: Path, capsys: Any) -> None:
    """They may have taken hours; those of a changed commit are no results."""
    path, head = tmp_path / "results.json", {"command": "c", "commit": "abc-dirty", "cores": 1}
    measured(path, head, finish=False)
    measured(path, {**head, "commit": "abc"}, finish=False)
    for cores in (2, 4):
        measured(path, {**head, "commit": "abc", "cores": cores}, finish=False)
    kept = sorted(path.parent.glob("*.unfinished-*.json"))
    assert [file.name for file in kept] == [f"results.unfinished-{n}.json" for n in (1, 2)]
    assert [json.loads(file.read_text())["cores"] for file in kept] == [1, 2]
    assert len(json.loads(kept[0].read_text())["rows"]) == 2
    assert "note: results.json has rows with another cores; it was" in capsys.readouterr().err


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"rows": [')
    assert measured(path, {"command": "c"}, finish=True) == 2


def test_rows_no_longer_asked_for_go(tmp_path: Path) -> None:
    path, head = tmp_path / "results.json", {"command": "c"}
    measured(path, head, finish=False)
    journal = Journal(path, head, progress=False)
    journal.row({"n": 2}, dict)
    assert [row["n"] for row in journal.finish()["rows"]] == [2]


def test_processes_that_measure_at_once_keep_each_others_rows(tmp_path: Path) -> None:
    path, head = tmp_path / "results.json", {"command": "c", "commit": "abc"}
    first, second = (Journal(path, head, progress=False) for _ in range(2))
    first.row({"n": 1}, dict)
    second.row({"n": 2}, dict)
    assert [row["n"] for row in json.loads(path.read_text())["rows"]] == [1, 2]
    assert first.row({"n": 2}, lambda: {"measured": "again"}) == {"n": 2}


def test_files_are_locked_where_folders_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NFS locks what is open for writing alone; the lock is hidden, and no result."""
    lock = fcntl.flock

    def of_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, operation)

    monkeypatch.setattr(storage.fcntl, "flock", of_nfs)
    path = tmp_path / "new" / "results.json"
    assert measured(path, {"command": "c"}, finish=True) == 2
    assert capsys.readouterr().err == ""
    assert [p.name for p in path.parent.iterdir() if p.name[0] != "."] == ["results.json"]
    lock_file = path.with_name(".results.json.lock")
    with lock_results(path), pytest.raises(storage.LockedError), storage.file_lock(lock_file):
        pass
