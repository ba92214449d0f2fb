"""What a forecasting run remembers of its data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from flax_linattn import data
from flax_linattn.checks import at_least, same_number
from flax_linattn.tasks.run_types import Problem


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

    def check(self) -> None:
        """Types, sizes, and as many of each as there are channels."""
        super().check()
        at_least(1, num_targets=len(self.targets))
        for target in self.targets:
            at_least(0, len(self.channels) - 1, targets=target)
        same_number(split=self.split, parts=("training", "validation", "test"))
        for begin, end in self.split:
            at_least(0, begin=begin)
            at_least(begin, end=end)
        same_number(channels=self.channels, standardizer=self.standardizer.mean)
