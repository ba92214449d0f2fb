"""Metrics as weighted means: summed on the devices, divided on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: name -> (weighted sum, weight), float32 scalars, or float32 [R] of several runs.
Metrics = Mapping[str, tuple[jax.Array, jax.Array]]
#: name -> mean of one run.
Means = Mapping[str, float]


def zero_metrics(names: Iterable[str], shape: tuple[int, ...] = ()) -> Metrics:
    """Returns sums of 0 for the metrics of these names."""
    # One array each: the training step donates them, and a buffer is donated only once.
    return {name: (jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)) for name in names}


def add_metrics(total: Metrics, batch: Metrics) -> Metrics:
    """Returns the sums of two sets of metrics of the same names."""
    return jax.tree.map(jnp.add, total, batch)


def mean_metrics(total: Metrics) -> dict[str, float]:
    """Returns each metric's weighted mean as a Python float; NaN where the weight is 0."""
    return run_means(total)[0]


def run_means(total: Metrics) -> list[dict[str, float]]:
    """Returns the weighted means of each run, from sums that are scalars or of shape [R]."""
    host = {
        name: (np.atleast_1d(sums), np.atleast_1d(weights))
        for name, (sums, weights) in sorted(jax.device_get(total).items())
    }
    num_runs = len(next(iter(host.values()))[0])
    return [
        {
            name: float(sums[r]) / float(weights[r]) if weights[r] > 0 else math.nan
            for name, (sums, weights) in host.items()
        }
        for r in range(num_runs)
    ]


def metric_columns(
    part: str, means: Sequence[Means], counted: np.ndarray
) -> dict[str, list[float | None]]:
    """Returns each metric of all runs under its name in metrics.jsonl, such as "train_loss".

    The value is None for runs that are not ``counted``, bool [R], and for values that are not
    finite.
    """
    return {
        f"{part}_{name}": [
            run[name] if counts and math.isfinite(run[name]) else None
            for run, counts in zip(means, counted, strict=True)
        ]
        for name in means[0]
    }


def column_means(columns: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    """The mean of each metric over the runs that have it; None where none does."""
    known = {name: [v for v in column if v is not None] for name, column in columns.items()}
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}


def mean_columns(part: str, means: Sequence[Means], counted: np.ndarray) -> dict[str, float]:
    """The mean of each metric of ``metric_columns``; NaN where no run has it."""
    columns = column_means(metric_columns(part, means, counted))
    return {name: math.nan if mean is None else mean for name, mean in columns.items()}


def batch_metrics(loss: jax.Array, metrics: Metrics, batch: Mapping[str, Any]) -> Metrics:
    """Returns one batch's metrics as float32 pairs, with "loss" among them.

    If the loss function does not report "loss" itself, its scalar loss is weighted by the sum of
    ``batch["weight"]``, the number of real examples, or by 1 if the batch has no weights.
    """
    if jnp.shape(loss) != ():
        raise TypeError(
            f"The loss must be a scalar, got shape {jnp.shape(loss)}; return its (weighted) mean."
        )
    pairs = dict(metrics)
    if "loss" not in pairs:
        weight = jnp.sum(batch["weight"]) if "weight" in batch else jnp.ones(())
        weight = jnp.asarray(weight, jnp.float32)
        pairs["loss"] = (jnp.asarray(loss, jnp.float32) * weight, weight)
    for name, pair in pairs.items():
        if [jnp.shape(x) for x in jax.tree.leaves(pair)] != [(), ()]:
            raise TypeError(
                f"The metric {name!r} must be a pair of scalars (weighted sum, weight), such as "
                f"(jnp.sum(hits), len(hits)), got shapes {jax.tree.map(jnp.shape, pair)}."
            )
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), pairs)
