"""What every efficiency experiment shares: sizes, files, provenance and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from flax_linattn.bench import Journal, provenance
from flax_linattn.bench.plots import import_figure, save
from flax_linattn.bench.report import markdown, source_line

HERE = Path(__file__).parent
FIGURES = Path(__file__).parents[2] / "docs" / "figures"
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper.

    Attributes:
        name: of its module and files.
        paper: the figure or table, and what the paper says of it.
        sizes: the sizes by the name of their scale: "paper", for an accelerator, and "cpu".
        measure: asks the journal for every row, at a size.
        table: rows and their size as Markdown.
        draw: rows as a matplotlib figure, if there is one.
        left_out: what a scale leaves out of the paper's, and why.
    """

    name: str
    paper: str
    sizes: Mapping[str, Any]
    measure: Callable[[Any, Journal], None]
    table: Callable[[Rows, Any], str]
    draw: Callable[[Rows], Any] | None
    left_out: Mapping[str, str]

    def run(self, scale: str, output: Path, figures: Path, *, progress: bool = True) -> str:
        """Measures what is missing, and writes the JSON file, the page and the figure."""
        size = self.sizes[scale]
        command = f"python -m experiments.efficiency.{self.name} --scale {scale}"
        head = provenance(command) | {"scale": scale, "size": dataclasses.asdict(size)}
        journal = Journal(output / f"{self.name}-{scale}.json", head, progress=progress)
        self.measure(size, journal)
        return self.write(journal.finish(), scale, output, figures)

    def write(self, results: dict[str, Any], scale: str, output: Path, figures: Path) -> str:
        """Writes the page and the figure of stored results; returns the page."""
        facts = [
            ["measured", source_line(results)],
            ["paper", self.paper],
            ["sizes", ", ".join(f"{k} {_shown(v)}" for k, v in results["size"].items())],
            ["left out", self.left_out[scale]],
        ]
        table = self.table(results["rows"], self.sizes[scale])
        page = f"{table}\n\n{markdown(['', ''], facts)}\n"
        (output / f"{self.name}-{scale}.md").write_text(page)
        if self.draw is not None:
            try:
                import_figure()
            except ValueError:
                print("no figure: it needs matplotlib (the extra 'plots').", file=sys.stderr)
            else:
                figure = f"efficiency-{self.name.replace('_', '-')}-{scale}.png"
                save(self.draw(results["rows"]), figures / figure)
        return page

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command line."""
        usual = "cpu" if jax.default_backend() == "cpu" else "paper"
        parser = argparse.ArgumentParser(
            prog=f"python -m experiments.efficiency.{self.name}", description=self.paper
        )
        usual = usual if usual in self.sizes else next(iter(self.sizes))
        parser.add_argument("--scale", choices=list(self.sizes), default=usual)
        parser.add_argument("--output", type=Path, default=HERE)
        parser.add_argument("--figures", type=Path, default=FIGURES)
        parser.add_argument("--render", action="store_true", help="measure nothing, draw anew")
        options = parser.parse_args(arguments)
        if options.render:
            stored = options.output / f"{self.name}-{options.scale}.json"
            results = json.loads(stored.read_text())
            page = self.write(results, options.scale, options.output, options.figures)
        else:
            try:
                page = self.run(options.scale, options.output, options.figures)
            except KeyboardInterrupt:
                print("interrupted: the same command goes on from here.", file=sys.stderr)
                raise SystemExit(130) from None
        print(page, end="")


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
