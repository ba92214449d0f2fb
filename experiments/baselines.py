"""Baselines of the tables on the same data: simple methods and published classifiers.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.baselines

This command computes what is missing in baselines.json. Forecasting tables get the last value, the
last season and a ridge for each row. Classification tables get, for each data set, the most
frequent class, the nearest neighbor, a ridge, and, with the extras "plots" and "baselines",
MiniRocket and Hydra with three seeds.

A classifier is fitted on the whole official training file, prepared as for a run of seed 0: each
channel is standardized by the four fifths of the file on which such a run trains, and shorter
sequences are padded with zeros to the longest. Nothing is selected on test data.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import command
from experiments.classification.archive_sets import prepare
from experiments.classification.baseline_classifiers import CLASSIFIERS
from experiments.classification.data_sets import NAMES, file_options
from experiments.experiment import data_folder
from experiments.forecasting import aaren, elementwise
from experiments.options import run_without_model, task_config
from experiments.store import Row
from experiments.tables.baselines import CLASSIFICATION, RESULTS, Report, reports, stored_rows
from flax_linattn.bench.journal import write_json
from flax_linattn.bench.origin import provenance
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines

FORECASTING = (aaren.EXPERIMENT, elementwise.EXPERIMENT)
SIMPLE = {
    "most frequent class": "constant",
    "nearest neighbor": "nearest_neighbor",
    "ridge": "ridge",
}
NAIVE = {"naive": "naive", "seasonal naive": "seasonal_naive", "ridge": "ridge"}
PUBLISHED = ("MiniRocket", "Hydra")
"""Of aeon (BSD-3), by their defaults."""
SEEDS = 3


class Job(NamedTuple):
    """What is computed at once.

    Attributes:
        table: the name of its module, or that of all classification tables.
        row: its name there.
        columns: columns that it fills.
        seed: what is random follows it.
        compute: gives the report of each column.
    """

    table: str
    row: str
    columns: tuple[str, ...]
    seed: int
    compute: Callable[[], dict[str, Report]]


def forecasts(config: Any) -> dict[str, Report]:
    """The baselines of a forecasting run, on all its test windows."""
    run, windows = run_without_model("forecast", config)
    values = evaluate_baselines(run, windows)
    return _by_column(values, NAIVE)


def simple_classes(config: Any) -> dict[str, Report]:
    """The simple baselines of a classification run."""
    run, batches = run_without_model("classify", config)
    return _by_column(run.task.test_baselines(run, batches), SIMPLE)


def published_classes(files: Mapping[str, Any], column: str, seed: int) -> dict[str, Report]:
    """A published classifier, on the sequences as a run prepares them."""
    return {column: CLASSIFIERS[column](prepare(files), seed)}


def _by_column(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Report]:
    """Renames ``<name>_<metric>`` to ``test_<metric>``, without validation metrics."""
    left_out = ("learned_from", "validation_mse", "validation_mae")
    return {
        column: {
            f"test_{key.removeprefix(f'{name}_')}": value
            for key, value in values.items()
            if key.startswith(f"{name}_") and not key.endswith(left_out)
        }
        for column, name in names.items()
    }


def jobs() -> Iterator[Job]:
    """Baselines that can be computed from the available data."""
    folder = data_folder()
    for table in FORECASTING:
        rows = {cell.row: cell.config for cell in table.cells(folder) if cell.config}
        for row, config in rows.items():
            yield Job(table.short_name, row, tuple(NAIVE), 0, partial(forecasts, config))
    files = {name: options for name in NAMES if (options := file_options(name, folder)) is not None}
    for name, options in files.items():
        config = task_config("classify", **options)
        yield Job(CLASSIFICATION, name, tuple(SIMPLE), 0, partial(simple_classes, config))
    for name, options in files.items():
        for column, seed in itertools.product(PUBLISHED, range(SEEDS)):
            compute = partial(published_classes, options, column, seed)
            yield Job(CLASSIFICATION, name, (column,), seed, compute)


def main(arguments: Sequence[str] | None = None) -> None:
    """Computes what is missing, and prints all."""
    about = (__doc__ or "").splitlines()[0]
    parser = command.parser("experiments.baselines", about, RESULTS.parent)
    parser.add_argument("--rows", default="", help="only rows that contain this text")
    parser.add_argument("--columns", default="", help="only columns that contain this text")
    parser.add_argument("--again", action="store_true", help="also run what is stored")
    options = parser.parse_args(arguments)
    stored = options.output / RESULTS.name
    made = provenance("FLAX_LINATTN_DATA=FOLDER python -m experiments.baselines") | _versions()
    missing: dict[str, str] = {}
    for job in jobs():
        if options.rows not in job.row or not any(options.columns in c for c in job.columns):
            continue
        columns = {row["column"] for row in stored_rows(stored) if _belongs_to(row, job)}
        if (columns >= set(job.columns) and not options.again) or missing.keys() & job.columns:
            continue
        try:
            computed = job.compute()
        except ImportError as error:  # aeon, or the torch that Hydra takes
            missing |= dict.fromkeys(job.columns, f"{error}; pip install '.[plots,baselines]'")
            continue
        key = {"table": job.table, "row": job.row, "seed": job.seed}
        rows = [
            row
            for row in stored_rows(stored)
            if row["column"] not in computed or not _belongs_to(row, job)
        ]
        rows += [
            {**key, "column": column, "made": made, "report": report}
            for column, report in computed.items()
        ]
        write_json(stored, {"rows": rows})
        print(f"{job.table}: {job.row}, seed {job.seed}: {', '.join(computed)}", file=sys.stderr)
    for column, reason in missing.items():
        print(f"not computed: {column}: {reason}", file=sys.stderr)
    print(render(stored), end="")


def render(stored: Path = RESULTS) -> str:
    """A table of what is stored: means over seeds."""
    keys = dict.fromkeys((row["table"], row["row"]) for row in stored_rows(stored))
    lines = []
    for table, row in keys:
        names = ("accuracy",) if table == CLASSIFICATION else ("mse", "mae")
        for column, seeds in reports(table, row, stored).items():
            means = [
                np.mean([report[f"test_{name}"] for report in seeds.values()]) for name in names
            ]
            means_text = [f"{name} {mean:.4f}" for name, mean in zip(names, means, strict=True)]
            lines.append([table, row, column, ", ".join(means_text), str(len(seeds))])
    return markdown(["table", "row", "column", "mean", "seeds"], lines) + "\n"


def _belongs_to(row: Row, job: Job) -> bool:
    return (row["table"], row["row"], row["seed"]) == (job.table, job.row, job.seed)


def _versions() -> dict[str, str]:
    versions = {"numpy": np.__version__}
    for name in ("aeon", "sklearn", "torch"):
        try:
            versions[name] = importlib.import_module(name).__version__
        except ImportError:
            versions[name] = "none"
    return versions


if __name__ == "__main__":
    main()
