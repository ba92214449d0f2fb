"""The validation metrics: means over batches, and what the objective's ``validate`` adds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from flax import nnx

from flax_linattn.checks import OptionError
from flax_linattn.training.diagnosis import NonFiniteLossError
from flax_linattn.training.evaluation import EvaluationStep
from flax_linattn.training.loader import Loader
from flax_linattn.training.metrics import (
    Metrics,
    mean_metrics,
    non_finite_arrays,
    zero_metrics,
)
from flax_linattn.training.objective import Objective
from flax_linattn.training.processes import check_same, of_main
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Validation:
    """Validates a state.

    Args:
        objective: What to validate by.
        graphdef: The model's structure.
        loader: The validation batches.
        evaluation_step: The compiled step over one of them.
    """

    objective: Objective
    graphdef: nnx.GraphDef[Any]
    loader: Loader
    evaluation_step: EvaluationStep

    def metrics(self, state: TrainState, stop: StopRequest) -> dict[str, float] | None:
        """Returns the validation metrics, the monitored one among them; None if asked to stop.

        Raises:
            ValueError: ``validate`` uses a name of the loss function, or nobody that of the
                monitor.
            TypeError: ``validate`` returns other things than names and numbers.
            NonFiniteLossError: It returns an infinite number.
        """
        zeros = self.loader.placement.state(zero_metrics(state.metrics))
        total = self._sums(zeros, state, stop)
        if total is None:
            return None
        if self.objective.validate is None:
            return mean_metrics(total)
        if jax.process_count() == 1 and stop.signum is not None:
            return None
        return self._joined(mean_metrics(total), state)

    def _joined(self, means: dict[str, float], state: TrainState) -> dict[str, float]:
        """These metrics and those that ``validate`` gives."""
        numbers = self._numbers(state)
        if both := sorted(means.keys() & numbers.keys()):
            raise ValueError(
                f"Objective.validate and the loss function both report {', '.join(both)}; "
                "give what validate returns another name."
            )
        means |= numbers
        check_monitor(self.objective, means)
        return means

    def bad_arrays(self) -> list[str]:
        """A phrase for each array of the batches that holds NaN or inf."""
        return [
            f"validation batch {index}: {array}"
            for index in range(len(self.loader))
            for array in non_finite_arrays(self.loader.source.batch(index))
        ]

    def _sums(self, total: Metrics, state: TrainState, stop: StopRequest) -> Metrics | None:
        """Over all batches; None if asked to stop."""
        for index in range(len(self.loader)):
            if jax.process_count() == 1 and stop.signum is not None:
                return None
            _, batch = self.loader.load(index)
            total = self.evaluation_step(state.params, state.model_state, total, batch)
        return total

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
    """Checks that the monitored metric is among these.

    Raises:
        OptionError: It is not.
    """
    if objective.monitor not in names:
        who = "the loss function reports"
        if objective.validate is not None:
            who = "the loss function and validate report"
        raise OptionError(
            f"Objective.monitor is {objective.monitor!r}, but {who} "
            f"{', '.join(sorted(names))}. Choose one of these.",
            "monitor",
        )
