"""Whether integrated intensities are exponential, as those of the true process are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.figures import new_figure, save_figure


def ks_distance(rescaled: NDArray[np.float64]) -> float:
    """The largest difference between the distribution of values and the exponential of mean one.

    By the time-rescaling theorem the integrated intensities of the true process are such values
    (Brown et al., 2002). This is the statistic of Kolmogorov and Smirnov; under the true process it
    exceeds ``ks_limit`` once in twenty times.

    Args:
        rescaled: float64 [n], n >= 1.

    Example:
        >>> n = 1000
        >>> exact = -np.log1p(-(np.arange(n) + 0.5) / n)
        >>> round(ks_distance(exact), 6), ks_distance(exact) < ks_limit(n) < ks_distance(2 * exact)
        (0.0005, True)
    """
    reached = np.sort(-np.expm1(-rescaled))
    steps = np.arange(len(reached) + 1) / len(reached)
    return float(max(np.max(steps[1:] - reached), np.max(reached - steps[:-1])))


def ks_limit(number: int) -> float:
    """What ``ks_distance`` of so many independent values exceeds once in twenty times."""
    return 1.3581 / math.sqrt(number)


def draw_calibration(rescaled: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Draws quantiles of integrated intensities against those of the exponential distribution.

    Args:
        rescaled: float64 [n] of each model, by its name.
        path: of the PNG file.

    Raises:
        ValueError: matplotlib is not installed.
    """
    figure = new_figure(4.2, 4.2)
    axes = figure.subplots()
    most = 0.0
    highest = 0.0
    for name, values in rescaled.items():
        shares = (np.arange(min(len(values), 400)) + 0.5) / min(len(values), 400)
        expected, found = -np.log1p(-shares), np.quantile(values, shares)
        label = f"{name}, distance {ks_distance(values):.3f}"
        axes.plot(expected, found, marker=".", markersize=3, linewidth=0.8, label=label)
        most, highest = max(most, float(expected[-1])), max(highest, float(found[-1]))
    axes.plot([0, most], [0, most], color="0.6", linewidth=0.8, zorder=0, label="right")
    axes.set(xlabel="exponential", ylabel="integrated intensity", title="calibration of gaps")
    axes.set(xlim=(0, None), ylim=(0, min(1.1 * max(most, highest), 3 * most)))
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
