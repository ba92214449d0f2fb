"""The checkpoints of a run folder: written whole or not at all, verified when read.

A run folder holds ``checkpoints/step_000000051_epoch_00003``: 51 training steps and 3 validations
done (finished epochs, if each epoch ends with a validation). It contains

- ``arrays``: two items written by Orbax, flat dicts of name -> array: ``model`` (parameters and the
  model's other variables; for several runs the best of each) and ``training`` (optimizer state,
  step, metric sums; for several runs also their current parameters);
- ``progress.json``: the history, the names and shapes of the arrays, and the checksum of each file.

The package :mod:`flax_linattn.checkpoint` writes and reads arrays that belong to no run.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import storage
from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    Manifest,
    check_files,
    check_shapes,
    copy_to_host,
    read_json,
    read_json_text,
    write_arrays,
    write_json,
)
from flax_linattn.storage import make_folder, sync_file, sync_folder
from flax_linattn.training.history import History, RunsProgress
from flax_linattn.training.processes import LostProcessError, is_main, max_over_processes
from flax_linattn.training.state import TrainState

PARTIAL = ".partial"
PROGRESS_FILE = "progress.json"
_NAME = re.compile(r"step_(\d{9,})_epoch_(\d{5,})")


class Checkpoint(NamedTuple):
    """A checkpoint on disk; checkpoints are ordered by their number of steps.

    Attributes:
        step: Number of training steps done.
        epochs_done: Number of validations done, which is the number of finished epochs if each
            epoch ends with one.
        path: Folder of the checkpoint.
    """

    step: int
    epochs_done: int
    path: Path


class Progress(NamedTuple):
    """The content of progress.json without its validations.

    Attributes:
        history: The best values of all runs.
        manifest: The arrays and files.
        best_path: The folder of a single model's best checkpoint; None before the first
            validation. None for several runs: each of their checkpoints holds the best parameters
            of each run.
    """

    history: RunsProgress
    manifest: Manifest
    best_path: Path | None


def checkpoints_folder(run_dir: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run_dir).absolute() / "checkpoints"


def checkpoint_name(step: int, validations: int) -> str:
    """The name of a checkpoint after these numbers of steps and validations."""
    return f"step_{step:09d}_epoch_{validations:05d}"


def list_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Returns a run's checkpoints, oldest first, without checking whether they can be read."""
    checkpoints = []
    for path in checkpoints_folder(run_dir).glob("step_*"):
        if match := _NAME.fullmatch(path.name):
            checkpoints.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(checkpoints)


def remove_unfinished(run_dir: str | Path) -> None:
    """Removes partial checkpoints and files that a kill left; no other process may be writing."""
    for path in checkpoints_folder(run_dir).glob(f"step_*{PARTIAL}"):
        if _NAME.fullmatch(path.name.removesuffix(PARTIAL)):
            remove_checkpoint(path)
    storage.remove_unfinished(run_dir)


def remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint, or a file of its name if any; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# Reading


def read_progress(path: Path) -> Progress:
    """Reads a checkpoint's progress.json without its validations, nor checking its arrays."""
    with _holds_history(path):
        text = read_json_text(path / PROGRESS_FILE)
        history, validation, manifest = RunsProgress.from_text(text)
    step = history.runs[0].best_step
    if step is None or validation is None:
        return Progress(history, cast(Manifest, manifest), None)
    best_path = path.with_name(checkpoint_name(step, validation))
    return Progress(history, cast(Manifest, manifest), best_path)


def read_history(path: Path) -> History:
    """Reads the whole history of a checkpoint's progress.json."""
    with _holds_history(path):
        return History.from_json(read_json(path / PROGRESS_FILE).get("record"))


@contextmanager
def _holds_history(path: Path) -> Iterator[None]:
    try:
        yield
    except CorruptCheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its {PROGRESS_FILE} holds no history of a run."
        ) from error


def read_whole(path: Path) -> Progress:
    """Checks all files of a checkpoint, then reads its progress.json."""
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
    """The newest intact checkpoint, and its progress.json."""
    return _newest(run_dir, read_whole)


def read_newest_progress(run_dir: str | Path) -> tuple[Path, Progress]:
    """The newest checkpoint whose progress.json can be read; its arrays are not checked."""
    return _newest(run_dir, read_progress)


def _newest(run_dir: str | Path, read: Callable[[Path], Progress]) -> tuple[Path, Progress]:
    """The newest checkpoint that ``read`` accepts; warns of newer, damaged ones."""
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(
            f"There is no checkpoint in {checkpoints_folder(run_dir)}. Check the run folder."
        )
    errors: list[CorruptCheckpointError] = []
    for checkpoint in reversed(checkpoints):
        try:
            return checkpoint.path, read(checkpoint.path)
        except CorruptCheckpointError as error:
            errors.append(error)
            print(f"warning: {error} Using an older checkpoint.", file=sys.stderr)
    raise none_readable(run_dir, errors)


def none_readable(
    run_dir: str | Path, errors: list[CorruptCheckpointError]
) -> CorruptCheckpointError:
    """Returns the error for a run without a readable checkpoint, with the newest one's reason."""
    return CorruptCheckpointError(
        f"None of the {len(errors)} checkpoints in {checkpoints_folder(run_dir)} can be read. "
        f"The newest one: {errors[0]} Restore the folder from a copy, or train again in another "
        "run_dir."
    )


