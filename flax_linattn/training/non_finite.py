"""Errors for losses, gradients and parameters that are NaN or infinite: the step and the cause.

Whether such a step is skipped or ends the run is decided on the device, in ``step.step_outcome``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn.checkpoint.arrays import named_leaves
from flax_linattn.training.batches import Batch
from flax_linattn.training.checkpointer import list_checkpoints
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.state import TrainState
from flax_linattn.training.step import batch_gradients

MAX_NAMES = 4
"""Maximum number of parameters or arrays that a message names."""


class NonFiniteLossError(RuntimeError):
    """The loss, a gradient or a parameter became NaN or infinite.

    Attributes:
        steps: For several runs, the step in which each of them became NaN or infinite.
    """

    def __init__(self, message: str, steps: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.steps = tuple(steps)


def describe_bad_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    seed: int,
    placement: Placement,
    state: TrainState,
    batch: Batch,
) -> str:
    """Repeats a step on one device, up to the gradient, and names what is not finite in it.

    Args:
        graphdef: As in ``make_train_step``.
        loss_fn: As in ``make_train_step``.
        seed: As in ``make_train_step``.
        placement: As in ``make_train_step``.
        state: The state before the step.
        batch: The batch of the step.

    Returns:
        Sentences for an error message, each with a space at its end. Empty if the step does not fit
        on one device, or with several processes.
    """
    one_device = dataclasses.replace(ONE_DEVICE, accumulate=placement.accumulate)

    @jax.jit
    def gradients(params: nnx.State, model_state: nnx.State, batch: Batch, step: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), step)
        return batch_gradients(
            graphdef, loss_fn, params, model_state, batch, key, one_device, state.loss_scale
        )[:2]

    if jax.process_count() > 1:
        return ""
    params, model_state = jax.device_get((state.params, state.model_state))
    try:
        loss, grads = jax.device_get(gradients(params, model_state, batch, np.asarray(state.step)))
    except jax.errors.JaxRuntimeError:
        return ""
    if not np.isfinite(loss):
        return f"The loss was {loss}. "
    bad = [name for name, grad in named_leaves(grads).items() if not np.isfinite(grad).all()]
    if bad:
        return f"The loss was {loss:.4g}, but the gradient was not finite in {_list(bad)}. "
    if placement.axis_name is not None:  # dropout differed on each device
        return f"Repeated on one device, the loss was {loss:.4g} and the gradient was finite. "
    return f"The loss was {loss:.4g} and the gradient was finite, but the new parameters were not. "


def likely_cause(arrays: Sequence[str], run_dir: str | Path) -> str:
    """Sentences on the likely cause, what to do, and the last checkpoint.

    ``arrays`` are phrases for the arrays of the data that hold NaN or inf.
    """
    checkpoints = list_checkpoints(run_dir)
    last = checkpoints[-1].path if checkpoints else "none was saved yet"
    if arrays:
        cause = (
            f"The data holds NaN or inf: {'; '.join(arrays[:MAX_NAMES])}. If these values are not "
            "masked, clean the data (fill gaps in series with data.interpolate_missing)."
        )
    else:
        cause = (
            "The batch itself is finite. Likely causes are a learning rate that is too high (try a "
            "third of it, a warmup, or gradient clipping to a norm of 1) or half precision (try "
            "float32)."
        )
    return f"{cause} The last finite checkpoint: {last}."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def non_finite_arrays(batch: Mapping[str, np.ndarray]) -> list[str]:
    """Phrases such as "'x' at index (0, 1)" for each array of a batch that holds NaN or inf."""
    phrases = []
    for name, array in batch.items():
        array = np.asarray(array)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            phrases.append(f"{name!r} at index {tuple(bad[0].tolist())}")
    return phrases
