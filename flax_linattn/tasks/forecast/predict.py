"""The steps after the last row of series, by a run's model."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, listed
from flax_linattn.data.future import times_after
from flax_linattn.tasks.forecast.data import standardize
from flax_linattn.tasks.forecast.evaluate import check_fits, compile_outputs, load_series
from flax_linattn.tasks.forecast.several import VALUE, load_series_of, of_history
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run


class Ahead(NamedTuple):
    """A forecast.

    Attributes:
        times: datetime64[s] [H], of the rows to come; None where the series has no times.
        values: float64 [H, targets], in the units of the series.
        quantiles: float64 [H, targets, Q], of a run with quantiles; else Q is 0.
    """

    times: NDArray[np.datetime64] | None
    values: NDArray[np.float64]
    quantiles: NDArray[np.float64]


def predict(run: Run, file: Path | None) -> Table:
    """A row a step after the last row of a file: its time, or its number, and the targets.

    Behind each target stand its quantiles, where the run has any. Of a run on several series each
    is forecast, and named in the first column; those with fewer rows than a forecast sees are left
    out, and told.

    Raises:
        ValueError: the file does not fit the run, or has fewer rows than a forecast sees.
        FileNotFoundError: it is missing.
    """
    if not run.problem.members:
        return _table(run, [forecast_after(run, load_series(run, file))])
    all_series, length = _several(run, file), run.config.data.input_length
    long = [series for series in all_series if series.num_steps >= length]
    if short := [series.name for series in all_series if series.num_steps < length]:
        what = f"series with fewer than {length} rows, which a forecast sees: {listed(short, 5)}"
        if not long:
            raise OptionError(f"expected longer ones, got {what}; give more rows.", "test_file")
        print(f"note: {what}; they are left out", file=sys.stderr)
    return _table(run, [_of_one(run, series) for series in long], [series.name for series in long])


def _several(run: Run, file: Path | None) -> tuple[data.TimeSeries, ...]:
    config = run.config if file is None else run.config.replace(csv=file)
    channels = None if run.problem.channels == (VALUE,) else run.problem.channels
    with reading_data(file is None):
        found = load_series_of(config.data, channels)
    for series in found:
        check_fits(run, series)
    return found


def _of_one(run: Run, series: data.TimeSeries) -> Ahead:
    """Of one of several: one that the run never saw has the scale of all its rows."""
    return forecast_after(run._replace(problem=of_history(run.problem, series)), series)


def _table(run: Run, forecasts: list[Ahead], names: list[str] | None = None) -> Table:
    heads, columns = ["step"], [np.concatenate([np.arange(len(f.values)) + 1 for f in forecasts])]
    if all(forecast.times is not None for forecast in forecasts):
        times = [forecast.times for forecast in forecasts if forecast.times is not None]
        heads, columns = ["time"], [np.concatenate(times)]
    if names is not None:
        horizon = len(forecasts[0].values)
        heads, columns = ["series", *heads], [np.repeat(np.array(names, object), horizon), *columns]
    for target, name in enumerate(run.problem.target_names):
        heads += [name, *(f"{name}@{level:g}" for level in run.config.model.levels)]
        columns.append(np.concatenate([forecast.values[:, target] for forecast in forecasts]))
        columns += [*np.concatenate([forecast.quantiles[:, target] for forecast in forecasts]).T]
    return Table(tuple(heads), tuple(columns), bool(run.problem.utc))


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
    given = series
    if problem.known_future:
        series = _before(run, given)
    if series.num_steps < length:
        raise OptionError(
            f"{series.name} has {series.num_steps} rows, expected at least {length}, which a "
            "forecast sees; give more of them.",
            "test_file",
        )
    step = series.step if problem.step_seconds is None else _seconds(problem.step_seconds)
    times = None
    if series.times is not None and step is not None:
        times = times_after(series.times, step, horizon)
    if problem.calendar and not problem.known_future:
        assert times is not None
        given = _with_rows(series, times)
    arrays = standardize(given, problem)
    stop = series.num_steps
    rows = slice(stop - length, stop + (horizon if problem.known_inputs else 0))
    seen = {n: part[None, rows] for n, part in arrays.items() if n in ("values", "missing")}
    if problem.marks:  # of the window, and of what follows
        assert times is not None and step is not None
        ahead, _ = data.calendar_features(times, step)
        seen["marks"] = np.concatenate([arrays["marks"][stop - length : stop], ahead])[None]
    (told,) = np.asarray(compile_outputs(run)(seen), np.float64)
    if np.isnan(told).any():
        raise ValueError(
            "the forecast is NaN: the model's numbers overflow, or its parameters hold NaN."
        )
    found = problem.in_units(told)
    found = found if found.ndim == 3 else found[..., None]
    return Ahead(times, found[..., 0], found[..., 1:])


def _before(run: Run, series: data.TimeSeries) -> data.TimeSeries:
    """The rows before those to forecast, which tell of the known channels alone.

    Raises:
        ValueError: there are fewer of these than steps to forecast.
    """
    problem, horizon = run.problem, run.config.data.horizon
    told = ~np.isnan(series.values[:, list(problem.targets)]).all(axis=1)
    stop = int(np.flatnonzero(told)[-1]) + 1 if told.any() else 0
    if series.num_steps - stop < horizon:
        names = ", ".join(problem.channels[which] for which in problem.known_future)
        raise OptionError(
            f"{series.name}: expected {horizon} rows to forecast at the end, with {names} and "
            f"empty {', '.join(problem.target_names)}, got {series.num_steps - stop}; add them.",
            "test_file",
        )
    times = None if series.times is None else series.times[:stop]
    return dataclasses.replace(series, values=series.values[:stop], times=times)


def _with_rows(series: data.TimeSeries, times: NDArray[np.datetime64]) -> data.TimeSeries:
    """A series with rows of these times behind it, all of whose values are missing."""
    assert series.times is not None
    empty = np.full((len(times), len(series.channels)), np.nan)
    return dataclasses.replace(
        series,
        values=np.concatenate([series.values, empty]),
        times=np.concatenate([series.times, times]),
        lines=None,
    )


def _seconds(seconds: float) -> np.timedelta64:
    return np.timedelta64(round(seconds), "s")
