"""What a run's model learned from its validation rows after training, in a file of the run folder.

Checkpoints are written in training, before it. So the file is read beside them, and says which
parameters it goes with.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flax import nnx

from flax_linattn import models, training
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.protocols import Calibrating
from flax_linattn.tasks.run_types import Run
from flax_linattn.training.processes import is_main


def calibrate(run_dir: Path, run: Run, validation: training.BatchSource) -> str | None:
    """Calibrates a run's model where its options ask for it, and keeps the result.

    Args:
        run_dir: the run folder.
        run: with its selected parameters.
        validation: the batches that selected them.

    Returns:
        What the task says of it.
    """
    task = run.task
    if not isinstance(task, Calibrating) or not task.is_calibrated(run.config):
        return None
    before = fingerprint(run.model)
    told = task.calibrate(run, validation)
    if is_main():
        save_state(_file(run_dir, run), _corrections(run), {"model": before})
    return told


def restore(run_dir: Path, run: Run) -> Run:
    """The run, with its model calibrated where the folder holds the calibration of its parameters.

    Where it should and does not, as of a run that was cut off before, a note says so.

    Raises:
        ValueError: the file is damaged.
    """
    if not isinstance(run.task, Calibrating) or not run.task.is_calibrated(run.config):
        return run
    try:
        state, facts = load_state(_file(run_dir, run), _corrections(run))
    except FileNotFoundError:
        return _not_calibrated(run, "the run has not come so far")
    if facts.get("model") != fingerprint(run.model):
        return _not_calibrated(run, "its calibration is that of other parameters")
    nnx.update(run.model, state)
    return run


def _file(run_dir: Path, run: Run) -> Path:
    index = "" if run.seed_index is None else f"-{run.seed_index}"
    return run_dir / f"calibration{index}.npz"


def _corrections(run: Run) -> nnx.State:
    return nnx.state(run.model, models.Correction)


def _not_calibrated(run: Run, why: str) -> Run:
    print(f"note: the model is as trained, without its calibration: {why}", file=sys.stderr)
    return run
