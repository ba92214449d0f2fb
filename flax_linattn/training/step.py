"""The compiled training and evaluation steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.training.guard import LossScale, judge
from flax_linattn.training.metrics import (
    Metrics,
    add_metrics,
    batch_metrics,
    mean_metrics,
    zero_metrics,
)
from flax_linattn.training.parallel import ONE_DEVICE, Placement
from flax_linattn.training.state import TrainState, split_model

Batch = Mapping[str, np.ndarray]
#: (model, batch, dropout key or None to evaluate) -> (loss, metrics)
LossFn = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, Metrics]]
TrainStep = Callable[[TrainState, Batch], TrainState]
EvaluationStep = Callable[[nnx.State, nnx.State, Metrics, Batch], Metrics]


class BatchSource(Protocol):
    """Batches as a pure function of the step, as ``flax_linattn.data.Batches`` gives them."""

    def __len__(self) -> int:
        """Returns the batches of one epoch."""

    def batch(self, step: int, rows: slice = ...) -> Batch:
        """Returns the batch of this step, counted from 0 over all epochs.

        Args:
            step: Its number.
            rows: Which of its rows to load; given to a process of several that needs no others.

        Returns:
            Arrays of as many rows in every batch. They are not written to afterwards: a device may
            still be reading them.
        """


def _all_finite(tree: Any) -> jax.Array:
    # Not the norm of the tree: its squares can overflow where every entry is finite (float16).
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))


# Kept by their arguments, so that a second run or evaluation in a process compiles nothing anew.
@functools.lru_cache(maxsize=8)
def make_train_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    seed: int,
    placement: Placement = ONE_DEVICE,
    max_skipped: int = 0,
) -> TrainStep:
    """Returns the compiled ``(state, batch) -> state``; the state passed in is donated.

    A step whose loss, gradient or new parameters are not finite changes nothing but
    ``first_bad_step``, and neither does any step after it: the host can look at that number as
    seldom as it likes. The first ``max_skipped`` such updates are left out instead, and counted.

    Args:
        graphdef: The model's structure, from ``split_model(model)``.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``.
        optimizer: An optax gradient transformation.
        seed: Step n draws from ``fold_in(key(seed), n)``, so that a resumed run draws the same.
        placement: The devices, from ``Parallel.place``; the batches have to be placed there.
        max_skipped: How many updates may be left out because they are not finite.

    Example:
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean(model(batch["x"]) ** 2), {}
        >>> graphdef, params, rest = split_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
        >>> step = make_train_step(graphdef, loss_fn, optax.sgd(0.1), seed=0)
        >>> state = TrainState.create(params, rest, optax.sgd(0.1), ["loss"])
        >>> int(step(state, {"x": np.ones((3, 2), np.float32)}).step)
        1
    """

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)
        loss, grads, metrics, model_state = batch_gradients(
            graphdef,
            loss_fn,
            state.params,
            state.model_state,
            batch,
            dropout_key,
            placement,
            state.loss_scale,
        )
        # optax mixes dtypes (Adam: float ** int32), which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        finite = _all_finite((loss, grads, params))
        scale = state.loss_scale
        verdict = judge(
            max_skipped, finite, loss, state.step, state.skipped, state.first_bad_step, scale
        )
        new = dataclasses.replace(
            state,
            params=params,
            model_state=model_state,
            opt_state=opt_state,
            metrics=add_metrics(state.metrics, metrics),
        )
        kept = jax.tree.map(lambda a, b: jnp.where(verdict.good, a, b), new, state)
        if scale is not None:
            changed = scale.after(finite)
            scale = jax.tree.map(lambda a, b: jnp.where(verdict.counts, a, b), changed, scale)
        kept = dataclasses.replace(
            kept,
            step=state.step + verdict.counts.astype(jnp.int32),
            skipped=verdict.skipped,
            first_bad_step=verdict.first_bad_step,
            loss_scale=scale,
        )
        return placement.keep(kept)

    return placement.compile(train_step, 2, donate=0)


class _Part(NamedTuple):
    """Of a part of a batch: its weight, and its loss and gradients, or these times its weight."""

    weight: jax.Array
    loss: jax.Array
    grads: nnx.State
    metrics: Metrics

    def weighted(self, real: jax.Array) -> _Part:
        """What adds up: a loss is a weighted mean, and so is that of all parts together."""

        def add_up(x: jax.Array) -> jax.Array:
            return x.astype(accumulation_dtype(x.dtype)) * self.weight

        loss, grads = jax.tree.map(add_up, (self.loss, self.grads))
        part = self._replace(loss=loss, grads=grads)
        return jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), part)


def batch_gradients(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    params: nnx.State,
    model_state: nnx.State,
    batch: Batch,
    dropout_key: jax.Array,
    placement: Placement,
    loss_scale: LossScale | None = None,
) -> tuple[jax.Array, nnx.State, Metrics, nnx.State]:
    """Loss, gradients, metrics and other variables of all parts of a batch, on all devices."""
    axis, parts = placement.axis_name, placement.accumulate

    def part(model_state: nnx.State, batch: Batch, key: jax.Array) -> tuple[nnx.State, _Part]:
        def loss_of(params: nnx.State) -> tuple[jax.Array, tuple[jax.Array, Metrics, nnx.State]]:
            # A copy, since the forward pass may change variables, and those outside belong to
            # another trace.
            model = nnx.merge(graphdef, params, model_state, copy=True)
            loss, metrics = loss_fn(model, batch, key)
            _, _, after = split_model(model)
            found = batch_metrics(loss, metrics, batch)
            if loss_scale is None:
                return loss, (loss, found, after)
            scaled = loss.astype(accumulation_dtype(loss.dtype)) * loss_scale.value
            return scaled, (loss, found, after)

        (_, (loss, metrics, after)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        if loss_scale is not None:
            grads = jax.tree.map(partial(_unscale, loss_scale.value), grads)
        return after, _Part(metrics["loss"][1], loss, grads, metrics)

    if axis is None and parts == 1:
        model_state, whole = part(model_state, batch, dropout_key)
        return whole.loss, whole.grads, whole.metrics, model_state

    def weighted_part(
        model_state: nnx.State, now: tuple[Batch, jax.Array]
    ) -> tuple[nnx.State, _Part]:
        batch, real = _with_examples(now[0])
        model_state, found = part(model_state, batch, now[1])
        return model_state, found.weighted(real)

    def add(carry: tuple[nnx.State, _Part], now: Any) -> tuple[tuple[nnx.State, _Part], None]:
        model_state, found = weighted_part(carry[0], now)
        return (model_state, jax.tree.map(jnp.add, carry[1], found)), None

    if axis is not None:
        dropout_key = jax.random.fold_in(dropout_key, jax.lax.axis_index(axis))
    turns = (
        jax.tree.map(partial(_in_turns, parts=parts), batch),
        jax.random.split(dropout_key, parts),
    )
    first = jax.tree.map(lambda x: x[0], turns)
    nothing = jax.eval_shape(weighted_part, model_state, first)[1]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
    (model_state, sums), _ = jax.lax.scan(add, (model_state, nothing), turns)
    if axis is not None:
        sums = jax.lax.psum(sums, axis)
        model_state = jax.tree.map(partial(_device_mean, axis=axis), model_state)
    loss = sums.loss / sums.weight
    grads = jax.tree.map(lambda g, p: (g / sums.weight).astype(p.dtype), sums.grads, params)
    return loss, grads, sums.metrics, model_state


def _unscale(scale: jax.Array, x: jax.Array) -> jax.Array:
    """``x`` over the scale."""
    return (x.astype(accumulation_dtype(x.dtype)) / scale).astype(x.dtype)


def _in_turns(x: jax.Array, parts: int) -> jax.Array:
    """[B, ...] -> [parts, B / parts, ...]: every part has the same share of each device's rows."""
    return jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)


