"""Testing the run in a folder, whatever its task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.task import Report


def evaluate_run(run_dir: str | Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run_dir: the run folder.
        test_file: other test data than the run's own.

    Returns:
        The test metrics that the run's test.json holds; where the model streams also
        ``stream_max_error`` and ``stream_steps``, how far and over how many steps they differ.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    return dict(evaluate_report(run_dir, test_file).values)


def evaluate_report(run_dir: str | Path, test_file: Path | None = None) -> Report:
    """As ``evaluate_run``, with what of the values is a table."""
    run = load_run(run_dir)
    batches = run.task.test_batches(run, test_file)
    report = run.task.test(run, batches)
    values = {**report.judged, **run.task.stream_error(run, batches)}
    return dataclasses.replace(report, values=values)
