"""Metrics of a model, without dropout and without changing it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.training.batches import Batch, BatchSource
from flax_linattn.training.gradients import with_examples
from flax_linattn.training.metrics import (
    Metrics,
    add_metrics,
    batch_metrics,
    mean_metrics,
    zero_metrics,
)
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.state import split_model

EvaluationStep = Callable[[nnx.State, nnx.State, Metrics, Batch], Metrics]


# Kept by its arguments, so that a second evaluation in a process compiles nothing anew.
@functools.lru_cache(maxsize=8)
def make_evaluation_step(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: Placement = ONE_DEVICE
) -> EvaluationStep:
    """Returns the compiled ``(params, model_state, sums, batch) -> sums`` of one batch's metrics.

    The loss function is called with ``dropout_key=None``. What it changes in the model is dropped.
    """
    return placement.compile(evaluation_of(graphdef, loss_fn, placement), 4, donate=2)


def evaluation_of(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: Placement
) -> EvaluationStep:
    """What an evaluation step computes, not compiled; arguments as ``make_evaluation_step``."""

    def evaluation_step(
        params: nnx.State, model_state: nnx.State, total: Metrics, batch: Batch
    ) -> Metrics:
        model = nnx.merge(graphdef, params, model_state, copy=True)
        axis = placement.axis_name
        if axis is None:
            return add_metrics(total, batch_metrics(*loss_fn(model, batch, None), batch))
        batch, real = with_examples(batch)
        sums = batch_metrics(*loss_fn(model, batch, None), batch)
        sums = jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), sums)
        return add_metrics(total, jax.lax.psum(sums, axis))

    return evaluation_step


def metric_names(model: nnx.Module, loss_fn: LossFn, batch: Batch) -> list[str]:
    """Returns the names of the metrics that a loss function reports, without computing them."""
    graphdef, state = nnx.split(model)

    def names_of(state: nnx.State, batch: Batch) -> Metrics:
        loss, metrics = loss_fn(nnx.merge(graphdef, state, copy=True), batch, None)
        return batch_metrics(loss, metrics, batch)

    return sorted(jax.eval_shape(names_of, state, batch))


def evaluate(model: nnx.Module, loss_fn: LossFn, batches: BatchSource) -> dict[str, float]:
    """Returns the weighted mean of each metric over one epoch of batches, without dropout.

    Args:
        model: The model; it is not changed.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``, called with no key. The loss is
            a float32 scalar; ``metrics`` maps a name to (weighted sum, weight), float32 scalars.
        batches: The batches; each example counts by its weight, so fillers count nothing.

    Returns:
        Name -> mean. "loss" is always among them.

    Raises:
        ValueError: If there are no batches.

    Example:
        >>> import numpy as np
        >>> from flax_linattn.data import Batches
        >>> def loss_fn(model, batch, dropout_key):
        ...     error = jnp.sum(batch["weight"] * (model(batch["x"])[:, 0] - batch["y"]) ** 2)
        ...     count = jnp.sum(batch["weight"])
        ...     return error / count, {"squared_error": (error, count)}
        >>> data = {"x": np.ones((5, 2), np.float32), "y": np.ones(5, np.float32)}
        >>> model = nnx.Linear(2, 1, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
        >>> evaluate(model, loss_fn, Batches(data, batch_size=2, seed=None))
        {'loss': 1.0, 'squared_error': 1.0}
    """
    if not len(batches):
        raise ValueError("There are no batches to evaluate on: the data set is empty.")
    graphdef, params, model_state = split_model(model)
    step = make_evaluation_step(graphdef, loss_fn)
    total = zero_metrics(metric_names(model, loss_fn, batches.batch(0)))
    for index in range(len(batches)):
        total = step(params, model_state, total, batches.batch(index))
    return mean_metrics(total)
