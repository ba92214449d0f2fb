"""Figures of forecasts: context, truth and prediction; errors by step, channel and fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.forecast.quantiles import central_intervals
from flax_linattn.tasks.forecast.windows import PanelWindows, compile_outputs
from flax_linattn.tasks.spec import Run

Window = tuple[NDArray, NDArray | None, NDArray]
MAX_TARGETS = 3
MAX_CHANNELS = 8
"""Channels of a figure: those with the largest error of the model."""
COLORS = {
    "test": "tab:orange",
    "ridge": "tab:blue",
    "refitted_ridge": "tab:cyan",
    "naive": "0.6",
    "seasonal_naive": "0.3",
}
METRIC = "_mse"


def plot_windows(
    windows: Sequence[Window],
    names: Sequence[str],
    path: Path,
    titles: Sequence[str],
    levels: Sequence[float] = (),
) -> None:
    """Plots forecasts to a PNG file: a column per window, a row per target (the last three).

    Windows are context [L, targets], truth [H, targets] or None, and forecast [H, targets], with
    quantiles [H, targets, 1 + Q]. Central intervals are shaded; other levels are lines.
    """
    targets = range(max(0, len(names) - MAX_TARGETS), len(names))
    canvas = new_figure(4.2 * len(windows), 2.2 * len(targets) + 0.7)
    grid = canvas.subplots(len(targets), len(windows), squeeze=False)
    for column, ((context, truth, forecast), title) in enumerate(zip(windows, titles, strict=True)):
        for axes, target in zip(grid[:, column], targets, strict=True):
            past = np.arange(1 - len(context), 1)
            axes.plot(past, context[:, target], color="0.35", label="context")
            if truth is not None:
                steps = np.arange(len(truth) + 1)
                joined = np.append(context[-1:, target], truth[:, target])
                axes.plot(steps, joined, color="tab:blue", label="truth")
            steps = np.arange(1, len(forecast) + 1)
            mean, *quantiles = forecast[:, target].reshape(len(forecast), -1).T
            _plot_quantiles(axes, steps, quantiles, levels)
            axes.plot(steps, mean, color="tab:orange", label="forecast")
            axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
            axes.set_ylabel(names[target] if column == 0 else "")
        grid[0, column].set_title(title)
        grid[-1, column].set_xlabel("steps from the last observation")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = min(len(handles), 3 * len(windows))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    save_figure(canvas, path)


def _plot_quantiles(
    axes: Any, steps: NDArray, quantiles: Sequence[NDArray], levels: Sequence[float]
) -> None:
    """Adds the quantiles [H] of each level to the axes of a forecast."""
    intervals = central_intervals(levels)
    for number, (coverage, (low, high)) in enumerate(intervals.items()):
        style = {"color": "tab:orange", "alpha": min(0.2 + 0.15 * number, 0.8), "lw": 0}
        axes.fill_between(steps, quantiles[low], quantiles[high], label=f"{coverage} %", **style)
    inside = {end for ends in intervals.values() for end in ends}
    for which, level in enumerate(levels):
        if which not in inside:
            style = {"color": "tab:red", "linestyle": ":", "linewidth": 1.0}
            axes.plot(steps, quantiles[which], label=f"quantile {level:g}", **style)


def plot_forecasts(run: Run, windows: PanelWindows, path: Path, count: int = 3) -> None:
    """Plots some forecasts, evenly spread over the windows, to a PNG file, in the file's units."""
    targets, length = list(run.data_spec.targets), run.config.data.context_length
    chosen = np.linspace(0, windows.num_examples - 1, count).astype(int)
    batch = windows.take(chosen)
    forecasts = np.asarray(compile_outputs(run)(batch))
    examples, titles = [], []
    for which, values, forecast in zip(
        chosen, batch["values"][:, :, targets], forecasts, strict=True
    ):
        owner = windows.owners[which]
        data_spec = windows.data_specs[owner]
        examples.append(
            tuple(map(data_spec.in_units, (values[:length], values[length:], forecast)))
        )
        row = windows.starts[which] + length - windows.begins[owner]
        name = f"{data_spec.dataset}, " if run.data_spec.members else ""
        titles.append(f"{name}from row {row}")
    plot_windows(examples, run.data_spec.target_names, path, titles, run.config.model.levels)


def plot_errors(values: Mapping[str, Any], path: Path) -> None:
    """Plots the MSE of a report's ``by_step`` and ``by_channel`` to a PNG file."""
    steps, channels = _errors(values["by_step"], "step"), _errors(values["by_channel"], "channel")
    canvas = new_figure(9.0, 3.4)
    left, right = canvas.subplots(1, 2)
    for name, errors in steps.items():
        marker = "o" if len(errors) == 1 else ""
        left.plot(errors, marker=marker, label=_label(name), color=COLORS.get(name))
    left.set(xlabel="steps ahead", ylabel="MSE, standardized", ylim=(0, None))
    worst = channels.sort_values("test", ascending=False, kind="stable").head(MAX_CHANNELS)
    _bars(right, worst)
    labels = [_truncate(name) for name in worst.index]
    right.set_xticks(np.arange(len(worst)), labels, rotation=30 if len(worst) > 4 else 0)
    more = f", the {len(worst)} worst of {len(channels)}" if len(channels) > len(worst) else ""
    right.set(xlabel=f"channel{more}")
    handles, labels = left.get_legend_handles_labels()
    columns = steps.shape[1]
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    save_figure(canvas, path)


def plot_folds(values: Mapping[str, Any], path: Path) -> None:
    """Plots the MSE of a backtest's ``by_fold`` to a PNG file."""
    folds = _errors(values["by_fold"], "fold")
    canvas = new_figure(min(12.0, 3.0 + 0.9 * len(folds)), 3.4)
    axes = canvas.subplots()
    _bars(axes, folds)
    axes.set_xticks(range(len(folds)), folds.index)
    axes.set(xlabel=f"fold ({values['mode']})", ylabel="MSE, standardized")
    canvas.legend(loc="outside right", frameon=False)
    save_figure(canvas, path)


def _errors(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    """The MSE by the key of rows, a column for each forecast, the model first."""
    table = pd.DataFrame(rows).set_index(key).filter(like=METRIC).astype(float)
    return table.rename(columns=lambda name: name.removesuffix(METRIC))


def _bars(axes: Any, table: pd.DataFrame) -> None:
    """A group of bars for each row, a bar for each column."""
    width = 0.8 / table.shape[1]
    for place, (name, errors) in enumerate(table.items()):
        begins = np.arange(len(table)) + (place - (table.shape[1] - 1) / 2) * width
        axes.bar(begins, errors, width, label=_label(name), color=COLORS.get(name))


def _label(name: str) -> str:
    return "model" if name == "test" else name.replace("_", " ")


def _truncate(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}"
