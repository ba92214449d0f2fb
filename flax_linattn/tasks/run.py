"""Run folders: what every run keeps beside its checkpoints, and how it is loaded again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, choice, quote
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.registry import get_task, list_tasks
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.protocols import Calibrating
from flax_linattn.tasks.spec import DataSpec, Run, without_floats
from flax_linattn.tasks.task import Task
from flax_linattn.training.checkpointer import check_same_model, read_newest
from flax_linattn.training.processes import is_main

CONFIG_FILE = "config.json"
DATA_SPEC_FILE = "data_spec.json"
TEST_FILE = "test.json"
FORMAT = 2
"""Format number of config.json and data_spec.json; a change that older files do not fit takes a new
number."""
Checkpoint: TypeAlias = Literal["best", "last"]
"""Which parameters of a run."""

TOLD = 1200
"""Most characters of an error within another one; one may name all options."""


def read_task(run_dir: Path) -> Task[Any, Any, Any]:
    """The task of the run in a folder."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} is not a run folder: {CONFIG_FILE} is missing; check the path."
        )
    values = read_json(path)
    name, form = str(values.get("task")), values.get("format")
    if name not in list_tasks():
        raise ValueError(
            f"{run_dir} is a run of task {quote(name)}, expected one of {', '.join(list_tasks())}."
        )
    if form != FORMAT:
        raise ValueError(
            f"{path} has the format {quote(form)}, this version reads {FORMAT}; use the version "
            "that made the run."
        )
    return get_task(name)


def read_config(run_dir: Path, task: Task[Any, Any, Any] | None = None) -> Config:
    """The options of the run in a folder."""
    of_run = read_task(run_dir)
    if task is not None and of_run.name != task.name:
        raise ValueError(f"{run_dir} is a run of task {of_run.name!r}, expected {task.name!r}.")
    values = read_json(run_dir / CONFIG_FILE)
    options = {name: value for name, value in values.items() if name not in ("task", "format")}
    try:
        return of_run.Config.from_json(options)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run_dir / CONFIG_FILE} does not fit this version: {quote(error, TOLD)}"
        ) from error


def write_config(run_dir: Path, task: Task[Any, Any, Any], config: Config) -> None:
    """Writes the options of a run to config.json."""
    values = {"format": FORMAT, "task": task.name, **config.to_json()}
    write_json(run_dir / CONFIG_FILE, values)


CHANGEABLE = ("epochs", "steps", "time_limit")
"""Options that a resumed run may change."""


def check_run_dir(
    run_dir: Path, task: Task[Any, Any, Any], config: Config, *, resume: bool
) -> None:
    """Checks that a run may be trained in a folder."""
    if run_dir.exists() and not run_dir.is_dir():
        raise OptionError(
            f"{run_dir} is a file, expected a folder; give another run folder.", "run"
        )
    if not resume:
        if any((run_dir / "checkpoints").glob("step_*")):
            raise OptionError(
                f"{run_dir} already holds a run; if it is not training any more, resume it, "
                "or choose another run folder.",
                "resume",
                "run",
            )
        return
    stored = read_config(run_dir, task).to_json()
    for name, value in config.to_json().items():
        if name not in (*CHANGEABLE, *config.auto_options) and stored[name] != value:
            raise OptionError(
                f"the run in {run_dir} has {name}={stored[name]!r}, got {value!r}; a resumed "
                "run may change only its number of epochs or steps, or its time limit. Start a new "
                "run for other options.",
                name,
            )


def write_data_spec(run_dir: Path, data_spec: DataSpec) -> None:
    """Writes the data spec of a run to data_spec.json."""
    write_json(run_dir / DATA_SPEC_FILE, {"format": FORMAT, **data_spec.to_json()})


def check_same_data(run_dir: Path, kept: DataSpec, given: DataSpec) -> None:
    """Checks that the data to go on with are those that a run began with."""
    before, now = kept.to_json(), given.to_json()
    if before["checksum"] != now["checksum"]:
        raise ValueError(
            f"the data are not those that the run in {run_dir} began with; give the same files and "
            "rows, or start a new run."
        )
    differing = [name for name in now if without_floats(before[name]) != without_floats(now[name])]
    if differing:
        raise ValueError(
            f"the data do not fit {run_dir / DATA_SPEC_FILE}, which has another {differing[0]}; "
            "restore the file from a copy."
        )


def read_data_spec(run_dir: Path, task: Task[Any, Any, Any]) -> DataSpec:
    """What the run in a folder learned of its data."""
    path = run_dir / DATA_SPEC_FILE
    values = read_json(path)
    values.pop("format", None)
    try:
        data_spec = task.DataSpec.from_json(values)
        data_spec.check()
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path} does not fit this version: {quote(error, TOLD)} Restore it from a copy, "
            "or start a new run."
        ) from error
    return data_spec


@contextmanager
def explain_missing_data(of_run: bool) -> Iterator[None]:
    """Where a run's own files are read, the error about a missing one tells how to give others."""
    try:
        yield
    except FileNotFoundError as error:
        if not of_run:
            raise
        raise FileNotFoundError(
            "the data files of the run are missing; restore them, or give another test file or "
            f"other input: {error}"
        ) from None


