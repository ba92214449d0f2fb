"""What each of many runs came to, and its parameters, from a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.checks import at_least
from flax_linattn.training.checkpoint.read import read_model, read_newest
from flax_linattn.training.many.record import ManyRecord
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import split_model


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What one of many runs came to.

    Args:
        best_epoch: The epoch of its selected parameters, counted from 1; None if it failed before
            it was validated.
        best_step: The training steps done then.
        best_value: Their monitored validation metric.
        failed_step: The step in which it became NaN or infinite, counted from 1; None if none.
        stopped_early: Whether it ran out of patience.
    """

    best_epoch: int | None
    best_step: int | None
    best_value: float | None
    failed_step: int | None
    stopped_early: bool


def results_of(runs: Sequence[Any]) -> tuple[RunResult, ...]:
    """Of the ``runs`` of a record."""
    return tuple(
        RunResult(
            run["best_epoch"],
            run["best_step"],
            run["best_value"],
            run["failed_step"],
            run["stopped"],
        )
        for run in runs
    )


def read_runs(run_dir: str | Path) -> tuple[RunResult, ...]:
    """What the runs in a folder have come to, as its newest checkpoint tells.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: None can be read, or the folder holds a single run.
    """
    return results_of(_newest(run_dir)[1].runs)


def load_run(model: nnx.Module, run_dir: str | Path, which: int) -> RunResult:
    """Reads the best parameters of one of the runs in a folder into a model of the same structure.

    Args:
        model: A freshly built model; changed in place.
        run_dir: The run folder that ``fit_many`` wrote.
        which: The run, counted from 0.

    Returns:
        What the run came to; where its ``best_step`` is None the parameters are its first.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CorruptCheckpointError: If none can be read.
        ValueError: There is no such run, or the model is not the saved one.
    """
    record, best = read_best(model, run_dir)
    at_least(0, len(record.runs) - 1, which=which)
    nnx.update(model, *best[which])
    return results_of(record.runs)[which]


def load_runs(model: nnx.Module, run_dir: str | Path) -> dict[int, nnx.Module]:
    """Models with the best parameters of each of the runs in a folder, by their numbers.

    Args:
        model: A freshly built model of the same structure; it is not changed.
        run_dir: The run folder that ``fit_many`` wrote.

    Returns:
        A model for each run, but for those that failed before they were validated.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CorruptCheckpointError: If none can be read.
        ValueError: No run was validated yet, or the model is not the saved one.
    """
    record, best = read_best(model, run_dir)
    _check_validated(record, run_dir)
    graphdef, *_ = split_model(model)
    return {
        r: nnx.merge(graphdef, *best[r])
        for r, run in enumerate(record.runs)
        if run["best_step"] is not None
    }


def best_run(run_dir: str | Path) -> int:
    """The run in a folder with the best monitored value, the first one of several.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: None can be read, the folder holds a single run, or no run was validated yet.
    """
    _, record = _newest(run_dir)
    _check_validated(record, run_dir)
    sign = 1 if record.monitor_mode == "max" else -1
    values = [run["best_value"] for run in record.runs]
    best = max(sign * value for value in values if value is not None)
    return values.index(sign * best)


def _newest(run_dir: str | Path) -> tuple[Path, ManyRecord]:
    """The newest checkpoint that is whole, and its record."""
    path, progress = read_newest(run_dir)
    if not progress["record"].get("runs"):
        raise ValueError(f"the folder {run_dir} holds a single run; read it with load_best.")
    return path, ManyRecord.of(RunRecord(**progress["record"]))


def _check_validated(record: ManyRecord, run_dir: str | Path) -> None:
    if all(run["best_step"] is None for run in record.runs):
        raise ValueError(
            f"no run in {run_dir} was validated yet, so that none has a best; resume the training."
        )


def read_best(model: nnx.Module, run_dir: str | Path) -> tuple[ManyRecord, list[Any]]:
    """The newest record of the runs in a folder, and the best variables of each.

    Args:
        model: one of the same structure.
        run_dir: the run folder.
    """
    path, record = _newest(run_dir)
    _, *variables = split_model(model)
    numbers = range(len(record.runs))
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(numbers), *x.shape)), variables)
    saved = read_model(path, *stacked)
    return record, [jax.tree.map(lambda x, r=r: x[r], saved) for r in numbers]
