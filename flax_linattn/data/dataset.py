"""A labelled collection of time series, as the archives' files hold it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.cells import is_number


@dataclass(frozen=True, eq=False)
class TimeSeriesDataset:
    """Labelled time series, each of its own length.

    Attributes:
        name: The problem's name.
        series: N arrays, float64 ``[length_i, C]``; NaN marks a missing value.
        labels: int32 ``[N]``, indices into ``classes``.
        classes: The class names, in the order of ``in_order``, or in that of text.
        channels: The C channel names.

    Raises:
        ValueError: The parts do not fit together.

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

    def __post_init__(self) -> None:
        if self.labels.dtype != np.int32 or self.labels.shape != (len(self.series),):
            raise ValueError(
                f"expected labels int32 [{len(self.series)}], one for each series, got "
                f"{self.labels.dtype} {list(self.labels.shape)}; make them one index a series"
            )
        if self.labels.size and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError(
                f"expected labels in 0..{len(self.classes) - 1}, the indices of the classes, got "
                f"{self.labels.min()}..{self.labels.max()}; index the labels into classes"
            )
        if tuple(self.classes) not in (
            in_order(set(self.classes)),
            tuple(sorted(set(self.classes))),
        ):
            raise ValueError(
                f"expected distinct classes in sorted order, got {_shown(self.classes)}; sort them "
                "and index the labels again"
            )
        for index, values in enumerate(self.series):
            fits = values.ndim == 2 and len(values) and values.shape[1] == len(self.channels)
            if not fits or values.dtype != np.float64:
                raise ValueError(
                    f"expected series {index} as float64 [length, {len(self.channels)}], got "
                    f"{values.dtype} {list(values.shape)}; time comes first, channels second"
                )

    @property
    def num_examples(self) -> int:
        """Number of series, N."""
        return len(self.series)

    @property
    def num_channels(self) -> int:
        """Number of channels, C."""
        return len(self.channels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of time steps of each series, int64 ``[N]``."""
        return np.array([len(values) for values in self.series], np.int64)

    def subset(self, indices: Sequence[int] | NDArray[Any]) -> "TimeSeriesDataset":
        """Returns the examples at ``indices``, in that order, with the same classes.

        Args:
            indices: int ``[M]`` (negative ones count from the end) or bool ``[N]``.

        Raises:
            IndexError: An index is out of range.

        Example:
            >>> from flax_linattn.data import japanese_vowels
            >>> train, _ = japanese_vowels()
            >>> train.subset([0, -1]).labels.tolist()
            [0, 8]
        """
        chosen = np.arange(self.num_examples)[indices]
        series = tuple(self.series[index] for index in chosen)
        return replace(self, series=series, labels=self.labels[chosen])

    def with_classes(self, classes: Sequence[str]) -> "TimeSeriesDataset":
        """Returns the same examples with labels that index ``classes``, say a training set's.

        Args:
            classes: The class names to index into, sorted.

        Raises:
            ValueError: An example has a label that is not among ``classes``.

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
                f"{self.name}: expected labels among the classes {_shown(classes)}, got "
                f"{_shown(unknown)[1:-1]} (this data set's classes: {_shown(self.classes)}); "
                "use the training and test files of the same problem"
            )
        table = np.array([position.get(label, -1) for label in self.classes], np.int32)
        return replace(self, labels=table[self.labels], classes=tuple(classes))


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Sorts class labels: by number if all are numbers, else as text.

    Example:
        >>> in_order(["10.0", "2.0", "1.0"]), in_order(["b", "10", "9"])
        (('1.0', '2.0', '10.0'), ('10', '9', 'b'))
    """
    labels = sorted(labels)
    return tuple(sorted(labels, key=float) if all(map(is_number, labels)) else labels)


def _shown(classes: Sequence[str]) -> str:
    return f"({listed([shown(label) for label in classes])})"
