"""Batches as a pure function of the step, so that a resumed run sees the same data."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import MAX_SEED, OptionError, check_integers, check_same_length

ALL_ROWS = slice(None)


class ExampleBatches(abc.ABC):
    """Base class of batches of examples; an epoch contains every example exactly once.

    The batch of a step depends only on the examples, the options and the step: the position in the
    data is the step itself, and there is no state to save. No example is dropped: the last batch of
    an epoch is filled up with copies of its row 0, and ``weight`` marks real examples (1) and
    filler (0).

    Args:
        num_examples: Total number N of examples.
        batch_size: Number B of examples of a batch; it may exceed N.
        seed: Random seed; each epoch has its own order, sampled from the seed and the epoch. None
            keeps the order of the examples.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(self, num_examples: int, batch_size: int, *, seed: int | None = None) -> None:
        check_integers(1, batch_size=batch_size)
        check_integers(0, MAX_SEED, seed=seed)
        if num_examples < 1:
            raise ValueError("expected at least one example, got none; check the data set")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.seed = seed
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
            step: Training step, of epoch ``step // len(self)``.
            rows: Examples of the batch to load, out of B, such as the examples of one process.

        Returns:
            Every array's rows ``[B, ...]`` and ``"weight"``, float32 ``[B]``.

        Raises:
            ValueError: If the step is negative.
        """
        check_integers(0, step=step)
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
        """Indices of the examples in the order of the first epoch, int64 ``[N]``."""
        plan = self._plan(0)
        return plan[plan >= 0]

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        """Examples of each batch, ``[len(self), B]``; -1 marks filler, which comes last."""
        return _in_rows(self._order(self._epoch_rng(epoch)), self.batch_size)

    def _epoch_rng(self, epoch: int) -> np.random.Generator | None:
        return None if self.seed is None else np.random.default_rng([self.seed, epoch])

    def _order(self, rng: np.random.Generator | None) -> NDArray[np.int64]:
        return np.arange(self.num_examples) if rng is None else rng.permutation(self.num_examples)

    @abc.abstractmethod
    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        """The arrays of these examples."""


class Batches(ExampleBatches):
    """Batches of aligned arrays; an epoch contains every example exactly once.

    See ``ExampleBatches``: the position in the data is the step itself, and the last batch of an
    epoch is filled up with rows of ``weight`` 0.

    Args:
        arrays: Arrays with a common first axis N, one entry for each example; memory-mapped arrays
            are read example by example.
        batch_size: Number B of examples of a batch; it may exceed N.
        seed: As in ``ExampleBatches``.

    Attributes:
        arrays: As given.
        seed: As given.

    Raises:
        ValueError: If the arrays do not match, are empty or hold a "weight" already, or the batch
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
        super().__init__(count_rows(arrays), batch_size, seed=seed)
        self.arrays = dict(arrays)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        return {name: array[examples] for name, array in self.arrays.items()}


class LengthBatches(ExampleBatches):
    """Base class of batches of sequences of similar length, which need little padding.

    A sequence is padded to the shortest of the given lengths that is long enough, and all sequences
    of a batch have the same length, so a model is compiled once per length. The composition and the
    order of the batches change from epoch to epoch.

    Args:
        sizes: Number of tokens of each sequence, int64 ``[N]``.
        batch_size: Number B of examples of a batch.
        lengths: Lengths to pad to; the longest must hold every sequence.
        seed: Random seed, as in ``ExampleBatches``; None takes the shortest sequences first.

    Raises:
        ValueError: If there are no sequences, or a number is out of range.
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        batch_size: int,
        *,
        lengths: Sequence[int],
        seed: int | None,
    ) -> None:
        super().__init__(len(sizes), batch_size, seed=seed)
        self.sizes = sizes
        self._lengths = np.unique(np.asarray(lengths, np.int64))
        longest = sizes.max()
        if not self._lengths.size or self._lengths[0] < 1 or self._lengths[-1] < longest:
            raise OptionError(
                "expected lengths of at least 1, the largest of which holds the longest "
                f"sequence of {longest} tokens, got {list(lengths)}; add {longest}.",
                "lengths",
            )
        self._bucket = np.searchsorted(self._lengths, sizes)
        self._num_batches = count_buckets(self._bucket, batch_size)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    @property
    def efficiency(self) -> float:
        """Fraction of real tokens among all computed tokens, without filler rows."""
        return float(self.sizes.sum() / self._lengths[self._bucket].sum())

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        rng = self._epoch_rng(epoch)
        order = self._order(rng)
        members = [order[self._bucket[order] == i] for i in range(len(self._lengths))]
        plan = np.concatenate([_in_rows(part, self.batch_size) for part in members if part.size])
        rng = None if rng is None else self._plan_rng(epoch, rng)
        return plan if rng is None else rng.permutation(plan, axis=0)

    def _plan_rng(self, epoch: int, rng: np.random.Generator) -> np.random.Generator | None:
        """Returns the generator that shuffles the batches of an epoch, the same for all seeds.

        The lengths of the batches then have the same order for all seeds, so that several runs can
        be trained at once (``training.fit``).
        """
        return np.random.default_rng(epoch) if len(self._lengths) > 1 else None

    def _length(self, examples: NDArray[np.int64]) -> int:
        """The length of a batch of these examples."""
        return int(self._lengths[self._bucket[examples[0]]])


class BucketBatches(LengthBatches):
    """``Batches`` of padded sequences, cut to one of several lengths; see ``LengthBatches``.

    Args:
        arrays: Arrays as in ``Batches``; "mask", bool ``[N, T]``, is True up to the last token of
            each sequence.
        batch_size: Number B of examples of a batch.
        lengths: Lengths to cut to, at most T; the longest holds every sequence.
        time_arrays: Names of the arrays ``[N, T, ...]`` to cut.
        seed: As in ``LengthBatches``; here the order of the batches depends on it, too.

    Raises:
        ValueError: If an argument is invalid (see ``Batches``), there is no mask, or a sequence is
            longer than every length.

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
        count_rows(arrays)
        missing = {"mask", *time_arrays} - set(arrays)
        if missing:
            raise ValueError(
                f"expected arrays {sorted(missing)} to cut, but there are none with these names"
            )
        mask = arrays["mask"]
        sizes = np.where(mask.any(1), mask.shape[1] - np.argmax(mask[:, ::-1], axis=1), 1)
        lengths = [min(length, mask.shape[1]) for length in lengths]
        super().__init__(sizes, batch_size, lengths=lengths, seed=seed)
        self.arrays = dict(arrays)
        self._time_arrays = {"mask", *time_arrays}

    def _plan_rng(self, epoch: int, rng: np.random.Generator) -> np.random.Generator | None:
        return rng if len(self._lengths) > 1 else None  # one bucket is Batches

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        length = self._length(examples)
        return {
            name: array[examples, :length] if name in self._time_arrays else array[examples]
            for name, array in self.arrays.items()
        }


