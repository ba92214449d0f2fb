"""Testing the run, or the runs, in a folder, whatever their task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from flax_linattn.tasks.many import report_on, stream_error
from flax_linattn.tasks.run import load_runs
from flax_linattn.tasks.task import Report


def evaluate_run(run_dir: str | Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run_dir: the run folder.
        test_file: other test data than the run's own.

    Returns:
        The test metrics that the run's test.json holds; where the model streams also
        ``stream_max_error`` and ``stream_steps``, how far and over how many steps they differ. Of
        many runs in the folder the summary that test.json holds, and the largest error.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    return dict(evaluate_report(run_dir, test_file).values)


def evaluate_report(run_dir: str | Path, test_file: Path | None = None) -> Report:
    """As ``evaluate_run``, with what of the values is a table."""
    runs = load_runs(run_dir)
    batches = runs[0].task.test_batches(runs[0], test_file)
    report = report_on(Path(run_dir), runs, batches)
    values = {**report.judged, **stream_error(runs, batches)}
    return dataclasses.replace(report, values=values)
