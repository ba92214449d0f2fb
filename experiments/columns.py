"""Columns of tables: the papers' short names of mechanisms."""

from __future__ import annotations

SPECS = {
    "SA": "softmax",
    "EA": "elementwise",
    "EA-2": "elementwise_series:order=2",
    "EA-6": "elementwise_series:order=6",
}


def columns(*names: str) -> dict[str, str]:
    """The mechanism of each name: a paper's short one, or its own."""
    return {name: SPECS.get(name, name) for name in names}
