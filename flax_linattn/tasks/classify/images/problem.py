"""What a run on images remembers of its data."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax_linattn.checks import at_least, positive, same_number
from flax_linattn.tasks.run_types import Problem


@dataclasses.dataclass(frozen=True)
class ImageProblem(Problem):
    """What the training data say; kept in the run folder.

    Attributes:
        dataset: its name.
        classes: names of the classes, in the order of the logits.
        image_shape: height, width, channels.
        mean: of each channel, of values from 0 to 1.
        deviation: of each channel.
        checksum: of the data.
    """

    dataset: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ImageProblem:
        """Back from ``to_json``."""
        return cls(
            dataset=values["dataset"],
            classes=tuple(values["classes"]),
            image_shape=tuple(values["image_shape"]),
            mean=tuple(values["mean"]),
            deviation=tuple(values["deviation"]),
            checksum=values["checksum"],
        )

    def check(self) -> None:
        """Types and sizes."""
        super().check()
        at_least(1, num_classes=len(self.classes))
        if len(self.image_shape) != 3:
            raise ValueError(
                f"expected image_shape as height, width and channels, got {self.image_shape}."
            )
        for size in self.image_shape:
            at_least(1, 2**16, image_shape=size)
        same_number(channels=range(self.image_shape[2]), mean=self.mean, deviation=self.deviation)
        for value in self.deviation:
            positive(deviation=value)
