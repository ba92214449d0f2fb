"""Results and parameters of the runs in a folder, read from their checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    array_signature,
    named_leaves,
    read_arrays,
    read_item,
)
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.training.checkpointer import (
    Progress,
    read_newest,
    read_newest_progress,
    read_whole,
)
from flax_linattn.training.history import RunsProgress
from flax_linattn.training.state import split_model

MAX_DIFFERENCES = 8
"""Maximum number of arrays that an error names."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Args:
        best_epoch: The epoch of the selected parameters, counted from 1; None if the run failed
            before its first validation.
        best_step: The number of training steps of the selected parameters.
        best_value: The monitored validation metric of the selected parameters.
        failed_step: The step in which the run became NaN or infinite, counted from 1; None if it
            did not fail.
        stopped_early: Whether the run ran out of patience.
    """

    best_epoch: int | None
    best_step: int | None
    best_value: float | None
    failed_step: int | None
    stopped_early: bool


def run_results(history: RunsProgress, patience: int | None = None) -> tuple[RunResult, ...]:
    """The results of all runs.

    Pass ``patience`` for a single model: its checkpoints do not store whether it ran out of it.
    """
    return tuple(
        RunResult(
            run.best_epoch,
            run.best_step,
            run.best_value,
            run.failed_step,
            run.stopped if history.is_stacked else run.out_of_patience(patience),
        )
        for run in history.runs
    )


def best_index(history: RunsProgress) -> int | None:
    """The index of the run with the best monitored value; None before the first validation."""
    sign = 1 if history.monitor_mode == "max" else -1
    values = [run.best_value for run in history.runs]
    validated = [sign * value for value in values if value is not None]
    return values.index(sign * max(validated)) if validated else None


def load_checkpoint(model: nnx.Module, path: str | Path) -> None:
    """Reads a checkpoint's parameters and other variables into a model of the same structure.

    Args:
        model: Changed in place.
        path: A checkpoint's folder, such as one of ``list_checkpoints(run_dir)``.

    Raises:
        FileNotFoundError: If there is no such folder.
        CorruptCheckpointError: If the checkpoint cannot be read.
        ValueError: If the model has other variables than the saved one; names the variables that
            differ. If the checkpoint holds several runs.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(
            f"There is no checkpoint folder {path}. list_checkpoints(run_dir) gives the folders of "
            "a run."
        )
    _, *variables = split_model(model)
    progress = read_whole(path)
    _check_single(path, progress.history)
    nnx.update(model, *read_arrays(path, "model", progress.manifest, *variables))


def load_best(model: nnx.Module, run_dir: str | Path) -> Path:
    """Reads the parameters of a run's best epoch into a model of the same structure.

    Args:
        model: A freshly built model; changed in place.
        run_dir: The run folder that ``fit`` wrote for a single model.

    Returns:
        The folder of the checkpoint that was read.

    Raises:
        FileNotFoundError: If the run folder or a checkpoint in it is missing.
        CorruptCheckpointError: If the best checkpoint cannot be read.
        ValueError: If no epoch has finished, the folder holds several runs, or the model has other
            variables than the saved one; names the variables that differ.
    """
    best = _best_checkpoint(Path(run_dir))
    try:
        load_checkpoint(model, best)
    except (CorruptCheckpointError, FileNotFoundError) as error:
        raise CorruptCheckpointError(
            f"{error} It is the best checkpoint of the run: restore it from a copy, or resume the "
            "run, which then selects the best of the remaining checkpoints."
        ) from error
    return best


def load_opt_state(
    optimizer: optax.GradientTransformation,
    model: nnx.Module,
    run_dir: str | Path,
    *,
    skip_mismatched: bool = False,
) -> Any:
    """Reads the optimizer's state of a run's best epoch, to continue with another training.

    Moments and their counts are read. The step of a learning rate schedule is 0, since the schedule
    belongs to the new training.

    Args:
        optimizer: The optimizer of the new training, with the same update rule as the run's.
        model: The model to train, with parameters of the same names and shapes as the run's.
        run_dir: The run folder that ``fit`` wrote for a single model.
        skip_mismatched: Whether parameters of other shapes start with the state of
            ``optimizer.init`` instead of raising an error.

    Returns:
        The optimizer's state, for the argument ``opt_state`` of ``fit``.

    Raises:
        FileNotFoundError: If the run folder or a checkpoint in it is missing.
        CorruptCheckpointError: If the best checkpoint cannot be read.
        ValueError: If no epoch has finished, the folder holds several runs, or the saved state
            belongs to another optimizer or to other parameters; names the arrays that differ.
    """
    best = _best_checkpoint(Path(run_dir))
    saved = read_item(best, "training", read_whole(best).manifest)
    _, params, _ = split_model(model)
    fresh = {"opt_state": optimizer.init(params)}
    in_schedule = named_leaves(
        jax.tree.map(
            lambda part: jax.tree.map(lambda _: _is_schedule_state(part), part),
            fresh,
            is_leaf=_is_schedule_state,
        )
    )
    differences, values = [], []
    for name, leaf in named_leaves(fresh).items():
        array = None if in_schedule[name] else saved.get(name)
        fits = array is not None and array.shape == leaf.shape
        if not (fits or in_schedule[name] or (array is not None and skip_mismatched)):
            what = "nothing" if array is None else array_signature(array)
            differences.append(f"{name}: expected {array_signature(leaf)}, found {what}")
        values.append(jnp.asarray(array, leaf.dtype) if fits else leaf)
    if differences:
        raise OptionError(
            f"The optimizer's state in {run_dir} does not fit the model and the optimizer:\n  "
            + "\n  ".join(differences[:MAX_DIFFERENCES])
            + f"\n{len(differences)} arrays differ. Use the optimizer that the run was trained "
            "with, or start with a new state.",
            "optimizer",
        )
    return jax.tree.unflatten(jax.tree.structure(fresh), values)["opt_state"]


