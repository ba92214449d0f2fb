"""Why a loss, a gradient or a parameter is not finite: the message that ends a run."""

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
"""Number of parameters and arrays that a message names."""


class NonFiniteLossError(RuntimeError):
    """The loss, a gradient or a parameter became NaN or infinite.

    Attributes:
        steps: Of several runs, the step in which each did.
    """

    def __init__(self, message: str, steps: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.steps = tuple(steps)


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
    def gradients(params: nnx.State, model_state: nnx.State, batch: Batch, step: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), step)
        return batch_gradients(
            graphdef, loss_fn, params, model_state, batch, key, alone, state.loss_scale
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
    if placement.axis_name is not None:  # each device drew its own dropout
        return f"Done again on one device, the loss was {loss:.4g} and the gradient finite. "
    return f"The loss was {loss:.4g} and the gradient finite, but the updated parameters were not. "


def likely_cause(arrays: Sequence[str], run_dir: str | Path) -> str:
    """Sentences on why, what to do, and which checkpoint is the last.

    Args:
        arrays: What holds NaN or inf in the data; none of them, if it is something else.
        run_dir: The run folder.
    """
    checkpoints = list_checkpoints(run_dir)
    last = checkpoints[-1].path if checkpoints else "none was saved yet"
    if arrays:
        cause = (
            f"The data holds NaN or inf: {'; '.join(arrays[:MAX_NAMES])}. If these are not masked "
            "out, clean them (for gaps in series: data.interpolate_missing)."
        )
    else:
        cause = (
            "The batch itself is finite. Likely causes: a learning rate that is too high (try a "
            "third of it, warm-up, or optax.clip_by_global_norm(1.0)), or half precision (try "
            "float32)."
        )
    return f"{cause} The last finite checkpoint: {last}."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


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
