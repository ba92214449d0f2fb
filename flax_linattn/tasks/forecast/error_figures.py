"""Figures of errors: by step of the horizon, by channel, by fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_linattn.tasks.figures import new_figure, save_figure

MOST_CHANNELS = 8
"""Channels of a figure: those of which the model's error is largest."""
COLORS = {
    "test": "tab:orange",
    "ridge": "tab:blue",
    "refitted_ridge": "tab:cyan",
    "naive": "0.6",
    "seasonal_naive": "0.3",
}
METRIC = "_mse"


def draw_errors(values: Mapping[str, Any], path: Path) -> None:
    """Draws the MSE of a report's ``by_step`` and ``by_channel`` to a PNG file.

    Args:
        values: of the report.
        path: the file.

    Raises:
        ValueError: matplotlib is not installed.
    """
    steps, channels = values["by_step"], values["by_channel"]
    names = _names(steps[0])
    canvas = new_figure(9.0, 3.4)
    left, right = canvas.subplots(1, 2)
    for name in names:
        errors = [_number(row[f"{name}{METRIC}"]) for row in steps]
        marker = "o" if len(errors) == 1 else ""
        x = [row["step"] for row in steps]
        left.plot(x, errors, marker=marker, label=_label(name), color=COLORS.get(name))
    left.set(xlabel="steps ahead", ylabel="MSE, standardised", ylim=(0, None))
    shown = sorted(channels, key=lambda row: -_number(row[f"test{METRIC}"]))[:MOST_CHANNELS]
    _bars(right, shown, names)
    labels = [_cut(row["channel"]) for row in shown]
    right.set_xticks(np.arange(len(shown)), labels, rotation=30 if len(shown) > 4 else 0)
    more = f", the {len(shown)} worst of {len(channels)}" if len(channels) > len(shown) else ""
    right.set(xlabel=f"channel{more}")
    handles, labels = left.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
    save_figure(canvas, path)


def draw_folds(values: Mapping[str, Any], path: Path) -> None:
    """Draws the MSE of a backtest's ``by_fold`` to a PNG file.

    Args:
        values: of the report.
        path: the file.

    Raises:
        ValueError: matplotlib is not installed.
    """
    folds = values["by_fold"]
    canvas = new_figure(min(12.0, 3.0 + 0.9 * len(folds)), 3.4)
    axes = canvas.subplots()
    _bars(axes, folds, _names(folds[0]))
    axes.set_xticks(range(len(folds)), [row["fold"] for row in folds])
    axes.set(xlabel=f"fold ({values['mode']})", ylabel="MSE, standardised")
    canvas.legend(loc="outside right", frameon=False)
    save_figure(canvas, path)


def _bars(axes: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """A group of bars for each row, a bar for each name."""
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        begins = np.arange(len(rows)) + (place - (len(names) - 1) / 2) * width
        errors = [_number(row[f"{name}{METRIC}"]) for row in rows]
        axes.bar(begins, errors, width, label=_label(name), color=COLORS.get(name))


def _names(row: Mapping[str, Any]) -> list[str]:
    """Of the forecasts that a table has the errors of, the model first."""
    return [name.removesuffix(METRIC) for name in row if name.endswith(METRIC)]


def _label(name: str) -> str:
    return "model" if name == "test" else name.replace("_", " ")


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _cut(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}"
