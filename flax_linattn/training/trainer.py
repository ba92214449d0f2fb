"""The training loop, and the session that holds its run folder."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import jax
from flax import nnx

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.storage import file_lock
from flax_linattn.training.batches import Loader
from flax_linattn.training.checkpointer import (
    BestInMemory,
    Checkpointer,
    list_checkpoints,
    remove_unfinished,
)
from flax_linattn.training.history import History, Timer
from flax_linattn.training.metrics import mean_columns, run_means
from flax_linattn.training.non_finite import (
    NonFiniteLossError,
    describe_bad_step,
    likely_cause,
    non_finite_arrays,
)
from flax_linattn.training.objective import FitConfig, Objective
from flax_linattn.training.placement import Parallel
from flax_linattn.training.processes import is_main, max_over_processes, on_main
from flax_linattn.training.progress import Profile, ProgressDisplay, Tracker
from flax_linattn.training.signals import Interrupted, StopRequest
from flax_linattn.training.state import NO_BAD_STEP, TrainState
from flax_linattn.training.step import TrainStep, start_period
from flax_linattn.training.validation import Validation

LOCK_FILE = "training.lock"


@dataclasses.dataclass(frozen=True)
class Session:
    """Where and how a run is trained; it does not change what the run computes.

    Other devices change results by rounding, and by dropout as ``Parallel`` describes.

    Args:
        run_dir: The run folder; created if needed.
        resume: Whether to continue the run in ``run_dir``.
        progress: Output on stderr. True prints a line for each validation, and on a terminal a
            progress bar; "lines" prints no bar, False nothing.
        parallel: The devices, and how arrays are split over them. Default: ``Parallel()``, which
            splits batches over as many devices as divide them evenly. A run may be resumed on other
            devices.
        trackers: Loggers of running metrics and throughput every 20 steps, and of each validation.
        profile_steps: Number of steps to trace with ``jax.profiler``, from step 11 of this session
            on, into ``profile`` in the run folder; a shorter session has no trace.
        checkpoints: Whether to write checkpoints; several runs always write them. Without them a
            run cannot be resumed or loaded, and the best parameters are held in memory.

    Raises:
        OptionError: If ``profile_steps`` is negative.

    Example:
        >>> Session("runs/first", resume=True).resume
        True
    """

    run_dir: str | Path
    resume: bool = False
    progress: bool | Literal["lines"] = True
    parallel: Parallel | None = None
    trackers: Sequence[Tracker] = ()
    profile_steps: int = 0
    checkpoints: bool = True
    _holders: set[int] = dataclasses.field(
        default_factory=set, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_integers(0, profile_steps=self.profile_steps)
        if self.resume and not self.checkpoints:
            raise OptionError(
                "resume=True continues from a checkpoint and needs checkpoints=True.",
                "resume",
                "checkpoints",
            )

    @property
    def lock_file(self) -> Path:
        """The file in the run folder that ``holding`` locks."""
        return Path(self.run_dir) / LOCK_FILE

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A context that locks the run folder, and removes files that a kill left half written.

        The lock is reentrant within a thread. ``fit`` takes it; code that also writes into the
        folder before or after ``fit`` takes it around both. With several processes, the main
        process takes it.

        Raises:
            storage.LockedError: If another session holds the folder; the error names its process.
            OSError: If the lock file cannot be created.
            LostProcessError: If the lock cannot be taken, in the other processes of the run.

        Example:
            >>> import tempfile
            >>> session, other = (Session(folder) for folder in [tempfile.mkdtemp()] * 2)
            >>> with session.holding(), session.holding(), other.holding():
            ...     pass
            Traceback (most recent call last):
            ...
            flax_linattn.storage.LockedError: another process uses the run in ...
        """
        me = threading.get_ident()
        if me in self._holders:
            yield
            return
        with ExitStack() as ends:

            def begin() -> None:
                ends.enter_context(file_lock(self.lock_file, f"the run in {self.run_dir}"))
                remove_unfinished(self.run_dir)

            on_main(begin)
            self._holders.add(me)
            ends.callback(self._holders.discard, me)
            yield


LOG_EVERY_STEPS = 20
"""Number of steps after which the host waits for the device, to log metrics and check for NaN."""


