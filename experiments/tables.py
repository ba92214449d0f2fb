"""Tables of trained runs: what all experiments on accuracy and error share.

A table has a row a data set or problem, a column a mechanism, and a run for each cell and seed.
Runs go on where they stopped; what is done is kept with the commit that made it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import figures
from experiments.intervals import COMPARABLE, VERDICTS, interval, judge, shown, spread
from experiments.store import Store
from flax_linattn import training
from flax_linattn.bench.report import markdown

QUICK = {"features": 8, "hidden_features": 8, "num_heads": 2, "num_layers": 1, "epochs": 1}
"""A model that trains in seconds."""

DATA_FOLDER = "FLAX_LINATTN_DATA"
"""The environment variable that names the folder of real data."""

Published = Mapping[str, tuple[float, float | None]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of test.json.

    Attributes:
        key: its name there.
        name: its name in the table.
        scale: to multiply it by.
        digits: decimals to show.
        paper_digits: decimals of the published numbers.
        larger_is_better: as accuracies are.
        margin: the share of the other's mean within which two columns are comparable.
    """

    key: str
    name: str
    scale: float = 1.0
    digits: int = 3
    paper_digits: int = 2
    larger_is_better: bool = False
    margin: float = 0.05

    def shown(self, mean: float, deviation: float | None, digits: int | None = None) -> str:
        """Mean and deviation as text."""
        digits = self.digits if digits is None else digits
        spread = "" if deviation is None else f" ± {deviation:.{digits}f}"
        return f"{mean:.{digits}f}{spread}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        row: of the table.
        column: of the table.
        config: the run's options but for the seed; None if it is not run here.
        paper: the published numbers, (mean, deviation or None) by the metric's name.
    """

    row: str
    column: str
    config: Any
    paper: Published = dataclasses.field(default_factory=dict)


Rows = Mapping[str, Mapping[str, Cell]]
"""Cells by row and column."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper that compares two columns.

    Attributes:
        text: what it says.
        column: the one that it is about.
        other: the one that it is compared with.
        metric: by which.
        rows: text of the rows that it is judged by; default all.
    """

    text: str
    column: str
    other: str
    metric: str
    rows: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """An experiment.

    Attributes:
        module: whose command it is.
        about: the published table.
        cells: all cells; asked with the folder of real data, or None where there is none.
        metrics: the numbers shown.
        claims: of the paper.
        baselines: columns whose numbers stand in the run of another one: the metric's key by the
            column's name, such as a naive forecast.
        data: where the data are from.
        departures: what differs from the paper.
        not_run: what was left out, and why.
        sizes: options by the name of a size: "cpu", and "paper", its own.
        quick: options of a run of a few seconds.
    """

    module: str
    about: str
    cells: Callable[[Path | None], Sequence[Cell]]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    data: str
    departures: str
    not_run: str
    sizes: Mapping[str, Mapping[str, Any]]
    quick: Mapping[str, Any]
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Of its files, without suffix."""
        return Path(__file__).parents[1].joinpath(*self.module.split("."))

    def run(
        self,
        size: str,
        seeds: int,
        runs: Path,
        output: Path,
        *,
        rows: str = "",
        columns: str = "",
    ) -> str:
        """Runs what is missing and writes results and page; returns the page.

        Raises:
            ValueError: no cell of these rows and columns can be run.
        """
        name = f"{self.path.name}-{size}"
        options = self.options(size)
        store = Store(output / f"{name}.json", options)
        cells = self.runnable(rows, columns)
        for seed in range(seeds):
            for cell in cells:
                config = dataclasses.replace(cell.config, seed=seed, **options)
                store.run(cell.row, cell.column, config, runs / name)
        return self.write(store, size, output / f"{name}.md")

    def runnable(self, rows: str = "", columns: str = "") -> list[Cell]:
        """The cells whose data are at hand.

        Args:
            rows: only rows that contain this text.
            columns: only columns that contain this text.

        Raises:
            ValueError: there are none.
        """
        found = [
            cell
            for cell in self.cells(data_folder())
            if rows in cell.row and columns in cell.column and cell.config is not None
        ]
        if not found:
            raise ValueError(
                f"no row with {rows!r} and column with {columns!r} can be run: set "
                f"{DATA_FOLDER} to the folder of real data, or choose others with --rows and "
                "--columns."
            )
        return found

    def options(self, size: str) -> Mapping[str, Any]:
        """What a size changes of the runs' options; "quick" makes tiny models of the first one."""
        if size == "quick":
            return {**next(iter(self.sizes.values())), **self.quick}
        return self.sizes[size]

    def write(self, store: Store, size: str, path: Path) -> str:
        """Writes the page of stored results."""
        facts = [
            ["paper", self.about],
            ["command", f"`{self._command(size, store)}`"],
            ["size", ", ".join(f"{k} {v}" for k, v in self.options(size).items()) or "the paper's"],
            ["code", f"commits {', '.join(store.commits) or '-'}"],
            ["data", self.data],
            ["departures", self.departures],
            ["not run", self.not_run],
        ]
        cells = self.cells(None)
        rows = by_row(
            cell
            for cell in cells
            if store.of(cell.row, cell.column) or store.num_failures(cell.row, cell.column)
        )
        if store.environments:
            facts.insert(4, ["environment", "; ".join(store.environments)])
        if store.num_stale:
            facts.append(["left out", f"{store.num_stale} stored runs of other options"])
        missing = [row for row in by_row(cells) if row not in rows]
        facts.append(["rows without a run", "; ".join(missing) or "none"])
        parts = [
            "Tiny models, one epoch: no results." if size == "quick" else "",
            self._table(rows, store),
            *self._verdicts(rows, store),
            *self._seconds(rows, store),
            markdown(["", ""], facts),
        ]
        page = "\n\n".join(part for part in parts if part) + "\n"
        path.write_text(page)
        self._draw(rows, store, path.with_suffix(".png"))
        return page

    def _command(self, size: str, store: Store) -> str:
        if size == "quick":
            return f"python -m {self.module} --quick"
        return (
            f"{DATA_FOLDER}=FOLDER python -m {self.module} --size {size} --seeds {store.num_seeds}"
        )

    def _table(self, rows: Rows, store: Store) -> str:
        columns = columns_of(rows)
        heads = ["", *columns, *self.baselines, "seeds"]
        return markdown(
            heads,
            [
                self._line(row, metric, columns, cells, store)
                for row, cells in rows.items()
                for metric in self.metrics
            ],
        )

    def _seconds(self, rows: Rows, store: Store) -> list[str]:
        columns = columns_of(rows)

        def of(cell: Cell | None) -> str:
            if cell is None:
                return "-"
            runs = store.of(cell.row, cell.column).values()
            seconds = [run["core_seconds"] for run in runs if "core_seconds" in run]
            return f"{statistics.median(seconds):.0f}" if seconds else "-"

        lines = [[row, *(of(cells.get(c)) for c in columns)] for row, cells in rows.items()]
        if all(set(line[1:]) == {"-"} for line in lines):
            return []
        return ["Seconds of one core a run, median over seeds:", markdown(["", *columns], lines)]

    def _draw(self, rows: Rows, store: Store, path: Path) -> None:
        metric = self.metrics[0]
        found = by_row(
            cell
            for cells in rows.values()
            for cell in cells.values()
            if values(store, cell, metric)
        )
        if found:
            figures.draw(
                {
                    row: {
                        column: figures.Series(
                            list(values(store, cell, metric).values()), cell.paper.get(metric.name)
                        )
                        for column, cell in cells.items()
                    }
                    for row, cells in found.items()
                },
                metric.name,
                path,
                {row: self._baselines(cells, metric, store) for row, cells in found.items()},
            )

    def _baselines(
        self, cells: Mapping[str, Cell], metric: Metric, store: Store
    ) -> dict[str, float]:
        """The numbers of the baselines, which every run of the row has; none without a run."""
        runs = (run for cell in cells.values() for run in store.of(cell.row, cell.column).values())
        run = next(runs, None)
        if run is None:
            return {}
        return {
            name: metric.scale * run["report"][f"{key}_{metric.key}"]
            for name, key in self.baselines.items()
        }

    def _line(
        self,
        row: str,
        metric: Metric,
        columns: Sequence[str],
        cells: Mapping[str, Cell],
        store: Store,
    ) -> list[str]:
        def of(column: str) -> str:
            cell = cells.get(column)
            if cell is None:
                return "-"
            found = list(values(store, cell, metric).values())
            parts = [metric.shown(*spread(found))] if found else []
            if failures := store.num_failures(cell.row, cell.column):
                parts.append(f"{failures} diverged")
            ours = ", ".join(parts)
            published = cell.paper.get(metric.name)
            if published is None:
                return ours
            return f"{ours} (paper {metric.shown(*published, metric.paper_digits)})"

        naive = self._baselines(cells, metric, store)
        counts = sorted({len(store.of(cell.row, cell.column)) for cell in cells.values()})
        return [
            f"{row}: {metric.name}",
            *(of(column) for column in columns),
            *(metric.shown(naive[name], None) if name in naive else "-" for name in self.baselines),
            " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
        ]

    def _verdicts(self, rows: Rows, store: Store) -> list[str]:
        """What our runs say of each claim: a paired difference with a 95 % interval a row."""
        found = [part for claim in self.claims for part in self._verdict(claim, rows, store)]
        if not found:
            return []
        margins = {f"{100 * self._metric(claim).margin:g} %" for claim in self.claims}
        return [
            *found,
            "Intervals are of differences seed by seed; one over rows takes them as if they were "
            "independent. Where one holds 0, or has no width, two are not told apart, which proves "
            "no equality; they are comparable where it lies within our margin, "
            f"{' or '.join(sorted(margins))} of the other's mean.",
        ]

    def _verdict(self, claim: Claim, rows: Rows, store: Store) -> list[str]:
        """A claim's line and table; nothing if no row has two seeds of both columns."""
        metric = self._metric(claim)
        lines, shares = [], []
        counts = dict.fromkeys((*VERDICTS, COMPARABLE), 0)
        for row, cells in rows.items():
            if claim.rows not in row or not {claim.column, claim.other} <= set(cells):
                continue
            cell, other = cells[claim.column], cells[claim.other]
            both = pairs(store, cell, other, metric)
            found = interval([ours - theirs for ours, theirs in both])
            if found is None:
                continue
            mean = abs(statistics.mean(theirs for _, theirs in both))
            verdicts = self._judged(metric, found, metric.margin * mean)
            for verdict in verdicts:
                counts[verdict] += 1
            if diverged := sum(store.num_failures(c.row, c.column) for c in (cell, other)):
                verdicts.append(f"{diverged} that diverged left out")
            shares.append(100 * found[0] / mean)
            lines.append([row, shown(*found, metric.digits), ", ".join(verdicts)])
        if not lines:
            return []
        if over_rows := interval(shares):
            verdicts = self._judged(metric, over_rows, 100 * metric.margin)
            share = f"{shown(*over_rows, 1)} %"
            lines.append([f"mean of rows, % of {claim.other}", share, ", ".join(verdicts)])
        told = ", ".join(f"{verdict} in {n}" for verdict, n in counts.items())
        heads = ["", f"{claim.metric}: {claim.column} - {claim.other}, 95 %", claim.column]
        total = sum(counts[verdict] for verdict in VERDICTS)
        return [f"*{claim.text}*: {claim.column} {told} of {total}.", markdown(heads, lines)]

    def _metric(self, claim: Claim) -> Metric:
        return next(metric for metric in self.metrics if metric.name == claim.metric)

    @staticmethod
    def _judged(metric: Metric, found: tuple[float, float], margin: float) -> list[str]:
        return judge(*found, margin, larger_is_better=metric.larger_is_better)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command line."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.about)
        parser.add_argument("--size", choices=list(self.sizes), default=next(iter(self.sizes)))
        parser.add_argument("--seeds", type=int, default=3)
        parser.add_argument("--rows", default="", help="only rows that contain this text")
        parser.add_argument("--columns", default="", help="only columns that contain this text")
        parser.add_argument("--runs", type=Path, default=Path("runs"))
        parser.add_argument("--output", type=Path, default=self.path.parent)
        parser.add_argument("--quick", action="store_true", help="tiny models, one epoch")
        options = parser.parse_args(arguments)
        try:
            self.runnable(options.rows, options.columns)
        except ValueError as error:
            parser.error(str(error))
        try:
            page = self.run(
                "quick" if options.quick else options.size,
                1 if options.quick else options.seeds,
                options.runs,
                options.output,
                rows=options.rows,
                columns=options.columns,
            )
        except (KeyboardInterrupt, training.Interrupted):
            print("interrupted: the same command goes on from here.", file=sys.stderr)
            raise SystemExit(130) from None
        print(page, end="")


def by_row(cells: Iterable[Cell]) -> Rows:
    """Cells by row and column, in their order."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault(cell.row, {})[cell.column] = cell
    return found


def columns_of(rows: Rows) -> list[str]:
    """The columns that any row has."""
    return list(dict.fromkeys(column for cells in rows.values() for column in cells))


def values(store: Store, cell: Cell, metric: Metric) -> dict[int, float]:
    """A metric of the runs of a cell, by seed."""
    runs = store.of(cell.row, cell.column).items()
    return {seed: metric.scale * run["report"][f"test_{metric.key}"] for seed, run in runs}


def pairs(store: Store, cell: Cell, other: Cell, metric: Metric) -> list[tuple[float, float]]:
    """A metric of two cells, of each seed that both have."""
    ours, others = values(store, cell, metric), values(store, other, metric)
    return [(ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())]


def data_folder() -> Path | None:
    """The folder of real data sets, as the environment names it."""
    name = os.environ.get(DATA_FOLDER)
    return Path(name) if name else None
