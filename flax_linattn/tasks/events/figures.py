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
"""Number of points of the intensity in each gap."""
MAX_NAMED = 10
"""Maximum number of event types in the legend."""


def plot_intensity(run: Run, events: Sequence[StreamedEvent], path: Path) -> None:
    """Plots the intensity between the last events, and after them, to a PNG file."""
    data_spec, model = run.data_spec, run.model
    outputs = jnp.asarray(np.stack([event.outputs for event in events]))
    following = next_event(outputs, model.num_components, model.spread)
    times = np.array([event.time for event in events])
    last = float(jnp.exp(following.gap.log_quantile(0.95)[-1])) * data_spec.scale
    gaps = np.append(np.diff(times), last)
    # No point is at the event itself, where the logarithm of the elapsed time is -inf.
    fractions = (np.arange(POINTS) + 0.5) / POINTS
    waited = np.maximum(gaps[:, None] * fractions, data_spec.resolution) / data_spec.scale
    at_points = LogNormalMixture(*(part[:, None] for part in following.gap))
    hazard = at_points.log_hazard(jnp.asarray(np.log(waited), jnp.float32))
    intensity = np.exp(np.asarray(hazard)) / data_spec.scale
    unit, title = _unit(float(times[-1] - times[0]) + last) if data_spec.dates else (1.0, "unit")
    x = (times[:, None] + gaps[:, None] * fractions - times[-1]) / unit
    figure = new_figure(8, 3.2)
    axes = figure.subplots()
    if len(events) > 1:
        before = [np.append(part[:-1], np.full((len(events) - 1, 1), np.nan), axis=1) for part in (
            x, intensity * unit)]  # fmt: skip
        axes.plot(*(part.ravel() for part in before), color="tab:blue", label="intensity")
    label = "if no event comes, up to the 95 % quantile"
    axes.plot(x[-1], intensity[-1] * unit, color="tab:orange", label=label)
    event_types = np.array([event.observation[2] for event in events]).astype(int)
    for event_type in np.unique(event_types[event_types < data_spec.num_event_types]):
        own = (times[event_types == event_type] - times[-1]) / unit
        few = 1 < data_spec.num_event_types <= MAX_NAMED
        axes.plot(
            own,
            np.zeros(len(own)),
            linestyle="none",
            marker="|",
            markersize=12,
            color=f"C{2 + event_type % 8}",
            label=data_spec.event_type_names[event_type] if few else None,
            transform=axes.get_xaxis_transform(),  # at the bottom, of a logarithmic axis too
            clip_on=False,
        )
    axes.set(
        xlabel=f"{title}s from the last event (last {len(events)} events)",
        ylabel=f"events per {title}",
        yscale="log",
    )
    if np.ptp(intensity) < 50 * max(intensity.min(), 1e-30):
        axes.set(yscale="linear", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    save_figure(figure, path)


def _unit(seconds: float) -> tuple[float, str]:
    """A unit of time that suits a span of seconds, and its name."""
    units = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
    return next((unit for unit in units if seconds >= 2 * unit[0]), (1.0, "second"))


def plot_calibration(rescaled: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Plots quantiles of integrated intensities against exponential quantiles to a PNG file."""
    figure = new_figure(4.2, 4.2)
    axes = figure.subplots()
    right = top = 0.0
    for name, values in rescaled.items():
        levels = (np.arange(min(len(values), 400)) + 0.5) / min(len(values), 400)
        expected, observed = -np.log1p(-levels), np.quantile(values, levels)
        label = f"{name}, distance {ks_distance(values):.3f}"
        axes.plot(expected, observed, marker=".", markersize=3, linewidth=0.8, label=label)
        right, top = max(right, float(expected[-1])), max(top, float(observed[-1]))
    axes.plot([0, right], [0, right], color="0.6", linewidth=0.8, zorder=0, label="calibrated")
    axes.set(xlabel="exponential", ylabel="integrated intensity", title="calibration of gaps")
    axes.set(xlim=(0, None), ylim=(0, min(1.1 * max(right, top), 3 * right)))
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
