"""Weighted means, summed on the device and divided on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# name -> (weighted sum, weight), float32 scalars.
Metrics = Mapping[str, tuple[jax.Array, jax.Array]]


def zero_metrics(names: Iterable[str]) -> Metrics:
    """Returns empty sums for the metrics of these names."""
    # One array each: the training step donates them, and a buffer is donated only once.
    return {name: (jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)) for name in names}


def add_metrics(total: Metrics, batch: Metrics) -> Metrics:
    """Returns the sums of two sets of metrics of the same names."""
    return jax.tree.map(jnp.add, total, batch)


def mean_metrics(total: Metrics) -> dict[str, float]:
    """Returns each metric's weighted mean as a Python float; NaN where the weight is 0.

    Example:
        >>> mean_metrics({"accuracy": (jnp.float32(3.0), jnp.float32(4.0))})
        {'accuracy': 0.75}
    """
    host = jax.device_get(total)
    return {
        name: float(sums) / float(weight) if weight > 0 else float("nan")
        for name, (sums, weight) in sorted(host.items())
    }


def batch_metrics(loss: jax.Array, metrics: Metrics, batch: Mapping[str, Any]) -> Metrics:
    """Returns one batch's metrics as float32 pairs, with "loss" among them.

    A loss function that does not report "loss" itself has its scalar loss counted by the number of
    real examples, the sum of ``batch["weight"]``, or as 1 where a batch has no weights.

    Raises:
        TypeError: If the loss is no scalar or a metric is no (weighted sum, weight) pair.
    """
    if jnp.shape(loss) != ():
        raise TypeError(
            f"The loss must be a scalar, got shape {jnp.shape(loss)}: take its (weighted) mean."
        )
    pairs = dict(metrics)
    if "loss" not in pairs:
        weight = jnp.sum(batch["weight"]) if "weight" in batch else jnp.ones(())
        weight = jnp.asarray(weight, jnp.float32)
        pairs["loss"] = (jnp.asarray(loss, jnp.float32) * weight, weight)
    for name, pair in pairs.items():
        if [jnp.shape(x) for x in jax.tree.leaves(pair)] != [(), ()]:
            raise TypeError(
                f"The metric {name!r} must be a pair of scalars (weighted sum, weight), "
                f"got {jax.tree.map(jnp.shape, pair)}."
            )
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), pairs)


def non_finite_arrays(batch: Mapping[str, np.ndarray]) -> list[str]:
    """Returns a phrase for each array of a batch that holds NaN or inf: its name and where first.

    Example:
        >>> non_finite_arrays({"x": np.array([[1.0, np.nan]]), "label": np.array([0])})
        ["'x' at index (0, 1)"]
    """
    phrases = []
    for name, array in batch.items():
        array = np.asarray(array)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            phrases.append(f"{name!r} at index {tuple(bad[0].tolist())}")
    return phrases
