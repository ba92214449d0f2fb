"""The gradient of a batch: in parts, one after another, and over devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.training.batches import Batch
from flax_linattn.training.guard import LossScale
from flax_linattn.training.metrics import Metrics, batch_metrics
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import Placement
from flax_linattn.training.state import split_model


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
            sums = batch_metrics(loss, metrics, batch)
            if loss_scale is None:
                return loss, (loss, sums, after)
            scaled = loss.astype(accumulation_dtype(loss.dtype)) * loss_scale.value
            return scaled, (loss, sums, after)

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
        batch, real = with_examples(now[0])
        model_state, one = part(model_state, batch, now[1])
        return model_state, one.weighted(real)

    def add(carry: tuple[nnx.State, _Part], now: Any) -> tuple[tuple[nnx.State, _Part], None]:
        model_state, one = weighted_part(carry[0], now)
        return (model_state, jax.tree.map(jnp.add, carry[1], one)), None

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


def with_examples(batch: Mapping[str, Any]) -> tuple[Batch, jax.Array]:
    """A part whose rows are all filler gets weights, or its mean would be 0 / 0; and is to count 0.

    Returns:
        The batch, and whether it has real examples.
    """
    if "weight" not in batch:
        return batch, jnp.ones((), bool)
    weight = batch["weight"]
    real = jnp.any(weight != 0)
    return {**batch, "weight": jnp.where(real, weight, jnp.ones_like(weight))}, real


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


def _unscale(scale: jax.Array, x: jax.Array) -> jax.Array:
    """``x`` over the scale."""
    return (x.astype(accumulation_dtype(x.dtype)) / scale).astype(x.dtype)


def _in_turns(x: jax.Array, parts: int) -> jax.Array:
    """[B, ...] -> [parts, B / parts, ...]: every part has the same share of each device's rows."""
    return jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)


def _device_mean(x: jax.Array, axis: str) -> jax.Array:
    return jax.lax.pmean(x, axis) if jnp.issubdtype(x.dtype, jnp.inexact) else x