def check_same_model(shapes: Any, run_dir: str | Path) -> None:
    """Raises if a model has other variables than the newest readable checkpoint.

    ``shapes`` is the model's state from ``jax.eval_shape``, so that a model too large for the
    memory is refused before it is made.
    """
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            progress = read_progress(checkpoint.path)
            check_shapes(checkpoint.path, "model", progress.manifest, shapes)
        except CorruptCheckpointError:
            continue  # whoever reads it reports it
        return


# Writing


class Snapshot(NamedTuple):
    """The content of a checkpoint, copied to the host: item -> name -> array, and the history."""

    step: int
    arrays: dict[str, dict[str, np.ndarray]]
    history: dict[str, Any]

    @classmethod
    def take(cls, state: TrainState, history: History) -> Snapshot:
        """Copies a state and a history."""
        arrays = {item: copy_to_host(*trees) for item, trees in state.items().items()}
        return cls(state.steps_done, arrays, history.to_json())


def write_checkpoint(run_dir: str | Path, snapshot: Snapshot, keep_latest: int) -> Path:
    """Writes a checkpoint, removes old checkpoints, and returns the path of the new one.

    The folder gets its name only when it is complete, so that a kill at any moment leaves the
    earlier checkpoints intact. The newest ``keep_latest`` stay, and the best checkpoint of each of
    these: if the newest one turns out to be damaged, the previous one still has its best.
    """
    name = checkpoint_name(snapshot.step, len(snapshot.history["history"]))
    path = checkpoints_folder(run_dir) / name
    if path.is_dir():
        return path  # No step was done since it was written.
    remove_checkpoint(path)  # A file or a broken link of this name is no checkpoint.
    partial_path = path.with_name(path.name + PARTIAL)
    make_folder(path.parent)
    partial_path.mkdir()
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
    """Removes a checkpoint that could not be finished, so that a full disk does not stay full."""
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
        with suppress(CorruptCheckpointError):  # resuming reports it
            needed.add(read_progress(checkpoint.path).best_path)
    for checkpoint in checkpoints:
        if checkpoint.path not in needed:
            remove_checkpoint(checkpoint.path)


class Checkpointer:
    """Writes a run's checkpoints in a background thread, one at a time.

    ``save`` copies the arrays to the host and returns; the thread then writes them by Orbax, adds
    checksums and removes old checkpoints. The next ``save`` waits until it is done. Parameters that
    are sharded over the devices of several processes are gathered one at a time: each has to fit on
    a device, and all of them on every host.

    Orbax's own asynchronous writer is not used, because a checkpoint is more than the files of
    Orbax: their checksums, the history, and finally the name of a complete checkpoint are written
    after them, in this order, and errors have to reach the training loop.

    Raises:
        OSError: If a checkpoint could not be written; raised by any method. The error names the
            step, the reason and the last checkpoint.
        LostProcessError: If a checkpoint could not be written, in the processes that do not write.
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
        # Finish the checkpoint that is being written; an error of training takes precedence.
        self._thread.shutdown(wait=True)
        if value is None:
            self.wait()

    def save(self, state: TrainState, history: History) -> None:
        """Saves a checkpoint of the state as it is now."""
        self.wait()
        if not is_main() and all(x.is_fully_replicated for x in jax.tree.leaves(state)):
            return
        snapshot = Snapshot.take(state, history)  # all processes take part where arrays are sharded
        if is_main():
            self._step = snapshot.step
            self._writing = self._thread.submit(
                write_checkpoint, self._run_dir, snapshot, self._keep_latest
            )

    def settle(self) -> None:
        """Waits for the checkpoint that is being written, without raising its error."""
        if self._writing is not None:
            self._writing.exception()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written; all processes have to call it."""
        self.settle()
        error = None if self._writing is None else self._writing.exception()
        self._writing = None
        failed = max_over_processes(int(error is not None))
        if error is not None:
            last = list_checkpoints(self._run_dir)
            raise OSError(
                f"The checkpoint after step {self._step} could not be written: {_reason(error)}. "
                + (f"The last one is {last[-1].path}. " if last else "No other one was saved yet. ")
                + "Make room if the disk is full, then resume the run."
            ) from error
        if failed:
            raise LostProcessError("Process 0 could not write a checkpoint; see its own message.")


class BestInMemory:
    """Holds the best parameters of a single model whose run is not saved.

    It has the methods of ``Checkpointer`` that the training loop calls.
    """

    def __init__(self) -> None:
        self.variables: tuple[nnx.State, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def save(self, state: TrainState, history: History) -> None:
        """Copies the parameters if they are the best so far; the next step donates the state."""
        if state.steps_done == history.runs[0].best_step:
            self.variables = jax.tree.map(jnp.copy, (state.params, state.model_state))

    def settle(self) -> None:
        """Does nothing, as nothing is being written."""

    def wait(self) -> None:
        """Does nothing, as nothing is being written."""


def _reason(error: BaseException) -> str:
    """The reason that the operating system gave, which Orbax reports deep in a long message."""
    reason = re.search(r"([^:]+) \[os_error_code|(No space left on device)", str(error))
    if reason is not None:
        return (reason[1] or reason[2]).strip()
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
