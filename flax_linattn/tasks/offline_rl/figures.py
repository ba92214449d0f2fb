"""Figures of offline-RL runs: returns of played episodes, and actions of streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.episodes import Episodes
from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.offline_rl.data import OfflineRLSpec


def plot_episodes(data_spec: OfflineRLSpec, played: Episodes, path: Path) -> None:
    """Plots the cumulative reward of each played episode to a PNG file."""
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    for number, (start, stop) in enumerate(zip(played.starts, played.starts[1:], strict=False)):
        total = np.cumsum(played.rewards[start:stop], dtype=np.float64)
        label = "played" if not number else None
        axes.plot(np.arange(1, len(total) + 1), total, "tab:blue", linewidth=0.9, label=label)
    lines = (
        ("target return", data_spec.target_return, ":"),
        ("best in the data", data_spec.best_return, "--"),
        ("mean in the data", data_spec.mean_return, "-"),
    )
    for label, value, style in lines:
        axes.axhline(value, color="0.4", linewidth=0.9, linestyle=style, label=label)
    axes.set(xlabel="step", ylabel="sum of rewards", title=data_spec.env_id)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def plot_actions(actions: NDArray, names: Sequence[str], path: Path) -> None:
    """Plots actions [T, A] over steps to a PNG file; ``names`` begins with A column names."""
    figure = new_figure(8, 3.2)
    axes = figure.subplots()
    for name, own in zip(names, actions.T, strict=False):
        axes.plot(own, linewidth=0.9, label=name)
    axes.set(xlabel="last steps of the episode", ylabel="action")
    if actions.shape[1] <= 10:
        axes.legend(frameon=False, fontsize=8, ncols=2)
    save_figure(figure, path)