@dataclasses.dataclass
class Trainer:
    """The training loop of one run, or of several at once.

    If the numbers of a single model become NaN or infinite, training ends with an error that names
    the cause. If the numbers of one of several runs do, that run ends alone, at the next
    validation. ``step`` is the host's copy of ``state.steps_done``.
    """

    objective: Objective
    config: FitConfig
    session: Session
    graphdef: nnx.GraphDef[Any]
    loader: Loader
    train_step: TrainStep
    validation: Validation
    state: TrainState
    history: History
    step: int
    stop: StopRequest

    def __post_init__(self) -> None:
        self.run_dir = Path(self.session.run_dir)
        size = sum(x.size for x in jax.tree.leaves(self.state.params))
        self.num_parameters = size // len(self.history.runs)  # of one run; tokens count all runs
        saves = self.session.checkpoints or self.history.is_stacked
        self.checkpointer: Checkpointer | BestInMemory = (
            Checkpointer(self.run_dir, self.config.keep_latest) if saves else BestInMemory()
        )
        self.profile = Profile(self.run_dir / "profile", self.step, self.session.profile_steps)
        self.trackers = tuple(self.session.trackers) if is_main() else ()
        self.timer = Timer(self.history)
        self.is_compiled = False
        self.display = ProgressDisplay(
            is_main() and size > 0 and self.session.progress,
            self.config.epochs,
            self.config.total_steps(len(self.loader)),
            self.step,
            counts_tokens=self.objective.tokens_per_example is not None,
        )

    def train(self) -> None:
        """Trains until the last step or a stopping rule."""
        with ExitStack() as ends:
            ends.enter_context(self.loader.placement.context())
            ends.enter_context(self.display)
            ends.enter_context(self.checkpointer)
            ends.callback(self.profile.stop)
            for tracker in self.trackers:
                ends.callback(tracker.close)
            while not self._is_finished():
                self._train_period()
                self._end_period()
        total = self.config.total_steps(len(self.loader))
        if is_main() and not self.history.is_over(self.config):
            limit = self.config.time_limit
            note = f"note: the time limit of {limit:g} s ended training after step {self.step:,}"
            print(f"{note} of {total:,}", file=sys.stderr)

    def _is_finished(self) -> bool:
        """Whether the last step, a stopping rule or the time limit is reached."""
        return self.history.is_over(self.config) or self._out_of_time()

    def _out_of_time(self) -> bool:
        """Whether the time limit is reached in any process."""
        limit = self.config.time_limit
        if limit is None:
            return False
        return bool(max_over_processes(self.history.training_seconds >= limit))

    def _train_period(self) -> None:
        """Trains up to the next validation."""
        history, last_step = self.history, self.history.period_end(self.config)
        self.timer.restart()
        while self.step < last_step:
            self.profile.before(self.step)
            with self.timer.loading():
                rows, batch = self.loader.load(self.step)
            self.state = self.train_step(self.state, batch)
            if not self.is_compiled:  # the first call returns once it has compiled
                self.timer.restart()
                self.is_compiled = True
            self.step += 1
            self.profile.after(self.step, self.state)
            history.count(rows, self.loader.local_fraction, self.objective.tokens_per_example)
            self.display.step(self.step, history.epoch_at(self.step))
            if signum := self._stop_signal():
                self._interrupt(signum)
            if self.step % LOG_EVERY_STEPS == 0:
                means = mean_columns("train", self._train_metrics(), history.active)
                by_name = {name.removeprefix("train_"): mean for name, mean in means.items()}
                self.display.metrics(by_name, self._speed())
                self._track(means)
                if self._out_of_time():
                    return
            # At the end of the period the checkpoint waits for the validation.
            if self.step < last_step and self._saves_at_step():
                self._save()

    def _end_period(self) -> None:
        """Validates, selects the best parameters, and saves a checkpoint."""
        history = self.history
        train = self._train_metrics()
        validation = self.validation.metrics(self.state, self.stop)
        if validation is None:
            self._interrupt(self._stop_signal())
        if not history.is_stacked:
            self._check_monitored(validation[0][self.objective.monitor])
        selection = history.select(
            self.step, validation, self.state.bad_steps, self.config.patience
        )
        self._check_any_left()
        counted = selection.counted
        self._track(
            mean_columns("train", train, counted) | mean_columns("validation", validation, counted)
        )
        skipped = 0 if history.is_stacked else int(self.state.skipped)
        speed = self._speed()
        history.end_period(self.step, train, validation, counted, skipped)
        self.state = start_period(
            self.state, selection.improved, selection.active, self.loader.placement
        )
        self.timer.restart()  # validation does not count as training time
        on_main(partial(history.append_metrics, self.run_dir))
        left = (self.config.total_steps(len(self.loader)) - self.step) / self.step
        self.display.validation(
            {**history.lines[-1], **speed}, seconds_left=left * history.training_seconds
        )
        # Several runs hold their best parameters in the state, so that any checkpoint has them.
        improved = bool(selection.improved[0]) and not history.is_stacked
        at_validations = self.config.checkpoint_every_steps is None
        if at_validations or self._saves_at_step() or improved or self._is_finished():
            self._save()
        if signum := self._stop_signal(now=True):
            self._interrupt(signum)

    def _train_metrics(self) -> list[dict[str, float]]:
        """Each run's training metrics of the period so far; updates the counts and the time."""
        self.history.average_counts()
        self._check_finite()
        means = run_means(self.state.metrics)  # waits for the device
        self.timer.tick()
        return means

    def _track(self, values: dict[str, float]) -> None:
        """Passes these values and the throughput to the trackers."""
        if not self.trackers:
            return
        values = values | self._speed()
        for tracker in self.trackers:
            tracker.log(self.step, values)

    def _speed(self) -> dict[str, float]:
        """Times and throughput of the unfinished period; FLOPs where tokens are known."""
        speed = self.history.speed()
        if "tokens_per_second" in speed:
            # One multiplication and one addition per parameter forward, twice that backward. Not
            # XLA's count of FLOPs: it counts the body of a loop once, and rematerialization.
            flops = 6 * self.num_parameters * speed["tokens_per_second"]
            speed["model_flops_per_second"] = flops
            if peak := self.loader.placement.peak_flops:
                speed["model_flops_utilization"] = flops / peak
        return speed

    def _stop_signal(self, *, now: bool = False) -> int:
        """The signal to stop that any process received; 0 if none.

        Processes have to stop after the same step, so they exchange signals every 20 steps; ``now``
        exchanges them at once.
        """
        signum = self.stop.signum or 0
        if jax.process_count() == 1:
            return signum
        return max_over_processes(signum) if now or self.step % LOG_EVERY_STEPS == 0 else 0

    def _check_monitored(self, value: float) -> None:
        """Raises if the monitored metric of a single model is not finite."""
        if math.isfinite(value):
            return
        self.checkpointer.settle()  # so that the message can name the last checkpoint
        if self.objective.monitor in self.state.metrics:
            cause = likely_cause(self.validation.bad_arrays(), self.run_dir)
        else:
            cause = "Objective.validate returned this value; it must return a finite number."
        raise NonFiniteLossError(
            f"The validation metric {self.objective.monitor!r} is {value} after step {self.step} "
            f"(epoch {self.history.epoch_at(self.step)}), with finite parameters. {cause}"
        )

    def _check_any_left(self) -> None:
        """Raises if all runs failed before their first validation."""
        failed = [run.failed_step for run in self.history.runs]
        steps = [step for step in failed if step is not None]
        if len(steps) < len(failed) or any(run.best_step for run in self.history.runs):
            return
        self.checkpointer.settle()
        raise NonFiniteLossError(
            f"All {len(steps)} runs became NaN or infinite, the first in step {min(steps)} and "
            f"the last in step {max(steps)}. Try a smaller learning rate.",
            steps,
        )

    def _check_finite(self) -> None:
        """Raises if the loss, a gradient or a parameter of a single model is not finite."""
        if self.history.is_stacked:
            return
        bad_step = int(self.state.first_bad_step)
        if bad_step == NO_BAD_STEP:
            return
        self.checkpointer.settle()  # so that the message can name the last checkpoint
        batch = self.loader.source.batch(bad_step)
        details = describe_bad_step(
            self.graphdef,
            self.objective.loss,
            self.config.seed,
            self.loader.placement,
            self.state,
            batch,
        )
        raise NonFiniteLossError(
            f"The loss, a gradient or a parameter became NaN or infinite in step {bad_step + 1} "
            f"(epoch {self.history.epoch_at(bad_step + 1)}). "
            + details
            + likely_cause(non_finite_arrays(batch), self.run_dir)
        )

    def _saves_at_step(self) -> bool:
        every = self.config.checkpoint_every_steps
        return every is not None and self.step % every == 0

    def _save(self) -> None:
        self._check_finite()
        with self.timer.saving():
            self.checkpointer.save(self.state, self.history)

    def _interrupt(self, signum: int) -> NoReturn:
        self._save()
        self.checkpointer.wait()
        config, saved = self.config, list_checkpoints(self.run_dir)
        done = f"after step {self.step}"
        if config.epochs is None:
            done += f" of {config.steps}"
        else:
            done += f" ({self.history.epochs_done} of {config.epochs} epochs finished)"
        noun = "runs" if self.history.is_stacked else "run"
        message = f"Stopped by {signal.Signals(signum).name} {done}."
        if saved:
            message += f" Saved {saved[-1].path}. To continue, start the same {noun} again with "
            message += "the resume option."
        if is_main():
            print(message, file=sys.stderr)
        raise Interrupted(signum, message)
