"""A training in progress: steps, validations, checkpoints, and how it ends."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.training.checkpoint.folder import list_checkpoints
from flax_linattn.training.checkpoint.saver import Saver
from flax_linattn.training.config import FitConfig
from flax_linattn.training.diagnosis import NonFiniteLossError, likely_cause, what_is_not_finite
from flax_linattn.training.guard import NO_BAD_STEP
from flax_linattn.training.loader import Loader
from flax_linattn.training.metrics import mean_metrics, non_finite_arrays
from flax_linattn.training.objective import Objective
from flax_linattn.training.processes import is_main, largest, on_main
from flax_linattn.training.profile import Profile
from flax_linattn.training.progress import ProgressDisplay
from flax_linattn.training.record import RunRecord
from flax_linattn.training.session import Session
from flax_linattn.training.signals import Interrupted, StopRequest
from flax_linattn.training.state import TrainState
from flax_linattn.training.timer import Timer
from flax_linattn.training.train_step import TrainStep
from flax_linattn.training.validation import Validation

# How often the host waits for the device: to show the running loss and to look for a bad step.
LOG_EVERY_STEPS = 20


@dataclasses.dataclass
class Trainer:
    """A training in progress.

    Args:
        objective: What the model is trained for.
        config: How long, and what to save.
        session: Where and how.
        graphdef: The model's structure.
        loader: The training batches.
        train_step: The compiled training step.
        validation: Computes the validation metrics.
        state: What the step changes, on the devices.
        record: The run so far, on the host.
        step: Training steps done: the host's copy of ``state.step``.
        stop: Whether a signal came.
    """

    objective: Objective
    config: FitConfig
    session: Session
    graphdef: nnx.GraphDef[Any]
    loader: Loader
    train_step: TrainStep
    validation: Validation
    state: TrainState
    record: RunRecord
    step: int
    stop: StopRequest

    def __post_init__(self) -> None:
        self.run_dir = Path(self.session.run_dir)
        self.num_parameters = sum(x.size for x in jax.tree.leaves(self.state.params))
        self.saver = Saver(self.run_dir, self.config.keep_latest)
        self.profile = Profile(self.run_dir / "profile", self.step, self.session.profile_steps)
        self.trackers = tuple(self.session.trackers) if is_main() else ()
        self.timer = Timer(self.record)
        self.display = ProgressDisplay(
            is_main() and self.session.progress,
            self.config.epochs,
            self.config.total_steps(len(self.loader)),
            self.step,
        )

    def train(self) -> None:
        """Trains to the end."""
        with ExitStack() as ends:
            ends.enter_context(self.loader.placement.context())
            ends.enter_context(self.display)
            ends.enter_context(self.saver)
            ends.callback(self.profile.stop)
            for tracker in self.trackers:
                ends.callback(tracker.close)
            while not self.record.is_over(self.config):
                self._train_period()
                self._end_period()

    def _train_period(self) -> None:
        """Does the steps up to the next validation."""
        record, last_step = self.record, self.record.period_end(self.config)
        self.timer.restart()
        while self.step < last_step:
            self.profile.before(self.step)
            with self.timer.loading():
                rows, batch = self.loader.load(self.step)
            self.state = self.train_step(self.state, batch)
            self.step += 1
            self.profile.after(self.step, self.state)
            record.count(rows, self.loader.share)
            self.display.step(self.step, record.epoch_of(self.step))
            if signum := self._asked_to_stop():
                self._interrupt(signum)
            if self.step % LOG_EVERY_STEPS == 0:
                means = self._train_means()
                self.display.metrics(means, record.examples / record.seconds)
                self._track(prefixed("train", means))
            # At the end of the period the checkpoint waits for the validation.
            if self.step < last_step and self._saves_at_step():
                self._save()

    def _end_period(self) -> None:
        """Validates and saves."""
        record = self.record
        train = self._train_means()
        validation = self.validation.metrics(self.state, self.stop)
        if validation is None:
            self._interrupt(self._asked_to_stop())
        self._check_monitored(validation[self.objective.monitor])
        self._track(prefixed("train", train) | prefixed("validation", validation))
        improved = record.end_period(self.step, train, validation, int(self.state.skipped))
        empty = jax.tree.map(jnp.zeros_like, self.state.metrics)
        self.state = dataclasses.replace(self.state, metrics=empty)
        self._close_period(improved)

    def _close_period(self, improved: bool) -> None:
        """Writes down and saves a period that the record has taken in."""
        record = self.record
        self.timer.restart()  # Validation is no training time.
        on_main(partial(record.append_metrics, self.run_dir))
        self.display.validation(record.history[-1])
        at_validations = self.config.checkpoint_every_steps is None
        if at_validations or self._saves_at_step() or improved or record.is_over(self.config):
            self._save()
        if signum := self._asked_to_stop(now=True):
            self._interrupt(signum)

    def _train_means(self) -> dict[str, float]:
        """The period's training metrics so far, with counts and time up to now."""
        self.record.share_counts()
        self._check_finite()
        self.timer.tick()
        return mean_metrics(self.state.metrics)

    def _track(self, values: dict[str, float]) -> None:
        """Gives the trackers these values and the speed."""
        if not self.trackers:
            return
        speed = self.record.speed()
        values = values | speed
        if "tokens_per_second" in speed:
            # A multiplication and an addition a parameter forward, twice that backward.
            work = 6 * self.num_parameters
            values["model_flops_per_second"] = work * speed["tokens_per_second"]
        for tracker in self.trackers:
            tracker.log(self.step, values)

    def _asked_to_stop(self, *, now: bool = False) -> int:
        """The signal that asked this process to stop, or another one; 0 if none.

        Processes have to stop after the same step, which they tell each other now and then.
        """
        signum = self.stop.signum or 0
        if jax.process_count() == 1:
            return signum
        return largest(signum) if now or self.step % LOG_EVERY_STEPS == 0 else 0

    def _check_monitored(self, value: float) -> None:
        if math.isfinite(value):
            return
        self.saver.settle()  # it may be the last finite one
        if self.objective.monitor in self.state.metrics:
            cause = likely_cause(self.validation.bad_arrays(), self.run_dir)
        else:
            cause = "Objective.validate returned it."
        raise NonFiniteLossError(
            f"The validation metric {self.objective.monitor!r} is {value} after step {self.step} "
            f"(epoch {self.record.epoch_of(self.step)}), with finite parameters. {cause}"
        )

    def _check_finite(self) -> None:
        bad_step = int(self.state.first_bad_step)
        if bad_step == NO_BAD_STEP:
            return
        self.saver.settle()  # it may be the last finite one
        batch = self.loader.source.batch(bad_step)
        what = what_is_not_finite(
            self.graphdef,
            self.objective.loss,
            self.config.seed,
            self.loader.placement,
            self.state,
            batch,
        )
        raise NonFiniteLossError(
            f"The loss, a gradient or a parameter became NaN or infinite in step {bad_step + 1} "
            f"(epoch {self.record.epoch_of(bad_step + 1)}). "
            + what
            + likely_cause(non_finite_arrays(batch), self.run_dir)
        )

    def _saves_at_step(self) -> bool:
        every = self.config.checkpoint_every_steps
        return every is not None and self.step % every == 0

    def _save(self) -> None:
        self._check_finite()
        with self.timer.saving():
            self.saver.save(self.state, self.record)

    def _interrupt(self, signum: int) -> NoReturn:
        self._save()
        self.saver.wait()
        path = list_checkpoints(self.run_dir)[-1].path
        config = self.config
        done = f"after step {self.step}"
        if config.epochs is None:
            done += f" of {config.steps}"
        else:
            done += f" ({self.record.epochs_done} of {config.epochs} epochs finished)"
        same = "runs" if self.record.runs else "run"
        message = (
            f"Stopped by {signal.Signals(signum).name} {done}. "
            f"Saved {path}. To go on, start the same {same} again with the option resume."
        )
        if is_main():
            print(message, file=sys.stderr)
        raise Interrupted(signum, message)


def prefixed(part: str, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics by the names that metrics.jsonl has for a part of the data."""
    return {f"{part}_{name}": value for name, value in metrics.items()}
