"""Experiments whose rows are measured one by one."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.claims import Claim, claims_table
from experiments.experiment import Experiment
from experiments.pages import write_page
from flax_linattn.bench import Journal, provenance
from flax_linattn.bench.plots import import_figure, save
from flax_linattn.bench.report import source_line

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured(Experiment):
    """A figure or table of measurements.

    Attributes:
        measure: asks the journal for every row, at a size.
        table: rows and their size as Markdown.
        draw: rows as a matplotlib figure, if there is one.
        claims: of the paper, each with its verdict by the rows.
        left_out: what a scale leaves out of the paper's, and why.
    """

    measure: Callable[[Any, Journal], None]
    table: Callable[[Rows, Any], str]
    draw: Callable[[Rows], Any] | None = None
    claims: tuple[Claim, ...] = ()
    left_out: Mapping[str, str]

    @property
    def usual_scale(self) -> str:
        """The paper's sizes are for accelerators."""
        usual = "cpu" if jax.default_backend() == "cpu" else "paper"
        return usual if usual in self.sizes else super().usual_scale

    def collect(self, scale: str, output: Path, *, progress: bool = True) -> None:
        """Measures what is missing."""
        size = self.sizes[scale]
        head = provenance(self.command(scale))
        head |= {"scale": scale, "size": dataclasses.asdict(size)}
        journal = Journal(self.stored(scale, output), head, progress=progress)
        self.measure(size, journal)
        journal.finish()

    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure of what is stored; returns the page."""
        stored = self.stored(scale, output)
        results = json.loads(stored.read_text())
        rows = results["rows"]
        self._draw(rows, stored)
        facts = [
            ["measured", source_line(results)],
            ["paper", self.about],
            ["sizes", ", ".join(f"{k} {_text(v)}" for k, v in results["size"].items())],
            ["left out", self.left_out[scale]],
        ]
        parts = [claims_table(self.claims, rows), self.table(rows, self.sizes[scale])]
        return write_page(stored.with_suffix(".md"), parts, facts)

    def _draw(self, rows: Rows, stored: Path) -> None:
        """Writes the figure: that of published results among those of the documentation."""
        if self.draw is None:
            return
        try:
            import_figure()
        except ValueError:
            print("no figure: it needs matplotlib (the extra 'plots').", file=sys.stderr)
            return
        folder = FIGURES if stored.parent == self.folder else stored.parent
        name = f"{self.folder.name}-{stored.stem}".replace("_", "-")
        save(self.draw(rows), folder / f"{name}.png")


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
