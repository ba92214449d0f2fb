"""Figures of tables, with a dot for each seed and the published number."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flax_linattn.bench.plots import import_figure

COLUMNS = 3
STYLES = {"naive": ":", "seasonal naive": "--", "ridge": "-"}


class Series(NamedTuple):
    """A column of a row.

    Attributes:
        ours: a number a seed.
        paper: published mean and standard deviation, if there are any.
    """

    ours: Sequence[float]
    paper: tuple[float, float | None] | None


def plot(
    rows: Mapping[str, Mapping[str, Series]],
    metric: str,
    path: Path,
    references: Mapping[str, Mapping[str, float]],
) -> None:
    """Writes a PNG file with a panel for each row and a line for each column.

    Args:
        rows: the numbers, by row and column.
        metric: what they are.
        path: the file.
        references: numbers to draw a line at, by row and name, where they are near.
    """
    try:
        figure_class = import_figure()
    except ValueError:
        print("no figure: it needs matplotlib (the extra 'plots').", file=sys.stderr)
        return
    width = min(COLUMNS, len(rows))
    height = math.ceil(len(rows) / width)
    lines = max(map(len, rows.values()))
    canvas = figure_class(
        figsize=(4.0 * width, (0.28 * lines + 1.1) * height + 0.4), layout="constrained"
    )
    panels = canvas.subplots(height, width, squeeze=False).ravel()
    for axes, (row, columns) in zip(panels, rows.items(), strict=False):
        for position, series in enumerate(columns.values()):
            dots = [position] * len(series.ours)
            axes.plot(series.ours, dots, "o", color="tab:blue", alpha=0.5, ms=5, label="a seed")
            axes.plot(statistics.mean(series.ours), position, "|", color="tab:blue", ms=14, mew=2,
                      label="their mean")  # fmt: skip
            if series.paper is not None:
                mean, std = series.paper
                axes.errorbar(mean, position - 0.28, xerr=std or 0.0, fmt="D", ms=4,
                              color="tab:orange", capsize=2, label="paper")  # fmt: skip
        low, high = axes.get_xlim()
        near = {
            name: value
            for name, value in references.get(row, {}).items()
            if 2 * low - high < value < 2 * high - low
        }
        for name, value in near.items():
            axes.axvline(
                value, color="0.6", linestyle=STYLES.get(name, "-."), linewidth=1, label=name
            )
        axes.set_yticks(range(len(columns)), list(columns))
        axes.set_ylim(len(columns) - 0.5, -0.6)
        axes.set_title(row, fontsize=9)
        axes.grid(axis="x", color="0.92")
    for axes in panels[len(rows) :]:
        axes.remove()
    canvas.supxlabel(metric)
    handles = {}
    for axes in panels[: len(rows)]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    canvas.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=3, frameon=False
    )
    canvas.savefig(path, dpi=110)
