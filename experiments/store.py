"""Results of trained runs, one for each row, column and seed of a table.

Each run has ``made``: the command that reproduces it, commit, versions, device, cores and date. A
file stores the defaults at the time of the runs and, for each run, the options that differ from
them. A new option or a changed default therefore does not change the meaning of stored results.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax

from experiments.options import Options, defaults, run_options
from flax_linattn import training
from flax_linattn.bench.journal import lock_results, write_json
from flax_linattn.bench.origin import provenance
from flax_linattn.storage import LockedError, file_lock
from flax_linattn.tasks import train
from flax_linattn.tasks.files import make_file_name

Row = dict[str, Any]


class Store:
    """Results in a JSON file, which several processes may write.

    Args:
        path: the file; it need not exist.
        task: what its runs were trained for.
        options: the options that results must have; results of other options are ignored.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, task: str, options: Mapping[str, Any] | None = None) -> None:
        self.path, self._task = path, task
        self._options = dict(options or {})
        self._made = provenance("")  # of the code that is loaded, not of what lands while it runs
        self._defaults: Options = {}
        self._rows: list[Row] = []
        self._read()

    @property
    def commits(self) -> list[str]:
        """The commits that produced the results."""
        return sorted({row["made"]["commit"] for row in self._valid()})

    @property
    def environments(self) -> list[str]:
        """Versions and devices of the runs that recorded them."""
        made = (row["made"] for row in self._valid())
        return sorted({_environment(of_run) for of_run in made if "jax" in of_run})

    @property
    def num_seeds(self) -> int:
        """How many seeds any cell has."""
        return 1 + max((row["seed"] for row in self._valid()), default=0)

    @property
    def num_stale(self) -> int:
        """How many stored runs have other options."""
        return len(self._rows) - len(self._valid())

    @property
    def runs(self) -> list[Row]:
        """All runs with these options."""
        return self._valid()

    def repeat(self, config: Any) -> Row:
        """Trains a run in a folder that is removed, and stores nothing."""
        with tempfile.TemporaryDirectory() as folder:
            return self._result(config, Path(folder))

    def of(self, row: str, column: str) -> dict[int, Row]:
        """The runs of a cell that ended with a result, by seed."""
        return {r["seed"]: r for r in self._cell(row, column) if "failure" not in r}

    def num_failures(self, row: str, column: str) -> int:
        """How many seeds of a cell did not end with a result."""
        return sum("failure" in r for r in self._cell(row, column))

    def train(self, row: str, column: str, config: Any, folder: Path, command: str) -> None:
        """Trains a run, unless its result with these options is stored, or another process does.

        A loss that is not finite is a result, too.

        Args:
            row: of the table.
            column: of the table.
            config: its options.
            folder: where run folders are made.
            command: what makes this run again.
        """
        key = {"row": row, "column": column, "seed": config.seed}
        new = {**key, "options": run_options(config)}
        if self.holds(new):
            return
        # Runs of other options have folders of their own: they are not to be gone on with.
        differences = json.dumps(self._differences(new["options"]), sort_keys=True)
        digest = hashlib.sha256(differences.encode()).hexdigest()[:8]
        run_dir = folder / make_file_name(*key.values(), digest)
        with _claim(run_dir) as mine:
            if self.holds(new):  # now
                return
            if mine:
                made = {**self._made, "command": command}
                self._add({**new, "made": made, **self._result(config, run_dir)})
        outcome = "done" if mine else "another process runs it"
        print(f"{row}, {column}, seed {config.seed}: {outcome}", file=sys.stderr)

    def holds(self, run: Row) -> bool:
        """Whether a result of this row, column, seed and options is stored, whoever trained it."""
        self._read()
        return any(run.items() <= row.items() for row in self._rows)

    def keep_defaults(self) -> None:
        """Writes down the defaults of options that came after the runs, before they may change."""
        with lock_results(self.path):
            if self._read().keys() != self._defaults.keys():
                self._write()

    def _result(self, config: Any, run_dir: Path) -> Row:
        resume = any((run_dir / "checkpoints").glob("step_*"))
        begin, begin_core = time.perf_counter(), time.process_time()
        result: Row = {}
        try:
            session = training.Session(
                run_dir, resume=resume, progress=False, parallel=training.Parallel("none")
            )
            report = train(self._task, config, session)
            result["report"] = {k: v for k, v in report.items() if not isinstance(v, list)}
        except training.NonFiniteLossError as error:
            result["failure"] = str(error)
        jax.clear_caches()
        if not resume:  # else only the end of the run is timed
            result["seconds"] = round(time.perf_counter() - begin, 1)
            result["core_seconds"] = round(time.process_time() - begin_core, 1)
        return result

    def _cell(self, row: str, column: str) -> list[Row]:
        cell = [r for r in self._valid() if (r["row"], r["column"]) == (row, column)]
        return sorted(cell, key=lambda r: r["seed"])

    def _valid(self) -> list[Row]:
        return [r for r in self._rows if self._options.items() <= r["options"].items()]

    def _add(self, new: Row) -> None:
        """Writes a result, in place of one of other options."""
        key = ("row", "column", "seed")
        with lock_results(self.path):
            self._read()
            self._rows = [r for r in self._rows if any(r[name] != new[name] for name in key)]
            self._rows.append(new)
            self._write()

    def _read(self) -> Options:
        """Reads the runs, each with all options of today; returns the defaults as stored."""
        stored: Row = {}
        if self.path.is_file():
            stored = json.loads(self.path.read_text())
        stored_defaults = stored.get("defaults", {})
        self._defaults = {**defaults(self._task), **stored_defaults}  # of later options, today's
        self._rows = [
            {**row, "options": {**self._defaults, **row.get("options", {})}}
            for row in stored.get("runs", [])
        ]
        return stored_defaults

    def _write(self) -> None:
        runs = [{**row, "options": self._differences(row["options"])} for row in self._rows]
        write_json(self.path, {"task": self._task, "defaults": self._defaults, "runs": runs})

    def _differences(self, options: Options) -> Options:
        """What differs from the defaults of the file."""
        file_defaults = self._defaults
        return {k: v for k, v in options.items() if k not in file_defaults or v != file_defaults[k]}


def _environment(made: Mapping[str, Any]) -> str:
    cores = f", {made['cores']} cores" if made.get("cores") else ""
    return f"jax {made['jax']}, Python {made['python']}, {made['device']}{cores}"


@contextmanager
def _claim(run_dir: Path) -> Iterator[bool]:
    """Whether this process alone has the run's folder, for as long as the context lasts."""
    with ExitStack() as ends:
        try:
            ends.enter_context(file_lock(run_dir / "lock", f"the run in {run_dir}"))
        except LockedError:
            yield False
        else:
            yield True
