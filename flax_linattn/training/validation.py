"""Validation: metrics of a model over batches, without dropout, and of ``Objective.validate``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from flax import nnx

from flax_linattn.checks import OptionError
from flax_linattn.training.batches import Batch, BatchSource, Loader
from flax_linattn.training.metrics import (
    Metrics,
    batch_metrics,
    mean_metrics,
    run_means,
    zero_metrics,
)
from flax_linattn.training.non_finite import NonFiniteLossError, non_finite_arrays
from flax_linattn.training.objective import LossFn, Objective
from flax_linattn.training.processes import broadcast_from_main, check_same_in_processes
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import EvaluationStep, make_evaluation_step


def metric_names(model: nnx.Module, loss_fn: LossFn, batch: Batch) -> list[str]:
    """Returns the names of the metrics that a loss function reports, without computing them."""
    graphdef, state = nnx.split(model)

    def batch_report(state: nnx.State, batch: Batch) -> Metrics:
        loss, metrics = loss_fn(nnx.merge(graphdef, state, copy=True), batch, None)
        return batch_metrics(loss, metrics, batch)

    return sorted(jax.eval_shape(batch_report, state, batch))


def evaluate(model: nnx.Module, loss_fn: LossFn, batches: BatchSource) -> dict[str, float]:
    """Returns the weighted mean of each metric over one epoch of batches, without dropout.

    Args:
        model: The model; it is not changed.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``, called with no key. The loss is
            a float32 scalar; ``metrics`` maps a name to (weighted sum, weight), float32 scalars.
        batches: The batches; each example counts by its weight, so fillers have no effect.

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
        raise ValueError(
            "expected at least one batch to evaluate on, got none; check the data set."
        )
    graphdef, params, model_state = split_model(model)
    step = make_evaluation_step(graphdef, loss_fn)
    total = zero_metrics(metric_names(model, loss_fn, batches.batch(0)))
    for index in range(len(batches)):
        total = step(params, model_state, total, batches.batch(index))
    return mean_metrics(total)


@dataclasses.dataclass(frozen=True)
class Validation:
    """Computes the validation metrics of a state, over batches and by ``Objective.validate``."""

    objective: Objective
    graphdef: nnx.GraphDef[Any]
    loader: Loader
    evaluation_step: EvaluationStep

    def metrics(self, state: TrainState, stop: StopRequest) -> list[dict[str, float]] | None:
        """Returns each run's validation metrics; None if a signal stopped training.

        ``Objective.validate`` is called for one run after another. Runs that have ended get NaN for
        its metrics, and so does any of several runs for which it returns an infinite number; for a
        single model that is a NonFiniteLossError.
        """
        shape = np.shape(state.first_bad_step)  # (), or (R,)
        total = self.loader.placement.state(zero_metrics(state.metrics, shape))
        for index in range(len(self.loader)):
            if self._is_stopped(stop):
                return None
            _, batch = self.loader.load(index)
            total = self.evaluation_step(state.params, state.model_state, total, batch)
        means = run_means(total)
        if self.objective.validate is None:
            return means
        for r in state.active_runs:
            if self._is_stopped(stop):
                return None
            try:
                means[r] = self._add_validate(means[r], state.run(r))
            except NonFiniteLossError:
                if not state.is_stacked:
                    raise
                means[r] = {}  # it fails alone: its monitored metric is NaN
        if not state.is_stacked:
            return means
        names = {self.objective.monitor: None} | {name: None for run in means for name in run}
        return [{name: run.get(name, math.nan) for name in names} for run in means]

    def bad_arrays(self) -> list[str]:
        """A phrase for each array in the validation batches that holds NaN or inf."""
        return [
            f"validation batch {index}: {array}"
            for index in range(len(self.loader))
            for array in non_finite_arrays(self.loader.source.batch(index))
        ]

    def _is_stopped(self, stop: StopRequest) -> bool:
        """Whether a signal ends the validation; with several processes it is always finished."""
        return jax.process_count() == 1 and stop.signum is not None

    def _add_validate(self, means: dict[str, float], state: TrainState) -> dict[str, float]:
        """Adds the metrics that ``Objective.validate`` returns to the metrics of the batches."""
        numbers = self._numbers(state)
        if both := sorted(means.keys() & numbers.keys()):
            raise ValueError(
                f"Objective.validate and the loss function both report {', '.join(both)}; "
                "rename the metrics that validate returns."
            )
        means |= numbers
        check_monitor(self.objective, means)
        return means

    def _numbers(self, state: TrainState) -> dict[str, float]:
        """The metrics that ``Objective.validate`` returns in the main process."""
        assert self.objective.validate is not None
        # A copy, so that changes that it makes to the model have no effect.
        model = nnx.merge(self.graphdef, state.params, state.model_state, copy=True)
        step = int(state.step)
        returned = self.objective.validate(model, step)
        try:
            numbers = {name: float(number) for name, number in sorted(returned.items())}
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(
                "Objective.validate must return a dict of names and numbers, got "
                f"{returned!r:.200} ({error}); return a dict such as {{'success': 0.9}}."
            ) from error
        names = list(numbers)
        check_same_in_processes(lambda: {"the names that Objective.validate returns": names})
        numbers = dict(zip(numbers, broadcast_from_main(list(numbers.values())), strict=True))
        for name, number in numbers.items():
            if math.isinf(number):
                raise NonFiniteLossError(
                    f"Objective.validate returned {name}={number} after step {step}; its numbers "
                    "must be finite, or NaN for no value."
                )
        return numbers


def check_monitor(objective: Objective, names: Any) -> None:
    """Raises if the monitored metric of an objective is not among ``names``."""
    if objective.monitor not in names:
        source = "the loss function reports"
        if objective.validate is not None:
            source = "the loss function and validate report"
        raise OptionError(
            f"Objective.monitor is {objective.monitor!r}, but {source} "
            f"{', '.join(sorted(names))}. Choose one of these.",
            "monitor",
        )
