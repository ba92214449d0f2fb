"""Batches as a pure function of the step, so that a resumed run sees the same data."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

ALL_ROWS = slice(None)


class ExampleBatches(abc.ABC):
    """What all batches of single examples share; every example comes exactly once in an epoch.

    The batch of a step depends on nothing but the examples, the options and the step: the position
    in the data is the step itself, and there is no state to save. No example is dropped: a batch
    for which too few are left is filled up with copies of its row 0, and the ``weight`` of a row
    tells a real example (1) from filler (0).

    Args:
        num_examples: N.
        batch_size: B, the rows of every batch; it may exceed N.

    Raises:
        ValueError: either is below 1.
    """

    def __init__(self, num_examples: int, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {batch_size}; raise it")
        if num_examples < 1:
            raise ValueError("expected at least one example, got none; check the data set")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.num_examples // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, NDArray]]:
        """The batches of the first epoch."""
        return (self.batch(step) for step in range(len(self)))

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs.

        Args:
            step: Its epoch is ``step // len(self)``.
            rows: Which of its B rows to load, such as those of one process of several.

        Returns:
            Every array's rows ``[B, ...]`` and ``"weight"``, float32 ``[B]``.

        Raises:
            ValueError: The step is negative.
        """
        if step < 0:
            raise ValueError(f"expected a step of at least 0, got {step}; count from 0")
        epoch, position = divmod(step, len(self))
        if self._last is None or self._last[0] != epoch:
            # Kept for the epoch's other steps; what is kept changes no result.
            self._last = epoch, self._plan(epoch)
        plan = self._last[1][position]
        chosen = plan[rows]
        weight = (chosen >= 0).astype(np.float32)
        return self._take(epoch, np.where(chosen >= 0, chosen, plan[0])) | {"weight": weight}

    @property
    def order(self) -> NDArray[np.int64]:
        """The examples as the batches of the first epoch have them, int64 ``[N]``."""
        plan = self._plan(0)
        return plan[plan >= 0]

    @abc.abstractmethod
    def _plan(self, epoch: int) -> NDArray[np.int64]:
        """The examples of each batch, ``[len(self), B]``; -1 = filler, never in front."""

    @abc.abstractmethod
    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        """The arrays of these examples."""


