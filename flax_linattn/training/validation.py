"""Metrics of a model without dropout, and why a number is not finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn.checkpoint.arrays import named_leaves
from flax_linattn.checks import OptionError
from flax_linattn.training.batches import Batch, BatchSource, Loader
from flax_linattn.training.checkpointer import list_checkpoints
from flax_linattn.training.metrics import (
    Metrics,
    batch_metrics,
    mean_metrics,
    run_means,
    zero_metrics,
)
from flax_linattn.training.objective import LossFn, Objective
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.processes import check_same, of_main
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import EvaluationStep, batch_gradients, make_evaluation_step

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
    """Repeats a step on one device, up to the gradient, and names what is not finite in it.

    ``state`` is the one before the step; the other arguments are those of ``make_train_step``. The
    sentences end in a blank; there are none where a step does not fit one device, or in one of
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
    """Sentences on the cause, what to do, and the last checkpoint; ``arrays`` hold NaN or inf."""
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
        >>> import jax.numpy as jnp, numpy as np
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


@dataclasses.dataclass(frozen=True)
class Validation:
    """Validates a state over batches, and by ``Objective.validate``."""

    objective: Objective
    graphdef: nnx.GraphDef[Any]
    loader: Loader
    evaluation_step: EvaluationStep

    def metrics(self, state: TrainState, stop: StopRequest) -> list[dict[str, float]] | None:
        """Returns each run's validation metrics; None if asked to stop.

        ``Objective.validate`` is called for one run after another, except for runs that have ended:
        they have NaN in place of its numbers. Several runs have NaN, too, where it returns an
        infinite number, which of a single model is a NonFiniteLossError.
        """
        shape = np.shape(state.first_bad_step)  # (), or (R,)
        total = self.loader.placement.state(zero_metrics(state.metrics, shape))
        for index in range(len(self.loader)):
            if self._stops(stop):
                return None
            _, batch = self.loader.load(index)
            total = self.evaluation_step(state.params, state.model_state, total, batch)
        means = run_means(total)
        if self.objective.validate is None:
            return means
        for r in state.active_runs:
            if self._stops(stop):
                return None
            try:
                means[r] = self._joined(means[r], state.run(r))
            except NonFiniteLossError:
                if not state.is_stacked:
                    raise
                means[r] = {}  # it fails alone: its monitored metric is NaN
        if not state.is_stacked:
            return means
        names = {self.objective.monitor: None} | {name: None for run in means for name in run}
        return [{name: run.get(name, math.nan) for name in names} for run in means]

    def bad_arrays(self) -> list[str]:
        """A phrase for each array of the batches that holds NaN or inf."""
        return [
            f"validation batch {index}: {array}"
            for index in range(len(self.loader))
            for array in non_finite_arrays(self.loader.source.batch(index))
        ]

    def _stops(self, stop: StopRequest) -> bool:
        """Whether a signal ends the validation; several processes would lose each other."""
        return jax.process_count() == 1 and stop.signum is not None

    def _joined(self, means: dict[str, float], state: TrainState) -> dict[str, float]:
        """Joins the metrics of a run with the metrics that ``validate`` returns."""
        numbers = self._numbers(state)
        if both := sorted(means.keys() & numbers.keys()):
            raise ValueError(
                f"Objective.validate and the loss function both report {', '.join(both)}; "
                "give what validate returns another name."
            )
        means |= numbers
        check_monitor(self.objective, means)
        return means

    def _numbers(self, state: TrainState) -> dict[str, float]:
        """What ``validate`` returns in the main process."""
        assert self.objective.validate is not None
        # A copy, so that what it does to the model is gone after it.
        model = nnx.merge(self.graphdef, state.params, state.model_state, copy=True)
        step = int(state.step)
        returned = self.objective.validate(model, step)
        try:
            numbers = {name: float(number) for name, number in sorted(returned.items())}
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(
                "Objective.validate must return a dict of names and numbers, got "
                f"{returned!r:.200}: {error}."
            ) from error
        check_same(lambda: {"the names that Objective.validate returns": list(numbers)})
        numbers = dict(zip(numbers, of_main(list(numbers.values())), strict=True))
        for name, number in numbers.items():
            if math.isinf(number):
                raise NonFiniteLossError(
                    f"Objective.validate returned {name}={number} after step {step}; its numbers "
                    "must be finite, or NaN where there is none."
                )
        return numbers


def check_monitor(objective: Objective, names: Any) -> None:
    """Refuses an objective whose monitored metric is not among these."""
    if objective.monitor not in names:
        who = "the loss function reports"
        if objective.validate is not None:
            who = "the loss function and validate report"
        raise OptionError(
            f"Objective.monitor is {objective.monitor!r}, but {who} "
            f"{', '.join(sorted(names))}. Choose one of these.",
            "monitor",
        )