def _device_mean(x: jax.Array, axis: str) -> jax.Array:
    return jax.lax.pmean(x, axis) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _with_examples(batch: Mapping[str, Any]) -> tuple[Batch, jax.Array]:
    """A part whose rows are all filler gets weights, or its mean would be 0 / 0; and is to count 0.

    Returns:
        The batch, and whether it has real examples.
    """
    if "weight" not in batch:
        return batch, jnp.ones((), bool)
    weight = batch["weight"]
    real = jnp.any(weight != 0)
    return {**batch, "weight": jnp.where(real, weight, jnp.ones_like(weight))}, real


@functools.lru_cache(maxsize=8)
def make_evaluation_step(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: Placement = ONE_DEVICE
) -> EvaluationStep:
    """Returns the compiled ``(params, model_state, sums, batch) -> sums`` of one batch's metrics.

    The loss function is called with ``dropout_key=None``. What it changes in the model is dropped.
    """

    def evaluation_step(
        params: nnx.State, model_state: nnx.State, total: Metrics, batch: Batch
    ) -> Metrics:
        model = nnx.merge(graphdef, params, model_state, copy=True)
        axis = placement.axis_name
        if axis is None:
            return add_metrics(total, batch_metrics(*loss_fn(model, batch, None), batch))
        batch, real = _with_examples(batch)
        found = batch_metrics(*loss_fn(model, batch, None), batch)
        found = jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), found)
        return add_metrics(total, jax.lax.psum(found, axis))

    return placement.compile(evaluation_step, 4, donate=2)


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
