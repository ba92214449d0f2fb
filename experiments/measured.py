"""Experiments whose rows are measured one at a time."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from experiments import stale
from experiments.again import Repeated, RepeatJournal, choose, compare, name_parts, usage
from experiments.experiment import DATA_FOLDER, Experiment, data_folder
from experiments.margins import first_measured
from experiments.pages import write_page
from experiments.statements import Rows, Statement, statements_table
from flax_linattn.bench import Journal, provenance
from flax_linattn.bench.plots import import_figure, save
from flax_linattn.bench.report import source_line

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured(Experiment):
    """A figure or table of measurements.

    Attributes:
        measure: asks the journal for every row, at a size.
        table: rows and their size as Markdown.
        plot: rows as a matplotlib figure, if there is one.
        statements: of the paper, each with its verdict by the rows.
        left_out: what a scale leaves out of the paper's, and why.
        is_deterministic: whether a repeat differs by rounding or the compiler only. It then keeps
            the date of the first measurement, because it cannot test a rule stated in between.
    """

    measure: Callable[[Any, Journal], None]
    table: Callable[[Rows, Any], str]
    plot: Callable[[Rows], Any] | None = None
    statements: tuple[Statement, ...] = ()
    left_out: Mapping[str, str]
    is_deterministic: bool = False

    @property
    def usual_scale(self) -> str:
        """The paper's sizes are for accelerators."""
        usual = "cpu" if jax.default_backend() == "cpu" else "paper"
        return usual if usual in self.sizes else super().usual_scale

    def collect(self, scale: str, output: Path, *, progress: bool = True) -> None:
        """Measures the rows that are missing."""
        head = self.head(scale, self.command(scale))
        self.fill(scale, Journal(self.stored(scale, output), head, progress=progress))

    def head(self, scale: str, command: str) -> dict[str, Any]:
        """Of results that this command measures."""
        size = dataclasses.asdict(self.sizes[scale])
        head = provenance(command) | {"scale": scale, "size": size, "commit_date": commit_date()}
        if self.is_deterministic:
            stored = self.stored(scale)
            known = json.loads(stored.read_text()) if stored.is_file() else head
            head["first_measured"] = first_measured(known)
        return head

    def fill(self, scale: str, journal: Journal) -> None:
        """Measures what a journal lacks, and finishes it."""
        self.measure(self.sizes[scale], journal)
        journal.finish()

    def again(self, scale: str, output: Path, row: str) -> str:
        """Computes a stored row next to what is stored of it."""
        stored = self.stored(scale, output)
        if not stored.is_file():
            raise ValueError(f"nothing is stored in {stored}; run `{self.command(scale)}` first.")
        results = json.loads(stored.read_text())
        rows = results["rows"]
        place = choose([", ".join(name_parts(one)) for one in rows], row)
        try:
            self.measure(self.sizes[scale], RepeatJournal(stored, rows, rows[place]))
        except Repeated as repeated:
            now = source_line(provenance(self.command(scale)))
            both = compare(rows[place], repeated.row)
            return f"Stored by {source_line(results)}\n\nAgain by {now}\n\n{both}"
        folder, files = data_folder(), self.folder / "data_sets.py"
        raise ValueError(
            f"{self.module} does not compute this row here: "
            + (f"its files are not in {folder}" if folder else f"set {DATA_FOLDER} to a folder")
            + (f"; experiments/{self.folder.name}/{files.name} names them." * files.is_file())
        )

    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure of what is stored; returns the page."""
        stored = self.stored(scale, output)
        results = json.loads(stored.read_text())
        rows = results["rows"]
        self._plot(rows, stored)
        first = results.get("first_measured")
        changed = stale.what_changed(f"{self.folder.name}/{stored.stem}")
        facts = [
            ["measured", source_line(results)],
            *([["first measured", first[:10]]] if first else []),
            *([["stale", f"the code of {changed} has changed since"]] if changed else []),
            ["paper", self.about],
            ["sizes", ", ".join(f"{k} {_text(v)}" for k, v in results["size"].items())],
            ["left out", self.left_out[scale]],
            *([["again", usage(self.command(scale), rows, self.extras)]] if rows else []),
        ]
        verdicts = statements_table(self.statements, rows, results)
        parts = [*verdicts, self.table(rows, self.sizes[scale])]
        return write_page(stored.with_suffix(".md"), parts, facts)

    def rows(self, scale: str) -> Rows:
        """The stored rows at a scale; none if there are none."""
        stored = self.stored(scale)
        return json.loads(stored.read_text())["rows"] if stored.is_file() else ()

    def _plot(self, rows: Rows, stored: Path) -> None:
        """Writes the figure; published results go to the documentation's figures."""
        if self.plot is None:
            return
        try:
            import_figure()
        except ValueError:
            print("no figure: it needs matplotlib (the extra 'plots').", file=sys.stderr)
            return
        folder = FIGURES if stored.parent == self.folder else stored.parent
        name = f"{self.folder.name}-{stored.stem}".replace("_", "-")
        save(self.plot(rows), folder / f"{name}.png")


def commit_date() -> str | None:
    """The time of the commit that is checked out, which decides what rules it knew.

    None if there is no repository.
    """
    command = ("git", "show", "--no-patch", "--format=%cI", "HEAD")
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
    except OSError:  # no git here
        return None
    return made.stdout.strip() or None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return " ".join(f"({_text(v)})" if isinstance(v, (dict, list)) else str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
