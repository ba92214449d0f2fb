"""The checkpoints of a run folder: written whole or not at all, verified when read.

A run folder holds ``checkpoints/step_000000051_epoch_00003``: 51 training steps and 3 validations
done (of a run by epochs, the epochs finished). In it are

- ``arrays``: what Orbax wrote, flat dicts of name -> array in two items: ``model`` (parameters and
  the model's other variables; of several runs the best of each) and ``training`` (optimizer state,
  step, metric sums; of several runs their parameters);
- ``progress.json``: the host's history, the arrays' names and shapes, and every file's checksum.

The package :mod:`flax_linattn.checkpoint` writes and reads arrays that belong to no run.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import jax
import numpy as np

from flax_linattn import storage
from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    Manifest,
    check_files,
    check_shapes,
    copy_to_host,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from flax_linattn.checks import OptionError
from flax_linattn.storage import sync_file, sync_folder
from flax_linattn.training.history import History
from flax_linattn.training.processes import LostProcessError, is_main, largest, on_main
from flax_linattn.training.state import TrainState

PARTIAL = ".partial"
PROGRESS_FILE = "progress.json"
_NAME = re.compile(r"step_(\d{9,})_epoch_(\d{5,})")


class Checkpoint(NamedTuple):
    """A checkpoint on disk, ordered by how far the run had come.

    Attributes:
        step: Training steps done.
        epochs_done: Validations done; where each ends an epoch, the epochs finished.
        path: Its folder.
    """

    step: int
    epochs_done: int
    path: Path


class Progress(NamedTuple):
    """What progress.json holds: the host's history, and the arrays and files of a checkpoint."""

    history: History
    manifest: Manifest


def checkpoints_folder(run_dir: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run_dir).absolute() / "checkpoints"


def checkpoint_path(run_dir: str | Path, step: int, validations: int) -> Path:
    """The folder of a checkpoint after these numbers of steps and validations."""
    return checkpoints_folder(run_dir) / f"step_{step:09d}_epoch_{validations:05d}"


def list_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Returns a run's checkpoints, oldest first; whether they can be read is not checked."""
    checkpoints = []
    for path in checkpoints_folder(run_dir).glob("step_*"):
        if match := _NAME.fullmatch(path.name):
            checkpoints.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(checkpoints)


def best_path(run_dir: str | Path, history: History) -> Path | None:
    """The checkpoint of a single model's best validation; None before the first one.

    None of several runs, too: each of their checkpoints holds the best of each.
    """
    best_step = None if history.is_stacked else history.runs[0].best_step
    if best_step is None:
        return None
    steps = [line["step"] for line in history.lines]
    return checkpoint_path(run_dir, best_step, steps.index(best_step) + 1)


def check_folder(run_dir: str | Path, *, resume: bool) -> None:
    """Refuses a folder that holds checkpoints without ``resume``, or holds none with it."""
    folder, checkpoints = checkpoints_folder(run_dir), list_checkpoints(run_dir)
    if resume and not checkpoints:
        raise FileNotFoundError(
            f"There is no checkpoint to resume from in {folder}. "
            "Check the folder, or start the run without resume."
        )
    if not resume and checkpoints:
        raise OptionError(
            f"{folder} already holds checkpoints of a run. Resume it to go on "
            "with that run, or choose another folder for a new one.",
            "resume",
            "run_dir",
        )


def remove_unfinished(run_dir: str | Path) -> None:
    """Removes what a kill or a full disk left half written; nobody else may be writing."""
    for path in checkpoints_folder(run_dir).glob(f"*{PARTIAL}"):
        shutil.rmtree(path)
    storage.remove_unfinished(run_dir)


# Reading


def read_progress(path: Path) -> Progress:
    """Reads what a checkpoint holds besides its arrays, which it does not check."""
    values = read_json(path / PROGRESS_FILE)
    try:
        history = History.from_json(values.pop("record", None))
    except ValueError as error:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its {PROGRESS_FILE} holds no record of a run."
        ) from error
    return Progress(history, cast(Manifest, values))


def read_whole(path: Path) -> Progress:
    """As ``read_progress``, once all files of the checkpoint are checked."""
    progress = read_progress(path)
    check_files(path, progress.manifest)
    return progress


