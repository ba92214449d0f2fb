"""What a forecaster sees of a series: its scale, its calendar, its windows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.data.cells import split_cells
from flax_linattn.tasks.forecast_config import ForecastConfig
from flax_linattn.tasks.runs import checksum


@dataclasses.dataclass(frozen=True)
class ForecastProblem:
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        channels: names of the observed channels.
        targets: indices of those that are forecast.
        step_seconds: time between rows; None if rows have no times.
        marks: names of the calendar features.
        standardizer: mean and standard deviation a channel, of the training rows.
        split: the rows of each part, [begin, end) of training, validation and test.
        checksum: of those rows.
    """

    dataset: str
    channels: tuple[str, ...]
    targets: tuple[int, ...]
    step_seconds: float | None
    marks: tuple[str, ...]
    standardizer: data.Standardizer
    split: tuple[tuple[int, int], ...]
    checksum: str

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the channels that are forecast."""
        return tuple(self.channels[index] for index in self.targets)

    @property
    def season(self) -> int:
        """Rows of a day, of a week of daily rows, or of a year; 1 if rows have no times."""
        day = 86400.0
        for least, season in ((7 * day, 365.25 * day), (day, 7 * day), (0.0, day)):
            if self.step_seconds is not None and self.step_seconds >= least:
                return max(1, round(season / self.step_seconds))
        return 1

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForecastProblem:
        """Back from ``to_json``."""
        standardizer = data.Standardizer.from_json(json.dumps(values["standardizer"]))
        lists = {name: tuple(values[name]) for name in ("channels", "targets", "marks")}
        lists["split"] = tuple((begin, end) for begin, end in values["split"])
        return cls(**{**values, **lists, "standardizer": standardizer})


def load_data(config: ForecastConfig, channels: Sequence[str] | None = None) -> data.TimeSeries:
    """The series of a run, with these channels, else those that its options choose.

    Raises:
        ValueError: a damaged file, or an unknown channel.
        FileNotFoundError: there is no such file.
    """
    if channels is None and config.channels:
        channels = split_cells(config.channels)
    if config.csv is None:
        series = data.etth1()
        return series if channels is None else series.select(channels)
    header = {"auto": None, "yes": True, "no": False}[config.header]
    return data.load_series(config.csv, header=header, channels=channels)


def describe(series: data.TimeSeries, split: data.Split, config: ForecastConfig) -> ForecastProblem:
    """What a run has to know of its data; scales are those of the training rows.

    Raises:
        ValueError: an unknown target, or training rows without values.
    """
    names = split_cells(config.targets) if config.targets else None
    targets = series.channels if names is None else series.select(names).channels
    marks: list[str] = []
    if config.calendar and series.times is not None and series.step is not None:
        _, marks = data.calendar_features(series.times[:1], series.step)
    known = dataclasses.replace(series, values=series.values[: split.train.stop], times=None)
    empty = np.isnan(known.values).all(axis=0)
    if empty.any():
        raise ValueError(
            f"{series.name}: channel {series.channels[int(np.argmax(empty))]!r} has no value in "
            f"the training rows (the first {split.train.stop}); choose others with --channels."
        )
    return ForecastProblem(
        dataset=series.name,
        channels=series.channels,
        targets=tuple(series.channels.index(name) for name in targets),
        step_seconds=step_seconds(series),
        marks=tuple(marks),
        standardizer=data.Standardizer.fit([known.fill_forward().values]),
        split=tuple((part.start, part.stop) for part in split),
        checksum=checksum_of(series, split.test.stop),
    )


def step_seconds(series: data.TimeSeries) -> float | None:
    """The usual time between rows; None where it is not known."""
    return None if series.step is None else float(series.step / np.timedelta64(1, "s"))


def checksum_of(series: data.TimeSeries, stop: int) -> str:
    """A checksum of the first rows, which later ones do not change."""
    times = [] if series.times is None else [series.times[:stop]]
    return checksum([series.values[:stop], *times])


def standardize(series: data.TimeSeries, problem: ForecastProblem) -> dict[str, NDArray]:
    """What a model sees of a series: ``values`` [T, channels], and ``marks`` of the calendar.

    A missing value takes the last known one, or the training mean if there is none; ``known``
    [T, channels] tells which are none, where any is missing.
    """
    filled = series.fill_forward(problem.standardizer.mean)
    (values,) = problem.standardizer.apply([filled.values], series.channels)
    arrays: dict[str, NDArray] = {"values": values.astype(np.float32)}
    if series.num_missing:
        arrays["known"] = ~np.isnan(series.values)
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
        input_length=config.input_length,
        horizon=config.horizon,
        stride=stride,
        batch_size=config.batch_size,
        seed=seed,
    )
