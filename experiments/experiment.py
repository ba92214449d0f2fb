"""The base of every experiment: sizes, stored results, a page and a command."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import command

DATA_FOLDER = "FLAX_LINATTN_DATA"
"""Name of the environment variable that names the folder of real data."""

Flags = Mapping[str, Mapping[str, Any]]
"""Of the command line: what argparse is to know of each, by its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(abc.ABC):
    """A figure or table of a paper, or one of ours.

    Attributes:
        module: the module of its command; results are in the same folder.
        about: the figure or table of a paper, and what the paper says of it.
        extras: the extras of the package that it needs, separated by commas.
        needs_data: whether it reads real data outside the repository.
        sizes: how much is computed, by the name of the scale: "paper", "cpu", ...; one without a
            name where there is only one.
        smaller_scales: names of the scales whose models, or their training, are smaller than the
            paper's.
    """

    module: str
    about: str = "not measured in any of the papers"
    extras: str = "plots"
    needs_data: bool = False
    sizes: Mapping[str, Any]
    smaller_scales: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stem of its files."""
        return self.module.rpartition(".")[2]

    @property
    def short_name(self) -> str:
        """The short name, such as "forecasting.aaren"."""
        return self.module.partition(".")[2]

    @property
    def folder(self) -> Path:
        """Where the module and its results lie."""
        return Path(__file__).parents[1].joinpath(*self.module.split(".")[:-1])

    def stored(self, scale: str, output: Path | None = None) -> Path:
        """The JSON file of its results; page and figure have the same name."""
        stem = f"{self.name}-{scale}" if scale else self.name
        return (self.folder if output is None else output) / f"{stem}.json"

    def command(self, scale: str) -> str:
        """The command that computes its results."""
        folder = f"{DATA_FOLDER}=FOLDER " if self.needs_data else ""
        return f"{folder}python -m {self.module}" + (f" --scale {scale}" if scale else "")

    @property
    def usual_scale(self) -> str:
        """The scale unless another one is asked for."""
        return next(iter(self.sizes))

    def flags(self) -> Flags:
        """Flags of the command that ``collect`` takes, besides scale and output."""
        return {}

    @abc.abstractmethod
    def collect(self, scale: str, output: Path, **options: Any) -> None:
        """Computes what is missing and stores it.

        Raises:
            ValueError: it cannot be computed here.
        """

    @abc.abstractmethod
    def again(self, scale: str, output: Path, row: str) -> str:
        """Recomputes a stored row and returns both as a table; stores nothing.

        Args:
            scale: Scale of the stored results.
            output: Their folder.
            row: Part of the line that names the row, from comma to comma.

        Raises:
            ValueError: No row matches, or several do, or it cannot be computed here.
        """

    @abc.abstractmethod
    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure of what is stored; returns the page."""

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Runs the command of the experiment."""
        scales = list(self.sizes)
        parser = command.parser(self.module, self.about, self.folder, scales, self.usual_scale)
        parser.add_argument("--render", action="store_true", help="only write the page again")
        again_help = "recompute one stored row and print both; stores nothing"
        parser.add_argument("--again", metavar="ROW", help=again_help)
        for flag, settings in self.flags().items():
            parser.add_argument(flag, **settings)
        options = vars(parser.parse_args(arguments))
        scale = options.pop("scale", self.usual_scale)
        output, render = options.pop("output"), options.pop("render")
        again = options.pop("again")
        if not render:
            try:
                if again is not None:
                    print(self.again(scale, output, again), end="")
                    return
                with command.resumable():
                    self.collect(scale, output, **options)
            except ValueError as error:
                parser.error(str(error))
        print(self.render(scale, output), end="")


def data_folder() -> Path | None:
    """The folder of real data sets, as the environment names it.

    Raises:
        ValueError: there is no such folder.
    """
    name = os.environ.get(DATA_FOLDER)
    if name and not Path(name).is_dir():
        raise ValueError(f"expected a folder of real data in {DATA_FOLDER}, got {name!r}.")
    return Path(name) if name else None
