"""Results of trained runs, one for each row, column and seed of a table."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from flax_linattn import tasks, training
from flax_linattn.bench.provenance import commit
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
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._read()
        self._commit = commit()  # of the code that is loaded, not of what lands while it runs

    @property
    def commits(self) -> list[str]:
        """Those that made the results."""
        return sorted({row["commit"] for row in self._rows})

    def of(self, row: str, column: str) -> dict[int, dict[str, Any]]:
        """The runs of a cell that ended with a result, by seed."""
        return {r["seed"]: r for r in self._cell(row, column) if "failure" not in r}

    def num_failures(self, row: str, column: str) -> int:
        """How many seeds of a cell did not end with a result."""
        return sum("failure" in r for r in self._cell(row, column))

    def run(self, row: str, column: str, config: Any, folder: Path) -> None:
        """Trains a run, unless its result with these options is stored.

        A loss that is not finite is a result, too.
        """
        key = {"row": row, "column": column, "seed": config.seed}
        options = {k: v for k, v in config.to_json().items() if k not in LOCAL}
        self._rows = self._read()  # with what other processes have added
        if any({**key, "options": options}.items() <= r.items() for r in self._rows):
            return
        # Runs of other options have folders of their own: they are not to be gone on with.
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
        run_dir = folder / as_name(*key.values(), digest)
        resume = any((run_dir / "checkpoints").glob("step_*"))
        begin, begin_core = time.perf_counter(), time.process_time()
        result: dict[str, Any]
        try:
            report = TRAIN[config.task](
                config,
                run_dir,
                resume=resume,
                progress=False,
                parallel=training.Parallel("none"),
            )
            result = {"report": {k: v for k, v in report.items() if not isinstance(v, list)}}
        except training.NonFiniteLossError as error:
            result = {"failure": str(error)}
        jax.clear_caches()
        seconds = round(time.perf_counter() - begin, 1)
        core_seconds = round(time.process_time() - begin_core, 1)
        if not resume:  # else these are those of its end
            result |= {"seconds": seconds, "core_seconds": core_seconds}
        self._add({**key, "options": options, "commit": self._commit, **result})
        print(f"{row}, {column}, seed {config.seed}: {seconds} s", file=sys.stderr)

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
        found = [r for r in self._rows if (r["row"], r["column"]) == (row, column)]
        return sorted(found, key=lambda r: r["seed"])

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        rows: list[dict[str, Any]] = json.loads(self._path.read_text())["runs"]
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
