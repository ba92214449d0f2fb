"""Event-forecasting runs that are trained in memory, and their test numbers."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from experiments.options import run_without_model
from flax_linattn import tasks, training
from flax_linattn.tasks.events import EventsConfig
from flax_linattn.tasks.events.evaluate import score, test_values

QUANTILE_LEVELS = tuple((np.arange(50) + 0.5) / 50)
"""Of the quantiles of integrated intensities that are kept for the figures."""

METRICS = ("nll", "time_nll", "mark_nll", "rmse", "mae", "mark_accuracy", "ks")
METRICS += ("rmse_of_sequence_sums",)


def train_seeds(config: EventsConfig) -> list[dict[str, Any]]:
    """Trains the runs of a configuration, and tests each.

    Returns:
        For each run its seed, the test's ``METRICS``, and "quantiles" of the integrated
        intensities at ``QUANTILE_LEVELS``.
    """
    with tempfile.TemporaryDirectory() as folder:
        tasks.train("events", config, training.Session(folder, progress=False))
        return [_test_run(run) for run in tasks.load_runs(folder)]


def _test_run(run: tasks.Run) -> dict[str, Any]:
    batches: Any = run.task.test_batches(run, None)
    scores = score(run.model, batches.events, run.data_spec)
    values = test_values(run, scores)
    return {
        "seed": run.config.seed + (run.seed_index or 0),
        **{name: values.get(f"test_{name}") for name in METRICS},
        "num_test_events": values["num_test_events"],
        "quantiles": [round(float(x), 5) for x in np.quantile(scores.rescaled, QUANTILE_LEVELS)],
    }


def baselines(config: EventsConfig) -> dict[str, Any]:
    """Test numbers of the baselines, which the runs have to beat."""
    run, batches = run_without_model("events", config)
    return run.task.test_baselines(run, batches)