def own_part(
    run: Run,
    name: Literal["train", "test"],
    load: Callable[[Any], Any],
    split: Callable[[Any, Any], Any],
    compute_checksum: Callable[[Any], str],
) -> Any:
    """A part of a run's own data, as it was trained on or is to be tested on."""
    with explain_missing_data(of_run=True):
        data = load(run.config.data) if run.data is None else run.data
        part = getattr(split(data, run.config.data), name)
    if compute_checksum(part) != run.data_spec.checksum[name]:
        raise OptionError(
            "the data of the run have changed since training; give a test file.", "test_file"
        )
    return part


def load_run(
    run_dir: str | Path, seed_index: int | None = None, *, checkpoint: Checkpoint = "best"
) -> Run:
    """Loads a run of any task, with its selected parameters or its last ones.

    Args:
        run_dir: the run folder.
        seed_index: index of the run in a folder of several seeds, from 0; default the run with the
            best validation value (``Run.seed_index``).
        checkpoint: "best", what was selected, or "last", what training ended with; of several
            seeds the best alone.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged; there is no such run, or it failed before it was
            validated.
    """
    choice(get_args(Checkpoint), checkpoint=checkpoint)
    run_dir = Path(run_dir)
    run = _unread(run_dir)
    if run.config.fit.runs == 1:
        if seed_index not in (None, 0):
            raise OptionError(
                f"{run_dir} holds a single run, got seed_index={seed_index}.", "seed_index"
            )
        if checkpoint == "last":
            newest, _ = read_newest(run_dir)
            training.load_checkpoint(run.model, newest)
        else:
            training.load_best(run.model, run_dir)
        return restore_calibration(run_dir, run)
    if checkpoint == "last":
        raise OptionError(
            f"{run_dir} holds several runs; only their best parameters can be loaded.",
            "checkpoint",
        )
    seed_index = training.best_run(run_dir) if seed_index is None else seed_index
    result = training.load_run(run.model, run_dir, seed_index)
    if result.best_step is None:
        failed = f"failed in step {result.failed_step}, before it was validated"
        why = "was not validated yet" if result.failed_step is None else failed
        raise OptionError(
            f"run {seed_index} in {run_dir} {why}; it has no parameters.", "seed_index"
        )
    return restore_calibration(run_dir, run._replace(seed_index=seed_index))


def load_runs(run_dir: str | Path) -> tuple[Run, ...]:
    """Loads all runs of a folder, but for those that failed before they were validated.

    Args:
        run_dir: the run folder.

    Returns:
        Each as ``load_run`` gives it.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged.
    """
    run_dir = Path(run_dir)
    run = _unread(run_dir)
    if run.config.fit.runs == 1:
        training.load_best(run.model, run_dir)
        return (restore_calibration(run_dir, run),)
    models = training.load_runs(run.model, run_dir)
    runs = (run._replace(model=model, seed_index=index) for index, model in models.items())
    return tuple(restore_calibration(run_dir, run) for run in runs)


def _unread(run_dir: Path) -> Run:
    """A run of a folder without its parameters."""
    task = read_task(run_dir)
    config = read_config(run_dir, task)
    data_spec = read_data_spec(run_dir, task)
    check_model(run_dir, task, config, data_spec)
    return Run(task, config, data_spec, task.model(config, data_spec))


def check_model(
    run_dir: Path, task: Task[Any, Any, Any], config: Config, data_spec: DataSpec
) -> None:
    """Checks that a run's model is that of its checkpoints, before it takes any memory.

    It looks at one layer: JAX takes minutes to trace a hundred. ``load_best`` compares all.
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
            f"no model can be made of {CONFIG_FILE} and {DATA_SPEC_FILE} in {run_dir}: "
            f"{quote(error, TOLD)}"
        ) from error
    check_same_model(shapes, run_dir)


# Checkpoints are written in training, and a calibration is computed after it. So its file is read
# beside them, and says which parameters it goes with.
def calibrate(run_dir: Path, run: Run, validation: training.BatchSource) -> str | None:
    """Calibrates a run's model where its options ask for it, and keeps the result."""
    task = run.task
    if not isinstance(task, Calibrating) or not task.is_calibrated(run.config):
        return None
    before = fingerprint(run.model)
    told = task.calibrate(run, validation)
    if is_main():
        save_state(_calibration_file(run_dir, run), _corrections(run), {"model": before})
    return told


def restore_calibration(run_dir: Path, run: Run) -> Run:
    """The run, with its model calibrated where the folder holds the calibration of its parameters.

    Where it should and does not, as of a run that was cut off before, a note says so.
    """
    if not isinstance(run.task, Calibrating) or not run.task.is_calibrated(run.config):
        return run
    try:
        state, facts = load_state(_calibration_file(run_dir, run), _corrections(run))
    except FileNotFoundError:
        return _not_calibrated(run, "the run has not come so far")
    if facts.get("model") != fingerprint(run.model):
        return _not_calibrated(run, "its calibration is that of other parameters")
    nnx.update(run.model, state)
    return run


def _calibration_file(run_dir: Path, run: Run) -> Path:
    index = "" if run.seed_index is None else f"-{run.seed_index}"
    return run_dir / f"calibration{index}.npz"


def _corrections(run: Run) -> nnx.State:
    return nnx.state(run.model, models.Correction)


def _not_calibrated(run: Run, why: str) -> Run:
    print(f"note: the model is as trained, without its calibration: {why}", file=sys.stderr)
    return run
