"""Forecasting: the next values of a series, from a CSV of the user's own or the embedded ETTh1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from flax_linattn import data, inference, models, training
from flax_linattn.tasks.forecast_config import ForecastConfig
from flax_linattn.tasks.forecast_data import (
    describe,
    load_data,
    make_windows,
    standardize,
)
from flax_linattn.tasks.forecast_evaluate import ForecastRun, draw_forecasts, evaluate_forecaster
from flax_linattn.tasks.forecast_model import build_forecaster, learning_rate, make_loss
from flax_linattn.tasks.runs import keep_problem, write_json
from flax_linattn.training.processes import is_main, on_main


def train_forecaster(
    config: ForecastConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    parallel: training.Parallel | None = None,
    trackers: Sequence[training.Tracker] = (),
    profile_steps: int = 0,
) -> dict[str, Any]:
    """Trains, selects on validation data and tests a forecaster; all goes to the run folder.

    Args:
        config: the run's options.
        run_dir: the run folder: config.json, problem.json, metrics.jsonl, checkpoints,
            learning_curve.png, test.json, forecasts.png.
        resume: go on where the run in that folder stopped.
        progress: show a progress bar.
        parallel: the devices, and what is split over them; default all that divide the batch.
        trackers: take in the run's numbers, see ``training.fit``.
        profile_steps: how many steps to trace, see ``training.fit``.

    Returns:
        What test.json holds: see ``evaluate_forecaster``.

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: the data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came; the run was saved.
    """
    config = config.resolve()
    parallel = training.Parallel() if parallel is None else parallel
    placement = parallel.place(config.batch_size)
    if placement.spans > 1:
        raise ValueError("forecasting runs do not split sequences; leave seq out of the mesh.")
    config.check_run_dir(run_dir, resume)
    series = load_data(config)
    split = data.chronological_split(series.num_steps, config.split)
    problem = describe(series, split, config)
    targets = list(problem.targets)
    for part, rows in split._asdict().items():
        if len(rows) and np.isnan(series.values[rows.start : rows.stop, targets]).all():
            raise ValueError(
                f"the {part} rows ({rows.start} to {rows.stop - 1}) have no value of "
                f"{', '.join(problem.target_names)}; choose others with --split or --targets."
            )
    model = build_forecaster(config, problem, placement)
    windows = partial(_windows_of, standardize(series, problem), config)
    train_windows = windows("training", split.train, seed=config.seed, stride=config.stride)
    validation_windows = windows("validation", split.validation, seed=None, stride=config.stride)
    test_windows = windows("test", split.test, seed=None)
    if is_main():
        for line in _notes(series):
            print(line, file=sys.stderr)
    if progress and is_main():
        print(_about(series, split), file=sys.stderr)
        if isinstance(model, models.Forecaster):
            width = len(problem.channels) + len(problem.marks)
            observation = jax.ShapeDtypeStruct((1, width), jnp.float32)
            print(inference.summarize(model, observation), f"\non {placement}", file=sys.stderr)

    def write_options() -> None:
        keep_problem(run_dir, problem.to_json(), resume)
        config.write(run_dir)

    on_main(write_options)
    result = training.fit(
        model,
        training.Objective(
            make_loss(config, problem),
            optax.adam(learning_rate(config, len(train_windows))),
            monitor="mse",
        ),
        training.Splits(train_windows, validation_windows),
        config=training.FitConfig(epochs=config.epochs, patience=config.patience, seed=config.seed),
        session=training.Session(run_dir, resume, progress, parallel, trackers, profile_steps),
    )
    run = ForecastRun(model, config, problem)
    report = evaluate_forecaster(run, test_windows)
    report |= {
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "train_seconds": round(sum(line["seconds"] for line in result.history), 1),
    }
    on_main(partial(write_json, run_dir / "test.json", report))
    if is_main() and training.learning_curve(run_dir) is not None:
        draw_forecasts(run, test_windows, run_dir / "forecasts.png", series.times)
    return report


def _windows_of(
    arrays: dict[str, NDArray], config: ForecastConfig, part: str, rows: range, **options: Any
) -> data.Windows:
    try:
        return make_windows(arrays, config, rows, **options)
    except ValueError as error:
        raise ValueError(
            f"too few {part} rows ({len(rows)}): {error}. See --split, --input-length and "
            f"--horizon (now {config.split}, {config.input_length} and {config.horizon})."
        ) from None


def _about(series: data.TimeSeries, split: data.Split) -> str:
    """A few lines on the data."""
    lines = [
        f"{series.name}: {series.num_steps} rows of {', '.join(series.channels[:8])}"
        + (f" and {len(series.channels) - 8} more" if len(series.channels) > 8 else "")
    ]
    if series.times is not None:
        lines.append(f"from {series.times[0]} to {series.times[-1]}, usually every {series.step}")
    parts = ", ".join(f"{name} {len(rows)}" for name, rows in split._asdict().items())
    return "\n".join([*lines, f"rows: {parts}"])


def _notes(series: data.TimeSeries) -> list[str]:
    """What deserves a second look."""
    constant = [
        name
        for name, values in zip(series.channels, series.values.T, strict=True)
        if np.nanmin(values) == np.nanmax(values)
    ]
    counts = {
        "rows that do not follow after the usual time": series.num_gaps,
        "missing values, which take the last known one and are not tested on": series.num_missing,
        f"channels that never change ({', '.join(constant)}), to leave out of the targets": len(
            constant
        ),
    }
    return [f"note: {what}: {count}" for what, count in counts.items() if count]
