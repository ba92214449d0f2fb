"""Batches of sequences of different lengths, padded as they are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, same_number
from flax_linattn.data.batching import ExampleBatches, bucket_rows, check_names, count_buckets


class RaggedBatches(ExampleBatches):
    """``BucketBatches`` of sequences that lie as they are: nothing is padded before it is taken.

    For sequences of which a few are much longer than the others, and for pieces that overlap, which
    may be views of one array. See ``BucketBatches`` for how batches are made up. Here the lengths
    follow one another in an order that is that of all seeds, so that runs of several seeds may be
    trained at once (``training.fit``).

    Args:
        arrays: By name, the arrays of every sequence, ``[length_i, ...]``; those of one sequence
            have one length, and those of one name one dtype.
        batch_size: B, the rows of every batch.
        lengths: Lengths to pad to; the longest holds every sequence.
        seed: Each epoch has its own order, drawn from the seed and the epoch; None takes the
            shortest first.

    Raises:
        ValueError: There are no sequences, arrays that do not match, or lengths that do not fit.

    Example:
        >>> batches = RaggedBatches({"x": [np.ones(2), np.ones(5), np.ones(1)]}, 2,
        ...                         lengths=(2, 5), seed=None)
        >>> [batch["mask"].astype(int).tolist() for batch in batches]
        [[[1, 1], [1, 0]], [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]]
    """

    def __init__(
        self,
        arrays: Mapping[str, Sequence[NDArray]],
        batch_size: int,
        *,
        lengths: Sequence[int],
        seed: int | None,
    ) -> None:
        check_names(arrays)
        if not arrays or "mask" in arrays:
            raise ValueError(
                'expected arrays, and none named "mask", as batches carry their own, got '
                f"{list(arrays)}"
            )
        if seed is not None and seed < 0:
            raise ValueError(f"expected a seed of at least 0, or None, got {seed}; choose another")
        same_number(**arrays)
        self.arrays = {name: list(parts) for name, parts in arrays.items()}
        first = next(iter(self.arrays.values()))
        super().__init__(len(first), batch_size)
        self.sizes = np.array([len(x) for x in first], np.int64)
        self.seed = seed
        for name, parts in self.arrays.items():
            _check_alike(name, parts, self.sizes)
        self._lengths = np.unique(np.asarray(lengths, np.int64))
        longest = self.sizes.max()
        if not self._lengths.size or self._lengths[0] < 1 or self._lengths[-1] < longest:
            raise OptionError(
                f"expected lengths of at least 1 of which the longest holds all sequences, of up "
                f"to {longest} tokens, got {list(lengths)}; add {longest}.",
                "lengths",
            )
        self._bucket = np.searchsorted(self._lengths, self.sizes)
        self._num_batches = count_buckets(self._bucket, batch_size)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(self.num_examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)
        plan = bucket_rows(self._bucket, len(self._lengths), self.batch_size, order)
        if self.seed is None:
            return plan
        return np.random.default_rng(epoch).permutation(plan, axis=0)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        length = self._lengths[self._bucket[examples[0]]]
        batch = {"mask": np.arange(length) < self.sizes[examples][:, None]}
        for name, parts in self.arrays.items():
            rows = [parts[i] for i in examples]
            padded = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
            for row, values in zip(padded, rows, strict=True):
                row[: len(values)] = values
            batch[name] = padded
        return batch


def _check_alike(name: str, parts: Sequence[NDArray], sizes: NDArray[np.int64]) -> None:
    """Refuses arrays that would not fit into one batch as they are.

    Raises:
        ValueError: One has another length than its sequence, or another shape or dtype than the
            first of its name.
    """
    for index, (values, size) in enumerate(zip(parts, sizes, strict=True)):
        if len(values) != size:
            raise ValueError(
                f"expected {size} values in {name} of sequence {index}, as many as in its other "
                f"arrays, got {len(values)}; make them equal"
            )
        if values.shape[1:] != parts[0].shape[1:] or values.dtype != parts[0].dtype:
            raise ValueError(
                f"expected {name} of sequence {index} as that of the first, {parts[0].dtype} "
                f"{parts[0].shape[1:]} a token, got {values.dtype} {values.shape[1:]}; cast it"
            )
