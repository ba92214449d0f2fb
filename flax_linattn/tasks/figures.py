"""Figures of runs: made here, so that one place says what they need."""

from __future__ import annotations

from typing import Any


def import_figure() -> Any:
    """matplotlib's figure.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a figure needs matplotlib: pip install 'flax-linattn[plots]'.") from None
    return Figure


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size, in inches.

    Raises:
        ValueError: matplotlib is not installed.
    """
    return import_figure()(figsize=(width, height), layout="constrained")
