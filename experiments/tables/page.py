"""The page and the figure of a table of trained runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from experiments import figures
from experiments.again import usage
from experiments.intervals import spread
from experiments.pages import write_page
from experiments.store import Store
from experiments.tables import baselines
from experiments.tables.cells import Cell, Metric, Rows, by_row, list_columns, values
from experiments.tables.claims import verdicts
from flax_linattn.bench.report import markdown

if TYPE_CHECKING:
    from experiments.tables.table import Table


def render(table: Table, scale: str, store: Store) -> str:
    """Writes page and figure of stored runs; returns the page."""
    cells = table.cells(None)
    rows = by_row(
        cell
        for cell in cells
        if store.of(cell.row, cell.column) or store.num_failures(cell.row, cell.column)
    )
    missing = [row for row in by_row(cells) if row not in rows]
    _plot(table, rows, store)
    parts = [
        "Tiny models, one epoch: no results." if scale == "quick" else "",
        _numbers(table, rows, store),
        *_compare_with_baselines(table, rows, store),
        *verdicts(table.claims, table.metrics, rows, store),
        *_seconds(rows, store),
    ]
    return write_page(store.path.with_suffix(".md"), parts, _facts(table, scale, store, missing))


def _facts(table: Table, scale: str, store: Store, missing: Sequence[str]) -> list[list[str]]:
    options = ", ".join(f"{k} {v}" for k, v in table.options(scale).items())
    environments = [["environment", "; ".join(store.environments)]] if store.environments else []
    stale = f"{store.num_stale} stored runs with other options"
    return [
        ["paper", table.about],
        ["command", f"`{table.command(scale, store.num_seeds)}`"],
        ["size", options or "the paper's"],
        ["code", f"commits {', '.join(store.commits) or '-'}"],
        *environments,
        ["data", table.data],
        ["departures", table.departures],
        ["not run", table.not_run],
        *([["left out", stale]] if store.num_stale else []),
        ["rows without a run", "; ".join(missing) or "none"],
        *(
            [["again", usage(table.base_command(scale), store.runs, table.extras)]]
            if store.runs
            else []
        ),
    ]


def _numbers(table: Table, rows: Rows, store: Store) -> str:
    """One line per row and metric."""
    columns = list_columns(rows)
    by_metric = {metric.name: collect_baselines(table, rows, metric) for metric in table.metrics}
    for of_metric in by_metric.values():
        if baselines.shared_baselines(of_metric, table.data_set):  # they stand below, once
            of_metric.clear()
    names = list(
        dict.fromkeys(
            name for by in by_metric.values() for numbers in by.values() for name in numbers
        )
    )
    lines = [
        _line(row, metric, columns, names, by_metric[metric.name].get(row, {}), cells, store)
        for row, cells in rows.items()
        for metric in table.metrics
    ]
    return markdown(["", *columns, *names, "seeds"], lines)


def _compare_with_baselines(table: Table, rows: Rows, store: Store) -> list[str]:
    """The comparison with baselines, a table for each metric."""
    return [
        part
        for metric in table.metrics
        for part in baselines.comparison(
            rows,
            metric,
            store,
            collect_baselines(table, rows, metric),
            table.data_set,
        )
    ]


def _line(
    row: str,
    metric: Metric,
    columns: Sequence[str],
    names: Sequence[str],
    own_baselines: baselines.Numbers,
    cells: Mapping[str, Cell],
    store: Store,
) -> list[str]:
    counts = sorted({len(store.of(cell.row, cell.column)) for cell in cells.values()})
    return [
        f"{row}: {metric.name}",
        *(_cell(cells.get(column), metric, store) for column in columns),
        *(baselines.baseline_cell(own_baselines.get(name), metric) for name in names),
        " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
    ]


def _cell(cell: Cell | None, metric: Metric, store: Store) -> str:
    """Our mean and standard deviation, the failures, and the published number."""
    if cell is None:
        return "-"
    ours = list(values(store, cell, metric).values())
    parts = [metric.text(*spread(ours))] if ours else []
    if failures := store.num_failures(cell.row, cell.column):
        parts.append(f"{failures} diverged")
    text = ", ".join(parts)
    published = cell.paper.get(metric.name)
    if published is None:
        return text
    return f"{text} (paper {metric.text(*published, metric.paper_digits)})"


def collect_baselines(
    table: Table, rows: Iterable[str], metric: Metric
) -> dict[str, baselines.Numbers]:
    """The baselines of each row."""
    return {
        row: baselines.row_baselines(table.short_name, table.baselines_row or row, metric)
        for row in rows
    }


def _seconds(rows: Rows, store: Store) -> list[str]:
    """What a run took, where that is known."""

    def median(cell: Cell | None) -> str:
        if cell is None:
            return "-"
        runs = store.of(cell.row, cell.column).values()
        seconds = [run["core_seconds"] for run in runs if "core_seconds" in run]
        return f"{statistics.median(seconds):.0f}" if seconds else "-"

    columns = list_columns(rows)
    lines = [[row, *(median(cells.get(c)) for c in columns)] for row, cells in rows.items()]
    if all(set(line[1:]) == {"-"} for line in lines):
        return []
    return ["CPU-core seconds per run, median over seeds:", markdown(["", *columns], lines)]


def _plot(table: Table, rows: Rows, store: Store) -> None:
    """A dot a seed, of the first metric."""
    metric = table.metrics[0]
    plotted = by_row(
        cell for cells in rows.values() for cell in cells.values() if values(store, cell, metric)
    )
    if not plotted:
        return
    series = {
        row: {
            column: figures.Series(
                list(values(store, cell, metric).values()), cell.paper.get(metric.name)
            )
            for column, cell in cells.items()
        }
        for row, cells in plotted.items()
    }
    references = {
        row: {name: statistics.mean(numbers) for name, numbers in row_baselines.items()}
        for row, row_baselines in collect_baselines(table, plotted, metric).items()
    }
    figures.plot(series, metric.name, store.path.with_suffix(".png"), references)
