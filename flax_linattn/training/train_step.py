"""The compiled training step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import ArrayLike

from flax_linattn.training.batches import Batch
from flax_linattn.training.gradients import batch_gradients
from flax_linattn.training.guard import judge
from flax_linattn.training.metrics import add_metrics
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.state import TrainState

TrainStep = Callable[[TrainState, Batch], TrainState]


# Kept by its arguments, so that a second training in a process compiles nothing anew.
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
        >>> from flax_linattn.training.state import split_model
        >>> graphdef, params, rest = split_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
        >>> step = make_train_step(graphdef, loss_fn, optax.sgd(0.1), seed=0)
        >>> state = TrainState.create(params, rest, optax.sgd(0.1), ["loss"])
        >>> int(step(state, {"x": jnp.ones((3, 2))}).step)
        1
    """
    update = update_of(graphdef, loss_fn, optimizer, placement, max_skipped)

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        return placement.keep(update(state, batch, seed))

    return placement.compile(train_step, 2, donate=0)


def update_of(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    placement: Placement,
    max_skipped: int,
) -> Callable[[TrainState, Batch, ArrayLike], TrainState]:
    """What a training step computes, ``(state, batch, seed) -> state``, not compiled.

    Arguments as those of ``make_train_step``.
    """

    def update(state: TrainState, batch: Batch, seed: ArrayLike) -> TrainState:
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
        return dataclasses.replace(
            kept,
            step=state.step + verdict.counts.astype(jnp.int32),
            skipped=verdict.skipped,
            first_bad_step=verdict.first_bad_step,
            loss_scale=scale,
        )

    return update


def _all_finite(tree: Any) -> jax.Array:
    # Not the norm of the tree: its squares can overflow where every entry is finite (float16).
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    # A search for the first that is not, since XLA repeats what jnp.all would be, an `and` of all
    # leaves, in the kernel of every updated array: compiling took half as long again on a CPU.
    flags = [jnp.all(jnp.isfinite(x)) for x in leaves]
    return jnp.argmin(jnp.stack([*flags, jnp.array(False)])) == len(leaves)
