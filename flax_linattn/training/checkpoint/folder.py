"""The checkpoints in a run folder: their names, their order, and which of them is the best."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple, cast, get_type_hints

from flax_linattn import storage
from flax_linattn.annotations import fits
from flax_linattn.checkpoint.arrays import CorruptCheckpointError, Manifest
from flax_linattn.checkpoint.checked_json import read_json
from flax_linattn.checks import OptionError
from flax_linattn.training.record import RunRecord

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


class Progress(Manifest):
    """What progress.json holds."""

    record: dict[str, Any]
    """The fields of a ``RunRecord``."""


def checkpoints_folder(run_dir: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run_dir).absolute() / "checkpoints"


def checkpoint_path(run_dir: str | Path, step: int, validations: int) -> Path:
    """The folder of a checkpoint, after so many steps and validations."""
    return checkpoints_folder(run_dir) / f"step_{step:09d}_epoch_{validations:05d}"


def list_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Returns a run's checkpoints, oldest first; whether they can be read is not checked."""
    checkpoints = []
    for path in checkpoints_folder(run_dir).glob("step_*"):
        if match := _NAME.fullmatch(path.name):
            checkpoints.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(checkpoints)


def read_progress(path: Path) -> Progress:
    """Reads what a checkpoint holds beside its arrays.

    Raises:
        CorruptCheckpointError: It is missing, damaged, or has another format.
    """
    progress = read_json(path / PROGRESS_FILE)
    if not _is_record(progress.get("record")):
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its {PROGRESS_FILE} holds no record of a run."
        )
    return cast(Progress, progress)


def _is_record(values: Any) -> bool:
    """Whether values from a file make a ``RunRecord`` whose best is in its history."""
    hints = get_type_hints(RunRecord)
    if not isinstance(values, dict) or not values.keys() <= hints.keys():
        return False
    needed = ("seed", "monitor", "monitor_mode", "steps_per_epoch", "best_step", "history")
    if not all(name in values for name in needed):
        return False
    if not all(fits(value, hints[name]) for name, value in values.items()):
        return False
    steps = [line.get("step") for line in values["history"]]
    monitored = [line.get(f"validation_{values['monitor']}") for line in values["history"]]
    return (
        all(fits(step, int) for step in steps)
        and all(fits(value, float) for value in monitored)
        and values["steps_per_epoch"] > 0
        and (values["best_step"] is None or values["best_step"] in steps)
    )


def best_path(run_dir: str | Path, progress: Progress) -> Path | None:
    """The checkpoint of the best validation that a checkpoint knows of; None before the first."""
    best_step = progress["record"]["best_step"]
    if best_step is None:
        return None
    steps = [line["step"] for line in progress["record"]["history"]]
    return checkpoint_path(run_dir, best_step, steps.index(best_step) + 1)


def check_folder(run_dir: str | Path, *, resume: bool) -> None:
    """Checks that a run may be trained in a folder.

    Raises:
        OptionError: It holds checkpoints, and ``resume`` is False.
        FileNotFoundError: It holds none, and ``resume`` is True.
    """
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


def clear_unfinished(run_dir: str | Path) -> None:
    """Removes what a kill or a full disk left half written; nobody else may be writing."""
    for path in checkpoints_folder(run_dir).glob(f"*{PARTIAL}"):
        shutil.rmtree(path)
    storage.clear_unfinished(run_dir)
