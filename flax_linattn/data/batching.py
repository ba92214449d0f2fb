"""Batches as a pure function of the step, so that a resumed run sees the same data."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray


class Batches:
    """Batches of aligned arrays; every example comes exactly once in an epoch.

    The batch of a step depends on nothing but the arrays, the batch size, the seed and the step:
    the position in the data is the step itself, and there is no state to save. No example is
    dropped: the last batch of an epoch is filled up with copies of its row 0, and the ``weight`` of
    a row tells a real example (1) from filler (0).

    Args:
        arrays: Arrays of one first axis N, one row an example.
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
        if "weight" in arrays:
            raise ValueError(
                'expected no array named "weight", as batches carry their own, got one; rename it'
            )
        if batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {batch_size}; raise it")
        if seed is not None and seed < 0:
            raise ValueError(f"expected a seed of at least 0, or None, got {seed}; choose another")
        self.num_examples = next(iter(sizes.values()))
        self.batch_size = batch_size
        self.seed = seed
        self._arrays = dict(arrays)
        self._last_order: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.num_examples // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, NDArray]]:
        """The batches of the first epoch."""
        return (self.batch(step) for step in range(len(self)))

    def batch(self, step: int) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs.

        Args:
            step: Its epoch is ``step // len(self)``.

        Returns:
            Every array's rows ``[B, ...]`` and ``"weight"``, float32 ``[B]``.

        Raises:
            ValueError: The step is negative.
        """
        if step < 0:
            raise ValueError(f"expected a step of at least 0, got {step}; count from 0")
        epoch, position = divmod(step, len(self))
        start = position * self.batch_size
        rows = self._order(epoch)[start : start + self.batch_size]
        filler = self.batch_size - len(rows)
        weight = np.ones(self.batch_size, np.float32)
        weight[len(rows) :] = 0
        rows = np.concatenate([rows, np.repeat(rows[0], filler)])
        return {name: array[rows] for name, array in self._arrays.items()} | {"weight": weight}

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self.seed is None:
            epoch = 0  # one order for all
        if self._last_order is None or self._last_order[0] != epoch:
            order = np.arange(self.num_examples)
            if self.seed is not None:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)
            # Kept for the epoch's other steps; what is kept changes no result.
            self._last_order = epoch, order
        return self._last_order[1]
