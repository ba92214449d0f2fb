"""A training of many runs in progress."""

from __future__ import annotations

import dataclasses
from typing import cast

import jax.numpy as jnp
import numpy as np

from flax_linattn.training.diagnosis import NonFiniteLossError
from flax_linattn.training.many.record import ManyRecord, mean_of_runs
from flax_linattn.training.many.state import ManyState
from flax_linattn.training.many.steps import closed
from flax_linattn.training.many.validation import ManyValidation, means_of_runs
from flax_linattn.training.trainer import Trainer, prefixed


@dataclasses.dataclass
class ManyTrainer(Trainer):
    """As ``Trainer``, for the states, the validation and the record of many runs."""

    state: ManyState
    record: ManyRecord
    validation: ManyValidation

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_parameters //= len(self.record.runs)  # of one; tokens are those of all

    def _end_period(self) -> None:
        """Validates each run, keeps the best of each, and saves."""
        record = self.record
        train = self._means_of_runs()
        validation = self.validation.of_runs(self.state, self.stop)
        if validation is None:
            self._interrupt(self._asked_to_stop())
        bad_steps = np.asarray(self.state.first_bad_step).tolist()
        judged = record.judge(self.step, validation, bad_steps, self.config.patience)
        failed = [run["failed_step"] for run in record.runs]
        if None not in failed and all(run["best_step"] is None for run in record.runs):
            self.saver.settle()
            steps = [cast(int, step) for step in failed]
            raise NonFiniteLossError(
                f"All {len(steps)} runs became NaN or infinite, the first in step {min(steps)} and "
                f"the last in step {max(steps)}. A smaller learning rate may help.",
                steps,
            )
        self._track(
            prefixed("train", mean_of_runs(train, judged.told))
            | prefixed("validation", mean_of_runs(validation, judged.told))
        )
        record.end_period_of_runs(self.step, train, validation, judged.told)
        improved, active = map(jnp.asarray, (judged.improved, judged.active))
        self.state = closed(self.state, improved, active, self.loader.placement)
        self._close_period(improved=False)  # the state holds the best, whichever steps are saved

    def _train_means(self) -> dict[str, float]:
        """Means over the runs that train."""
        return mean_of_runs(self._means_of_runs(), self.record.active)

    def _means_of_runs(self) -> list[dict[str, float]]:
        """The period's training metrics so far, with counts and time up to now."""
        self.record.share_counts()
        means = means_of_runs(self.state.metrics)  # waits for the device
        self.timer.tick()
        return means

    def _check_finite(self) -> None:
        """A run that fails ends alone, at the next validation."""
