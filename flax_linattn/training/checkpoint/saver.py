"""Checkpoints written in the background, while training goes on."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import jax

from flax_linattn.training.checkpoint.folder import list_checkpoints
from flax_linattn.training.checkpoint.write import Snapshot, write_checkpoint
from flax_linattn.training.processes import LostProcessError, is_main, largest
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import Saved


class Saver:
    """Writes a run's checkpoints one after another in a thread of its own.

    A save copies the arrays to the host, which takes as long as that; what Orbax writes, checksums
    and the removal of old checkpoints come behind. One that has not finished holds up the next.

    The thread is ours, and Orbax's own asynchronous writer is not used, because a checkpoint is
    more than what Orbax writes: checksums of its files, the host's record, and the name that tells
    a complete one, which all come after, in order, with errors that reach the training loop.
    Parameters split over the devices of several processes are gathered for it, one after another:
    each has to fit whole on a device, and all on every host.

    Args:
        run_dir: The run folder.
        keep_latest: As in ``FitConfig``.

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

    def save(self, state: Saved, record: RunRecord) -> None:
        """Saves a checkpoint of the state as it is now."""
        self.wait()
        if not is_main() and all(x.is_fully_replicated for x in jax.tree.leaves(state)):
            return
        snapshot = Snapshot.take(state, record)  # of several processes, where they share arrays
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
    """What the system said: Orbax says first what it wrote, and deep below why it could not."""
    of_system = re.search(r"([^:]+) \[os_error_code|(No space left on device)", str(error))
    if of_system is not None:
        return (of_system[1] or of_system[2]).strip()
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
