"""The training loop: epochs, validation, selection, checkpoints, and how a run ends early."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn.training.checkpoint.arrays import fingerprint
from flax_linattn.training.checkpoint.folder import list_checkpoints, open_for_writing
from flax_linattn.training.checkpoint.read import load_best, restore_latest, set_aside_damaged
from flax_linattn.training.checkpoint.saver import Saver
from flax_linattn.training.config import FitConfig
from flax_linattn.training.diagnosis import what_is_not_finite
from flax_linattn.training.guard import NO_BAD_STEP
from flax_linattn.training.metrics import mean_metrics, non_finite_arrays, zero_metrics
from flax_linattn.training.parallel import Parallel, Placement
from flax_linattn.training.processes import (
    announce,
    check_same,
    check_shared,
    is_main,
    largest,
    on_main,
    together,
)
from flax_linattn.training.profile import Profile
from flax_linattn.training.progress import ProgressDisplay
from flax_linattn.training.record import RunRecord
from flax_linattn.training.signals import Interrupted, StopRequest
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import (
    Batch,
    BatchSource,
    EvaluationStep,
    LossFn,
    TrainStep,
    make_evaluation_step,
    make_train_step,
    metric_names,
)
from flax_linattn.training.trackers import Tracker

# How often the host waits for the device: to show the running loss and to look for a bad step.
LOG_EVERY_STEPS = 20


class NonFiniteLossError(RuntimeError):
    """The loss, a gradient or a parameter became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a finished run came to.

    Args:
        best_epoch: The epoch of the selected parameters, counted from 1.
        best_value: Its monitored validation metric.
        best_checkpoint: The folder it was read from.
        epochs: Finished epochs.
        steps: Training steps done.
        stopped_early: Whether patience ran out before the last epoch.
        history: The lines of metrics.jsonl, one dict for each epoch.
    """

    best_epoch: int
    best_value: float
    best_checkpoint: Path
    epochs: int
    steps: int
    stopped_early: bool
    history: tuple[dict[str, Any], ...]


def fit(
    model: nnx.Module,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    train_batches: BatchSource,
    validation_batches: BatchSource,
    *,
    config: FitConfig,
    run_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    parallel: Parallel | None = None,
    trackers: Sequence[Tracker] = (),
    profile_steps: int = 0,
) -> FitResult:
    """Trains a model, and leaves the best epoch's parameters in it.

    After each epoch the model is validated, and a line is added to ``metrics.jsonl`` in the run
    folder. The epoch with the best monitored validation metric is selected; a tie counts as better,
    so that of equal epochs the last is selected and patience starts anew (as in the
    Time-Series-Library's ``EarlyStopping``). Checkpoints hold everything that the rest of the run
    depends on: with ``resume=True`` a run goes on from the newest one that is intact, also in the
    middle of an epoch, and ends in the same bits as if it had never stopped.

    SIGINT (Ctrl-C) and SIGTERM let the current step finish, save a checkpoint and raise
    ``Interrupted``. If training fails or is interrupted, the model passed in is left as it was.

    Args:
        model: The model. Only its ``nnx.Param`` variables are trained; what its forward pass does
            to other variables (batch statistics) is kept.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``; with key None for validation.
            The loss is a float32 scalar; ``metrics`` maps a name to (weighted sum, weight).
        optimizer: An optax gradient transformation.
        train_batches: Training batches, a pure function of the step (``data.Batches``).
        validation_batches: One epoch of them is used for each validation.
        config: Length, selection and saving.
        run_dir: The run folder, made if needed.
        resume: Go on with the run in ``run_dir``.
        progress: Show progress on stderr: a bar on a terminal, else a line for each epoch.
        parallel: The devices, and what is split over them; default ``Parallel()``, which splits
            batches over all devices that divide them evenly. A run may be resumed on others.
        trackers: Take in running metrics and speeds every 20 steps, and those of each epoch.
        profile_steps: Trace so many steps with ``jax.profiler``, from the eleventh of this call
            on, into ``profile`` in the run folder; a shorter run has no trace.

    Returns:
        The selected epoch, its value and the history.

    Raises:
        ValueError: If there are no batches, the monitored metric is not reported, ``run_dir``
            holds a run and ``resume`` is False, the run to resume is a different one, or processes
            were given different things.
        TypeError: If a source of batches is none.
        FileNotFoundError: If there is nothing to resume.
        NonFiniteLossError: If the loss, a gradient or a parameter becomes NaN or infinite.
        OSError: If a checkpoint cannot be written.
        LostProcessError: If another process of the run is lost, or could not write.
        Interrupted: After a SIGINT or SIGTERM, with the run saved.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> from flax_linattn.data import Batches
        >>> x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
        >>> batches = Batches({"x": x, "y": 3 * x}, batch_size=4, seed=0)
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean((model(batch["x"]) - batch["y"]) ** 2), {}
        >>> model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     result = fit(model, loss_fn, optax.sgd(0.5), batches, batches,
        ...                  config=FitConfig(epochs=9), run_dir=run_dir, progress=False)
        >>> result.epochs, round(float(model.kernel[0, 0]), 2)
        (9, 3.0)
    """
    for source in (train_batches, validation_batches):
        if not hasattr(source, "batch") or not hasattr(source, "__len__"):
            raise TypeError(
                "expected batches with len() and batch(step), such as data.Batches, got "
                f"{type(source).__name__}; data.IteratorBatches makes them of a generator."
            )
    steps_per_epoch = len(train_batches)
    if not steps_per_epoch or not len(validation_batches):
        raise ValueError(
            f"There are {steps_per_epoch} training and {len(validation_batches)} validation "
            "batches; both must have at least one. Check the data set and its split."
        )
    run_dir = Path(run_dir)
    with ExitStack() as ends:
        ends.enter_context(together(partial(_go_on_from, run_dir)))
        stop = ends.enter_context(StopRequest())
        run = _start(
            model,
            loss_fn,
            optimizer,
            train_batches,
            validation_batches,
            config,
            run_dir,
            resume,
            Parallel() if parallel is None else parallel,
            tuple(trackers) if is_main() else (),
            profile_steps,
        )
        total_steps = config.epochs * steps_per_epoch
        display = ProgressDisplay(progress and is_main(), config.epochs, total_steps, run.step)
        ends.enter_context(display)
        ends.enter_context(run.saver)
        ends.callback(run.profile.stop)
        for tracker in run.trackers:
            ends.callback(tracker.close)
        while not run.record.is_over(config):
            run.epoch(stop, display)
    best_checkpoint = load_best(model, run_dir)
    record = run.record
    return FitResult(
        best_epoch=cast(int, record.best_epoch),
        best_value=cast(float, record.best_value),
        best_checkpoint=best_checkpoint,
        epochs=record.epochs_done,
        steps=run.step,
        stopped_early=record.epochs_done < config.epochs,
        history=tuple(record.history),
    )


def _start(
    model: nnx.Module,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    train_batches: BatchSource,
    validation_batches: BatchSource,
    config: FitConfig,
    run_dir: Path,
    resume: bool,
    parallel: Parallel,
    trackers: tuple[Tracker, ...],
    profile_steps: int,
) -> _Run:
    """The run as it stands before this call's first step."""
    first = [batches.batch(0) for batches in (train_batches, validation_batches)]
    check_same(
        lambda: {
            "FitConfig": config,
            "parallel": parallel,
            "numbers of batches": (len(train_batches), len(validation_batches)),
            "shapes of batches": [{n: np.shape(x) for n, x in batch.items()} for batch in first],
            "shapes of parameters": jax.tree.map(jnp.shape, nnx.state(model)),
            "values of parameters": fingerprint(model),
        }
    )
    sizes = [len(next(iter(batch.values()))) for batch in first]
    placement = parallel.place(*sizes)
    names = metric_names(model, loss_fn, first[1])
    if config.monitor not in names:
        raise ValueError(
            f"FitConfig.monitor is {config.monitor!r}, but the loss function reports "
            f"{', '.join(names)}. Choose one of these."
        )
    on_main(partial(open_for_writing, run_dir, resume=resume))
    check_shared(run_dir)
    graphdef, params, model_state = split_model(model)
    state = placement.state(
        TrainState.create(params, model_state, optimizer, names, config.loss_scale)
    )
    record = begun = RunRecord.start(config, len(train_batches), sizes[0])
    if resume:
        on_main(partial(set_aside_damaged, run_dir))
        state, record = restore_latest(run_dir, state)
        record.check_same_run(begun)
    on_main(partial(record.write_metrics, run_dir))
    announce(f"Then start all processes again with resume=True (--resume): {run_dir}.")
    return _Run(
        state=state,
        record=record,
        config=config,
        run_dir=run_dir,
        train_batches=train_batches,
        validation_batches=validation_batches,
        batch_size=sizes[0],
        validation_batch_size=sizes[1],
        train_step=make_train_step(
            graphdef, loss_fn, optimizer, config.seed, placement, config.max_skipped_steps
        ),
        evaluation_step=make_evaluation_step(graphdef, loss_fn, placement),
        placement=placement,
        explain=partial(what_is_not_finite, graphdef, loss_fn, config.seed, placement),
        saver=Saver(run_dir, config.keep_latest),
        trackers=trackers,
        num_parameters=sum(x.size for x in jax.tree.leaves(params)),
        profile=Profile(run_dir / "profile", int(state.step), profile_steps),
        step=int(state.step),
    )


@dataclasses.dataclass
class _Run:
    """A run in progress; ``step`` is the host's copy of ``state.step``."""

    state: TrainState
    record: RunRecord
    config: FitConfig
    run_dir: Path
    train_batches: BatchSource
    validation_batches: BatchSource
    batch_size: int
    validation_batch_size: int
    train_step: TrainStep
    evaluation_step: EvaluationStep
    placement: Placement
    explain: Callable[[TrainState, Batch], str]
    saver: Saver
    trackers: tuple[Tracker, ...]
    num_parameters: int
    profile: Profile
    step: int

    def epoch(self, stop: StopRequest, display: ProgressDisplay) -> None:
        """Trains what is left of the epoch, validates, and saves."""
        record = self.record
        epoch = record.epochs_done + 1
        last_step = epoch * record.steps_per_epoch
        every = self.config.checkpoint_every_steps
        timer = _Timer(record)
        while self.step < last_step:
            self.profile.before(self.step)
            begin = time.perf_counter()
            batch, placed = self._load(self.train_batches, self.step, self.batch_size)
            record.data_seconds += time.perf_counter() - begin
            self.state = self.train_step(self.state, placed)
            self.step += 1
            self.profile.after(self.step, self.state)
            record.count(batch, self.share)
            display.step(self.step, epoch)
            if signum := self._asked_to_stop(stop):
                self._interrupt(signum, timer)
            if self.step % LOG_EVERY_STEPS == 0:
                record.share_counts()
                self._check_finite()
                timer.tick()
                means = mean_metrics(self.state.metrics)
                display.metrics(means, record.examples / record.seconds)
                self._track({f"train_{name}": mean for name, mean in means.items()})
            # At the end of the epoch the checkpoint waits for the validation.
            if every and self.step % every == 0 and self.step < last_step:
                self._save(timer)
        record.share_counts()
        self._check_finite()
        timer.tick()

        validation = self._validate(stop)
        if validation is None:
            self._interrupt(self._asked_to_stop(stop), timer)
        means = mean_metrics(self.state.metrics)
        self._track(
            {f"train_{name}": mean for name, mean in means.items()}
            | {f"validation_{name}": mean for name, mean in validation.items()}
        )
        skipped = int(self.state.skipped)
        improved = record.end_epoch(self.step, means, validation, skipped)
        timer.restart()  # Validation is no training time.
        empty = jax.tree.map(jnp.zeros_like, self.state.metrics)
        self.state = dataclasses.replace(self.state, metrics=empty)
        on_main(partial(record.append_metrics, self.run_dir))
        display.epoch(record.history[-1])
        if not every or self.step % every == 0 or improved or record.is_over(self.config):
            self._save(timer)
        if signum := self._asked_to_stop(stop, now=True):
            self._interrupt(signum, timer)

    def _load(
        self, source: BatchSource, step: int, batch_size: int, *, whole: bool = False
    ) -> tuple[Batch, Any]:
        """The rows of a batch that this process needs, and the batch on its devices."""
        rows = self.placement.rows(batch_size)
        batch = source.batch(step) if rows == slice(0, batch_size) else source.batch(step, rows)
        return batch, self.placement.batch(batch, batch_size, whole=whole)

    @property
    def share(self) -> float:
        """Rows of a batch that this process loads, by all of them."""
        rows = self.placement.rows(self.batch_size)
        return (rows.stop - rows.start) / self.batch_size

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

    def _asked_to_stop(self, stop: StopRequest, *, now: bool = False) -> int:
        """The signal that asked this process to stop, or another one; 0 if none.

        Processes have to stop after the same step, which they tell each other now and then.
        """
        signum = stop.signum or 0
        if jax.process_count() == 1:
            return signum
        return largest(signum) if now or self.step % LOG_EVERY_STEPS == 0 else 0

    def _validate(self, stop: StopRequest) -> dict[str, float] | None:
        """Returns the validation metrics, or None if asked to stop."""
        total = self.placement.state(zero_metrics(self.state.metrics))
        for index in range(len(self.validation_batches)):
            if jax.process_count() == 1 and stop.signum is not None:
                return None
            size = self.validation_batch_size
            _, placed = self._load(self.validation_batches, index, size, whole=True)
            total = self.evaluation_step(self.state.params, self.state.model_state, total, placed)
        means = mean_metrics(total)
        value = means[self.config.monitor]
        if not math.isfinite(value):
            self.saver.settle()  # it may be the last finite one
            found = [
                f"validation batch {index}: {array}"
                for index in range(len(self.validation_batches))
                for array in non_finite_arrays(self.validation_batches.batch(index))
            ]
            raise NonFiniteLossError(
                f"The validation metric {self.config.monitor!r} is {value} after step {self.step} "
                f"(epoch {self.record.epochs_done + 1}), with finite parameters. "
                + _diagnosis(found, self.run_dir)
            )
        return means

    def _check_finite(self) -> None:
        bad_step = int(self.state.first_bad_step)
        if bad_step == NO_BAD_STEP:
            return
        self.saver.settle()  # it may be the last finite one
        batch = self.train_batches.batch(bad_step)
        raise NonFiniteLossError(
            f"The loss, a gradient or a parameter became NaN or infinite in step {bad_step + 1} "
            f"(epoch {bad_step // self.record.steps_per_epoch + 1}). "
            + self.explain(self.state, batch)
            + _diagnosis(non_finite_arrays(batch), self.run_dir)
        )

    def _save(self, timer: _Timer) -> None:
        self._check_finite()
        timer.tick()
        begin = time.perf_counter()
        self.saver.save(self.state, self.record)
        self.record.saving_seconds += time.perf_counter() - begin
        timer.restart()

    def _interrupt(self, signum: int, timer: _Timer) -> NoReturn:
        self._save(timer)
        self.saver.wait()
        path = list_checkpoints(self.run_dir)[-1].path
        message = (
            f"Stopped by {signal.Signals(signum).name} after step {self.step} "
            f"({self.record.epochs_done} of {self.config.epochs} epochs finished). "
            f"Saved {path}. To go on, start the same run again with resume=True (--resume)."
        )
        if is_main():
            print(message, file=sys.stderr)
        raise Interrupted(signum, message)


class _Timer:
    """Adds the time spent in training to the record, and leaves out the time spent in saving."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.restart()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def tick(self) -> None:
        now = time.perf_counter()
        self._record.seconds += now - self._since
        self._since = now


def _go_on_from(run_dir: Path) -> str:
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        return "Nothing was saved yet: start all processes again."
    return (
        f"Start all processes again with resume=True (--resume), to go on from "
        f"{checkpoints[-1].path}."
    )


def _diagnosis(found: list[str], run_dir: Path) -> str:
    checkpoints = list_checkpoints(run_dir)
    last = checkpoints[-1].path if checkpoints else "none was saved yet"
    if found:
        cause = (
            f"The data holds NaN or inf: {'; '.join(found[:4])}. If these are not masked out, "
            "clean them (for gaps in series: data.interpolate_missing)."
        )
    else:
        cause = (
            "The batch itself is finite. Likely causes: a learning rate that is too high (try a "
            "third of it, warm-up, or optax.clip_by_global_norm(1.0)), or half precision (try "
            "float32)."
        )
    return f"{cause} The last finite checkpoint: {last}."
