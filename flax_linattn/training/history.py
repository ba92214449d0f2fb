"""The host's record of a training: progress, metrics and times of each run."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from flax_linattn.annotations import check_types, fits
from flax_linattn.checks import OptionError
from flax_linattn.storage import append_text, write_text
from flax_linattn.training.metrics import Means, column_means, metric_columns
from flax_linattn.training.objective import FitConfig, Objective
from flax_linattn.training.processes import average

METRICS_FILE = "metrics.jsonl"


@dataclasses.dataclass
class RunProgress:
    """The progress of one run: its best monitored value, and whether it failed or was stopped.

    Epochs and steps count from 1; ``bad_epochs`` are the validations since the best.
    """

    hyperparameters: dict[str, float] = dataclasses.field(default_factory=dict)
    best_value: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    bad_epochs: int = 0
    failed_step: int | None = None
    stopped: bool = False

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether ``patience`` validations in a row have not improved the monitored metric."""
        return self.stopped or (patience is not None and self.bad_epochs >= patience)

    def validate(self, value: float, step: int, epoch: int, mode: str) -> bool:
        """Records a monitored value; returns whether it is the best so far, as a tie is, too."""
        sign = 1 if mode == "max" else -1
        improved = self.best_value is None or sign * value >= sign * self.best_value
        if improved:
            self.best_value, self.best_epoch, self.best_step = value, epoch, step
        self.bad_epochs = 0 if improved else self.bad_epochs + 1
        return improved


class Selection(NamedTuple):
    """The outcome of a validation, bool [R] each: which runs improved, train on, and count.

    The metrics of runs count that had been training and have not failed.
    """

    improved: np.ndarray
    active: np.ndarray
    counted: np.ndarray


