"""Results of trained runs, one for each row, column and seed of a table."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from flax_linattn import tasks, training
from flax_linattn.bench.provenance import commit, device
from flax_linattn.ops.registry import RENAMED
from flax_linattn.tasks.runs import as_name

TRAIN: dict[str, Callable[..., dict[str, Any]]] = {
    "classify": tasks.train_classifier,
    "forecast": tasks.train_forecaster,
}
LOCAL = {"seed", "csv", "train_file", "test_file"}
"""Options that the key has, or that differ between machines."""


class Store:
    """Results in a JSON file, which several processes may write.

    Args:
        path: the file; it need not exist.
        options: those that the results must have; stored ones of others are left out.
    """

    def __init__(self, path: Path, options: Mapping[str, Any] | None = None) -> None:
        self._path = path
        self._options = dict(options or {})
        self._rows = self._read()
        self._commit = commit()  # of the code that is loaded, not of what lands while it runs

    @property
    def commits(self) -> list[str]:
        """Those that made the results."""
        return sorted({row["commit"] for row in self._valid()})

    @property
    def environments(self) -> list[str]:
        """Versions and device of the runs that tell theirs."""
        return sorted({row["environment"] for row in self._valid() if "environment" in row})

    @property
    def num_seeds(self) -> int:
        """How many seeds any cell has."""
        return 1 + max((row["seed"] for row in self._valid()), default=0)

    @property
    def num_stale(self) -> int:
        """How many stored runs have other options."""
        return len(self._rows) - len(self._valid())

    def of(self, row: str, column: str) -> dict[int, dict[str, Any]]:
        """The runs of a cell that ended with a result, by seed."""
        return {r["seed"]: r for r in self._cell(row, column) if "failure" not in r}

    def num_failures(self, row: str, column: str) -> int:
        """How many seeds of a cell did not end with a result."""
        return sum("failure" in r for r in self._cell(row, column))

    def run(self, row: str, column: str, config: Any, folder: Path) -> None:
        """Trains a run, unless its result with these options is stored, or another process does.

        A loss that is not finite is a result, too.
        """
        key = {"row": row, "column": column, "seed": config.seed}
        options = {k: v for k, v in config.to_json().items() if k not in LOCAL}
        # Runs of other options have folders of their own: they are not to be gone on with.
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
        run_dir = folder / as_name(*key.values(), digest)
        wanted = {**key, "options": options}
        if self._has(wanted):
            return
        with _claim(run_dir) as mine:
            if self._has(wanted):  # now
                return
            if mine:
                self._add(wanted | self._train(config, run_dir))
        told = "done" if mine else "another process runs it"
        print(f"{row}, {column}, seed {config.seed}: {told}", file=sys.stderr)

    def _has(self, wanted: dict[str, Any]) -> bool:
        """Whether a result is stored, perhaps by another process."""
        self._rows = self._read()
        return any(wanted.items() <= row.items() for row in self._rows)

    def _train(self, config: Any, run_dir: Path) -> dict[str, Any]:
        resume = any((run_dir / "checkpoints").glob("step_*"))
        begin, begin_core = time.perf_counter(), time.process_time()
        result: dict[str, Any] = {
            "commit": self._commit,
            "environment": f"jax {jax.__version__}, Python {platform.python_version()}, {device()}",
        }
        try:
            report = TRAIN[config.task](
                config,
                run_dir,
                resume=resume,
                progress=False,
                parallel=training.Parallel("none"),
            )
            result["report"] = {k: v for k, v in report.items() if not isinstance(v, list)}
        except training.NonFiniteLossError as error:
            result["failure"] = str(error)
        jax.clear_caches()
        if not resume:  # else these are those of its end
            result["seconds"] = round(time.perf_counter() - begin, 1)
            result["core_seconds"] = round(time.process_time() - begin_core, 1)
        return result

    def _add(self, new: dict[str, Any]) -> None:
        """Writes a result, in place of one of other options."""
        key = ("row", "column", "seed")
        with self._lock():
            others = [r for r in self._read() if any(r[name] != new[name] for name in key)]
            self._rows = [*others, new]
            partial = self._path.with_suffix(".json.tmp")
            partial.write_text(json.dumps({"runs": self._rows}, indent=1) + "\n")
            os.replace(partial, self._path)

    def _cell(self, row: str, column: str) -> list[dict[str, Any]]:
        found = [r for r in self._valid() if (r["row"], r["column"]) == (row, column)]
        return sorted(found, key=lambda r: r["seed"])

    def _valid(self) -> list[dict[str, Any]]:
        wanted = self._options.items()
        return [r for r in self._rows if wanted <= r.get("options", {}).items()]

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        rows: list[dict[str, Any]] = json.loads(self._path.read_text(), object_hook=renamed)["runs"]
        return rows

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def renamed(stored: dict[str, Any]) -> dict[str, Any]:
    """What was stored, its mechanisms by their present names: for ``object_hook`` of ``json``."""
    return {
        key: RENAMED.get(value, value) if isinstance(value, str) else value
        for key, value in stored.items()
    }


@contextmanager
def _claim(run_dir: Path) -> Iterator[bool]:
    """Whether this process alone has the run's folder, for as long as the context lasts."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
