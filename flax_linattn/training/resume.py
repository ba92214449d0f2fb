"""Resuming a run from its newest intact checkpoint; damaged checkpoints are set aside."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from flax_linattn.checkpoint.arrays import CorruptCheckpointError, read_arrays, write_json
from flax_linattn.checks import OptionError
from flax_linattn.training.checkpointer import (
    PROGRESS_FILE,
    Checkpoint,
    Progress,
    checkpoint_name,
    checkpoints_folder,
    is_whole,
    list_checkpoints,
    none_readable,
    read_history,
    read_whole,
    remove_checkpoint,
)
from flax_linattn.training.history import History
from flax_linattn.training.processes import is_main, on_main
from flax_linattn.training.state import TrainState


def check_folder(run_dir: str | Path, *, resume: bool) -> None:
    """Raises if a folder holds checkpoints without ``resume``, or holds none with it."""
    folder, checkpoints = checkpoints_folder(run_dir), list_checkpoints(run_dir)
    if resume and not checkpoints:
        raise FileNotFoundError(
            f"There is no checkpoint to resume from in {folder}. "
            "Check the folder, or start the run without resume."
        )
    if not resume and checkpoints:
        raise OptionError(
            f"{folder} already holds checkpoints of a run. Resume it to continue "
            "that run, or choose another folder for a new one.",
            "resume",
            "run_dir",
        )


def restore(run_dir: str | Path, state: TrainState, new: History) -> tuple[TrainState, History]:
    """Reads the state and the history of the newest intact checkpoint.

    Args:
        run_dir: The run folder.
        state: The initial state, which defines the structure, shapes, dtypes and devices.
        new: The history of a run with the present settings, which must equal the saved settings.

    Raises:
        OptionError: If the settings or the data differ from the saved run.
        CorruptCheckpointError: If no checkpoint can be read.
        ValueError: If the model or the optimizer differs from the saved one.
    """
    on_main(partial(_set_aside_damaged, run_dir))
    for newest in list_checkpoints(run_dir)[-1:]:  # before arrays of other shapes are read
        with suppress(CorruptCheckpointError):  # none is intact, which is reported below
            read_history(newest.path).check_same_runs(new, run_dir)
    state, history = _restore_latest(run_dir, state)
    history.check_same_training(new, run_dir)
    return state, history


def _set_aside_damaged(run_dir: str | Path) -> None:
    """Renames checkpoints newer than the newest intact one to ``corrupt_...``, and warns.

    If the best checkpoint is damaged, the best remaining one is selected, so that the run does not
    train to its end for parameters that cannot be read.
    """
    damaged: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            progress = read_whole(checkpoint.path)
        except CorruptCheckpointError as error:
            damaged.append((checkpoint.path, error))
            continue
        for path, reason in damaged:
            _set_aside(path, f"{reason} Falling back to {checkpoint.path.name}.")
        _check_best(checkpoint, progress)
        return


def _check_best(checkpoint: Checkpoint, progress: Progress) -> None:
    """Selects another best checkpoint if the present one is damaged or missing."""
    best = progress.best_path
    if best is None or best == checkpoint.path:
        return
    try:
        read_whole(best)
        return
    except CorruptCheckpointError as error:
        reason = error
    history = read_history(checkpoint.path)
    names = [checkpoint_name(line["step"], i) for i, line in enumerate(history.lines, start=1)]
    pairs = zip(history.lines, names, strict=True)
    history.reselect_best(
        [line["step"] for line, name in pairs if is_whole(checkpoint.path.with_name(name))]
    )
    values = {"record": history.to_json(), **progress.manifest}
    write_json(checkpoint.path / PROGRESS_FILE, values)
    now = "No other checkpoint was validated; the next validation selects the best again."
    if (best_step := history.runs[0].best_step) is not None:
        now = f"The best remaining one, after step {best_step}, is selected instead."
    _set_aside(best, f"{reason} It was the best checkpoint. {now}")


def _restore_latest(run_dir: str | Path, state: TrainState) -> tuple[TrainState, History]:
    """Reads the newest readable checkpoint; newer, damaged ones are set aside with a warning."""
    unread: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            restored = _read_state(checkpoint.path, state)
        except CorruptCheckpointError as error:
            unread.append((checkpoint.path, error))
            continue
        for path, reason in unread if is_main() else ():
            _set_aside(path, f"{reason} Falling back to {checkpoint.path.name}.")
        return restored
    raise none_readable(run_dir, [error for _, error in unread])


def _read_state(path: Path, like: TrainState) -> tuple[TrainState, History]:
    manifest, history = read_whole(path).manifest, read_history(path)
    items = like.items()
    model = read_arrays(path, "model", manifest, *items["model"])
    other = "optimizer or the metrics of the loss function are not those"
    training = read_arrays(path, "training", manifest, *items["training"], other=other)
    return like.with_items(model, training), history


def _set_aside(path: Path, warning: str) -> None:
    """Renames a checkpoint, so that the run can save that step again."""
    aside = path.with_name(f"corrupt_{path.name}")
    remove_checkpoint(aside)
    with suppress(FileNotFoundError):  # the best checkpoint may be missing
        path.rename(aside)
    print(f"warning: {warning}", file=sys.stderr)
