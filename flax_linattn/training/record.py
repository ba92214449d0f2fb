"""What the host knows of a run: its history, the best so far, and metrics.jsonl."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flax_linattn.checks import OptionError
from flax_linattn.storage import append_text, write_text
from flax_linattn.training.config import FitConfig
from flax_linattn.training.objective import Objective
from flax_linattn.training.processes import average

METRICS_FILE = "metrics.jsonl"


@dataclasses.dataclass
class RunRecord:
    """A run's progress on the host; saved as JSON within each checkpoint.

    The training from one validation to the next is a period: an epoch, which is one pass over the
    training batches, or ``FitConfig.validate_every`` steps. The names of the fields are those of
    the file.

    Args:
        seed: As in FitConfig.
        monitor: As in Objective.
        monitor_mode: Its ``mode``.
        steps_per_epoch: Training batches in an epoch.
        batch_size: Rows of a training batch.
        best_value: The best monitored value so far; None before the first validation.
        best_epoch: Its epoch, counted from 1.
        best_step: The training steps done then.
        bad_epochs: Validations since the best.
        seconds: Training time spent in the unfinished period.
        examples: Training examples seen in the unfinished period.
        tokens: Real tokens among them, where batches have a "mask".
        positions: Tokens that were computed for them, padding too.
        data_seconds: Part of the training time that went into making and placing batches.
        saving_seconds: Time that training stood still for checkpoints, besides ``seconds``; that
            of a period's own checkpoint counts to the next period.
        history: One flat dict for each validation, a line of metrics.jsonl.
        validate_every: Steps of a period; 0 stands for those of an epoch.
        runs: Where many are trained at once, what each has come to; none of them is the best of
            the folder, so that ``best_step`` stays None.
    """

    seed: int
    monitor: str
    monitor_mode: str
    steps_per_epoch: int
    batch_size: int
    best_value: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    bad_epochs: int = 0
    seconds: float = 0.0
    examples: float = 0
    tokens: float = 0
    positions: float = 0
    data_seconds: float = 0.0
    saving_seconds: float = 0.0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    validate_every: int = 0
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.validate_every = self.validate_every or self.steps_per_epoch

    @classmethod
    def start(
        cls, config: FitConfig, objective: Objective, steps_per_epoch: int, batch_size: int
    ) -> RunRecord:
        """Returns the record of a run before its first step."""
        return cls(
            config.seed,
            objective.monitor,
            objective.mode,
            steps_per_epoch,
            batch_size,
            validate_every=config.validate_every or 0,
        )

    @property
    def validated_steps(self) -> int:
        """Training steps done at the last validation; 0 before the first."""
        return self.history[-1]["step"] if self.history else 0

    @property
    def epochs_done(self) -> int:
        """Finished epochs: trained and validated."""
        return self.validated_steps // self.steps_per_epoch

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to, both counted from 1."""
        return (step - 1) // self.steps_per_epoch + 1

    def period_end(self, config: FitConfig) -> int:
        """Training steps done at the next validation.

        Periods end at the same steps however long the training is, but for its last one.
        """
        whole = (self.validated_steps // self.validate_every + 1) * self.validate_every
        return min(whole, config.total_steps(self.steps_per_epoch))

    def is_over(self, config: FitConfig) -> bool:
        """Whether the run has all its steps, or has run out of patience."""
        all_steps = self.validated_steps >= config.total_steps(self.steps_per_epoch)
        return all_steps or self.out_of_patience(config)

    def out_of_patience(self, config: FitConfig) -> bool:
        """Whether ``config.patience`` validations in a row were not better."""
        return config.patience is not None and self.bad_epochs >= config.patience

    def end_period(
        self,
        step: int,
        train: dict[str, float],
        validation: dict[str, float],
        skipped: int = 0,
    ) -> bool:
        """Adds a finished period to the history.

        Args:
            step: Training steps done.
            train: The period's mean training metrics.
            validation: The validation metrics, among them the monitored one.
            skipped: Updates left out so far because they were not finite.

        Returns:
            Whether its end is the best so far. A tie with the best counts as better.
        """
        value = validation[self.monitor]
        sign = 1 if self.monitor_mode == "max" else -1
        improved = self.best_value is None or sign * value >= sign * self.best_value
        epoch = self.epoch_of(step)
        if improved:
            self.best_value, self.best_epoch, self.best_step = value, epoch, step
            self.bad_epochs = 0
        else:
            self.bad_epochs += 1
        lines = [*self.history, {"step": step}]
        within_epochs = any(line["step"] % self.steps_per_epoch for line in lines)
        metrics = {f"train_{name}": mean for name, mean in train.items()}
        metrics |= {f"validation_{name}": mean for name, mean in validation.items()}
        self.history.append(
            {
                "epoch": epoch,
                "step": step,
                # JSON has no NaN: a metric that no example counted for is null.
                **{k: v if math.isfinite(v) else None for k, v in metrics.items()},
                "monitor": self.monitor,
                "best_epoch": self.best_epoch,
                # Of several validations in an epoch the step tells which.
                **({"best_step": self.best_step} if within_epochs else {}),
                **self.speed(),
                **({"skipped_steps": skipped} if skipped else {}),
            }
        )
        self.seconds = self.data_seconds = self.saving_seconds = 0.0
        self.examples = self.tokens = self.positions = 0
        return improved

    def select_best_of(self, steps: Collection[int]) -> None:
        """Selects the best anew among validations after these steps; none, if none of them is."""
        sign = 1 if self.monitor_mode == "max" else -1
        name = f"validation_{self.monitor}"
        lines = [line for line in self.history if line["step"] in steps]
        best = max(lines, key=lambda line: (sign * line[name], line["step"]), default=None)
        if best is None:
            self.best_value = self.best_epoch = self.best_step = None
            self.bad_epochs = 0
        else:
            self.best_value, self.best_step = best[name], best["step"]
            self.best_epoch = self.epoch_of(best["step"])
            self.bad_epochs = sum(line["step"] > best["step"] for line in self.history)

    def count(self, batch: Mapping[str, np.ndarray], share: float = 1.0) -> None:
        """Counts a training batch.

        Args:
            batch: Arrays of the rows that this process loaded.
            share: Those rows by all rows of the batch: they stand for the others, until processes
                ``share_counts``.
        """
        real = np.asarray(batch["weight"]) > 0 if "weight" in batch else slice(None)
        rows = np.ones(len(next(iter(batch.values()))))
        self.examples += float(rows[real].sum()) / share
        if "mask" in batch:
            mask = np.asarray(batch["mask"])
            self.tokens += float(mask[real].sum()) / share
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

    def check_same_run(self, now: RunRecord) -> None:
        """Checks that a restored record belongs to the run that this one begins.

        Raises:
            OptionError: If the seed, the monitor, the number or size of batches, or the length of
                a period differs: the data position or the best would mean something else.
        """
        fixed = ("seed", "monitor", "monitor_mode", "steps_per_epoch", "batch_size")
        for name in (*fixed, "validate_every"):
            before, value = getattr(self, name), getattr(now, name)
            if before != value:
                name = name.removeprefix("monitor_")
                raise OptionError(
                    f"The run to resume was made with {name}={before!r}, but now {name} is "
                    f"{value!r}. Resume with the settings and data it was started with, or "
                    "start a new run in another run_dir.",
                    name,
                    "resume",
                )

    def check_same_runs(self, now: RunRecord) -> None:
        """Checks that a restored record is of the same runs as the one that this one begins.

        Raises:
            OptionError: If there are more or fewer, or their hyperparameters differ.
        """
        if len(self.runs) != len(now.runs):
            raise OptionError(
                f"The folder to resume holds {len(self.runs) or 'one'} run(s), but now there "
                f"would be {len(now.runs) or 'one'}; give as many as it was started with.",
                "runs",
                "resume",
            )
        for r, (before, given) in enumerate(zip(self.runs, now.runs, strict=True)):
            if before.get("hyperparameters") != given["hyperparameters"]:
                raise OptionError(
                    f"Run {r} to resume was started with the hyperparameters "
                    f"{before.get('hyperparameters')}, but now they are "
                    f"{given['hyperparameters']}. Resume with those that it was started with, or "
                    "start new runs in another run_dir.",
                    "hyperparameters",
                    "resume",
                )

    def write_metrics(self, run_dir: Path) -> None:
        """Writes metrics.jsonl anew from the history.

        Lines beyond a restored step go, and so does a line that a kill left half written.
        """
        lines = "".join(json.dumps(line) + "\n" for line in self.history)
        write_text(run_dir / METRICS_FILE, lines)

    def append_metrics(self, run_dir: Path) -> None:
        """Adds the line of the last period to metrics.jsonl."""
        append_text(run_dir / METRICS_FILE, json.dumps(self.history[-1]) + "\n")
