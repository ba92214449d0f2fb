"""Figures of forecasts: history, truth and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.forecast.evaluate import compile_forecast
from flax_linattn.tasks.run_types import Run

Window = tuple[NDArray, NDArray | None, NDArray]
MOST_TARGETS = 3


def draw_windows(
    windows: Sequence[Window], names: Sequence[str], path: Path, titles: Sequence[str]
) -> None:
    """Draws forecasts to a PNG file, a column a window and a row a target (the last three).

    Args:
        windows: what was seen [L, targets], what came [H, targets] or None, and the forecast.
        names: of the targets.
        path: the file.
        titles: of the windows.

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
            axes.plot(steps, forecast[:, target], color="tab:orange", label="forecast")
            axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
            axes.set_ylabel(names[target] if column == 0 else "")
        grid[0, column].set_title(title)
        grid[-1, column].set_xlabel("steps from the last observation")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    save_figure(canvas, path)


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
    forecasts = np.asarray(compile_forecast(run)(batch))
    scale = run.problem.standardizer.std[targets], run.problem.standardizer.mean[targets]
    values = batch["values"][:, :, targets]
    drawn = [
        (
            seen[: config.data.input_length] * scale[0] + scale[1],
            seen[config.data.input_length :] * scale[0] + scale[1],
            forecast * scale[0] + scale[1],
        )
        for seen, forecast in zip(values, forecasts, strict=True)
    ]
    begins = windows.starts[chosen] + config.data.input_length
    titles = [f"from row {row}" if times is None else f"from {times[row].item()}" for row in begins]
    draw_windows(drawn, run.problem.target_names, path, titles)
