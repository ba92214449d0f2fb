"""The intensity of a stream of events over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from flax_linattn.models import LogNormalMixture
from flax_linattn.models.event_forecaster import next_event
from flax_linattn.tasks.events.told import Seen
from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.run_types import Run

POINTS = 40
"""Of the intensity in each gap."""
MOST_NAMED = 10
"""Marks that the legend names."""


def draw_intensity(run: Run, seen: Sequence[Seen], path: Path) -> None:
    """Draws the intensity between events, and after the last one, to a PNG file.

    Args:
        run: the run.
        seen: its last events, with what the model said after each.
        path: the file.

    Raises:
        ValueError: matplotlib is not installed.
    """
    problem, model = run.problem, run.model
    outputs = jnp.asarray(np.stack([event.outputs for event in seen]))
    following = next_event(outputs, model.num_components, model.spread)
    times = np.array([event.time for event in seen])
    last = float(jnp.exp(following.gap.log_quantile(0.95)[-1])) * problem.scale
    gaps = np.append(np.diff(times), last)
    # No point at the event itself, where the logarithm of the time since then has no value.
    share = (np.arange(POINTS) + 0.5) / POINTS
    waited = np.maximum(gaps[:, None] * share, problem.resolution) / problem.scale
    at_points = LogNormalMixture(*(part[:, None] for part in following.gap))
    hazard = at_points.log_hazard(jnp.asarray(np.log(waited), jnp.float32))
    intensity = np.exp(np.asarray(hazard)) / problem.scale
    unit, title = (86_400.0, "days") if problem.dates else (1.0, "time")
    x = (times[:, None] + gaps[:, None] * share - times[-1]) / unit
    figure = new_figure(8, 3.2)
    axes = figure.subplots()
    axes.plot(x[:-1].ravel(), intensity[:-1].ravel() * unit, color="tab:blue", label="intensity")
    label = "if none comes, up to the 95 % quantile"
    axes.plot(x[-1], intensity[-1] * unit, color="tab:orange", label=label)
    marks = np.array([event.observation[2] for event in seen]).astype(int)
    for mark in np.unique(marks[marks < problem.num_marks]):
        own = (times[marks == mark] - times[-1]) / unit
        few = 1 < problem.num_marks <= MOST_NAMED
        axes.plot(
            own,
            np.zeros(len(own)),
            linestyle="none",
            marker="|",
            markersize=12,
            color=f"C{2 + mark % 8}",
            label=problem.mark_names[mark] if few else None,
        )
    axes.set(
        xlabel=f"{title} from the last event", ylabel=f"events a unit of {title}", yscale="log"
    )
    if np.ptp(intensity) < 50 * max(intensity.min(), 1e-30):
        axes.set(yscale="linear", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    save_figure(figure, path)
