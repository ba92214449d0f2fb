"""Run folders with one thing wrong: a byte, a value, a file."""

import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flax_linattn import tasks, training
from flax_linattn.tasks.config_file import read_config
from tests.fuzz.damage import corrupted
from tests.fuzz.subject import Case, Subject
from tests.tasks.commands import no_drawing
from tests.tasks.states import extract_stored

SMALL = {
    "features": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_features": 8,
    "mechanism": "aaren:chunk_size=32",
    "epochs": 2,
}
OPTIONS = {
    "classify": {"batch_size": 90, **SMALL},
    "forecast": {"context_length": 12, "horizon": 4, "split": "300/60/100", "stride": 4, **SMALL},
    "offline-rl": {
        "num_episodes": 8,
        "context": 4,
        "play_episodes": 1,
        "behavior_cloning_steps": 2,
        **SMALL,
    },
}
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 100_000, 10**9, 10**12, -(10**12), 10**400, 0.5, -0.5, 1e12,
    1e308, float("nan"), float("inf"), "", "8", "aaren", "softmax:chunk_size=7",
    "elementwise_series:order=4", "/nowhere/at/all", "\x00", "\ud800", "-" * 100_000,
    "aaren:chunk_size=" + "-" * 100_000, "aaren:chunk_size=" + "(" * 150, "x" * 10_000, [], {},
    [1], ["a"], [1e12], [10**12], [[1]], {"a": 1}, [None] * 50, {"": {}}, list(range(1000)),
]  # fmt: skip
TEXTS: list[bytes] = [
    b"", b"null", b"5", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500,
    b"\xff\xfe{}", b'{"task": "\xff"}', b"1" * 10_000, b"\x00" * 100,
]  # fmt: skip


class StoredRuns(Subject):
    """What ``load_run``, ``evaluate_run`` and ``train`` read of a stored run."""

    counts = (20, 0)
    seconds = 20.0
    megabytes = 2000  # of compiled programs
    errors = (ValueError, FileNotFoundError, TypeError)
    context = staticmethod(no_drawing)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.runs = self.make(folder / "runs")

    def make(self, folder: Path) -> list[Path]:
        """Runs that took no training here."""
        extract_stored(folder)
        return [folder / "classify", folder / "forecast"]

    def samples(self) -> Iterator[Case]:
        return (Case(run.name, run, lambda run=run: tasks.load_run(run)) for run in self.runs)

    def damage(self, draw: random.Random) -> Case:
        run = draw.choice(self.runs)
        path = self.folder / "strange" / run.name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(run, path)
        what = damage(path, draw)
        (use,) = draw.choices((tasks.load_run, tasks.evaluate_run, resume), (7, 2, 1))
        return Case(run.name, path, lambda: use(path), f"{what}, {use.__name__}")

    def refusal(self, error: Exception, case: Case) -> str:
        if "the data of the run have changed" in str(error):
            return "refused"
        return super().refusal(error, case)


class TrainedRuns(StoredRuns):
    """The same of runs of today."""

    counts = (0, 3000)

    def make(self, folder: Path) -> list[Path]:
        for name, options in OPTIONS.items():
            config = tasks.get_task(name).Config.of(**options)
            tasks.train(name, config, session(folder / name))
        return [folder / name for name in OPTIONS]


def session(run_dir: Path, *, resume: bool = False) -> training.Session:
    parallel = training.Parallel("none")
    return training.Session(run_dir, resume=resume, progress=False, parallel=parallel)


def resume(run_dir: Path) -> None:
    """With its own options, and an epoch more where the file says so."""
    config = read_config(run_dir)
    if config.fit.epochs <= 3 and not config.fit.steps:
        tasks.train(tasks.get_task(run_dir.name), config, session(run_dir, resume=True))


def damage(run_dir: Path, draw: random.Random) -> str:
    """Does one thing to a run folder; says what."""
    files = sorted(p for p in run_dir.rglob("*") if p.is_file())
    read = [p for p in files if p.name in ("config.json", "data_spec.json", "progress.json")]
    path = draw.choice(read if draw.random() < 0.85 else files)
    does = [corrupt, corrupt, corrupt, replace, delete, make_folder]
    if path.suffix == ".json":
        does += [change_value] * 8 + [drop_key] * 2
    what = draw.choice(does)
    return f"{path.relative_to(run_dir)}: {what.__name__} {what(path, draw) or ''}"


def corrupt(path: Path, draw: random.Random) -> None:
    path.write_bytes(corrupted(path.read_bytes(), draw))


def replace(path: Path, draw: random.Random) -> str:
    text = draw.choice(TEXTS)
    path.write_bytes(text)
    return f"{text[:20]!r}"


def delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def make_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def change_value(path: Path, draw: random.Random) -> str:
    value = draw.choice(VALUES)

    def change(parent: Any, key: Any) -> None:
        parent[key] = value

    return f"{_edit(path, draw, change)} = {repr(value)[:60]}"


def drop_key(path: Path, draw: random.Random) -> str:
    def drop(parent: Any, key: Any) -> None:
        del parent[key]

    return _edit(path, draw, drop)


def _edit(path: Path, draw: random.Random, change: Callable[[Any, Any], None]) -> str:
    """Edits a place in a JSON file; a checksum is made to fit, mostly."""
    content = json.loads(path.read_text())
    parent, key, name = draw.choice(list(_places(content, ())))
    change(parent, key)
    signed = path.name == "progress.json" and name[0] == path.stem and draw.random() < 0.8
    if signed and path.stem in content:
        content["crc32"] = zlib.crc32(json.dumps(content[path.stem]).encode())
    path.write_text(json.dumps(content))
    return ".".join(map(str, name))


def _places(value: Any, name: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """Where something can be changed: not in each of many rows, but in the first ones."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 3))
    for key in keys:
        yield value, key, (*name, key)
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key], (*name, key))
