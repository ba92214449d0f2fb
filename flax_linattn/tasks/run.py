"""Run folders: the files of a run next to its checkpoints, and how a run is loaded."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, check_choice, quote
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.registry import get_task
from flax_linattn.tasks.config_file import (
    CONFIG_FILE,
    FORMAT,
    MAX_ERROR_LENGTH,
    check_format,
    read_config,
    read_task_options,
)
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.options import Checkpoint, Config
from flax_linattn.tasks.protocols import Calibrating
from flax_linattn.tasks.spec import DataSpec, Run, without_floats
from flax_linattn.tasks.task import Task
from flax_linattn.training.checkpointer import check_same_model, read_newest
from flax_linattn.training.processes import is_main

DATA_SPEC_FILE = "data_spec.json"
TEST_FILE = "test.json"
MAX_TRACED_LAYERS = 8
"""Maximum number of layers of a single model that ``load_run`` traces instead of initializing.
Tracing compiles nothing, but its time grows with the square of the depth: 42 s at 100 layers."""


def read_task(run_dir: Path) -> Task[Any, Any, Any]:
    """Returns the task of the run in a folder."""
    return get_task(read_task_options(run_dir).name)


CHANGEABLE = ("epochs", "steps", "time_limit")
"""Options that a resumed run may change."""


def check_run_dir(
    run_dir: Path, task: Task[Any, Any, Any], config: Config, *, resume: bool
) -> None:
    """Checks that a run may be trained in a folder."""
    if run_dir.exists() and not run_dir.is_dir():
        raise OptionError(
            f"expected a run folder, got the file {run_dir}; choose another folder.", "run"
        )
    if not resume:
        if any((run_dir / "checkpoints").glob("step_*")):
            raise OptionError(
                f"{run_dir} already holds a run; resume it if it is no longer training, or choose "
                "another run folder.",
                "resume",
                "run",
            )
        return
    for name, (before, now) in read_config(run_dir, task).differences(config).items():
        if name not in (*CHANGEABLE, *config.auto_options):
            raise OptionError(
                f"the run in {run_dir} has {name}={before!r}, got {now!r}; a resumed "
                "run may change only its number of epochs or steps, or its time limit. Start a new "
                "run to change other options.",
                name,
            )


def write_data_spec(run_dir: Path, data_spec: DataSpec) -> None:
    """Writes the data spec of a run to data_spec.json."""
    write_json(run_dir / DATA_SPEC_FILE, {"format": FORMAT, **data_spec.to_json()})


def check_same_data(run_dir: Path, stored: DataSpec, given: DataSpec) -> None:
    """Checks that a run is resumed with the data that it was started with."""
    before, now = stored.to_json(), given.to_json()
    if before["checksum"] != now["checksum"]:
        raise ValueError(
            f"the data differ from the data that the run in {run_dir} was started with; pass the "
            "same files and rows, or start a new run."
        )
    for field in dataclasses.fields(cast(Any, given)):
        if not field.compare:
            now.pop(field.name, None)
    differing = [name for name in now if without_floats(before[name]) != without_floats(now[name])]
    if differing:
        raise ValueError(
            f"{run_dir / DATA_SPEC_FILE} and the data differ in {differing[0]}; restore the file "
            "from a copy."
        )


def read_data_spec(run_dir: Path, task: Task[Any, Any, Any]) -> DataSpec:
    """Reads the data spec of the run in a folder."""
    path = run_dir / DATA_SPEC_FILE
    values = read_json(path)
    check_format(path, values)
    try:
        data_spec = task.DataSpec.from_json(values)
        data_spec.check()
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path} does not fit this version: {quote(error, MAX_ERROR_LENGTH)} Restore it "
            "from a copy, or start a new run."
        ) from error
    return data_spec


@contextmanager
def explain_missing_data(is_own: bool) -> Iterator[None]:
    """Adds advice to the error about a missing file, where a run's own files are read."""
    try:
        yield
    except FileNotFoundError as error:
        if not is_own:
            raise
        raise FileNotFoundError(
            "a data file of the run is missing; restore it, or pass another test file or input: "
            f"{error}"
        ) from None


def own_part(
    run: Run,
    name: Literal["train", "test"],
    load: Callable[[Any], Any],
    split: Callable[[Any, Any], Any],
    compute_checksum: Callable[[Any], str],
) -> Any:
    """Loads the training or test part of a run's own data, and checks that it is unchanged."""
    with explain_missing_data(is_own=True):
        data = load(run.config.data) if run.data is None else run.data
        part = getattr(split(data, run.config.data), name)
    if compute_checksum(part) != run.data_spec.checksum[name]:
        raise OptionError(
            "the data of the run have changed since training; restore them, or pass other test "
            "data.",
            "test_file",
        )
    return part


