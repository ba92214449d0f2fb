"""What a user would pick instead of our models: simple forecasts, ridge, neighbours, MiniRocket.

Numbers of naive forecasts stand in the runs themselves; those of fitted yardsticks in
experiments/yardsticks.json, by table, and by row or data set.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.intervals import Interval, interval, spread, text
from experiments.store import Store
from experiments.tables.cells import Cell, Metric, Rows, columns_of, data_set, runs_of, values
from flax_linattn.bench.report import markdown

FILE = Path(__file__).parents[1] / "yardsticks.json"
Numbers = Mapping[str, Sequence[float]]
"""By the yardstick's name; several where it draws at random."""


class Losses(NamedTuple):
    """A model beside a yardstick.

    Attributes:
        lost: rows in which the model's mean is the worse one.
        rows: those that have both.
        share: mean difference in per cent of the yardstick's, a data set a number.
        over: its interval over data sets; None for a single one.
    """

    lost: int
    rows: int
    share: float
    over: Interval | None

    def cells(self) -> list[str]:
        """For a table."""
        by = f"{self.share:+.1f}" if self.over is None else text(self.over, 1)
        return [f"{self.lost} of {self.rows}", by]


def fitted(module: str, row: str, metric: Metric) -> Numbers:
    """Those of the file that belong to a row, or to its data set."""
    if not FILE.is_file():
        return {}
    stored = [of for of in json.loads(FILE.read_text())["rows"] if of["table"] == module]
    found: dict[str, list[float]] = {}
    for name in (row, data_set(row)):
        of_name = [of for of in stored if of["row"] == name]
        for of in of_name:
            value = of["report"].get(f"test_{metric.key}")
            if value is not None:
                found.setdefault(of["column"], []).append(metric.scale * value)
        if of_name:
            break
    return found


def in_runs(
    names: Mapping[str, str], cells: Mapping[str, Cell], metric: Metric, store: Store
) -> Numbers:
    """Those that every run of a row has; none without a run."""
    run = next((run for cell in cells.values() for run in runs_of(store, cell)), None)
    if run is None:
        return {}
    report = run["report"]
    keys = {name: f"{key}_{metric.key}" for name, key in names.items()}
    return {name: [metric.scale * report[key]] for name, key in keys.items() if key in report}


def comparison(
    rows: Rows, metric: Metric, store: Store, of_rows: Mapping[str, Numbers]
) -> list[str]:
    """How often the mean of a column is worse than a yardstick, and by how much.

    Args:
        rows: those that were run.
        metric: to compare by.
        store: of the runs.
        of_rows: the yardsticks by row.
    """
    names = list(dict.fromkeys(name for numbers in of_rows.values() for name in numbers))
    if not names:
        return []

    def cell(column: str, name: str) -> str:
        found = losses(column, name, rows, metric, store, of_rows)
        return "-" if found is None else "; ".join(["loses " + found.cells()[0], found.cells()[1]])

    lines = [[column, *(cell(column, name) for name in names)] for column in columns_of(rows)]
    return [
        f"Against yardsticks by {metric.name}: in how many rows a model loses to them (its mean is "
        "the worse one), and its mean difference in % of theirs, 95 % over data sets:",
        markdown(["", *names], lines),
    ]


def shown(numbers: Sequence[float] | None, metric: Metric) -> str:
    """A cell of a table."""
    return "-" if not numbers else metric.text(*spread(numbers))


def losses(
    column: str,
    name: str,
    rows: Rows,
    metric: Metric,
    store: Store,
    of_rows: Mapping[str, Numbers],
) -> Losses | None:
    """A column beside a yardstick; None where no row has both."""
    lost, shares = 0, dict[str, list[float]]()
    for row, cells in rows.items():
        yardstick = of_rows[row].get(name)
        ours = list(values(store, cells[column], metric).values()) if column in cells else []
        if not ours or not yardstick:
            continue
        theirs = statistics.mean(yardstick)
        difference = statistics.mean(ours) - theirs
        lost += (difference < 0) == metric.larger_is_better and difference != 0
        shares.setdefault(data_set(row), []).append(100 * difference / abs(theirs))
    if not shares:
        return None
    means = [statistics.mean(of_set) for of_set in shares.values()]
    return Losses(lost, sum(map(len, shares.values())), statistics.mean(means), interval(means))