@dataclasses.dataclass
class History:
    """A training's progress on the host; saved as JSON within each checkpoint.

    The training from one validation to the next is a period: an epoch, which is one pass over the
    training batches, or ``FitConfig.validate_every`` steps.

    Times and counts are those of the unfinished period.

    Args:
        seed: As in FitConfig.
        monitor: As in Objective.
        monitor_mode: Its ``mode``.
        steps_per_epoch: Training batches in an epoch.
        batch_size: Rows of a training batch.
        runs: The progress of each run; of a single model one.
        is_stacked: Whether the runs are an axis of all arrays; False for a single model.
        seconds: Training time.
        examples: Training examples of all runs.
        tokens: Real tokens among them, where batches have a "mask".
        positions: Tokens that were computed for them, padding too.
        data_seconds: Part of the training time that went into making and placing batches.
        saving_seconds: Time, besides ``seconds``, that training stood still for checkpoints; that
            of a period's own checkpoint counts to the next period.
        lines: One dict for each validation, a line of metrics.jsonl.
        validate_every: Steps of a period; 0 stands for those of an epoch.
    """

    seed: int
    monitor: str
    monitor_mode: str
    steps_per_epoch: int
    batch_size: int
    runs: list[RunProgress] = dataclasses.field(default_factory=lambda: [RunProgress()])
    is_stacked: bool = False
    seconds: float = 0.0
    examples: float = 0
    tokens: float = 0
    positions: float = 0
    data_seconds: float = 0.0
    saving_seconds: float = 0.0
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    validate_every: int = 0

    def __post_init__(self) -> None:
        self.validate_every = self.validate_every or self.steps_per_epoch

    @classmethod
    def start(
        cls,
        config: FitConfig,
        objective: Objective,
        steps_per_epoch: int,
        batch_size: int,
        hyperparameters: Sequence[Mapping[str, float]] | None = None,
    ) -> Self:
        """The history before the first step; ``hyperparameters`` are None for a single model."""
        runs = [
            RunProgress({name: float(value) for name, value in given.items()})
            for given in ([{}] if hyperparameters is None else hyperparameters)
        ]
        return cls(
            config.seed,
            objective.monitor,
            objective.mode,
            steps_per_epoch,
            batch_size,
            runs,
            is_stacked=hyperparameters is not None,
            validate_every=config.validate_every or 0,
        )

    @property
    def validated_steps(self) -> int:
        """Training steps done at the last validation; 0 before the first."""
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def epochs_done(self) -> int:
        """Finished epochs: trained and validated."""
        return self.validated_steps // self.steps_per_epoch

    @property
    def active(self) -> np.ndarray:
        """The runs that train, bool [R]."""
        return np.array([run.failed_step is None and not run.stopped for run in self.runs])

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to, both counted from 1."""
        return (step - 1) // self.steps_per_epoch + 1

    def period_end(self, config: FitConfig) -> int:
        """Training steps done at the next validation, the same however long the training."""
        whole = (self.validated_steps // self.validate_every + 1) * self.validate_every
        return min(whole, config.total_steps(self.steps_per_epoch))

    def is_over(self, config: FitConfig) -> bool:
        """Whether all steps are done, or no run trains on."""
        return self.validated_steps >= config.total_steps(self.steps_per_epoch) or all(
            run.failed_step is not None or run.out_of_patience(config.patience) for run in self.runs
        )

    @property
    def training_seconds(self) -> float:
        """Training time spent so far."""
        return self.seconds + sum(line["seconds"] for line in self.lines)

    def select(
        self,
        step: int,
        validation: Sequence[Means],
        bad_steps: Sequence[int],
        patience: int | None,
    ) -> Selection:
        """Selects, after a validation, the runs with a new best value and the runs that continue.

        ``bad_steps`` are the steps, from 0, that made a run's numbers NaN or infinite; -1 if none.
        """
        was_active = self.active
        improved = np.zeros(len(self.runs), bool)
        for r in np.flatnonzero(was_active).tolist():
            run, value = self.runs[r], validation[r][self.monitor]
            if bad_steps[r] >= 0 or not math.isfinite(value):
                run.failed_step = bad_steps[r] + 1 if bad_steps[r] >= 0 else step
                continue
            improved[r] = run.validate(value, step, self.epoch_of(step), self.monitor_mode)
            run.stopped = run.out_of_patience(patience)
        counted = was_active & [run.failed_step is None for run in self.runs]
        return Selection(improved, self.active, counted)

    def end_period(
        self,
        step: int,
        train: Sequence[Means],
        validation: Sequence[Means],
        counted: np.ndarray,
        skipped: int = 0,
    ) -> None:
        """Adds a line for a finished period; ``skipped`` are all updates skipped so far."""
        columns = metric_columns("train", train, counted)
        columns |= metric_columns("validation", validation, counted)
        line: dict[str, Any] = {
            "epoch": self.epoch_of(step),
            "step": step,
            # JSON has no NaN: a metric that no example counted for is null.
            **column_means(columns),
            "monitor": self.monitor,
        }
        if self.is_stacked:
            best_and_failed = {
                "best_step": [run.best_step for run in self.runs],
                "failed_step": [run.failed_step for run in self.runs],
            }
            line |= {**self.speed(), "runs": {**columns, **best_and_failed}}
        else:
            (run,) = self.runs
            line["best_epoch"] = run.best_epoch
            # The step identifies one of several validations in an epoch.
            if any(other["step"] % self.steps_per_epoch for other in [*self.lines, line]):
                line["best_step"] = run.best_step
            line |= {**self.speed(), **({"skipped_steps": skipped} if skipped else {})}
        self.lines.append(line)
        self.seconds = self.data_seconds = self.saving_seconds = 0.0
        self.examples = self.tokens = self.positions = 0

    def select_best_of(self, steps: Collection[int]) -> None:
        """Selects a single model's best again, among validations after these steps."""
        (run,) = self.runs
        sign = 1 if self.monitor_mode == "max" else -1
        name = f"validation_{self.monitor}"
        lines = [line for line in self.lines if line["step"] in steps]
        best = max(lines, key=lambda line: (sign * line[name], line["step"]), default=None)
        if best is None:
            run.best_value = run.best_epoch = run.best_step = None
            run.bad_epochs = 0
        else:
            run.best_value, run.best_step = best[name], best["step"]
            run.best_epoch = self.epoch_of(best["step"])
            run.bad_epochs = sum(line["step"] > best["step"] for line in self.lines)

    def count(self, batch: Mapping[str, np.ndarray], share: float = 1.0) -> None:
        """Counts a training batch, ``[R, B, ...]`` of several runs.

        The rows that this process loaded are ``share`` of all; they stand for the others, until
        processes ``share_counts``.
        """
        if self.is_stacked:
            batch = {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items()}
        weight = batch.get("weight", np.ones(len(next(iter(batch.values())))))
        real = np.asarray(weight) > 0  # [B], or [B, T] where each row holds several examples
        self.examples += float(real.sum()) / share
        if "mask" in batch:
            mask = np.asarray(batch["mask"])
            self.tokens += float(mask[real.reshape(len(real), -1).any(axis=1)].sum()) / share
            self.positions += mask.size / share

    def share_counts(self) -> None:
        """Takes the mean of what all processes counted, which is right where rows are even."""
        counts = average([self.examples, self.tokens, self.positions])
        self.examples, self.tokens, self.positions = counts

    def speed(self) -> dict[str, float]:
        """How fast the unfinished period trains, and what its time goes into."""
        tokens = {}
        if self.tokens:
            tokens["tokens_per_second"] = round(self.tokens / self.seconds, 1)
            tokens["real_token_share"] = round(self.tokens / self.positions, 3)
        return {
            "seconds": round(self.seconds, 3),
            "data_seconds": round(self.data_seconds, 3),
            "saving_seconds": round(self.saving_seconds, 3),
            "examples_per_second": round(self.examples / self.seconds, 1),
            **tokens,
        }

    def check_same_training(self, new: History) -> None:
        """Refuses a training with another seed, monitor, number or size of batches, or period.

        The data position or the best would mean something else.
        """
        fixed = ("seed", "monitor", "monitor_mode", "steps_per_epoch", "batch_size")
        for name in (*fixed, "validate_every"):
            before, value = getattr(self, name), getattr(new, name)
            if before != value:
                name = name.removeprefix("monitor_")
                raise OptionError(
                    f"The run to resume was made with {name}={before!r}, but now {name} is "
                    f"{value!r}. Resume with the settings and data it was started with, or "
                    "start a new run in another run_dir.",
                    name,
                    "resume",
                )

    def check_same_runs(self, new: History) -> None:
        """Refuses more or fewer runs, or runs of other hyperparameters."""
        before, given = (len(x.runs) if x.is_stacked else "one" for x in (self, new))
        if before != given:
            raise OptionError(
                f"The folder to resume holds {before} run(s), but now there would be {given}; give "
                "as many as it was started with.",
                "runs",
                "resume",
            )
        for r, (run, other) in enumerate(zip(self.runs, new.runs, strict=True)):
            if run.hyperparameters != other.hyperparameters:
                raise OptionError(
                    f"Run {r} to resume was started with the hyperparameters "
                    f"{run.hyperparameters}, but now they are {other.hyperparameters}. Resume with "
                    "those that it was started with, or start new runs in another run_dir.",
                    "hyperparameters",
                    "resume",
                )

    def to_json(self) -> dict[str, Any]:
        """The JSON values of a checkpoint; a single model's best is outside ``runs``."""
        best = RunProgress() if self.is_stacked else self.runs[0]
        return {
            "seed": self.seed,
            "monitor": self.monitor,
            "monitor_mode": self.monitor_mode,
            "steps_per_epoch": self.steps_per_epoch,
            "batch_size": self.batch_size,
            "best_value": best.best_value,
            "best_epoch": best.best_epoch,
            "best_step": best.best_step,
            "bad_epochs": best.bad_epochs,
            "seconds": self.seconds,
            "examples": self.examples,
            "tokens": self.tokens,
            "positions": self.positions,
            "data_seconds": self.data_seconds,
            "saving_seconds": self.saving_seconds,
            "history": list(self.lines),  # a thread writes it while training continues
            "validate_every": self.validate_every,
            "runs": [dataclasses.asdict(run) for run in self.runs] if self.is_stacked else [],
        }

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Restores a history from the values of ``to_json``."""
        try:
            return cls._from_json(**values)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the values are no history of a training: {error}") from error

    @classmethod
    def _from_json(
        cls,
        best_step: int | None,
        history: list[dict[str, Any]],
        best_value: float | None = None,
        best_epoch: int | None = None,
        bad_epochs: int = 0,
        runs: Sequence[dict[str, Any]] = (),
        **values: Any,
    ) -> Self:
        single = RunProgress({}, best_value, best_epoch, best_step, bad_epochs)
        progress = [RunProgress(**run) for run in runs] or [single]
        made = cls(**values, runs=progress, is_stacked=bool(runs), lines=history)
        steps = [line.get("step") for line in history]
        monitored = [line.get(f"validation_{made.monitor}") for line in history]
        best_steps = [run.best_step for run in progress if run.best_step is not None]
        for part in (made, *progress):
            check_types(part)
        if not (
            all(fits(step, int) for step in steps)
            and all(fits(value, float | None if runs else float) for value in monitored)
            and made.steps_per_epoch > 0
            and set(best_steps) <= set(steps)
        ):
            raise TypeError("a validation has no step or no value, or the best is none of them")
        return made

    def write_metrics(self, run_dir: Path) -> None:
        """Writes metrics.jsonl again from the history.

        Lines beyond a restored step go, and so does a line that a kill left half written.
        """
        lines = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_text(run_dir / METRICS_FILE, lines)

    def append_metrics(self, run_dir: Path) -> None:
        """Adds the line of the last period to metrics.jsonl."""
        append_text(run_dir / METRICS_FILE, json.dumps(self.lines[-1]) + "\n")


class Timer:
    """Adds up times in a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.restart()

    def restart(self) -> None:
        """Leaves out the time since the last call of a method."""
        self._since = time.perf_counter()

    def tick(self) -> None:
        """Counts that time as training."""
        now = time.perf_counter()
        self._history.seconds += now - self._since
        self._since = now

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The part of the training time that goes into batches."""
        begin = time.perf_counter()
        yield
        self._history.data_seconds += time.perf_counter() - begin

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Counts as training what was before, and as saving what is done within."""
        self.tick()
        yield
        now = time.perf_counter()
        self._history.saving_seconds += now - self._since
        self._since = now
