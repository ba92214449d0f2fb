"""Labels and classes, and what collections of labelled examples share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown
from flax_linattn.data.cells import is_number


class LabelledExamples:
    """What collections of N labelled examples share; each is a dataclass with these fields.

    Attributes:
        labels: int32 ``[N]``, indices into ``classes``.
        classes: The class names, in the order of ``in_order``, or in that of text.
    """

    labels: NDArray[np.int32]
    classes: tuple[str, ...]
    _examples: ClassVar[str]
    """The field that holds the examples, an array or a tuple."""

    @property
    def num_examples(self) -> int:
        """Number of examples, N."""
        return len(self.labels)

    def subset(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Returns the examples at ``indices``, in that order, with the same classes.

        Args:
            indices: int ``[M]`` (negative ones count from the end), bool ``[N]``, or a slice.

        Raises:
            IndexError: An index is out of range.

        Example:
            >>> from flax_linattn.data import japanese_vowels
            >>> train, _ = japanese_vowels()
            >>> train.subset([0, -1]).labels.tolist()
            [0, 8]
        """
        chosen = np.arange(self.num_examples)[indices]
        examples = getattr(self, self._examples)
        if isinstance(examples, np.ndarray):
            taken: Any = examples[chosen]
        else:
            taken = tuple(examples[index] for index in chosen)
        changes = {"labels": self.labels[chosen], self._examples: taken}
        return cast("Self", dataclasses.replace(cast("Any", self), **changes))


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Sorts class labels: by number if all are numbers, else as text.

    Example:
        >>> in_order(["10.0", "2.0", "1.0"]), in_order(["b", "10", "9"])
        (('1.0', '2.0', '10.0'), ('10', '9', 'b'))
    """
    labels = sorted(labels)
    return tuple(sorted(labels, key=float) if all(map(is_number, labels)) else labels)


def check_labels(labels: NDArray[np.int32], num_examples: int, classes: Sequence[str]) -> None:
    """Refuses labels that are not one index into the classes for each example.

    Raises:
        ValueError: They are of another shape or dtype, or out of range.
    """
    if labels.dtype != np.int32 or labels.shape != (num_examples,):
        raise ValueError(
            f"expected labels int32 [{num_examples}], one for each example, got {labels.dtype} "
            f"{list(labels.shape)}; make them one index an example"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError(
            f"expected labels in 0..{len(classes) - 1}, the indices of the classes, got "
            f"{labels.min()}..{labels.max()}; index the labels into classes"
        )


def check_classes(classes: Sequence[str]) -> None:
    """Refuses classes that are not distinct and sorted, as numbers or as text.

    Raises:
        ValueError: They are not.
    """
    if tuple(classes) not in (in_order(set(classes)), tuple(sorted(set(classes)))):
        names = listed([shown(name) for name in classes])
        raise ValueError(
            f"expected distinct classes in sorted order, got ({names}); sort them and index the "
            "labels again"
        )
