"""What the host knows of many runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from flax_linattn.annotations import fits
from flax_linattn.training.config import FitConfig
from flax_linattn.training.objective import Objective
from flax_linattn.training.record import RunRecord

Means = Mapping[str, float]


class RunProgress(TypedDict):
    """What one of the runs has come to, as checkpoints hold it."""

    hyperparameters: dict[str, float]
    """Those of the optimizer that were given to it."""
    best_value: float | None
    """The best monitored value so far; None before the first."""
    best_epoch: int | None
    best_step: int | None
    bad_epochs: int
    """Validations since the best."""
    failed_step: int | None
    """The step in which it became NaN or infinite, counted from 1; None if none."""
    stopped: bool
    """Whether it ran out of patience."""


class Judged(NamedTuple):
    """A validation of all runs: bool [R] each.

    Attributes:
        improved: which are at their best.
        active: which go on.
        told: which had been training, and have not failed: of others there is nothing to tell.
    """

    improved: np.ndarray
    active: np.ndarray
    told: np.ndarray


@dataclasses.dataclass
class ManyRecord(RunRecord):
    """The record of many runs: means over them, and ``runs``, a ``RunProgress`` each."""

    @classmethod
    def of(cls, record: RunRecord) -> ManyRecord:
        """The same, read from a checkpoint.

        Raises:
            ValueError: It is not that of many runs.
        """
        if not fits(record.runs, list[RunProgress]):
            raise ValueError("the folder's newest checkpoint holds no record of many runs.")
        return cls(**dataclasses.asdict(record))

    @classmethod
    def begin(
        cls,
        config: FitConfig,
        objective: Objective,
        steps_per_epoch: int,
        batch_size: int,
        hyperparameters: Sequence[Mapping[str, float]],
    ) -> ManyRecord:
        """The record before the first step; hyperparameters of each run."""
        record = RunRecord.start(config, objective, steps_per_epoch, batch_size)
        record.runs = [
            dict(
                RunProgress(
                    hyperparameters={name: float(value) for name, value in given.items()},
                    best_value=None,
                    best_epoch=None,
                    best_step=None,
                    bad_epochs=0,
                    failed_step=None,
                    stopped=False,
                )
            )
            for given in hyperparameters
        ]
        return cls.of(record)

    @property
    def active(self) -> np.ndarray:
        """Which runs train, bool [R]."""
        return np.array([run["failed_step"] is None and not run["stopped"] for run in self.runs])

    def is_over(self, config: FitConfig) -> bool:
        """Whether the runs have all their steps, or none of them goes on."""
        return super().is_over(config) or not self.active.any()

    def count(self, batch: Mapping[str, np.ndarray], share: float = 1.0) -> None:
        """Counts the batches of all runs, ``[R, B, ...]``."""
        super().count({n: x.reshape(-1, *x.shape[2:]) for n, x in batch.items()}, share)

    def judge(
        self,
        step: int,
        validation: Sequence[Means],
        bad_steps: Sequence[int],
        patience: int | None,
    ) -> Judged:
        """Takes in what the runs have come to at the end of a period.

        Args:
            step: Training steps done.
            validation: Each run's validation metrics.
            bad_steps: The step, from 0, that made a run's numbers NaN or infinite; -1 if none did.
            patience: As in ``FitConfig``.
        """
        was_active, epoch = self.active, self.epoch_of(step)
        sign = 1 if self.monitor_mode == "max" else -1
        improved = np.zeros(len(self.runs), bool)
        for r in np.flatnonzero(was_active).tolist():
            run, value = self.runs[r], validation[r][self.monitor]
            if bad_steps[r] >= 0 or not math.isfinite(value):
                run["failed_step"] = int(bad_steps[r]) + 1 if bad_steps[r] >= 0 else step
                continue
            improved[r] = run["best_value"] is None or sign * value >= sign * run["best_value"]
            if improved[r]:
                run |= {"best_value": value, "best_epoch": epoch, "best_step": step}
            run["bad_epochs"] = 0 if improved[r] else run["bad_epochs"] + 1
            run["stopped"] = patience is not None and run["bad_epochs"] >= patience
        told = was_active & [run["failed_step"] is None for run in self.runs]
        return Judged(improved, self.active, told)

    def end_period_of_runs(
        self, step: int, train: Sequence[Means], validation: Sequence[Means], told: np.ndarray
    ) -> None:
        """Adds a finished period to the history.

        Args:
            step: Training steps done.
            train: Each run's mean training metrics of the period.
            validation: Each run's validation metrics.
            told: As in ``Judged``.
        """
        columns = _columns("train", train, told) | _columns("validation", validation, told)
        self.history.append(
            {
                "epoch": self.epoch_of(step),
                "step": step,
                **{name: _mean(values) for name, values in columns.items()},
                "monitor": self.monitor,
                **self.speed(),
                "runs": {
                    **columns,
                    **{n: [r[n] for r in self.runs] for n in ("best_step", "failed_step")},
                },
            }
        )
        self.seconds = self.data_seconds = self.saving_seconds = 0.0
        self.examples = self.tokens = self.positions = 0


def mean_of_runs(means: Sequence[Means], told: np.ndarray) -> dict[str, float]:
    """The mean of each metric over the runs that count; NaN where none does."""
    columns = _columns("", means, told)
    means_ = {name.removeprefix("_"): _mean(values) for name, values in columns.items()}
    return {name: math.nan if mean is None else mean for name, mean in means_.items()}


def _columns(part: str, means: Sequence[Means], told: np.ndarray) -> dict[str, list[float | None]]:
    """Each metric of all runs; None where a run has none."""
    return {
        f"{part}_{name}": [
            run[name] if counts and math.isfinite(run[name]) else None
            for run, counts in zip(means, told, strict=True)
        ]
        for name in means[0]
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