class ArrayBatches(ExampleBatches):
    """Batches of examples that lie in arrays, each epoch in an order of its own.

    Args:
        arrays: By name.
        num_examples: N.
        batch_size: B.
        seed: Each epoch has its own order, drawn from the seed and the epoch; None keeps the
            arrays' order.

    Attributes:
        arrays: As given.
        seed: As given.

    Raises:
        ValueError: An array is named "weight", or a number is out of range.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        num_examples: int,
        batch_size: int,
        *,
        seed: int | None,
    ) -> None:
        check_names(arrays)
        if seed is not None and seed < 0:
            raise ValueError(f"expected a seed of at least 0, or None, got {seed}; choose another")
        super().__init__(num_examples, batch_size)
        self.arrays = dict(arrays)
        self.seed = seed

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(self.num_examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)
        return in_rows(order, self.batch_size)


class Batches(ArrayBatches):
    """Batches of aligned arrays; every example comes exactly once in an epoch.

    See ``ExampleBatches``: the position in the data is the step itself, and the last batch of an
    epoch is filled up with rows of ``weight`` 0.

    Args:
        arrays: Arrays of one first axis N, one row an example; memory-mapped ones are read row by
            row.
        batch_size: B, the rows of every batch; it may exceed N.
        seed: Each epoch has its own order, drawn from the seed and the epoch; None keeps the
            arrays' order.

    Raises:
        ValueError: The arrays do not match, are empty or hold a "weight" already, or the batch
            size or seed is out of range.

    Example:
        >>> batches = Batches({"x": np.array([10, 11, 12])}, batch_size=2, seed=None)
        >>> len(batches)
        2
        >>> batches.batch(1)["x"].tolist(), batches.batch(1)["weight"].tolist()
        ([12, 12], [1.0, 0.0])
        >>> batches.batch(2)["x"].tolist()  # the next epoch
        [10, 11]
    """

    def __init__(self, arrays: Mapping[str, NDArray], batch_size: int, *, seed: int | None) -> None:
        sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if len(set(sizes.values())) != 1 or not all(sizes.values()):
            raise ValueError(
                f"expected arrays of one first axis of at least one example, got sizes {sizes}; "
                "pass one row for each example in every array"
            )
        super().__init__(arrays, next(iter(sizes.values())), batch_size, seed=seed)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        return {name: array[examples] for name, array in self.arrays.items()}


class BucketBatches(Batches):
    """``Batches`` of sequences of about one length, so that little padding is computed.

    A sequence belongs to the shortest of the given lengths that holds it, and each batch holds
    sequences of one of them, its arrays cut to that length: a model is compiled once for each.
    Which sequences share a batch, and the order of the batches, change from epoch to epoch.

    Args:
        arrays: As in ``Batches``; "mask", bool ``[N, T]``, says where sequences end: a row is True
            up to its last token.
        batch_size: B, the rows of every batch.
        lengths: Lengths to cut to, at most T; the longest holds every sequence.
        time_arrays: Names of the arrays ``[N, T, ...]`` to cut.
        seed: As in ``Batches``; None takes the shortest first.

    Raises:
        ValueError: As in ``Batches``; there is no mask, or the lengths do not fit it.

    Example:
        >>> mask = np.arange(4) < np.array([[2], [4], [1]])
        >>> batches = BucketBatches({"mask": mask}, 2, lengths=(2, 4), time_arrays=(), seed=None)
        >>> [batch["mask"].shape for batch in batches], batches.efficiency
        ([(2, 2), (2, 4)], 0.875)
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        batch_size: int,
        *,
        lengths: Sequence[int],
        time_arrays: Sequence[str] = ("values",),
        seed: int | None,
    ) -> None:
        super().__init__(arrays, batch_size, seed=seed)
        missing = {"mask", *time_arrays} - set(arrays)
        if missing:
            raise ValueError(f"expected arrays {sorted(missing)} among those to cut, got none")
        mask = arrays["mask"]
        needed = np.where(mask.any(1), mask.shape[1] - np.argmax(mask[:, ::-1], axis=1), 1)
        self._lengths = np.unique(np.minimum(np.asarray(lengths, np.int64), mask.shape[1]))
        if not self._lengths.size or self._lengths[0] < 1 or self._lengths[-1] < needed.max():
            raise ValueError(
                f"expected lengths of at least 1 of which the longest holds all sequences, of up "
                f"to {needed.max()} tokens, got {list(lengths)}; add {needed.max()}"
            )
        self._time_arrays = {"mask", *time_arrays}
        self._bucket = np.searchsorted(self._lengths, needed)
        self._num_batches = count_buckets(self._bucket, batch_size)
        self._tokens = int(mask.sum()), int(np.sum(self._lengths[self._bucket]))

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    @property
    def efficiency(self) -> float:
        """Share of real tokens among all that are computed, filler rows left out."""
        real, computed = self._tokens
        return real / computed

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(self.num_examples)
        rng = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        if rng is not None:
            order = rng.permutation(self.num_examples)
        plan = bucket_rows(self._bucket, len(self._lengths), self.batch_size, order)
        if rng is None or len(self._lengths) == 1:  # one bucket is Batches
            return plan
        return rng.permutation(plan, axis=0)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        length = self._lengths[self._bucket[examples[0]]]
        return {
            name: array[examples, :length] if name in self._time_arrays else array[examples]
            for name, array in self.arrays.items()
        }


def count_buckets(bucket: NDArray[np.int64], batch_size: int) -> int:
    """Batches of an epoch, each of examples of one bucket; int64 [N] says whose bucket is which."""
    return int(np.sum(-(-np.bincount(bucket) // batch_size)))


def bucket_rows(
    bucket: NDArray[np.int64], num_buckets: int, batch_size: int, order: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Batches of examples of one bucket, [batches, batch_size], by bucket; -1 = filler.

    Args:
        bucket: int64 [N], of each example.
        num_buckets: more than the largest of them.
        batch_size: rows.
        order: in which examples are taken, int64 [N].
    """
    members = [order[bucket[order] == i] for i in range(num_buckets)]
    return np.concatenate([in_rows(part, batch_size) for part in members if part.size])


def check_names(arrays: Iterable[str]) -> None:
    """Refuses an array of the name that batches add.

    Raises:
        ValueError: One is named "weight".
    """
    if "weight" in arrays:
        raise ValueError(
            'expected no array named "weight", as batches carry their own, got one; rename it'
        )


def in_rows(order: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Examples in their order as rows of one size, the last one filled up with -1."""
    return np.pad(order, (0, -len(order) % batch_size), constant_values=-1).reshape(-1, batch_size)
