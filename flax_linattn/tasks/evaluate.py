"""Testing the run in a folder, or the runs of several seeds, whatever their task.

In a summary over seeds a number is the mean over the runs, followed by their sample standard
deviation as ``<name>_sd``; a string or an integer that is the same for all runs appears once.
``runs`` is a table with a row for each run. Lists and tables of each run are left out, and the
figures show the run with the best validation value. A run that failed before it was
validated has nothing to test: its row names the step, and the means are over the other runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_linattn import training
from flax_linattn.tasks.options import Checkpoint, Config
from flax_linattn.tasks.run import load_run, load_runs
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Report


def evaluate_run(
    run_dir: str | Path, test_file: Path | None = None, *, checkpoint: Checkpoint = "best"
) -> dict[str, Any]:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run_dir: The run folder.
        test_file: Test data to use instead of the run's own.
        checkpoint: "best" (the selected parameters) or "last" (the last parameters).

    Returns:
        The test metrics, as the run's test.json holds them; for several seeds their summary. For a
        model that streams also ``stream_max_error``, the maximum difference between stream and
        parallel model, and ``stream_steps``, the number of compared steps. For the last parameters
        also ``checkpoint``.

    Raises:
        FileNotFoundError: If the run or the file is missing.
        ValueError: If files are damaged, or the data do not match the run.
    """
    return dict(evaluate_report(run_dir, test_file, checkpoint=checkpoint).values)


def evaluate_report(
    run_dir: str | Path, test_file: Path | None = None, *, checkpoint: Checkpoint = "best"
) -> Report:
    """Tests a run like ``evaluate_run``, and returns its tables and figures too."""
    if checkpoint == "best":
        runs = load_runs(run_dir)
    else:
        runs = (load_run(run_dir, checkpoint=checkpoint),)
    batches = runs[0].task.test_batches(runs[0], test_file)
    report = report_on(Path(run_dir), runs, batches)
    selection = {} if checkpoint == "best" else {"checkpoint": checkpoint}
    values = {**report.all_values, **stream_error(runs, batches), **selection}
    return dataclasses.replace(report, values=values)


def report_on(run_dir: Path, runs: Sequence[Run], batches: training.BatchSource) -> Report:
    """Tests the runs of a folder, and their common baselines once."""
    first = runs[0]
    reports = {run.seed_index: first.task.test(run, batches) for run in runs}
    report = reports.get(None) or _summary(run_dir, first.config, reports)
    baselines = first.task.test_baselines(first, batches)
    return dataclasses.replace(report, values=_merge_tables(report.values, baselines))


def _merge_tables(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two reports; a table of ``others`` adds its columns to the table of the same name."""
    joined = dict(values)
    for name, value in others.items():
        if not isinstance(value, list):
            joined[name] = value
        elif name in values:
            rows = zip(values[name], value, strict=True)
            joined[name] = [{**row, **more} for row, more in rows]
    return joined


def stream_error(runs: Sequence[Run], batches: training.BatchSource) -> dict[str, Any]:
    """The maximum over all runs of ``Task.stream_error``."""
    if not getattr(runs[0].model, "streams", True):
        return {}
    errors = [run.task.stream_error(run, batches) for run in runs]
    if not errors[0]:
        return {}
    max_error = np.max([error["stream_max_error"] for error in errors])  # max() would lose a NaN
    return {**errors[0], "stream_max_error": float(max_error)}


def _summary(run_dir: Path, config: Config, reports: Mapping[Any, Report]) -> Report:
    """The summary of the reports on several runs, by their seed indices."""
    results = training.read_runs(run_dir)
    best = reports[training.best_run(run_dir)]
    names = [name for name, value in best.values.items() if not isinstance(value, list | dict)]
    columns = {name: [report.values.get(name) for report in reports.values()] for name in names}
    differing = [name for name, column in columns.items() if not _is_common(column)]
    values: dict[str, Any] = {}
    for name, column in columns.items():
        values |= _moments(name, column) if name in differing else {name: column[0]}
    rows = []
    for index, result in enumerate(results):
        tested = reports[index].values if index in reports else {}
        rows.append(
            {
                "run": index,
                "seed": config.run_config(index).seed,
                **{name: tested.get(name) for name in differing},
                **({} if config.fit.by_steps else {"best_epoch": result.best_epoch}),
                "best_step": result.best_step,
                "best_value": result.best_value,
                "failed_step": result.failed_step,
            }
        )
    failed = sum(result.failed_step is not None for result in results)
    values |= {"num_runs": len(rows), "num_failed": failed, "runs": rows}
    return dataclasses.replace(best, values=values, tables=("runs",), charts={})


def _is_common(column: Sequence[Any]) -> bool:
    """Whether a value describes the data, so that all runs share it."""
    return not isinstance(column[0], float) and all(value == column[0] for value in column)


def _moments(name: str, column: Sequence[Any]) -> dict[str, float]:
    """Mean and sample standard deviation of a column of numbers; empty for other values."""
    known = [value for value in column if value is not None]
    if not known or not all(isinstance(value, int | float) for value in known):
        return {}
    with np.errstate(invalid="ignore", over="ignore"):
        std = {f"{name}_sd": float(np.std(known, ddof=1))} if len(known) > 1 else {}
        return {name: float(np.mean(known)), **std}
