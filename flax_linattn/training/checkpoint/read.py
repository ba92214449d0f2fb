"""Reading checkpoints: the newest one that is intact, the best one, or any."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any, TypeVar

from flax import nnx

from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    check_files,
    check_shapes,
    read_arrays,
)
from flax_linattn.checkpoint.checked_json import write_json
from flax_linattn.training.checkpoint.folder import (
    PROGRESS_FILE,
    Checkpoint,
    Progress,
    best_path,
    check_folder,
    checkpoint_path,
    checkpoints_folder,
    list_checkpoints,
    read_progress,
)
from flax_linattn.training.processes import is_main
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import Saved, split_model

S = TypeVar("S", bound=Saved)


def set_aside_damaged(run_dir: str | Path) -> None:
    """Renames what is newer than the newest intact checkpoint to ``corrupt_...``, and says so.

    Where none is intact all stay where they are. Where the best that the newest intact one knows of
    is damaged, the best of those that are left takes its place, so that the run does not train to
    its end for parameters that nobody can read.
    """
    damaged: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            progress = _read_whole(checkpoint.path)
        except CorruptCheckpointError as error:
            damaged.append((checkpoint.path, error))
            continue
        for path, reason in damaged:
            _set_aside(path, f"{reason} Falling back to {checkpoint.path.name}.")
        _check_best(run_dir, checkpoint, progress)
        return


def _check_best(run_dir: str | Path, checkpoint: Checkpoint, progress: Progress) -> None:
    """Selects another best where the one that a checkpoint knows of is damaged or gone."""
    best = best_path(run_dir, progress)
    if best is None or best == checkpoint.path:
        return
    try:
        _read_whole(best)
        return
    except CorruptCheckpointError as error:
        reason = error
    record = RunRecord(**progress["record"])
    steps = enumerate((line["step"] for line in record.history), start=1)
    intact = [step for i, step in steps if _is_whole(checkpoint_path(run_dir, step, i))]
    record.select_best_of(intact)
    write_json(checkpoint.path / PROGRESS_FILE, {**progress, "record": dataclasses.asdict(record)})
    now = "none of those that are left was validated; the next validation selects"
    if record.best_step is not None:
        now = f"the best of those that are left, after step {record.best_step}, takes its place"
    _set_aside(best, f"{reason} It was the best: {now}.")


def _is_whole(path: Path) -> bool:
    try:
        _read_whole(path)
    except CorruptCheckpointError:
        return False
    return True


def restore_latest(run_dir: str | Path, state: S) -> tuple[S, RunRecord]:
    """Reads the newest checkpoint that can be read; newer ones are set aside, and named.

    Args:
        run_dir: The run folder.
        state: A state of the same structure: its shapes, dtypes and devices are used.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If none can be read, or if the model or optimizer is not the saved one.
    """
    check_folder(run_dir, resume=True)
    checkpoints = list_checkpoints(run_dir)
    unread: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(checkpoints):
        try:
            restored = _read_state(checkpoint.path, state)
        except CorruptCheckpointError as error:
            unread.append((checkpoint.path, error))
            continue
        for path, reason in unread if is_main() else ():
            _set_aside(path, f"{reason} Falling back to {checkpoint.path.name}.")
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
    _check_single(path, progress)
    nnx.update(model, *read_arrays(path, "model", progress, params, model_state))


def check_same_model(shapes: Any, run_dir: str | Path) -> None:
    """Checks that a run's newest readable checkpoint holds all variables of a model.

    Args:
        shapes: Its state, or a part of it, of ``jax.eval_shape``: a model that is too large for the
            memory need not be made to be refused.
        run_dir: The run folder.

    Raises:
        ValueError: It does not; names the variables that differ.
    """
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            progress = read_progress(checkpoint.path)
            check_shapes(checkpoint.path, "model", progress, shapes)
        except CorruptCheckpointError:
            continue  # whoever reads it says so
        return


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
    newest: CorruptCheckpointError | None = None
    for checkpoint in reversed(checkpoints):
        try:
            progress = read_progress(checkpoint.path)
        except CorruptCheckpointError as error:
            newest = newest or error
            print(f"warning: {error} Using an older one.", file=sys.stderr)
            continue
        _check_single(checkpoint.path, progress)
        best = best_path(run_dir, progress)
        if best is None:
            raise ValueError(
                f"No epoch of the run in {run_dir} has finished, so there is no best one yet. "
                f"Resume the run, or read {checkpoint.path} with load_checkpoint."
            )
        try:
            load_checkpoint(model, best)
        except (CorruptCheckpointError, FileNotFoundError) as error:
            raise CorruptCheckpointError(
                f"{error} It is the best of the run: restore it from a copy, or resume the run, "
                "which then selects the best of the checkpoints that are left."
            ) from error
        return best
    raise CorruptCheckpointError(
        f"None of the {len(checkpoints)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        f"The newest: {newest} Restore the folder from a copy, or train again in another run_dir."
    )


def _check_single(path: Path, progress: Progress) -> None:
    """Refuses a checkpoint of many runs where one is asked for."""
    if runs := progress["record"].get("runs"):
        raise ValueError(
            f"The checkpoint {path} holds {len(runs)} runs; read one of them with load_run."
        )


def _set_aside(path: Path, warning: str) -> None:
    """Frees a checkpoint's name, so that the run can save that step again."""
    aside = path.with_name(f"corrupt_{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
    print(f"warning: {warning}", file=sys.stderr)


def read_newest(run_dir: str | Path) -> tuple[Path, Progress]:
    """The newest checkpoint that is whole, and what it holds beside its arrays.

    Raises:
        FileNotFoundError: There is no checkpoint.
        CorruptCheckpointError: None is whole.
    """
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint in {checkpoints_folder(run_dir)}.")
    newest: CorruptCheckpointError | None = None
    for checkpoint in reversed(checkpoints):
        try:
            return checkpoint.path, _read_whole(checkpoint.path)
        except CorruptCheckpointError as error:
            newest = newest or error
            print(f"warning: {error} Using an older one.", file=sys.stderr)
    raise CorruptCheckpointError(
        f"None of the {len(checkpoints)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        f"The newest: {newest} Restore the folder from a copy, or train again in another run_dir."
    )


def read_model(path: Path, *trees: Any) -> tuple[Any, ...]:
    """The model's variables in a checkpoint that is whole, as trees like these."""
    return read_arrays(path, "model", read_progress(path), *trees)


def _read_whole(path: Path) -> Progress:
    """A checkpoint's progress, once all its files are checked."""
    progress = read_progress(path)
    check_files(path, progress)
    return progress


def _read_state(path: Path, like: S) -> tuple[S, RunRecord]:
    progress = _read_whole(path)
    items = like.items()
    model = read_arrays(path, "model", progress, *items["model"])
    other = "optimizer, or what the loss function reports, is not what was"
    training = read_arrays(path, "training", progress, *items["training"], other=other)
    return like.with_items(model, training), RunRecord(**progress["record"])
