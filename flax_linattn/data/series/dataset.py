"""``TimeSeriesDataset``, a labeled collection of time series."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.labels import LabeledExamples, check_classes, check_labels


@dataclass(frozen=True, eq=False)
class TimeSeriesDataset(LabeledExamples):
    """Labeled time series, each of its own length.

    Attributes:
        name: The problem's name.
        series: N arrays, float64 ``[length_i, C]``; NaN marks a missing value.
        labels: Indices into ``classes``, int32 ``[N]``.
        classes: Class names, in the order of ``in_order``, or in alphabetical order.
        channels: Names of the C channels.

    Raises:
        ValueError: If the parts do not match.

    Example:
        >>> dataset = TimeSeriesDataset(
        ...     "toy", (np.zeros((3, 2)), np.ones((5, 2))), np.array([0, 1], np.int32),
        ...     classes=("down", "up"), channels=("x", "y"))
        >>> dataset.num_examples, dataset.num_channels, dataset.lengths.tolist()
        (2, 2, [3, 5])
    """

    name: str
    series: tuple[NDArray[np.float64], ...]
    labels: NDArray[np.int32]
    classes: tuple[str, ...]
    channels: tuple[str, ...]
    _examples: ClassVar[str] = "series"

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.series), self.classes)
        check_classes(self.classes)
        for index, values in enumerate(self.series):
            fits = values.ndim == 2 and len(values) and values.shape[1] == len(self.channels)
            if not fits or values.dtype != np.float64:
                raise ValueError(
                    f"expected series {index} as float64 [length, {len(self.channels)}], got "
                    f"{values.dtype} {list(values.shape)}; time comes first, channels second"
                )

    @property
    def num_channels(self) -> int:
        """Number of channels of every series, C."""
        return len(self.channels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of time steps of each series, int64 ``[N]``."""
        return np.array([len(values) for values in self.series], np.int64)

    def with_classes(
        self, classes: Sequence[str], source: str | Path | None = None
    ) -> "TimeSeriesDataset":
        """Returns the same examples with labels that index ``classes``, such as a training set's.

        Args:
            classes: The class names to index into, sorted.
            source: Name of the file in errors. Default: ``name``.

        Raises:
            ValueError: If an example has a label that is not among ``classes``.

        Example:
            >>> from flax_linattn.data import japanese_vowels
            >>> _, test = japanese_vowels()
            >>> test.subset([-1]).with_classes(("8", "9")).labels.tolist()
            [1]
        """
        position = {label: index for index, label in enumerate(classes)}
        used = [self.classes[index] for index in np.unique(self.labels)]
        if unknown := [label for label in used if label not in position]:
            raise ValueError(
                f"{source or self.name}: expected labels among the classes {_format(classes)}, got "
                f"{_format(unknown)[1:-1]} (this data set's classes: {_format(self.classes)}); "
                "use the training and test files of the same problem"
            )
        table = np.array([position.get(label, -1) for label in self.classes], np.int32)
        return replace(self, labels=table[self.labels], classes=tuple(classes))


def _format(classes: Sequence[str]) -> str:
    return f"({itemize([quote(label) for label in classes])})"