def is_whole(path: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        read_whole(path)
    except CorruptCheckpointError:
        return False
    return True


def read_newest(run_dir: str | Path) -> tuple[Path, Progress]:
    """The newest checkpoint that is whole, and what it holds besides its arrays."""
    return _newest(run_dir, read_whole)


def read_newest_progress(run_dir: str | Path) -> tuple[Path, Progress]:
    """As ``read_newest``, of a checkpoint whose arrays need not be whole."""
    return _newest(run_dir, read_progress)


def _newest(run_dir: str | Path, read: Callable[[Path], Progress]) -> tuple[Path, Progress]:
    """The newest checkpoint that can be read; a warning names newer ones."""
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint in {checkpoints_folder(run_dir)}.")
    errors: list[CorruptCheckpointError] = []
    for checkpoint in reversed(checkpoints):
        try:
            return checkpoint.path, read(checkpoint.path)
        except CorruptCheckpointError as error:
            errors.append(error)
            print(f"warning: {error} Using an older one.", file=sys.stderr)
    raise _none_readable(run_dir, errors)


def _none_readable(
    run_dir: str | Path, errors: list[CorruptCheckpointError]
) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"None of the {len(errors)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        f"The newest: {errors[0]} Restore the folder from a copy, or train again in another "
        "run_dir."
    )


def check_same_model(shapes: Any, run_dir: str | Path) -> None:
    """Refuses a model whose variables are not those of the newest readable checkpoint.

    ``shapes`` is the model's state from ``jax.eval_shape``: a model that is too large for the
    memory need not be made to be refused.
    """
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            progress = read_progress(checkpoint.path)
            check_shapes(checkpoint.path, "model", progress.manifest, shapes)
        except CorruptCheckpointError:
            continue  # whoever reads it reports it
        return


# Resuming


def restore(run_dir: str | Path, state: TrainState, new: History) -> tuple[TrainState, History]:
    """Reads the state and the history of the newest checkpoint that is intact.

    ``state`` gives the structure, shapes, dtypes and devices; ``new``, the history of a new run,
    has to be of the same run.
    """
    on_main(partial(_set_aside_damaged, run_dir))
    for newest in list_checkpoints(run_dir)[-1:]:  # before arrays of other shapes are read
        with suppress(CorruptCheckpointError):  # none is intact, which is reported below
            read_progress(newest.path).history.check_same_runs(new)
    state, history = _restore_latest(run_dir, state)
    history.check_same_training(new)
    return state, history


