"""What a user would pick instead of our models: simple forecasts, ridge, neighbours, MiniRocket.

Numbers of naive forecasts stand in the runs themselves; those of fitted yardsticks in
experiments/yardsticks.json, by table, and by row or data set.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.intervals import Interval, interval, spread, text
from experiments.store import Store
from experiments.tables.cells import Cell, Metric, Rows, columns_of, data_set, runs_of, values
from flax_linattn.bench.report import markdown

FILE = Path(__file__).parents[1] / "yardsticks.json"
Numbers = Mapping[str, Sequence[float]]
"""By the yardstick's name; several where it draws at random."""


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
    lines = [
        [column, *(_against(column, name, rows, metric, store, of_rows) for name in names)]
        for column in columns_of(rows)
    ]
    if not names:
        return []
    return [
        f"Against yardsticks by {metric.name}: in how many rows a model loses to them (its mean is "
        "the worse one), and its mean difference in % of theirs, 95 % over data sets:",
        markdown(["", *names], lines),
    ]


def shown(numbers: Sequence[float] | None, metric: Metric) -> str:
    """A cell of a table."""
    return "-" if not numbers else metric.text(*spread(numbers))


def _against(
    column: str,
    name: str,
    rows: Rows,
    metric: Metric,
    store: Store,
    of_rows: Mapping[str, Numbers],
) -> str:
    lost, shares, total = 0, dict[str, list[float]](), 0
    for row, cells in rows.items():
        yardstick = of_rows[row].get(name)
        ours = list(values(store, cells[column], metric).values()) if column in cells else []
        if not ours or not yardstick:
            continue
        theirs = statistics.mean(yardstick)
        difference = statistics.mean(ours) - theirs
        total += 1
        lost += (difference < 0) == metric.larger_is_better and difference != 0
        shares.setdefault(data_set(row), []).append(100 * difference / abs(theirs))
    if not total:
        return "-"
    means = [statistics.mean(of_set) for of_set in shares.values()]
    over = interval(means) or Interval(means[0], float("nan"))
    by = text(over, 1) if len(means) > 1 else f"{over.middle:+.1f}"
    return f"loses {lost} of {total}; {by}"
