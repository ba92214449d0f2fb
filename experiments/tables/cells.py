"""Cells of a table of trained runs, and the numbers of their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.intervals import by_cluster, spread_text
from experiments.margins import ERROR, Margin
from experiments.store import Row, Store

Published = Mapping[str, tuple[float, float | None]]
"""Mean and standard deviation, or None, by the metric's name."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of test.json, and how it is shown.

    Attributes:
        key: its name there.
        name: its name in the table.
        scale: to multiply it by.
        digits: decimals to show.
        paper_digits: decimals of the published numbers.
        larger_is_better: as accuracies are.
        margin: within which two columns are comparable.
    """

    key: str
    name: str
    scale: float = 1.0
    digits: int = 3
    paper_digits: int = 2
    larger_is_better: bool = False
    margin: Margin = ERROR

    def text(self, mean: float, std: float | None, digits: int | None = None) -> str:
        """Formats a mean and a standard deviation."""
        return spread_text(mean, std, self.digits if digits is None else digits)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        row: of the table.
        column: of the table.
        config: the run's options but for the seed; None if it is not run here.
        paper: the published numbers.
    """

    row: str
    column: str
    config: Any
    paper: Published = dataclasses.field(default_factory=dict)


Rows = Mapping[str, Mapping[str, Cell]]
"""Cells by row and column."""


def by_row(cells: Iterable[Cell]) -> Rows:
    """Cells by row and column, in their order."""
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.column] = cell
    return rows


def list_columns(rows: Rows) -> list[str]:
    """The columns that any row has."""
    return list(dict.fromkeys(column for cells in rows.values() for column in cells))


def data_set(row: str) -> str:
    """Of a row's name, which begins with it."""
    return row.partition(", ")[0]


def by_data_set(values_by_row: Mapping[str, float]) -> dict[str, float]:
    """The mean of each data set's rows."""
    return by_cluster(values_by_row, data_set)


def finished_runs(store: Store, cell: Cell) -> list[Row]:
    """The runs of a cell that ended with a result."""
    return list(store.of(cell.row, cell.column).values())


def values(store: Store, cell: Cell, metric: Metric) -> dict[int, float]:
    """A metric of the runs of a cell, by seed."""
    runs = store.of(cell.row, cell.column).items()
    return {seed: metric.scale * run["report"][f"test_{metric.key}"] for seed, run in runs}


def pairs(store: Store, cell: Cell, other: Cell, metric: Metric) -> dict[int, tuple[float, float]]:
    """A metric of two cells, by each seed that both have."""
    ours, others = values(store, cell, metric), values(store, other, metric)
    return {seed: (ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())}
