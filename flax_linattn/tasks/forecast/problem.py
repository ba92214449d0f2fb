"""What a forecasting run remembers of its data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.annotations import of_types
from flax_linattn.checks import at_least, choice, same_number
from flax_linattn.data.marks import CIRCLES
from flax_linattn.tasks.run_types import Problem


@dataclasses.dataclass(frozen=True)
class Member:
    """One of several series that a run learned from.

    Attributes:
        name: of the series.
        mean: of its training rows, a channel.
        std: the deviation likewise.
        split: the rows of each part, as of ``ForecastProblem``.
        seasonal: mean absolute difference of training values a season apart, a target, in the units
            of the file: what MASE divides by. None where there is none, or it is 0.
        checksum: of those rows.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    split: tuple[tuple[int, int], ...]
    seasonal: tuple[float | None, ...]
    checksum: str


@dataclasses.dataclass(frozen=True)
class ForecastProblem(Problem):
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
        members: the series, where one model learned from several: then the standardizer is the
            median of theirs, which a series that it never saw has, and the split is one of numbers
            of rows.
        utc: whether times are in UTC; None if there are none, or of a run that did not yet know.
        tells_missing: whether the model is told which values are missing.
        known_future: indices of channels that are known for the horizon.
        static: those of them that never changed within the training rows of a series.
        calendar: parts of the calendar that the model is told of the horizon, too, each as two
            inputs behind the channels, see ``data.calendar_circles``.
    """

    dataset: str
    channels: tuple[str, ...]
    targets: tuple[int, ...]
    step_seconds: float | None
    marks: tuple[str, ...]
    standardizer: data.Standardizer
    split: tuple[tuple[int, int], ...]
    checksum: str
    members: tuple[Member, ...] = ()
    utc: bool | None = None
    tells_missing: bool = False
    known_future: tuple[int, ...] = ()
    static: tuple[int, ...] = ()
    calendar: tuple[str, ...] = ()

    @property
    def num_inputs(self) -> int:
        """Channels, and the calendar's circles behind them."""
        return len(self.channels) + 2 * len(self.calendar)

    @property
    def known_inputs(self) -> tuple[int, ...]:
        """Indices of the inputs that are known for the horizon: of channels, and the calendar."""
        return (*self.known_future, *range(len(self.channels), self.num_inputs))

    @property
    def num_flags(self) -> int:
        """Inputs that tell which of the others are missing."""
        return self.num_inputs if self.tells_missing else 0

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

    def in_units(self, told: NDArray) -> NDArray[np.float64]:
        """Standardised values of the targets in the units of the file.

        Args:
            told: [H, targets], or with quantiles [H, targets, 1 + Q].
        """
        targets = list(self.targets)
        std, mean = self.standardizer.std[targets], self.standardizer.mean[targets]
        if told.ndim == 3:
            std, mean = std[:, None], mean[:, None]
        return told * std + mean

    def of_series(self, name: str, standardizer: data.Standardizer | None = None) -> Self:
        """The problem of one of several series, or of one that the run never saw.

        Args:
            name: of the series.
            standardizer: of a new series; default the median of those of the members.
        """
        for member in self.members:
            if member.name == name:
                scale = data.Standardizer(np.array(member.mean), np.array(member.std))
                split, rows = member.split, member.checksum
                break
        else:
            scale, split, rows = standardizer or self.standardizer, ((0, 0),) * 3, ""
        return dataclasses.replace(
            self, dataset=name, standardizer=scale, split=split, checksum=rows, members=()
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }
        for name in ("members", "static", "calendar"):  # as it was before there were any
            if not values[name]:
                del values[name]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForecastProblem:
        """Back from ``to_json``."""
        standardizer = data.Standardizer.from_json(json.dumps(values["standardizer"]))
        lists = {name: tuple(values[name]) for name in ("channels", "targets", "marks")}
        for name in ("known_future", "static", "calendar"):
            lists[name] = tuple(values.get(name, ()))
        lists["split"] = tuple((begin, end) for begin, end in values["split"])
        lists["members"] = tuple(Member(**member) for member in values.get("members", ()))
        return cls(**{**values, **lists, "standardizer": standardizer})

    def check(self) -> None:
        """Types, sizes, and as many of each as there are channels."""
        super().check()
        at_least(1, num_targets=len(self.targets))
        for target in self.targets:
            at_least(0, len(self.channels) - 1, targets=target)
        for known in self.known_future:
            at_least(0, len(self.channels) - 1, known_future=known)
        if not set(self.static) <= set(self.known_future):
            raise ValueError(f"static must be known for the horizon, got {list(self.static)}.")
        for part in self.calendar:
            choice(CIRCLES, calendar=part)
        if self.calendar and self.step_seconds is None:
            raise ValueError("the calendar of the horizon takes the time between rows, got none.")
        same_number(split=self.split, parts=("training", "validation", "test"))
        for begin, end in self.split:
            at_least(0, begin=begin)
            at_least(begin, end=end)
        same_number(channels=self.channels, standardizer=self.standardizer.mean)
        for member in self.members:
            of_types(member)
            same_number(channels=self.channels, mean=member.mean)
            same_number(channels=self.channels, std=member.std)
            same_number(targets=self.targets, seasonal=member.seasonal)
            same_number(split=member.split, parts=("training", "validation", "test"))
            data.Standardizer(np.array(member.mean), np.array(member.std))