def load_run(
    run_dir: str | Path, seed_index: int | None = None, *, checkpoint: Checkpoint = "best"
) -> Run:
    """Loads a run of any task, with its selected or its last parameters.

    Args:
        run_dir: Run folder.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value (``Run.seed_index``).
        checkpoint: "best" (the selected parameters) or "last" (those at the end of training). Runs
            of several seeds have only "best".

    Raises:
        FileNotFoundError: If there is no such run, or it has no checkpoint.
        ValueError: If files of the run are damaged, ``seed_index`` is out of range, or the run
            failed before its first validation.
    """
    check_choice(get_args(Checkpoint), checkpoint=checkpoint)
    run_dir = Path(run_dir)
    run = _read_run(run_dir)
    if run.config.fit.runs == 1:
        if seed_index not in (None, 0):
            raise OptionError(
                f"{run_dir} holds a single run, got seed_index={seed_index}; remove the option.",
                "seed_index",
            )
        if checkpoint == "last":
            newest, _ = read_newest(run_dir)
            training.load_checkpoint(run.model, newest)
        else:
            training.load_best(run.model, run_dir)
        return restore_calibration(run_dir, run)
    if checkpoint == "last":
        raise OptionError(
            f"{run_dir} holds several runs, which have only checkpoint='best'; remove the option.",
            "checkpoint",
        )
    seed_index = training.best_run(run_dir) if seed_index is None else seed_index
    result = training.load_run(run.model, run_dir, seed_index)
    if result.best_step is None:
        failed = f"failed in step {result.failed_step}, before it was validated"
        why = "was not validated yet" if result.failed_step is None else failed
        raise OptionError(
            f"run {seed_index} in {run_dir} {why}, so it has no parameters; choose another run.",
            "seed_index",
        )
    return restore_calibration(run_dir, run._replace(seed_index=seed_index))


def load_runs(run_dir: str | Path) -> tuple[Run, ...]:
    """Loads all runs of a folder, except runs that failed before their first validation.

    Args:
        run_dir: Run folder.

    Returns:
        The runs, each as ``load_run`` returns it.

    Raises:
        FileNotFoundError: If there is no such run, or it has no checkpoint.
        ValueError: If files of the run are damaged.
    """
    run_dir = Path(run_dir)
    run = _read_run(run_dir)
    if run.config.fit.runs == 1:
        training.load_best(run.model, run_dir)
        return (restore_calibration(run_dir, run),)
    models = training.load_runs(run.model, run_dir)
    runs = (run._replace(model=model, seed_index=index) for index, model in models.items())
    return tuple(restore_calibration(run_dir, run) for run in runs)


def _read_run(run_dir: Path) -> Run:
    """Reads the run of a folder; its parameters are not loaded yet."""
    task = read_task(run_dir)
    config = read_config(run_dir, task)
    data_spec = read_data_spec(run_dir, task)
    check_model(run_dir, task, config, data_spec)
    build: Any = partial(task.model, config, data_spec)
    is_traced = config.fit.runs == 1 and config.layers.num_layers <= MAX_TRACED_LAYERS
    return Run(task, config, data_spec, nnx.eval_shape(build) if is_traced else build())


def check_model(
    run_dir: Path, task: Task[Any, Any, Any], config: Config, data_spec: DataSpec
) -> None:
    """Checks that a model matches the checkpoints of its run, before it uses any memory.

    Only the first layer is checked: JAX takes minutes to trace a hundred. ``load_best`` checks all.
    """
    layers = config.layers
    first = layers.mechanism[0] if isinstance(layers.mechanism, tuple) else layers.mechanism
    one = config.with_layers(dataclasses.replace(layers, num_layers=1, mechanism=first))
    runs = config.fit.runs
    try:
        shapes = jax.eval_shape(lambda: nnx.state(task.model(one, data_spec)))
        if runs > 1:  # stacked
            shapes = jax.eval_shape(
                lambda state: jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)), state),
                shapes,
            )
    except (TypeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"no model can be built from {CONFIG_FILE} and {DATA_SPEC_FILE} in {run_dir}: "
            f"{quote(error, MAX_ERROR_LENGTH)}"
        ) from error
    check_same_model(shapes, run_dir)


# Checkpoints are written during training, and the calibration is computed after it. Its own file
# names the parameters that it belongs to.
def calibrate(run_dir: Path, run: Run, splits: training.Splits) -> str | None:
    """Calibrates a run's model if its options ask for it, saves the result and returns a note."""
    task = run.task
    if not isinstance(task, Calibrating) or not task.is_calibrated(run.config):
        return None
    before = fingerprint(run.model)
    note = task.calibrate(run, splits)
    if is_main():
        save_state(_calibration_file(run_dir, run), _fitted_variables(run), {"model": before})
    return note


def restore_calibration(run_dir: Path, run: Run) -> Run:
    """Applies the stored calibration to the model of a run, if its options ask for one.

    Prints a note where the folder has no calibration of these parameters, as after an interruption.
    """
    if not isinstance(run.task, Calibrating) or not run.task.is_calibrated(run.config):
        return run
    try:
        state, metadata = load_state(_calibration_file(run_dir, run), _fitted_variables(run))
    except FileNotFoundError:
        return _not_calibrated(run, "the run ended before the calibration")
    if metadata.get("model") != fingerprint(run.model):
        return _not_calibrated(run, "the stored calibration belongs to other parameters")
    nnx.update(run.model, state)
    return run


def _calibration_file(run_dir: Path, run: Run) -> Path:
    index = "" if run.seed_index is None else f"-{run.seed_index}"
    return run_dir / f"calibration{index}.npz"


def _fitted_variables(run: Run) -> nnx.State:
    return nnx.state(run.model, models.FittedVariable)


def _not_calibrated(run: Run, why: str) -> Run:
    print(f"note: the model is not calibrated, because {why}", file=sys.stderr)
    return run
