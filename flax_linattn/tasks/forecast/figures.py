"""Figures of forecasts: history, truth and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.forecast.evaluate import compile_outputs
from flax_linattn.tasks.forecast.quantiles import central_intervals
from flax_linattn.tasks.run_types import Run

Window = tuple[NDArray, NDArray | None, NDArray]
MOST_TARGETS = 3


def draw_windows(
    windows: Sequence[Window],
    names: Sequence[str],
    path: Path,
    titles: Sequence[str],
    levels: Sequence[float] = (),
) -> None:
    """Draws forecasts to a PNG file, a column a window and a row a target (the last three).

    Central intervals that the levels of quantiles give are shaded, the others drawn as lines.

    Args:
        windows: what was seen [L, targets], what came [H, targets] or None, and the forecast [H,
            targets], or with quantiles [H, targets, 1 + Q].
        names: of the targets.
        path: the file.
        titles: of the windows.
        levels: of the quantiles.

    Raises:
        ValueError: matplotlib is not installed.
    """
    targets = range(max(0, len(names) - MOST_TARGETS), len(names))
    canvas = new_figure(4.2 * len(windows), 2.2 * len(targets) + 0.7)
    grid = canvas.subplots(len(targets), len(windows), squeeze=False)
    for column, ((seen, truth, forecast), title) in enumerate(zip(windows, titles, strict=True)):
        for axes, target in zip(grid[:, column], targets, strict=True):
            past = np.arange(1 - len(seen), 1)
            axes.plot(past, seen[:, target], color="0.35", label="seen")
            if truth is not None:
                steps = np.arange(len(truth) + 1)
                joined = np.append(seen[-1:, target], truth[:, target])
                axes.plot(steps, joined, color="tab:blue", label="truth")
            steps = np.arange(1, len(forecast) + 1)
            told = forecast[:, target].reshape(len(forecast), -1)
            _draw_quantiles(axes, steps, told[:, 1:], levels)
            axes.plot(steps, told[:, 0], color="tab:orange", label="forecast")
            axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
            axes.set_ylabel(names[target] if column == 0 else "")
        grid[0, column].set_title(title)
        grid[-1, column].set_xlabel("steps from the last observation")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = min(len(handles), 3 * len(windows))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    save_figure(canvas, path)


def _draw_quantiles(axes: Any, steps: NDArray, told: NDArray, levels: Sequence[float]) -> None:
    """Quantiles [H, Q] around a forecast."""
    intervals = central_intervals(levels)
    for number, (share, (low, high)) in enumerate(intervals.items()):
        style = {"color": "tab:orange", "alpha": min(0.2 + 0.15 * number, 0.8), "lw": 0}
        axes.fill_between(steps, told[:, low], told[:, high], label=f"{share} %", **style)
    inside = {end for ends in intervals.values() for end in ends}
    for which, level in enumerate(levels):
        if which not in inside:
            style = {"color": "tab:red", "linestyle": ":", "linewidth": 1.0}
            axes.plot(steps, told[:, which], label=f"quantile {level:g}", **style)


def draw_forecasts(
    run: Run,
    windows: data.Windows,
    path: Path,
    times: NDArray[np.datetime64] | None = None,
    count: int = 3,
) -> None:
    """Draws some forecasts, evenly spread over the windows, to a PNG file, in the file's units.

    Args:
        run: the run.
        windows: of the series scaled by the run's standardizer.
        path: the file.
        times: of the series' rows; None if not known.
        count: how many forecasts.

    Raises:
        ValueError: matplotlib is not installed.
    """
    config, targets = run.config, list(run.problem.targets)
    chosen = np.linspace(0, windows.num_examples - 1, count).astype(int)
    batch = windows.take(chosen)
    forecasts = np.asarray(compile_outputs(run)(batch))
    length, in_units = config.data.input_length, run.problem.in_units
    values = batch["values"][:, :, targets]
    drawn = [
        (in_units(seen[:length]), in_units(seen[length:]), in_units(forecast))
        for seen, forecast in zip(values, forecasts, strict=True)
    ]
    begins = windows.starts[chosen] + config.data.input_length
    titles = [f"from row {row}" if times is None else f"from {times[row].item()}" for row in begins]
    draw_windows(drawn, run.problem.target_names, path, titles, config.model.levels)
