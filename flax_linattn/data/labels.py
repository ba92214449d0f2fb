"""Class labels of examples: order, validation, and stratified splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.tables.cells import is_number


class LabeledExamples:
    """Base class of collections of N labeled examples, dataclasses with these fields.

    Attributes:
        labels: Indices into ``classes``, int32 ``[N]``.
        classes: Class names, in the order of ``in_order``, or in alphabetical order.
    """

    labels: NDArray[np.int32]
    classes: tuple[str, ...]
    _examples: ClassVar[str]
    """Name of the field that holds the examples, an array or a tuple."""

    @property
    def num_examples(self) -> int:
        """Number of labeled examples, N."""
        return len(self.labels)

    def subset(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Returns the examples at ``indices``, in that order, with the same classes.

        Args:
            indices: Integers ``[M]`` (negative ones count from the end), bool ``[N]``, or a slice.

        Raises:
            IndexError: If an index is out of range.

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
    """Checks that labels are one index into the classes for each example."""
    if labels.dtype != np.int32 or labels.shape != (num_examples,):
        raise ValueError(
            f"expected labels int32 [{num_examples}], one per example, got "
            f"{labels.dtype} {list(labels.shape)}; pass one class index per example"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError(
            f"expected labels in 0..{len(classes) - 1}, the indices of the classes, got "
            f"{labels.min()}..{labels.max()}; index the labels into classes"
        )


def check_classes(classes: Sequence[str]) -> None:
    """Checks that classes are distinct and sorted, as numbers or as text."""
    if tuple(classes) not in (in_order(set(classes)), tuple(sorted(set(classes)))):
        names = itemize([quote(name) for name in classes])
        raise ValueError(
            f"expected distinct classes in sorted order, got ({names}); sort them and index the "
            "labels again"
        )


def stratified_split(
    labels: ArrayLike, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits examples at random into training and validation, stratified by class.

    The validation part has ``round(fraction * N)`` examples, distributed over the classes in
    proportion to their sizes (largest remainder). Every class keeps at least one training example.

    Args:
        labels: Class of each example, int ``[N]``.
        fraction: Fraction of validation examples, between 0 and 1.
        seed: Random seed of the split.

    Returns:
        Training and validation indices, int64, each sorted.

    Raises:
        ValueError: If ``labels`` or ``fraction`` is invalid, or the classes have too few examples
            for it.

    Example:
        >>> train, validation = stratified_split([0, 0, 0, 1, 1, 1], 1 / 3, seed=0)
        >>> len(train), np.array([0, 0, 0, 1, 1, 1])[validation].tolist()
        (4, [0, 1])
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"expected labels int [N], got {labels.dtype} {list(labels.shape)}; pass class indices"
        )
    if not 0 < fraction < 1:
        raise ValueError(
            f"expected a fraction between 0 and 1 (exclusive), got {fraction}; choose, "
            "for example, 0.2"
        )
    _, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    total = round(fraction * labels.size)
    if labels.size <= counts.size:
        raise ValueError(
            f"expected more examples than classes, so that some can be held out, got {labels.size} "
            f"of {counts.size} classes; give more examples"
        )
    if not 0 < total <= labels.size - counts.size:
        raise ValueError(
            f"expected 1 to {labels.size - counts.size} validation examples, so that each of the "
            f"{counts.size} classes keeps one for training, got {total} (fraction {fraction} of "
            f"{labels.size}); change the fraction or give more examples"
        )
    quotas = _apportion(counts, total)
    rng = np.random.default_rng(seed)
    of_classes = np.split(np.argsort(members, kind="stable"), np.cumsum(counts)[:-1])
    chosen = [
        rng.choice(examples, quota, replace=False)
        for examples, quota in zip(of_classes, quotas, strict=True)
    ]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(labels.size), validation), validation


def _apportion(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Distributes ``total`` in proportion to ``counts`` by largest remainders, below each count."""
    exact = counts * total / counts.sum()
    quotas = np.floor(exact).astype(np.int64)  # below each count, as total < N
    while (left := total - quotas.sum()) > 0:
        gain = np.where(quotas < counts - 1, exact - quotas, -np.inf)
        order = np.argsort(-gain, kind="stable")[:left]
        quotas[order[np.isfinite(gain[order])]] += 1
    return quotas
