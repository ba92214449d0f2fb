"""The history of a training run on the host: progress, metrics and times."""

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
from flax_linattn.storage import append_text, parse_json, write_text
from flax_linattn.training.metrics import Means, column_means, metric_columns
from flax_linattn.training.objective import FitConfig, Objective
from flax_linattn.training.processes import mean_over_processes

METRICS_FILE = "metrics.jsonl"


@dataclasses.dataclass
class RunProgress:
    """The progress of one run: its best monitored value, and whether it failed or was stopped.

    Epochs and steps count from 1; ``bad_epochs`` is the number of validations since the best one.
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
        """Records a monitored value; returns whether it is the best so far. A tie counts."""
        sign = 1 if mode == "max" else -1
        improved = self.best_value is None or sign * value >= sign * self.best_value
        if improved:
            self.best_value, self.best_epoch, self.best_step = value, epoch, step
        self.bad_epochs = 0 if improved else self.bad_epochs + 1
        return improved


class Selection(NamedTuple):
    """The outcome of a validation for each run, as three arrays bool [R].

    Attributes:
        improved: Whether the run has a new best value.
        active: Whether the run continues to train.
        counted: Whether its metrics count: it trained in this period and has not failed.
    """

    improved: np.ndarray
    active: np.ndarray
    counted: np.ndarray


@dataclasses.dataclass(kw_only=True)
class RunsProgress:
    """The best values of all runs: the part of a history that is read without its validations.

    Args:
        monitor_mode: ``Objective.mode``.
        runs: The progress of each run; one entry for a single model.
        is_stacked: Whether all arrays have an axis of runs; False for a single model.
    """

    monitor_mode: str
    runs: list[RunProgress] = dataclasses.field(default_factory=lambda: [RunProgress()])
    is_stacked: bool = False

    @classmethod
    def from_text(cls, text: bytes) -> tuple[Self, int | None, dict[str, Any]]:
        """Reads the JSON text of a checkpoint's progress.json without parsing the validations.

        10,000 validations would take a second to parse and check, at each command.

        Returns:
            The progress, the number of validations up to the best one of a single model (None
            before the first validation), and the values of progress.json other than the history.

        Raises:
            ValueError: If the text is not a training history.
        """
        begin, end = text.find(_BEGIN_LINES) + len(_BEGIN_LINES), text.rfind(_END_LINES)
        if not len(_BEGIN_LINES) <= begin <= end:
            raise ValueError("the text holds no list of validations")
        values = parse_json(text[:begin] + text[end:])
        best = ("best_value", "best_epoch", "best_step", "bad_epochs")
        try:
            record = values.pop("record")
            runs = _runs_from_json(record["runs"], *(record[name] for name in best))
            mode, is_stacked = record["monitor_mode"], bool(record["runs"])
            made = cls(monitor_mode=mode, runs=runs, is_stacked=is_stacked)
            check_types(made)
            if is_stacked or record["best_step"] is None:
                return made, None, values
            line = text.find(_LINE % (record["best_epoch"], record["best_step"]), begin, end)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the values are not the history of a training: {error}") from error
        if line < 0:
            raise ValueError("the best validation is not in the history")
        return made, text.count(_LINE.partition(b"%")[0], begin, line) + 1, values


_BEGIN_LINES, _END_LINES = b'"history": [', b'], "validate_every": '
_LINE = b'{"epoch": %d, "step": %d, '
"""Text around the validations in a progress.json, and at the start of each, as ``History.to_json``
orders them. In a string, such as a name of a metric, the quotes would be escaped."""


def _runs_from_json(
    runs: Sequence[dict[str, Any]],
    best_value: float | None,
    best_epoch: int | None,
    best_step: int | None,
    bad_epochs: int,
) -> list[RunProgress]:
    """The progress of several runs, or of the single model with these best values."""
    made = [RunProgress(**run) for run in runs]
    made = made or [RunProgress({}, best_value, best_epoch, best_step, bad_epochs)]
    for run in made:
        check_types(run)
    return made


@dataclasses.dataclass
class History(RunsProgress):
    """The progress of a training run on the host; saved as JSON in each checkpoint.

    A period is the training from one validation to the next: an epoch, which is one pass over the
    training batches, or ``FitConfig.validate_every`` steps. Times and counts cover the
    unfinished period.

    Args:
        seed: As in ``FitConfig``.
        monitor: As in ``Objective``.
        steps_per_epoch: Number of training batches in an epoch.
        batch_size: Number of examples in a training batch.
        seconds: Training time.
        examples: Number of training examples of all runs.
        tokens: Number of valid tokens in them, where batches have a "mask" or the objective says
            how many tokens an example has.
        positions: Number of tokens computed for them, including padding.
        data_seconds: Part of the training time spent on making and placing batches.
        saving_seconds: Time, in addition to ``seconds``, in which training waited for checkpoints.
            The checkpoint at the end of a period counts to the next period.
        lines: One dict for each validation, a line of metrics.jsonl.
        validate_every: Number of steps in a period; 0 for one epoch.
    """

    seed: int
    monitor: str
    steps_per_epoch: int
    batch_size: int
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
        """The history before the first step; ``hyperparameters`` is None for a single model."""
        runs = [
            RunProgress({name: float(value) for name, value in given.items()})
            for given in ([{}] if hyperparameters is None else hyperparameters)
        ]
        return cls(
            config.seed,
            objective.monitor,
            steps_per_epoch,
            batch_size,
            monitor_mode=objective.mode,
            runs=runs,
            is_stacked=hyperparameters is not None,
            validate_every=config.validate_every or 0,
        )

    @property
    def validated_steps(self) -> int:
        """Training steps done at the last validation; 0 before the first one."""
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def epochs_done(self) -> int:
        """Number of epochs that were trained and validated."""
        return self.validated_steps // self.steps_per_epoch

    @property
    def active(self) -> np.ndarray:
        """Whether each run still trains, bool [R]."""
        return np.array([run.failed_step is None and not run.stopped for run in self.runs])

    def epoch_at(self, step: int) -> int:
        """The epoch that a step belongs to, both counted from 1."""
        return (step - 1) // self.steps_per_epoch + 1

    def period_end(self, config: FitConfig) -> int:
        """Number of training steps at the next validation; the length of training has no effect."""
        whole = (self.validated_steps // self.validate_every + 1) * self.validate_every
        return min(whole, config.total_steps(self.steps_per_epoch))

    def is_over(self, config: FitConfig) -> bool:
        """Whether all steps are done, or no run continues to train."""
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
            improved[r] = run.validate(value, step, self.epoch_at(step), self.monitor_mode)
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
        """Adds a line for a finished period; ``skipped`` counts all updates skipped so far."""
        columns = metric_columns("train", train, counted)
        columns |= metric_columns("validation", validation, counted)
        line: dict[str, Any] = {
            "epoch": self.epoch_at(step),
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

    def reselect_best(self, steps: Collection[int]) -> None:
        """Selects a single model's best value again, among the validations at these steps."""
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
            run.best_epoch = self.epoch_at(best["step"])
            run.bad_epochs = sum(line["step"] > best["step"] for line in self.lines)

    def count(
        self,
        batch: Mapping[str, np.ndarray],
        local_fraction: float = 1.0,
        tokens_per_example: int | None = None,
    ) -> None:
        """Adds the examples and tokens of a training batch to the counts.

        Args:
            batch: Arrays [B, ...], or [R, B, ...] for several runs.
            local_fraction: Fraction of the batch that this process loaded. Counts are scaled up to
                the whole batch; ``average_counts`` corrects them over all processes.
            tokens_per_example: Number of tokens of each row of a batch without a "mask".
        """
        if self.is_stacked:
            batch = {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items()}
        weight = batch.get("weight", np.ones(len(next(iter(batch.values())))))
        real = np.asarray(weight) > 0  # [B], or [B, T] where each row holds several examples
        self.examples += float(real.sum()) / local_fraction
        if "mask" in batch:
            mask = np.asarray(batch["mask"])
        elif tokens_per_example is not None:
            mask = np.broadcast_to(True, (len(real), tokens_per_example))
        else:
            return
        valid = mask[real.reshape(len(real), -1).any(axis=1)].sum()
        self.tokens += float(valid) / local_fraction
        self.positions += mask.size / local_fraction

    def average_counts(self) -> None:
        """Averages the counts over all processes, which is exact if each loads as many examples."""
        counts = mean_over_processes([self.examples, self.tokens, self.positions])
        self.examples, self.tokens, self.positions = counts

    def speed(self) -> dict[str, float]:
        """Times and throughput of the unfinished period, as in a line of metrics.jsonl."""
        tokens = {}
        if self.tokens:
            tokens["tokens_per_second"] = round(self.tokens / self.seconds, 1)
            tokens["real_token_fraction"] = round(self.tokens / self.positions, 3)
        return {
            "seconds": round(self.seconds, 3),
            "data_seconds": round(self.data_seconds, 3),
            "saving_seconds": round(self.saving_seconds, 3),
            "examples_per_second": round(self.examples / self.seconds, 1),
            **tokens,
        }

    def check_same_training(self, new: History, run_dir: str | Path) -> None:
        """Raises if a resumed run has another seed, monitor, batch size, or length of a period.

        With other values, the position in the data or the best value would mean something else.
        """
        fixed = ("seed", "monitor", "monitor_mode", "steps_per_epoch", "batch_size")
        for name in (*fixed, "validate_every"):
            before, value = getattr(self, name), getattr(new, name)
            if before != value:
                name = name.removeprefix("monitor_")
                raise OptionError(
                    f"The run {run_dir} was made with {name}={before!r}, but now {name} is "
                    f"{value!r}. Resume it with the settings and data that it was started with, or "
                    "start a new run in another run_dir.",
                    name,
                    "resume",
                )

    def check_same_runs(self, new: History, run_dir: str | Path) -> None:
        """Raises if a resumed training has another number of runs, or other hyperparameters."""
        before, given = (len(x.runs) if x.is_stacked else "one" for x in (self, new))
        if before != given:
            raise OptionError(
                f"The folder {run_dir} holds {before} run(s), but now there would be {given}. "
                "Resume it with the number of runs that it was started with.",
                "runs",
                "resume",
            )
        for r, (run, other) in enumerate(zip(self.runs, new.runs, strict=True)):
            if run.hyperparameters != other.hyperparameters:
                raise OptionError(
                    f"Run {r} of {run_dir} was started with the hyperparameters "
                    f"{run.hyperparameters}, but now they are {other.hyperparameters}. Resume it "
                    "with the former, or start new runs in another run_dir.",
                    "hyperparameters",
                    "resume",
                )

    def to_json(self) -> dict[str, Any]:
        """The values for the JSON of a checkpoint; a single model's best is outside ``runs``."""
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
            raise ValueError(f"the values are not the history of a training: {error}") from error

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
        progress = _runs_from_json(runs, best_value, best_epoch, best_step, bad_epochs)
        made = cls(**values, runs=progress, is_stacked=bool(runs), lines=history)
        steps = [line.get("step") for line in history]
        monitored = [line.get(f"validation_{made.monitor}") for line in history]
        best_steps = [run.best_step for run in progress if run.best_step is not None]
        check_types(made)
        if not (
            all(fits(step, int) for step in steps)
            and all(fits(value, float | None if runs else float) for value in monitored)
            and made.steps_per_epoch > 0
            and set(best_steps) <= set(steps)
        ):
            raise TypeError("a validation has no step or no value, or the best is none of them")
        return made

    def write_metrics(self, run_dir: Path) -> None:
        """Rewrites metrics.jsonl from the history.

        This removes lines after a restored step, and a line that a kill left half written.
        """
        lines = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_text(run_dir / METRICS_FILE, lines)

    def append_metrics(self, run_dir: Path) -> None:
        """Adds the line of the last period to metrics.jsonl."""
        append_text(run_dir / METRICS_FILE, json.dumps(self.lines[-1]) + "\n")


class Timer:
    """Adds training, loading and saving times to a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.restart()

    def restart(self) -> None:
        """Discards the time since the last call of a method."""
        self._since = time.perf_counter()

    def tick(self) -> None:
        """Counts the time since the last call of a method as training."""
        now = time.perf_counter()
        self._history.seconds += now - self._since
        self._since = now

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A context whose time counts as loading of batches, a part of the training time."""
        begin = time.perf_counter()
        yield
        self._history.data_seconds += time.perf_counter() - begin

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A context whose time counts as saving; the time before it counts as training."""
        self.tick()
        yield
        now = time.perf_counter()
        self._history.saving_seconds += now - self._since
        self._since = now