def _is_schedule_state(part: Any) -> bool:
    return isinstance(part, optax.ScaleByScheduleState)


def _best_checkpoint(run_dir: Path) -> Path:
    """The folder of the best checkpoint of a single model."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"There is no run folder {run_dir}. Check the path.")
    path, progress = read_newest_progress(run_dir)
    _check_single(path, progress.history)
    if progress.best_path is None:
        raise ValueError(
            f"No epoch of the run in {run_dir} has finished, so there is no best one yet. "
            f"Resume the run, or read {path} with load_checkpoint."
        )
    return progress.best_path


def read_runs(run_dir: str | Path) -> tuple[RunResult, ...]:
    """The results of several runs in a folder, from its newest checkpoint.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If no checkpoint can be read, or the folder holds a single run.
    """
    _, progress = _newest_with_runs(run_dir)
    return run_results(progress.history)


def best_run(run_dir: str | Path) -> int:
    """The index of the run with the best monitored value; the first one in a tie.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If no checkpoint can be read, the folder holds a single run, or no run was
            validated yet.
    """
    _, progress = _newest_with_runs(run_dir)
    index = best_index(progress.history)
    if index is None:
        raise _not_validated(run_dir)
    return index


def load_run(model: nnx.Module, run_dir: str | Path, seed_index: int) -> RunResult:
    """Reads the best parameters of one of several runs into a model of the same structure.

    Args:
        model: A freshly built model; changed in place.
        run_dir: The run folder that ``fit`` wrote for several models.
        seed_index: Index of the run, counted from 0.

    Returns:
        The result of the run. If its ``best_step`` is None, the parameters are the initial ones.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CorruptCheckpointError: If no checkpoint can be read.
        ValueError: If there is no such run, or the model has other variables than the saved one.
    """
    _, history, best = read_best(model, run_dir)
    check_integers(0, len(history.runs) - 1, seed_index=seed_index)
    nnx.update(model, *best[seed_index])
    return run_results(history)[seed_index]


def load_runs(model: nnx.Module, run_dir: str | Path) -> dict[int, nnx.Module]:
    """Models with the best parameters of each of several runs in a folder, by run index.

    Args:
        model: A freshly built model of the same structure; it is not changed.
        run_dir: The run folder that ``fit`` wrote for several models.

    Returns:
        A model for each run, except runs that failed before they were validated.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CorruptCheckpointError: If no checkpoint can be read.
        ValueError: If no run was validated yet, or the model has other variables than the saved
            one.
    """
    _, history, best = read_best(model, run_dir)
    if best_index(history) is None:
        raise _not_validated(run_dir)
    graphdef, *_ = split_model(model)
    return {
        r: nnx.merge(graphdef, *best[r])
        for r, run in enumerate(history.runs)
        if run.best_step is not None
    }


def read_best(model: nnx.Module, run_dir: str | Path) -> tuple[Path, RunsProgress, list[Any]]:
    """Reads the newest checkpoint of several runs: path, history, best variables of each run."""
    path, (history, manifest, _) = _newest_with_runs(run_dir)
    _, *variables = split_model(model)
    num_runs = len(history.runs)
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_runs, *x.shape)), variables)
    best = read_arrays(path, "model", manifest, *stacked)
    return path, history, [jax.tree.map(lambda x, r=r: x[r], best) for r in range(num_runs)]


def _newest_with_runs(run_dir: str | Path) -> tuple[Path, Progress]:
    """The newest intact checkpoint of several runs, and its progress.json."""
    path, progress = read_newest(run_dir)
    if not progress.history.is_stacked:
        raise ValueError(f"The folder {run_dir} holds a single run; read it with load_best.")
    return path, progress


def _check_single(path: Path, history: RunsProgress) -> None:
    """Raises if a checkpoint holds several runs where one of a single model is needed."""
    if history.is_stacked:
        raise ValueError(
            f"The checkpoint {path} holds {len(history.runs)} runs; read one of them with load_run."
        )


def _not_validated(run_dir: str | Path) -> ValueError:
    return ValueError(
        f"No run in {run_dir} was validated yet, so none has best parameters; resume the training."
    )
