"""Drawn data: streams of a run's seed, and batches of so many examples."""

from __future__ import annotations

from flax_linattn import data
from flax_linattn.data.drawn import Drawable

PATHFINDER_SIZE = 32
"""Side of Long Range Arena's pictures."""
PATHFINDER_CLASSES = ("apart", "joined")
"""Of its labels 0 and 1: whether a curve joins the dots."""
TRAIN, VALIDATION, TEST = range(3)
"""Independent streams of a seed."""


def drawn_batches(
    task: Drawable, batch_size: int, size: int, *, seed: int, stream: int
) -> data.DrawnBatches:
    """Batches of an epoch of so many examples; in training new ones each time, else the same.

    Args:
        task: what draws.
        batch_size: rows at most.
        size: examples.
        seed: the run's.
        stream: ``TRAIN``, or another one.
    """
    rows, fixed = min(batch_size, size), stream != TRAIN
    return data.DrawnBatches(
        task,
        rows,
        -(-size // rows),
        seed=seed,
        stream=stream,
        fixed=fixed,
        num_examples=size if fixed else None,
    )
