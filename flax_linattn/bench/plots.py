"""Log-log figures, made with matplotlib (the extra ``plots``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_linattn.bench.comparison import OURS
from flax_linattn.bench.ratio import Rows
from flax_linattn.checks import import_extra

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by name of a line."""


def import_figure() -> Any:
    """Imports Matplotlib's ``Figure`` or explains how to install it.

    Raises:
        ValueError: If Matplotlib is not installed.
    """
    message = "figures need matplotlib: pip install 'flax-linattn[plots]', or pass curves=False."
    return import_extra("matplotlib.figure", message, "curves").Figure


def plot_lines(axes: Any, lines: Lines, *, xlabel: str = "", ylabel: str = "") -> None:
    """Plots lines of points by name on logarithmic axes, ours thick, with a tick per length."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    for name, points in lines.items():
        if points:
            x, y = zip(*sorted(points), strict=True)
            axes.plot(
                x, y, marker="o", markersize=3, linewidth=2.2 if name == OURS else 1.2, label=name
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(ticks, [f"{x:,.0f}" for x in ticks], rotation=45 if len(ticks) > 5 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    heights = [y for points in lines.values() for _, y in points]
    if heights and max(heights) < 50 * min(heights):  # few powers of ten, or none
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)


def plot_curves(rows: Rows, quantity: str) -> Any:
    """Plots "milliseconds" or "temporary_bytes" of rows against their length.

    Each comparison is a column, each pass a row.

    Raises:
        ValueError: If Matplotlib is not installed.
    """
    names = list(dict.fromkeys(row["comparison"] for row in rows))
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    size = (3.6 * len(names), 3.0 * len(passes) + 1.4)
    figure = import_figure()(figsize=size, layout="constrained")
    grid = figure.subplots(len(passes), len(names), squeeze=False)
    label = "ms" if quantity == "milliseconds" else "temporary MB"
    for axes_row, which in zip(grid, passes, strict=True):
        for axes, name in zip(axes_row, names, strict=True):
            chosen = [r for r in rows if (r["comparison"], r["pass"]) == (name, which)]
            first = axes is axes_row[0]
            plot_lines(
                axes,
                {program: _points(chosen, program, quantity) for program in chosen[0]["results"]},
                xlabel="T" if which == passes[-1] else "",
                ylabel=f"{which}, {label}" if first else "",
            )
            if which == passes[0]:
                axes.set_title(name, fontsize=10)
            if which == passes[-1]:  # below, where it hides no line
                axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _points(rows: Rows, program: str, quantity: str) -> list[tuple[float, float]]:
    results = [(row["length"], row["results"][program]) for row in rows]
    if quantity == "milliseconds":
        return [(length, r[quantity]["median"]) for length, r in results if quantity in r]
    return [(length, max(1, r[quantity]) / 1e6) for length, r in results if quantity in r]


def save(figure: Any, path: Path) -> None:
    """Writes a figure as a small PNG file, and creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
