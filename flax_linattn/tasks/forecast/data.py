"""The series of a forecasting run: read, described, scaled, cut into windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, listed
from flax_linattn.data.cells import split_cells
from flax_linattn.data.transforms import FarValueError
from flax_linattn.data.unknown import UnknownChannelError
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.forecast.options import ForecastConfig, ForecastData
from flax_linattn.tasks.forecast.problem import ForecastProblem


def load_data(source: ForecastData, channels: Sequence[str] | None = None) -> data.TimeSeries:
    """The series of a run, with these channels, else those that its options choose.

    Raises:
        ValueError: a damaged file, an unknown channel, or a value beyond float32.
        FileNotFoundError: there is no such file.
    """
    if channels is None and source.channels:
        channels = split_cells(source.channels)
    if source.csv is None:
        series = data.etth1()
        return series if channels is None else series.select(channels)
    try:
        series = data.load_series(source.csv, channels=channels, **reading_of(source))
    except OptionError as error:
        error.values["header"] = "yes|no"  # as the option has it
        unknown = isinstance(error, UnknownChannelError)
        if error.options == ("channels",) and not unknown:  # of series that differ
            error.options = ("channels", "global_model")
        raise
    check_float32(source.csv, series)
    return series


def reading_of(source: ForecastData) -> dict[str, Any]:
    """How tables are read, as their readers have it."""
    return {
        "header": {"auto": None, "yes": True, "no": False}[source.header],
        "times": source.times,
        "resample": source.resample,
        "dialect": source.dialect,
    }


def check_float32(path: Path, series: data.TimeSeries) -> None:
    """Refuses values beyond float32.

    Raises:
        ValueError: there is one; the message names its place.
    """
    if (beyond := np.argwhere(np.abs(series.values) > _LARGEST)).size:
        row, channel = beyond[0].tolist()
        raise OptionError(
            f"{path}, {series.place(row)}: expected values up to {_LARGEST:.2g}, the largest "
            f"of float32, got {series.values[row, channel]:g} for channel "
            f"{series.channels[channel]!r}; leave the cell empty if it stands for a missing value, "
            "or choose other channels.",
            "channels",
        )


_LARGEST = float(np.finfo(np.float32).max)


def describe(series: data.TimeSeries, split: data.Split, config: ForecastData) -> ForecastProblem:
    """What a run has to know of its data; scales are those of the training rows.

    Raises:
        ValueError: an unknown target, or training rows without values.
    """
    known = known_of(series, config)
    return ForecastProblem(
        dataset=series.name,
        channels=series.channels,
        targets=targets_of(series, config),
        known_future=known,
        static=static_of([series.values[: split.train.stop]], known),
        step_seconds=step_seconds(series),
        marks=marks_of(series, config),
        calendar=calendar_of([series], config),
        standardizer=fit_standardizer(series, split),
        split=as_pairs(split),
        checksum=checksum_of(series, split.test.stop),
        utc=None if series.times is None else series.utc,
    )


def targets_of(series: data.TimeSeries, config: ForecastData) -> tuple[int, ...]:
    """Indices of the channels to forecast.

    Raises:
        ValueError: one is unknown.
    """
    known = known_of(series, config)
    if not config.targets:
        targets = tuple(i for i in range(len(series.channels)) if i not in known)
    else:
        targets = _indices(series, config.targets, "targets")
    if not targets or set(targets) & set(known):
        raise OptionError(
            "expected targets beside those known for the horizon, got "
            f"{listed([series.channels[i] for i in known])} as known; choose others.",
            "targets",
            "known_future",
        )
    return targets


def known_of(series: data.TimeSeries, config: ForecastData) -> tuple[int, ...]:
    """Indices of the channels that are known for the horizon.

    Raises:
        ValueError: one is unknown.
    """
    return _indices(series, config.known_future, "known_future") if config.known_future else ()


def static_of(rows: Sequence[NDArray[np.float64]], known: Sequence[int]) -> tuple[int, ...]:
    """Which of these channels never change within a series.

    Args:
        rows: of each series, [T, channels]; NaN = missing.
        known: indices of the channels.

    Example:
        >>> static_of([np.array([[1.0, 3.0], [2.0, np.nan]]), np.array([[4.0, 5.0]])], [0, 1])
        (1,)
    """
    return tuple(
        which
        for which in known
        if all(len(np.unique(of[~np.isnan(of)])) < 2 for of in (one[:, which] for one in rows))
    )


def _indices(series: data.TimeSeries, names: str, option: str) -> tuple[int, ...]:
    """Of the channels that an option names."""
    try:
        chosen = series.select(split_cells(names)).channels
    except OptionError as error:
        error.options = (option,)
        raise
    return tuple(series.channels.index(name) for name in chosen)


def marks_of(series: data.TimeSeries, config: ForecastData) -> tuple[str, ...]:
    """Names of the calendar features that the model sees."""
    if not config.calendar or series.times is None or series.step is None:
        return ()
    return tuple(data.calendar_features(series.times[:1], series.step)[1])


def calendar_of(several: Sequence[data.TimeSeries], config: ForecastData) -> tuple[str, ...]:
    """Parts of the calendar that the model is told of the horizon.

    Raises:
        ValueError: a series has no times, or none has two.
    """
    for series in several if config.calendar_parts else ():
        if series.times is None:
            raise OptionError(
                f"known_calendar takes the times of rows, and {series.name} has none; name their "
                "column, or leave it out.",
                "known_calendar",
                "time_column",
            )
    if config.calendar_parts and all(series.step is None for series in several):
        raise OptionError(
            "known_calendar takes the time between rows, which one row does not tell; give more.",
            "known_calendar",
        )
    return config.calendar_parts


def as_pairs(split: data.Split) -> tuple[tuple[int, int], ...]:
    """A split as a problem holds it."""
    return tuple((part.start, part.stop) for part in split)


def fit_standardizer(series: data.TimeSeries, split: data.Split) -> data.Standardizer:
    """The scale of the training rows, missing values filled.

    Deviations are those of the population, as scikit-learn's ``StandardScaler`` and hence
    Time-Series-Library have them.

    Raises:
        ValueError: training rows without values.
    """
    known = dataclasses.replace(series, values=series.values[: split.train.stop], times=None)
    empty = np.isnan(known.values).all(axis=0)
    if empty.any():
        raise OptionError(
            f"{series.name}: channel {series.channels[int(np.argmax(empty))]!r} has no value in "
            f"the training rows (the first {split.train.stop}); choose other channels.",
            "channels",
        )
    return data.Standardizer.fit([known.fill_forward().values], ddof=0)


def step_seconds(series: data.TimeSeries) -> float | None:
    """The usual time between rows; None where it is not known."""
    return None if series.step is None else float(series.step / np.timedelta64(1, "s"))


def checksum_of(series: data.TimeSeries, stop: int) -> str:
    """A checksum of the first rows, which later ones do not change."""
    times = [] if series.times is None else [series.times[:stop]]
    return checksum([series.values[:stop], *times])


def standardize(series: data.TimeSeries, problem: ForecastProblem) -> dict[str, NDArray]:
    """What a model sees of a series: ``values`` [T, inputs], and ``marks`` of the calendar.

    Inputs are the channels, and the circles of the calendar behind them, where the model is told
    that of the horizon. A missing value takes the last known one, or the training mean if there is
    none; ``known`` [T, inputs] tells which are none, where any is missing. ``missing`` [T, inputs]
    tells it the model by 1, where it takes that.
    """
    filled = series.fill_forward(problem.standardizer.mean)
    try:
        (values,) = problem.standardizer.apply([filled.values], series.channels)
    except FarValueError as far:
        raise ValueError(f"{series.name}, {series.place(far.step)}: {far}") from None
    values, missing = values.astype(np.float32), np.isnan(series.values)
    if problem.calendar:
        assert series.times is not None
        circles = data.calendar_circles(series.times, problem.calendar)
        values = np.concatenate([values, circles], axis=1)
        missing = np.concatenate([missing, np.zeros(circles.shape, np.bool_)], axis=1)
    arrays: dict[str, NDArray] = {"values": values}
    if series.num_missing:
        arrays["known"] = ~missing
    if problem.tells_missing:
        arrays["missing"] = missing.astype(np.float32)
    if problem.marks:
        assert series.times is not None and problem.step_seconds is not None
        step = np.timedelta64(round(problem.step_seconds), "s")
        arrays["marks"], _ = data.calendar_features(series.times, step)
    return arrays


def make_windows(
    arrays: dict[str, NDArray],
    config: ForecastConfig,
    rows: range,
    *,
    seed: int | None,
    stride: int = 1,
) -> data.Windows:
    """Windows of a standardised series whose horizons lie in these rows."""
    return data.Windows(
        arrays,
        rows,
        input_length=config.data.input_length,
        horizon=config.data.horizon,
        stride=stride,
        batch_size=config.fit.batch_size,
        seed=seed,
    )
