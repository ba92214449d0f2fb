"""Reading checkpoints: the newest one that is intact, the best one, or any."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from flax import nnx

from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    check_files,
    read_arrays,
)
from flax_linattn.training.checkpoint.folder import (
    Checkpoint,
    Progress,
    best_path,
    checkpoints_folder,
    list_checkpoints,
    read_progress,
)
from flax_linattn.training.processes import is_main
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import TrainState, split_model


def set_aside_damaged(run_dir: str | Path) -> None:
    """Renames what is newer than the newest intact checkpoint to ``corrupt_...``, and says so.

    Where none is intact all stay where they are.
    """
    damaged: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            _read_whole(checkpoint.path)
        except CorruptCheckpointError as error:
            damaged.append((checkpoint.path, error))
            continue
        for path, reason in damaged:
            _set_aside(path, reason, checkpoint)
        return


def restore_latest(run_dir: str | Path, state: TrainState) -> tuple[TrainState, RunRecord]:
    """Reads the newest checkpoint that can be read; newer ones are set aside, and named.

    Args:
        run_dir: The run folder.
        state: A state of the same structure: its shapes, dtypes and devices are used.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If none can be read, or if the model or optimizer is not the saved one.
    """
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(
            f"There is no checkpoint to resume from in {checkpoints_folder(run_dir)}. "
            "Check the folder, or start the run without resume."
        )
    unread: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(checkpoints):
        try:
            restored = _read_state(checkpoint.path, state)
        except CorruptCheckpointError as error:
            unread.append((checkpoint.path, error))
            continue
        for path, reason in unread if is_main() else ():
            _set_aside(path, reason, checkpoint)
        return restored
    raise ValueError(
        f"None of the {len(checkpoints)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        f"The newest: {unread[0][1]} Restore the folder from a copy, or start a new run in "
        "another run_dir."
    )


def load_checkpoint(model: nnx.Module, path: str | Path) -> None:
    """Reads a checkpoint's parameters and other variables into a model of the same structure.

    Args:
        model: Changed in place.
        path: A checkpoint's folder, such as one of ``list_checkpoints(run_dir)``.

    Raises:
        FileNotFoundError: If there is no such folder.
        CorruptCheckpointError: If it cannot be read.
        ValueError: If the model is not the saved one; names the variables that differ.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no checkpoint folder {path}.")
    _, params, model_state = split_model(model)
    progress = _read_whole(path)
    nnx.update(model, *read_arrays(path, "model", progress, params, model_state))


def load_best(model: nnx.Module, run_dir: str | Path) -> Path:
    """Reads the parameters of a run's best epoch into a model of the same structure.

    Args:
        model: A freshly built model; changed in place.
        run_dir: The run folder that ``fit`` wrote.

    Returns:
        The folder of the checkpoint that was read.

    Raises:
        FileNotFoundError: If the run folder or a checkpoint in it is missing.
        CorruptCheckpointError: If the best checkpoint cannot be read.
        ValueError: If no epoch has finished, or if the model is not the saved one; names the
            variables that differ.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"There is no run folder {run_dir}.")
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint in {checkpoints_folder(run_dir)}.")
    for checkpoint in reversed(checkpoints):
        try:
            best = best_path(run_dir, read_progress(checkpoint.path))
        except CorruptCheckpointError as error:
            print(f"warning: {error} Using an older one.", file=sys.stderr)
            continue
        if best is None:
            raise ValueError(
                f"No epoch of the run in {run_dir} has finished, so there is no best one yet. "
                f"Resume the run, or read {checkpoint.path} with load_checkpoint."
            )
        load_checkpoint(model, best)
        return best
    raise CorruptCheckpointError(
        f"None of the {len(checkpoints)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        "Restore the folder from a copy, or train again in another run_dir."
    )


def _set_aside(path: Path, reason: Exception, instead: Checkpoint) -> None:
    """Frees a checkpoint's name, so that the run can save that step again."""
    aside = path.with_name(f"corrupt_{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    print(f"warning: {reason} Falling back to {instead.path.name}.", file=sys.stderr)


def _read_whole(path: Path) -> Progress:
    """A checkpoint's progress, once all its files are checked."""
    progress = read_progress(path)
    check_files(path, progress)
    return progress


def _read_state(path: Path, like: TrainState) -> tuple[TrainState, RunRecord]:
    progress = _read_whole(path)
    params, model_state = read_arrays(path, "model", progress, like.params, like.model_state)
    other = "optimizer, or what the loss function reports, is not what was"
    (training,) = read_arrays(path, "training", progress, like.without_model(), other=other)
    state = TrainState(params=params, model_state=model_state, **training)
    return state, RunRecord(**progress["record"])
