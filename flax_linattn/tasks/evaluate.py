"""Testing the run in a folder, whatever its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax_linattn.tasks import classify_evaluate, forecast_evaluate
from flax_linattn.tasks.runs import read_task


def evaluate_run(run: Path, /, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run, and compares its stream with the parallel model.

    Args:
        run: the run folder.
        test_file: other test data than the run's own: a .ts or .arff file, or a CSV file of which
            all rows but the first ``input_length`` are forecast.

    Returns:
        The test metrics that the task's test.json holds; where the model streams also
        ``stream_max_error`` and ``stream_steps``, how far and over how many steps they differ.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    tasks = {"classify": classify_evaluate.evaluate_run, "forecast": forecast_evaluate.evaluate_run}
    task = read_task(run)
    if task not in tasks:
        raise ValueError(f"{run} is a run of task {task!r}, expected one of {', '.join(tasks)}.")
    return tasks[task](run, test_file)
