"""Why a loss, a gradient or a parameter is not finite: for the message that ends the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from flax_linattn.training.checkpoint.arrays import named_leaves
from flax_linattn.training.parallel import ONE_DEVICE, Placement
from flax_linattn.training.state import TrainState
from flax_linattn.training.step import Batch, LossFn, batch_gradients

SHOWN = 4


def what_is_not_finite(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    seed: int,
    placement: Placement,
    state: TrainState,
    batch: Batch,
) -> str:
    """Does a step once more, up to the gradient, and names what is not finite in it.

    Args:
        graphdef: As in ``make_train_step``.
        loss_fn: As in ``make_train_step``.
        seed: As in ``make_train_step``.
        placement: As in ``make_train_step``; this computes on one device.
        state: The state before the step.
        batch: The step's batch.

    Returns:
        Sentences that end in a blank; none where that does not fit one device, or in one of
        several processes.
    """
    alone = dataclasses.replace(ONE_DEVICE, accumulate=placement.accumulate)

    @jax.jit
    def run(params: nnx.State, model_state: nnx.State, batch: Batch, step: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), step)
        return batch_gradients(
            graphdef, loss_fn, params, model_state, batch, key, alone, state.loss_scale
        )[:2]

    if jax.process_count() > 1:
        return ""
    params, model_state = jax.device_get((state.params, state.model_state))
    try:
        loss, grads = jax.device_get(run(params, model_state, batch, np.asarray(state.step)))
    except jax.errors.JaxRuntimeError:
        return ""
    if not np.isfinite(loss):
        return f"The loss was {loss}. "
    bad = [name for name, grad in named_leaves(grads).items() if not np.isfinite(grad).all()]
    if bad:
        return f"The loss was {loss:.4g}, but the gradient was not finite in {_list(bad)}. "
    if placement.axis_name is not None:  # each device drew its own dropout
        return f"Done again on one device, the loss was {loss:.4g} and the gradient finite. "
    return f"The loss was {loss:.4g} and the gradient finite, but the updated parameters were not. "


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