class RaggedBatches(LengthBatches):
    """``LengthBatches`` of unpadded sequences, which are padded only when a batch is made.

    Useful if a few sequences are much longer than the others, and for overlapping chunks, which may
    be views of one array.

    Args:
        arrays: Arrays ``[length_i, ...]`` of every sequence, by name. All arrays of a sequence have
            the same length, and all arrays of a name the same dtype.
        batch_size: Number B of examples of a batch.
        lengths: Lengths to pad to; the longest must hold every sequence.
        seed: As in ``LengthBatches``.

    Raises:
        ValueError: If there are no sequences, arrays do not match, or lengths do not fit.

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
                'expected arrays, none of them named "mask" (batches add their own mask), '
                f"got {list(arrays)}"
            )
        check_same_length(**arrays)
        self.arrays = {name: list(parts) for name, parts in arrays.items()}
        first = next(iter(self.arrays.values()))
        sizes = np.array([len(x) for x in first], np.int64)
        super().__init__(sizes, batch_size, lengths=lengths, seed=seed)
        for name, parts in self.arrays.items():
            check_alike(name, parts, sizes)

    def _plan_rng(self, epoch: int, rng: np.random.Generator) -> np.random.Generator | None:
        return np.random.default_rng(epoch)  # of a single length, too: stored runs have it so

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        length = self._length(examples)
        batch = {"mask": np.arange(length) < self.sizes[examples][:, None]}
        for name, parts in self.arrays.items():
            rows = [parts[i] for i in examples]
            padded = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
            for row, values in zip(padded, rows, strict=True):
                row[: len(values)] = values
            batch[name] = padded
        return batch


def check_alike(
    name: str, parts: Sequence[NDArray], sizes: Sequence[int] | NDArray[np.int64]
) -> None:
    """Raises an error for arrays that do not fit into one batch."""
    for index, (values, size) in enumerate(zip(parts, sizes, strict=True)):
        if len(values) != size:
            raise ValueError(
                f"expected {size} values in {name} of sequence {index}, as in its other "
                f"arrays, got {len(values)}; make the lengths equal"
            )
        if values.shape[1:] != parts[0].shape[1:] or values.dtype != parts[0].dtype:
            raise ValueError(
                f"expected {name} of sequence {index} as that of the first, {parts[0].dtype} "
                f"{parts[0].shape[1:]} a token, got {values.dtype} {values.shape[1:]}; cast it"
            )


def count_rows(arrays: Mapping[str, NDArray]) -> int:
    """Returns N, the size of the first axis of all arrays."""
    check_names(arrays)
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or not all(sizes.values()):
        raise ValueError(
            "expected arrays with the same first axis, at least one example, got sizes "
            f"{sizes}; pass one row per example in every array"
        )
    return next(iter(sizes.values()))


def count_buckets(bucket: NDArray[np.int64], batch_size: int) -> int:
    """Counts the batches of an epoch, given the bucket of each example, int64 [N]."""
    return int(np.sum(-(-np.bincount(bucket) // batch_size)))


def check_names(arrays: Iterable[str]) -> None:
    """Raises an error for an array named "weight", which batches add."""
    if "weight" in arrays:
        raise ValueError(
            'the name "weight" is reserved for the weights that batches add; rename that array'
        )


def _in_rows(order: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Arranges examples in rows of equal size; the last row is filled up with -1."""
    return np.pad(order, (0, -len(order) % batch_size), constant_values=-1).reshape(-1, batch_size)
