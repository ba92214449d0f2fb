"""Figures of runs: the one place that imports matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax_linattn.checks import import_extra
from flax_linattn.storage import atomic_write


def import_figure() -> Any:
    """Imports the ``Figure`` class of matplotlib."""
    message = "figures need matplotlib: pip install 'flax-linattn[plots]'."
    return import_extra("matplotlib.figure", message).Figure


def has_figures() -> bool:
    """Whether matplotlib is installed, so that figures can be made."""
    try:
        import_figure()
    except ValueError:
        return False
    return True


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size, in inches."""
    return import_figure()(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure in the format of the file name, PNG by default; see ``atomic_write``."""
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower() or "png", dpi=120)