def _set_aside_damaged(run_dir: str | Path) -> None:
    """Renames what is newer than the newest intact checkpoint to ``corrupt_...``, and warns.

    Where the best checkpoint that it names is damaged, the best remaining one takes its place, so
    that the run does not train to its end for parameters that nobody can read.
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
        _check_best(run_dir, checkpoint, progress)
        return


def _check_best(run_dir: str | Path, checkpoint: Checkpoint, progress: Progress) -> None:
    """Selects another best where the one that a checkpoint names is damaged or missing."""
    history = progress.history
    best = best_path(run_dir, history)
    if best is None or best == checkpoint.path:
        return
    try:
        read_whole(best)
        return
    except CorruptCheckpointError as error:
        reason = error
    steps = enumerate((line["step"] for line in history.lines), start=1)
    history.select_best_of(
        [step for i, step in steps if is_whole(checkpoint_path(run_dir, step, i))]
    )
    values = {"record": history.to_json(), **progress.manifest}
    write_json(checkpoint.path / PROGRESS_FILE, values)
    now = "no remaining one was validated; the next validation selects"
    if (best_step := history.runs[0].best_step) is not None:
        now = f"the best remaining one, after step {best_step}, takes its place"
    _set_aside(best, f"{reason} It was the best: {now}.")


def _restore_latest(run_dir: str | Path, state: TrainState) -> tuple[TrainState, History]:
    """Reads the newest checkpoint that can be read; newer ones are set aside, and named."""
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
    raise _none_readable(run_dir, [error for _, error in unread])


def _read_state(path: Path, like: TrainState) -> tuple[TrainState, History]:
    history, manifest = read_whole(path)
    items = like.items()
    model = read_arrays(path, "model", manifest, *items["model"])
    other = "optimizer, or what the loss function reports, is not what was"
    training = read_arrays(path, "training", manifest, *items["training"], other=other)
    return like.with_items(model, training), history


def _set_aside(path: Path, warning: str) -> None:
    """Frees a checkpoint's name, so that the run can save that step again."""
    aside = path.with_name(f"corrupt_{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
    print(f"warning: {warning}", file=sys.stderr)


# Writing


class Snapshot(NamedTuple):
    """All that a checkpoint holds, copied to the host: item -> name -> array, and the history."""

    step: int
    arrays: dict[str, dict[str, np.ndarray]]
    history: dict[str, Any]

    @classmethod
    def take(cls, state: TrainState, history: History) -> Snapshot:
        """Copies a state and a history."""
        arrays = {item: copy_to_host(*trees) for item, trees in state.items().items()}
        return cls(state.steps_done, arrays, history.to_json())


def write_checkpoint(run_dir: str | Path, snapshot: Snapshot, keep_latest: int) -> Path:
    """Writes a checkpoint, then removes those that are no longer needed, and returns its path.

    It gets its name only when it is complete, so that a kill at any moment leaves the earlier ones
    as they were. The newest ``keep_latest`` stay, and the best of each of these: if the newest
    turns out damaged, the one before it still has its best.
    """
    path = checkpoint_path(run_dir, snapshot.step, len(snapshot.history["history"]))
    if path.exists():
        return path  # Nothing has happened since.
    partial_path = path.with_name(path.name + PARTIAL)
    partial_path.mkdir(parents=True)
    try:
        manifest = write_arrays(partial_path, snapshot.arrays)
        write_json(partial_path / PROGRESS_FILE, {"record": snapshot.history, **manifest})
        sync_folder(partial_path)
        partial_path.rename(path)
    except BaseException:
        _clear(partial_path)
        raise
    sync_file(path.parent)
    _remove_old(run_dir, keep_latest)
    return path


def _clear(partial_path: Path) -> None:
    """Removes what could not be finished: a full disk would stay full."""
    for _ in range(20):  # threads of Orbax may still be writing
        shutil.rmtree(partial_path, ignore_errors=True)
        time.sleep(0.05)
        if not partial_path.exists():
            return


def _remove_old(run_dir: str | Path, keep_latest: int) -> None:
    checkpoints = list_checkpoints(run_dir)
    needed: set[Path | None] = set()
    for checkpoint in checkpoints[-keep_latest:]:
        needed.add(checkpoint.path)
        with suppress(CorruptCheckpointError):  # Resuming deals with it.
            needed.add(best_path(run_dir, read_progress(checkpoint.path).history))
    for checkpoint in checkpoints:
        if checkpoint.path not in needed:
            shutil.rmtree(checkpoint.path)


class Checkpointer:
    """Writes a run's checkpoints one after another in a thread of its own.

    A save copies the arrays to the host; what Orbax writes, checksums and the removal of old
    checkpoints come after it. One that has not finished holds up the next. Parameters split over
    the devices of several processes are gathered one after another: each has to fit on a device,
    and all on every host.

    The thread is ours, and Orbax's own asynchronous writer is not used, because a checkpoint is
    more than what Orbax writes: checksums of its files, the host's history, and the name that marks
    a complete one, which all come after, in order, with errors that reach the training loop.

    Raises:
        OSError: From any method, if a checkpoint could not be written: what failed, which
            checkpoint is the last one, and what to do.
        LostProcessError: The same, in the processes that do not write.
    """

    def __init__(self, run_dir: Path, keep_latest: int) -> None:
        self._run_dir = run_dir
        self._keep_latest = keep_latest
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What is being written is finished; if training failed already, that error is the one.
        self._thread.shutdown(wait=True)
        if value is None:
            self.wait()

    def save(self, state: TrainState, history: History) -> None:
        """Saves a checkpoint of the state as it is now."""
        self.wait()
        if not is_main() and all(x.is_fully_replicated for x in jax.tree.leaves(state)):
            return
        snapshot = Snapshot.take(state, history)  # of several processes, where they share arrays
        if is_main():
            self._step = snapshot.step
            self._writing = self._thread.submit(
                write_checkpoint, self._run_dir, snapshot, self._keep_latest
            )

    def settle(self) -> None:
        """Waits for the checkpoint that is being written, however it ends."""
        if self._writing is not None:
            self._writing.exception()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written; all processes have to come here."""
        self.settle()
        error = None if self._writing is None else self._writing.exception()
        self._writing = None
        failed = largest(int(error is not None))
        if error is not None:
            last = list_checkpoints(self._run_dir)
            raise OSError(
                f"The checkpoint after step {self._step} could not be written: {_reason(error)}. "
                + (f"The last one is {last[-1].path}. " if last else "There is none before it. ")
                + "Make room if the disk is full, and go on with the option resume."
            ) from error
        if failed:
            raise LostProcessError(
                "Process 0 could not write a checkpoint; its own message says why."
            )


def _reason(error: BaseException) -> str:
    """The system's reason: Orbax reports first what it wrote, and deep below why it could not."""
    of_system = re.search(r"([^:]+) \[os_error_code|(No space left on device)", str(error))
    if of_system is not None:
        return (of_system[1] or of_system[2]).strip()
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
