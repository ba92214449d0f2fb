"""Testing the run, or the runs, in a folder, whatever their task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from flax_linattn.tasks.run import Checkpoint, load_run, load_runs
from flax_linattn.tasks.seeds import report_on, stream_error
from flax_linattn.tasks.task import Report


def evaluate_run(
    run_dir: str | Path, test_file: Path | None = None, *, checkpoint: Checkpoint = "best"
) -> dict[str, Any]:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run_dir: the run folder.
        test_file: other test data than the run's own.
        checkpoint: the "best" parameters, those that were selected, or the "last" ones.

    Returns:
        The test metrics that the run's test.json holds; where the model streams also
        ``stream_max_error`` and ``stream_steps``, how far and over how many steps they differ. Of
        several seeds in the folder the summary that test.json holds, and the largest error. Of the
        last parameters also ``checkpoint``.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    return dict(evaluate_report(run_dir, test_file, checkpoint=checkpoint).values)


def evaluate_report(
    run_dir: str | Path, test_file: Path | None = None, *, checkpoint: Checkpoint = "best"
) -> Report:
    """As ``evaluate_run``, with what of the values is a table."""
    if checkpoint == "best":
        runs = load_runs(run_dir)
    else:
        runs = (load_run(run_dir, checkpoint=checkpoint),)
    batches = runs[0].task.test_batches(runs[0], test_file)
    report = report_on(Path(run_dir), runs, batches)
    which = {} if checkpoint == "best" else {"checkpoint": checkpoint}
    values = {**report.judged, **stream_error(runs, batches), **which}
    return dataclasses.replace(report, values=values)
