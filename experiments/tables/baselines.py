"""Baselines of the tables, as stored by ``experiments.baselines``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.intervals import FEWEST, Interval, by_cluster, interval, spread, text
from experiments.rules import source
from experiments.store import Row, Store
from experiments.tables.cells import Metric, Rows, data_set, list_columns, values
from flax_linattn.bench.report import markdown

RESULTS = Path(__file__).parents[1] / "baselines.json"
CLASSIFICATION = "classification"
"""The table of all data sets: what they have to beat does not depend on a table's protocol."""

Numbers = Mapping[str, Sequence[float]]
"""By the baseline's name; several where it is random."""
Report = dict[str, float]
"""Numbers by the names of a trained run's."""


class Losses(NamedTuple):
    """How a model compares with a baseline.

    Attributes:
        lost: rows in which the model's mean is the worse one.
        rows: number of rows that have both.
        percent: mean difference in percent of the baseline's, a data set a number.
        over: its interval over data sets; None for too few of them.
    """

    lost: int
    rows: int
    percent: float
    over: Interval | None

    def cells(self) -> list[str]:
        """The two cells of a table."""
        by = f"{self.percent:+.1f}" if self.over is None else text(self.over, 1)
        return [f"{self.lost} of {self.rows}", by]


def stored_rows(stored: Path = RESULTS) -> list[Row]:
    """All stored results of ``python -m experiments.baselines``."""
    rows: list[Row] = json.loads(stored.read_text())["rows"] if stored.is_file() else []
    return rows


def reports(table: str, row: str, stored: Path = RESULTS) -> dict[str, dict[int, Report]]:
    """The stored results of a row of a table, by column and seed.

    Args:
        table: the name of its module, such as "forecasting.aaren".
        row: its name; of classification tables "DATA SET, PROTOCOL".
        stored: the file.
    """
    if table.startswith(CLASSIFICATION):
        table, row = CLASSIFICATION, row.split(", ")[0]
    by_column: dict[str, dict[int, Report]] = {}
    for one in stored_rows(stored):
        if (one["table"], one["row"]) == (table, row):
            by_column.setdefault(one["column"], {})[one["seed"]] = one["report"]
    return by_column


def row_baselines(name: str, row: str, metric: Metric) -> Numbers:
    """The stored baselines that belong to a row.

    Args:
        name: of the table.
        row: its name there.
        metric: which of their numbers.
    """
    key = f"test_{metric.key}"
    by_column = {
        column: [metric.scale * report[key] for report in by_seed.values() if key in report]
        for column, by_seed in reports(name, row).items()
    }
    return {column: numbers for column, numbers in by_column.items() if numbers}


def shared_baselines(
    numbers_by_row: Mapping[str, Numbers], cluster: Callable[[str], str] = data_set
) -> Mapping[str, Numbers]:
    """The baselines by data set, where its rows share them; none where rows have their own.

    Args:
        numbers_by_row: the baselines by row.
        cluster: the data set of a row.
    """
    by_set: dict[str, Numbers] = {}
    for row, numbers in numbers_by_row.items():
        if by_set.setdefault(cluster(row), numbers) != numbers:
            return {}
    return by_set if len(by_set) < len(numbers_by_row) else {}


def comparison(
    rows: Rows,
    metric: Metric,
    store: Store,
    numbers_by_row: Mapping[str, Numbers],
    cluster: Callable[[str], str] = data_set,
) -> list[str]:
    """How often the mean of a column is worse than a baseline, and by how much.

    The numbers that rows share stand above.

    Args:
        rows: the rows that were run.
        metric: to compare by.
        store: of the runs.
        numbers_by_row: the baselines by row.
        cluster: the data set of a row.
    """
    names = list(dict.fromkeys(name for numbers in numbers_by_row.values() for name in numbers))
    if not names:
        return []

    def cell(column: str, name: str) -> str:
        loss = losses(column, name, rows, metric, store, numbers_by_row, cluster)
        return "-" if loss is None else "; ".join(["loses " + loss.cells()[0], loss.cells()[1]])

    own = [
        [f"*{name}*", *(baseline_cell(numbers.get(column), metric) for column in names)]
        for name, numbers in shared_baselines(numbers_by_row, cluster).items()
    ]
    lines = [[column, *(cell(column, name) for name in names)] for column in list_columns(rows)]
    return [
        f"Compared with baselines by {metric.name}: "
        f"{'their numbers by data set, then ' if own else ''}the number of rows in which the "
        "model's mean is worse, and its mean difference in % of the baseline, with a 95 % "
        f"interval for {FEWEST} data sets or more:",
        markdown(["", *names], own + lines),
    ]


def baseline_cell(numbers: Sequence[float] | None, metric: Metric) -> str:
    """A cell of a table."""
    return "-" if not numbers else metric.text(*spread(numbers))


def losses(
    column: str,
    name: str,
    rows: Rows,
    metric: Metric,
    store: Store,
    numbers_by_row: Mapping[str, Numbers],
    cluster: Callable[[str], str] = data_set,
) -> Losses | None:
    """A column compared with a baseline; None where no row has both."""
    lost, differences = 0, dict[str, float]()
    for row, cells in rows.items():
        baseline = numbers_by_row[row].get(name)
        ours = list(values(store, cells[column], metric).values()) if column in cells else []
        if not ours or not baseline:
            continue
        theirs = statistics.mean(baseline)
        difference = statistics.mean(ours) - theirs
        lost += (difference < 0) == metric.larger_is_better and difference != 0
        differences[row] = 100 * difference / abs(theirs)
    if not differences:
        return None
    means = list(by_cluster(differences, lambda row: source(cluster(row))).values())
    return Losses(lost, len(differences), statistics.mean(means), interval(means))
