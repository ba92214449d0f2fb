"""Writing a checkpoint, and removing those that are no longer needed."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flax_linattn.checkpoint.arrays import (
    CorruptCheckpointError,
    copy_to_host,
    write_arrays,
)
from flax_linattn.checkpoint.checked_json import write_json
from flax_linattn.storage import sync_file, sync_folder
from flax_linattn.training.checkpoint.folder import (
    PARTIAL,
    PROGRESS_FILE,
    best_path,
    checkpoint_path,
    list_checkpoints,
    read_progress,
)
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import Saved


class Snapshot(NamedTuple):
    """All that a checkpoint holds, on the host.

    Attributes:
        step: Training steps done.
        arrays: Item -> name -> array; a copy, which later steps do not overwrite.
        record: The host's record as JSON values.
    """

    step: int
    arrays: dict[str, dict[str, np.ndarray]]
    record: dict[str, Any]

    @classmethod
    def take(cls, state: Saved, record: RunRecord) -> Snapshot:
        """Copies a state and a record."""
        arrays = {item: copy_to_host(*trees) for item, trees in state.items().items()}
        return cls(state.steps_done, arrays, dataclasses.asdict(record))


def write_checkpoint(run_dir: str | Path, snapshot: Snapshot, keep_latest: int) -> Path:
    """Writes a checkpoint, then removes those that are no longer needed.

    It gets its name only when it is complete, so that a kill at any moment leaves the earlier ones
    as they were. Kept are the newest ``keep_latest`` and the best of each of these: if the newest
    turns out damaged, the one before it still has its best.

    Returns:
        Its path.
    """
    path = checkpoint_path(run_dir, snapshot.step, len(snapshot.record["history"]))
    if path.exists():
        return path  # Nothing has happened since.
    partial = path.with_name(path.name + PARTIAL)
    partial.mkdir(parents=True)
    try:
        manifest = write_arrays(partial, snapshot.arrays)
        write_json(partial / PROGRESS_FILE, {"record": snapshot.record, **manifest})
        sync_folder(partial)
        partial.rename(path)
    except BaseException:
        _clear(partial)
        raise
    sync_file(path.parent)
    _remove_old(run_dir, keep_latest)
    return path


def _clear(partial: Path) -> None:
    """Removes what could not be finished: a full disk would stay full."""
    for _ in range(20):  # threads of Orbax may still be writing
        shutil.rmtree(partial, ignore_errors=True)
        time.sleep(0.05)
        if not partial.exists():
            return


def _remove_old(run_dir: str | Path, keep_latest: int) -> None:
    checkpoints = list_checkpoints(run_dir)
    kept: set[Path | None] = set()
    for checkpoint in checkpoints[-keep_latest:]:
        kept.add(checkpoint.path)
        try:
            kept.add(best_path(run_dir, read_progress(checkpoint.path)))
        except CorruptCheckpointError:
            continue  # Resuming deals with it.
    for checkpoint in checkpoints:
        if checkpoint.path not in kept:
            shutil.rmtree(checkpoint.path)
