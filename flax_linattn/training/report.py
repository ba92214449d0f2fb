"""The learning curve of a run, from its metrics.jsonl."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypedDict

from flax_linattn.annotations import fits
from flax_linattn.checks import shown
from flax_linattn.storage import write_whole
from flax_linattn.training.history import METRICS_FILE


class _Line(TypedDict):
    """What is read of every line of metrics.jsonl, beside the metrics and the best."""

    epoch: int
    step: int
    monitor: str


def learning_curve(run_dir: str | Path) -> Path | None:
    """Draws a run's loss and monitored metric over its epochs, or steps, with the best marked.

    Of several runs in one folder it draws each, and their mean.

    Steps are drawn where validations lie within epochs.

    Args:
        run_dir: The run folder that ``fit`` wrote.

    Returns:
        The path of ``learning_curve.png`` in that folder, or None, with a line on stderr, if
        matplotlib is not installed.

    Raises:
        FileNotFoundError: If the folder has no metrics.jsonl.
        ValueError: If there was no validation yet, or a line is damaged; names it.
    """
    source = Path(run_dir) / METRICS_FILE
    if not source.is_file():
        raise FileNotFoundError(f"There is no {source}: train a run in this folder first.")
    lines = _read_lines(source)
    if not lines:
        raise ValueError(f"{source} is empty: no epoch of the run has finished.")
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        print(
            "No learning curve drawn: it needs matplotlib (pip install 'flax-linattn[plots]').",
            file=sys.stderr,
        )
        return None

    unit = "step" if "best_step" in lines[-1] else "epoch"
    x = [line[unit] for line in lines]
    best = lines[-1].get(f"best_{unit}")
    monitor = lines[-1]["monitor"]
    names = list(dict.fromkeys(["loss", monitor]))
    figure = Figure(figsize=(4.5 * len(names), 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for part, colour in (("train", "tab:blue"), ("validation", "tab:orange")):
            # A metric that no example counted for is null; a gap is drawn.
            means = [line.get(f"{part}_{name}") for line in lines]
            values = [float("nan") if mean is None else mean for mean in means]
            marker = "o" if len(x) == 1 else None
            axes.plot(x, values, color=colour, label=part, marker=marker)
            for run in _of_runs(lines, f"{part}_{name}"):
                axes.plot(x, run, color=colour, linewidth=0.5, alpha=0.5)
            if best is not None and part == "validation" and name == monitor:
                axes.plot(best, values[x.index(best)], "*", color=colour, ms=12, label="best")
        if best is None:
            axes.set(xlabel=unit, ylabel=name, title=f"{name}, mean and each run")
        else:
            axes.axvline(best, color="grey", linewidth=0.8, linestyle="--", zorder=0)
            axes.set(xlabel=unit, ylabel=name, title=f"{name} (best {unit}: {best})")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
    path = Path(run_dir) / "learning_curve.png"
    with write_whole(path) as file:
        figure.savefig(file, dpi=150)
    return path


def _of_runs(lines: list[dict[str, Any]], name: str) -> list[list[float]]:
    """A metric of each of several runs over the validations; empty for a single model."""
    columns = [line.get("runs", {}).get(name, ()) for line in lines]
    return [
        [float("nan") if value is None else value for value in run]
        for run in zip(*columns, strict=True)
    ]


def _read_lines(source: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(source.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not fits(line, _Line):
            raise ValueError(
                f"{source}:{number}: expected the JSON of a validation, got "
                f"{shown(text.decode(errors='backslashreplace'), 80)}; resume the run, which "
                "rewrites the file."
            )
        lines.append(line)
    return lines
