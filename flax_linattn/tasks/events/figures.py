"""Figures of events: the intensity over time, and the calibration of gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn.models import LogNormalMixture
from flax_linattn.models.event_forecaster import next_event
from flax_linattn.tasks.events.baselines import ks_distance
from flax_linattn.tasks.events.next_event import StreamedEvent
from flax_linattn.tasks.figures import new_figure, save_figure
from flax_linattn.tasks.spec import Run

POINTS = 40
"""Of the intensity in each gap."""
MAX_NAMED = 10
"""Marks that the legend names."""


def draw_intensity(run: Run, seen: Sequence[StreamedEvent], path: Path) -> None:
    """Draws the intensity between the last events, and after them, to a PNG file."""
    data_spec, model = run.data_spec, run.model
    outputs = jnp.asarray(np.stack([event.outputs for event in seen]))
    following = next_event(outputs, model.num_components, model.spread)
    times = np.array([event.time for event in seen])
    last = float(jnp.exp(following.gap.log_quantile(0.95)[-1])) * data_spec.scale
    gaps = np.append(np.diff(times), last)
    # No point at the event itself, where the logarithm of the time since then has no value.
    share = (np.arange(POINTS) + 0.5) / POINTS
    waited = np.maximum(gaps[:, None] * share, data_spec.resolution) / data_spec.scale
    at_points = LogNormalMixture(*(part[:, None] for part in following.gap))
    hazard = at_points.log_hazard(jnp.asarray(np.log(waited), jnp.float32))
    intensity = np.exp(np.asarray(hazard)) / data_spec.scale
    unit, title = _unit(float(times[-1] - times[0]) + last) if data_spec.dates else (1.0, "unit")
    x = (times[:, None] + gaps[:, None] * share - times[-1]) / unit
    figure = new_figure(8, 3.2)
    axes = figure.subplots()
    if len(seen) > 1:
        before = [np.append(part[:-1], np.full((len(seen) - 1, 1), np.nan), axis=1) for part in (
            x, intensity * unit)]  # fmt: skip
        axes.plot(*(part.ravel() for part in before), color="tab:blue", label="intensity")
    label = "if none comes, up to the 95 % quantile"
    axes.plot(x[-1], intensity[-1] * unit, color="tab:orange", label=label)
    marks = np.array([event.observation[2] for event in seen]).astype(int)
    for mark in np.unique(marks[marks < data_spec.num_marks]):
        own = (times[marks == mark] - times[-1]) / unit
        few = 1 < data_spec.num_marks <= MAX_NAMED
        axes.plot(
            own,
            np.zeros(len(own)),
            linestyle="none",
            marker="|",
            markersize=12,
            color=f"C{2 + mark % 8}",
            label=data_spec.mark_names[mark] if few else None,
            transform=axes.get_xaxis_transform(),  # at the bottom, of a logarithmic axis too
            clip_on=False,
        )
    axes.set(
        xlabel=f"{title}s from the last event, the last {len(seen)} events",
        ylabel=f"events a {title}",
        yscale="log",
    )
    if np.ptp(intensity) < 50 * max(intensity.min(), 1e-30):
        axes.set(yscale="linear", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    save_figure(figure, path)


def _unit(seconds: float) -> tuple[float, str]:
    """The unit of time of which a span of seconds has a few, and its name."""
    units = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
    return next((unit for unit in units if seconds >= 2 * unit[0]), (1.0, "second"))


def draw_calibration(rescaled: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Draws quantiles of integrated intensities against those of the exponential distribution."""
    figure = new_figure(4.2, 4.2)
    axes = figure.subplots()
    most = highest = 0.0
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
