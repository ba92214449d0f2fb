"""The steps after the last row of a series, by a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data.future import times_after
from flax_linattn.tasks.forecast.data import standardize
from flax_linattn.tasks.forecast.evaluate import compile_forecast, load_series
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run


class Ahead(NamedTuple):
    """A forecast.

    Attributes:
        times: datetime64[s] [H], of the rows to come; None where the series has no times.
        values: float64 [H, targets], in the units of the series.
    """

    times: NDArray[np.datetime64] | None
    values: NDArray[np.float64]


def predict(run: Run, file: Path | None) -> Table:
    """A row a step after the last row of a file: its time, or its number, and the targets.

    Raises:
        ValueError: the file does not fit the run, or has fewer rows than a forecast sees.
        FileNotFoundError: it is missing.
    """
    ahead = forecast_after(run, load_series(run, file))
    first = "step" if ahead.times is None else "time"
    steps = np.arange(1, len(ahead.values) + 1) if ahead.times is None else ahead.times
    return Table((first, *run.problem.target_names), (steps, *ahead.values.T))


def forecast_after(run: Run, series: data.TimeSeries) -> Ahead:
    """The forecast from the last row of a series.

    Args:
        run: the trained run.
        series: with its channels, in their order.

    Raises:
        ValueError: the series has fewer rows than a forecast sees; or NaN comes out.
    """
    problem, options = run.problem, run.config.data
    length, horizon = options.input_length, options.horizon
    if series.num_steps < length:
        raise OptionError(
            f"{series.name} has {series.num_steps} rows, expected at least {length}, which a "
            "forecast sees; give more of them.",
            "test_file",
        )
    arrays = standardize(series, problem)
    names = [name for name in ("values", "missing") if name in arrays]
    seen = {name: arrays[name][None, -length:] for name in names}
    step = series.step if problem.step_seconds is None else _seconds(problem.step_seconds)
    times = None
    if series.times is not None and step is not None:
        times = times_after(series.times, step, horizon)
    if problem.marks:  # of the window, and of what follows
        assert times is not None and step is not None
        ahead, _ = data.calendar_features(times, step)
        seen["marks"] = np.concatenate([arrays["marks"][-length:], ahead])[None]
    (forecast,) = np.asarray(compile_forecast(run)(seen), np.float64)
    if np.isnan(forecast).any():
        raise ValueError(
            "the forecast is NaN: the model's numbers overflow, or its parameters hold NaN."
        )
    targets = list(problem.targets)
    scale = problem.standardizer
    return Ahead(times, forecast * scale.std[targets] + scale.mean[targets])


def _seconds(seconds: float) -> np.timedelta64:
    return np.timedelta64(round(seconds), "s")
