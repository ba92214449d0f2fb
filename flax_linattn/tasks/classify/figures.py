"""Figures of classifiers: confusion matrix, accuracy by length, probabilities of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.figures import new_figure, save_figure


def plot_confusion(counts: NDArray[np.int64], classes: Sequence[str], path: Path) -> None:
    """Plots a confusion matrix to a PNG file, colored by the fraction of each class."""
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = 2.0 + 0.45 * len(classes)
    canvas = new_figure(side + 0.8, side)
    axes = canvas.subplots()
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if fractions[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color)
    ticks = range(len(classes))
    longest = max(map(len, classes))
    axes.set_xticks(ticks, classes, rotation=90 if longest > 2 else 0)
    axes.set_yticks(ticks, classes)
    axes.set(xlabel="predicted", ylabel="class")
    canvas.colorbar(image, label="fraction of the class", shrink=0.8)
    save_figure(canvas, path)


def plot_earliness(values: Mapping[str, Any], path: Path) -> None:
    """Plots the accuracy after fractions of a series, and that of the decision rule, to a PNG."""
    canvas = new_figure(6, 3.6)
    axes = canvas.subplots()
    rows = values["accuracy_by_fraction"]
    fractions, accuracies = ([100 * row[name] for row in rows] for name in ("fraction", "accuracy"))
    axes.plot(fractions, accuracies, marker="o", linewidth=2, label="after a fixed fraction")
    if "decision_accuracy" in values:
        place = 100 * values["decision_earliness"], 100 * values["decision_accuracy"]
        axes.plot(*place, "D", color="tab:orange", markersize=9, label="decision rule (mean)")
        axes.legend(loc="lower right")
    title = f"{values['dataset']}, {values.get('mechanism', values['model'])}"
    axes.set(xlabel="observations, % of the series", ylabel="accuracy, %", title=title)
    axes.set(xlim=(0, 102), ylim=(0, 102))
    save_figure(canvas, path)


def plot_stream(
    steps: Sequence[int], probabilities: NDArray, classes: Sequence[str], path: Path, title: str
) -> None:
    """Plots class probabilities [N, classes] over the steps of sequences to a PNG file.

    A line breaks where a sequence begins again at step 1.
    """
    begins = [i for i, step in enumerate(steps) if i and step == 1]
    probabilities = np.insert(probabilities, begins, np.nan, axis=0)  # a gap between sequences
    canvas = new_figure(8, 3.6)
    axes = canvas.subplots()
    places = np.insert(np.arange(1.0, len(steps) + 1), begins, np.nan)
    likeliest = set(np.argsort(-np.nanmax(probabilities, axis=0))[:4].tolist())
    for index, name in enumerate(classes):
        if index in likeliest:
            axes.plot(places, probabilities[:, index], linewidth=2, marker=".", label=name)
        else:
            axes.plot(places, probabilities[:, index], linewidth=1, color="0.75", zorder=1)
    axes.set(xlabel="observations so far", ylabel="class probability", ylim=(0, 1.02), title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(canvas, path)


def plot_lengths(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plots the "accuracy" of rows against their "length" to a PNG file, in percent.

    The range of training lengths ("trained_on") is shaded.
    """
    canvas = new_figure(6, 3.6)
    axes = canvas.subplots()
    lengths = [row["length"] for row in rows]
    axes.plot(lengths, [100 * row["accuracy"] for row in rows], marker="o", linewidth=2)
    trained = [row["length"] for row in rows if row["trained_on"]]
    if trained:
        axes.axvspan(min(trained), max(trained), color="0.92", label="training lengths")
        axes.legend()
    axes.set(xlabel="tokens", ylabel="accuracy, %", ylim=(0, 100))
    save_figure(canvas, path)
