"""The description of a table of trained runs, and how its cells are filled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.again import COSTS, choose, compare, name_parts
from experiments.experiment import DATA_FOLDER, Experiment, Flags, data_folder
from experiments.options import run_options
from experiments.store import Store
from experiments.tables import page
from experiments.tables.cells import Cell, Metric, data_set
from experiments.tables.claims import Claim
from flax_linattn.bench import provenance
from flax_linattn.bench.report import source_line

QUICK = {"features": 8, "hidden_features": 8, "num_heads": 2, "num_layers": 1, "epochs": 1}
"""A model that trains in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Experiment):
    """A table of trained runs; a size changes some of their options.

    Attributes:
        title: the heading of the documentation under which it stands.
        task: what the runs are trained for.
        cells: all cells; asked with the folder of real data, or None where there is none.
        metrics: the numbers shown.
        claims: of the paper.
        baseline: the one that findings compare with.
        baselines_row: the row whose baselines all rows have, where they are of one data set;
            default each row's own.
        data: where the data are from.
        departures: what differs from the paper.
        not_run: what was left out, and why.
        quick: options of a run of a few seconds.
    """

    title: str
    task: str
    cells: Callable[[Path | None], Sequence[Cell]]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    data: str
    departures: str
    not_run: str
    quick: Mapping[str, Any]
    baseline: str
    baselines_row: str = ""
    needs_data: bool = True

    def data_set(self, row: str) -> str:
        """The data set of a row."""
        return data_set(self.baselines_row or row)

    def options(self, scale: str) -> Mapping[str, Any]:
        """What a scale changes of the runs' options; "quick" makes tiny models of the first one."""
        if scale == "quick":
            return {**next(iter(self.sizes.values())), **self.quick}
        return self.sizes[scale]

    def store(self, scale: str, output: Path | None = None) -> Store:
        """The store of the runs at a scale."""
        return Store(self.stored(scale, output), self.task, self.options(scale))

    def command(self, scale: str, seeds: int = 3) -> str:
        """The command that trains the runs of the table."""
        return self.base_command(scale) + (f" --seeds {seeds}" if scale != "quick" else "")

    def base_command(self, scale: str) -> str:
        """The command without options that select runs."""
        if scale == "quick":
            return f"python -m {self.module} --quick"
        return super().command(scale)

    def run_command(self, scale: str, cell: Cell, seed: int) -> str:
        """The command that trains one run after the runs of smaller seeds."""
        chosen = f"--rows '{cell.row}' --columns '{cell.column}'"
        return f"{self.command(scale, seed + 1)} {chosen}"

    def flags(self) -> Flags:
        """Which runs to train, and where."""
        quick = "tiny models, one epoch, one seed"
        return {
            "--seeds": {"type": int, "default": 3},
            "--rows": {"default": "", "help": "name of a row, or text that rows contain"},
            "--columns": {"default": "", "help": "name of a column, or text that columns contain"},
            "--runs": {"type": Path, "default": Path("runs"), "help": "folder of run folders"},
            "--quick": {"dest": "scale", "action": "store_const", "const": "quick", "help": quick},
        }

    def collect(
        self,
        scale: str,
        output: Path,
        *,
        seeds: int = 3,
        runs: Path = Path("runs"),
        rows: str = "",
        columns: str = "",
    ) -> None:
        """Trains the runs that are missing.

        Raises:
            ValueError: no cell of these rows and columns can be run.
        """
        cells = self.runnable(rows, columns)
        store = self.store(scale, output)
        for seed in range(1 if scale == "quick" else seeds):
            for cell in cells:
                config = cell.config.replace(seed=seed, **self.options(scale))
                command = self.run_command(scale, cell, seed)
                store.train(cell.row, cell.column, config, runs / store.path.stem, command)

    def again(self, scale: str, output: Path, row: str) -> str:
        """Trains a stored run again, and returns both as a table."""
        store = self.store(scale, output)
        runs = store.runs
        run = runs[choose([", ".join(name_parts(one)) for one in runs], row)]
        cells = self.runnable(run["row"], run["column"])
        cell = next(c for c in cells if (c.row, c.column) == (run["row"], run["column"]))
        config = cell.config.replace(seed=run["seed"], **self.options(scale))
        made = f"commit {run['made']['commit']}"
        if not store.holds({**{k: run[k] for k in ("row", "column", "seed")},
                            "options": run_options(config)}):  # fmt: skip
            made += ", with other options than today's"
        parts = ("report", "failure", *COSTS)
        both = [{k: one[k] for k in parts if k in one} for one in (run, store.repeat(config))]
        now = source_line(provenance(self.command(scale)))
        return f"Stored by {made}\n\nAgain by {now}\n\n{compare(*both)}"

    def runnable(self, rows: str = "", columns: str = "") -> list[Cell]:
        """The cells whose data are available.

        Args:
            rows: only the row of this name, or rows that contain this text.
            columns: only the column of this name, or columns that contain this text.

        Raises:
            ValueError: there are none.
        """
        every = self.cells(data_folder())
        row_names, column_names = {cell.row for cell in every}, {cell.column for cell in every}
        cells = [
            cell
            for cell in every
            if cell.config is not None
            and (cell.row == rows if rows in row_names else rows in cell.row)
            and (cell.column == columns if columns in column_names else columns in cell.column)
        ]
        if not cells:
            raise ValueError(
                f"no row with {rows!r} and column with {columns!r} can be run: set "
                f"{DATA_FOLDER} to the folder of real data, or choose others with --rows and "
                "--columns."
            )
        return cells

    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure of what is stored; returns the page."""
        return page.render(self, scale, self.store(scale, output))
