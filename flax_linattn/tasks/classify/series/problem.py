"""What a classification run remembers of its data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from flax_linattn import data
from flax_linattn.checks import at_least, same_number
from flax_linattn.tasks.run_types import Problem

LONGEST = 2**24
"""Steps of a sequence."""


@dataclasses.dataclass(frozen=True)
class ClassifyProblem(Problem):
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        channels: names of the observed channels.
        classes: names of the classes, in the order of the logits.
        lengths: lengths that sequences are padded to; the longest is that of all data.
        standardizer: mean and standard deviation a channel.
        checksum: of the training data ("train") and the test data ("test").
    """

    dataset: str
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    lengths: tuple[int, ...]
    standardizer: data.Standardizer
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def max_length(self) -> int:
        """The longest sequence of training and test data."""
        return self.lengths[-1]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassifyProblem:
        """Back from ``to_json``."""
        return cls(
            dataset=values["dataset"],
            channels=tuple(values["channels"]),
            classes=tuple(values["classes"]),
            lengths=tuple(values["lengths"]),
            standardizer=data.Standardizer.from_json(json.dumps(values["standardizer"])),
            checksum=values["checksum"],
        )

    def check(self) -> None:
        """Types, sizes, and as many of each as there are channels."""
        super().check()
        at_least(1, num_lengths=len(self.lengths), num_classes=len(self.classes))
        for length in self.lengths:
            at_least(1, LONGEST, lengths=length)
        same_number(channels=self.channels, standardizer=self.standardizer.mean)
