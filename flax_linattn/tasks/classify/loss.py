"""The loss of a classifier, whatever its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp

from flax_linattn import training
from flax_linattn.typing import Array

LogitsFn: TypeAlias = Callable[[Any, dict[str, Array], Array | None], Array]
"""(model, batch, dropout key or None) -> logits [B, classes]."""


@functools.lru_cache  # always the same function, so that steps stay compiled
def make_label_loss(logits_of: LogitsFn, label_smoothing: float = 0.0) -> training.LossFn:
    """Mean cross-entropy over a batch's real examples, and (sum, weight) of the metrics.

    A batch has "labels", int [B], or [B, T] where sequences are packed; "weight", float32 of that
    shape, 0 where there is no example; and where examples were mixed "targets", float32 [B,
    classes], which training learns instead. Without a
    dropout key, as in validation, neither smoothing nor targets count.

    Args:
        logits_of: logits of a batch.
        label_smoothing: share of the target that all classes divide among them.

    Example:
        >>> loss_fn = make_label_loss(lambda model, batch, key: model * batch["x"])
        >>> batch = {"x": jnp.array([[0.0, 1.0], [3.0, 0.0]]), "labels": jnp.array([1, 1])}
        >>> loss, metrics = loss_fn(1.0, batch, None)
        >>> [float(part) for part in metrics["accuracy"]]
        [1.0, 2.0]
    """

    def loss_fn(
        model: Any, batch: dict[str, Array], dropout_key: Array | None
    ) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        logits, labels = logits_of(model, batch, dropout_key), batch["labels"]
        weight = batch.get("weight", jnp.ones(labels.shape, jnp.float32))
        smoothing = 0.0 if dropout_key is None else label_smoothing
        losses = training.smoothed_cross_entropy(logits, labels, smoothing)
        hits = (jnp.argmax(logits, axis=-1) == labels).astype(weight.dtype)
        total, count = jnp.sum(losses * weight), jnp.sum(weight)
        return total / count, {"loss": (total, count), "accuracy": (jnp.sum(hits * weight), count)}

    return loss_fn
