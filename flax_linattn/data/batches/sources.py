"""Batches from your own data sources: grain data sets and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_integers
from flax_linattn.data.batches.batches import ALL_ROWS, ExampleBatches, check_names

Batch = Mapping[str, NDArray]


class GrainBatches(ExampleBatches):
    """Batches of the examples of a ``grain.MapDataset``, which has random access.

    The order, shuffled again in every epoch if the data set shuffles, is a function of the step, so
    a resumed run needs only its step. Only the rows that a process requests are loaded.

    Args:
        dataset: A ``grain.MapDataset`` of one epoch whose elements are examples, dicts of arrays
            of the same shapes.
        batch_size: Number B of examples of a batch; the last batch of an epoch is padded, with
            ``"weight"`` as in ``Batches``.

    Raises:
        ValueError: If ``dataset`` is empty or infinite, or holds something else.

    Example:
        >>> import grain, numpy as np
        >>> rows = grain.MapDataset.source([{"x": np.full(2, i)} for i in range(6)])
        >>> batches = GrainBatches(rows.shuffle(seed=0), batch_size=4)
        >>> len(batches), batches.batch(7)["x"].shape, batches.batch(7)["weight"].tolist()
        (2, (4, 2), [1.0, 1.0, 0.0, 0.0])
    """

    def __init__(self, dataset: Any, batch_size: int) -> None:
        if not hasattr(dataset, "repeat") or not hasattr(dataset, "__len__"):
            raise ValueError(
                "expected a grain.MapDataset, which has random access to examples, got "
                f"{type(dataset).__name__}; remove to_iter_dataset(), or use IteratorBatches"
            )
        length = len(dataset)
        if not length < 2**62:
            raise ValueError(
                "expected a data set of one epoch, got an infinite one; remove repeat()"
            )
        super().__init__(length, batch_size)
        if not isinstance(dataset[0], Mapping):
            raise ValueError(
                "expected examples that are dicts of arrays, got elements of type "
                f"{type(dataset[0]).__name__}; add map(...)"
            )
        check_names(dataset[0])
        self._epochs = dataset.repeat()

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        begin = epoch * self.num_examples
        distinct, places = np.unique(examples, return_inverse=True)
        taken = [self._epochs[begin + int(i)] for i in distinct]
        if any(example is None for example in taken):
            raise ValueError(
                "an example of the data set is None, because filter() of a "
                "grain.MapDataset keeps the indices of removed examples; filter the source "
                "of the data set instead"
            )
        return {name: np.stack([example[name] for example in taken])[places] for name in taken[0]}


class IteratorBatches:
    """Batches of a generator, or of any other iterable that is iterated over once per epoch.

    A run that resumes in the middle of an epoch makes and drops the earlier batches, and each of
    several processes makes whole batches and uses only its own rows. Make that cheap, or use a
    source with random access.

    Args:
        make_epoch: Function of an epoch, counted from 0, that returns its batches, all of one size.
            It must return the same batches at each call.
        num_batches: Number of batches to use of each epoch; further batches are ignored.

    Raises:
        ValueError: If an epoch turns out to have fewer batches.

    Example:
        >>> import numpy as np
        >>> def make_epoch(epoch):
        ...     for i in range(3):
        ...         yield {"x": np.full(2, 10 * epoch + i)}
        >>> batches = IteratorBatches(make_epoch, num_batches=3)
        >>> len(batches), batches.batch(4)["x"].tolist(), batches.batch(0)["x"].tolist()
        (3, [11, 11], [0, 0])
    """

    def __init__(self, make_epoch: Callable[[int], Iterable[Batch]], num_batches: int) -> None:
        check_integers(1, num_batches=num_batches)
        self._make_epoch = make_epoch
        self._num_batches = num_batches
        self._iterator: Iterator[Batch] = iter(())
        self._next = -1  # the step that the iterator gives next
        self._last: tuple[int, Batch] | None = None

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    def batch(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """Returns the batch of a step, counted from 0 over all epochs, or some rows of it."""
        if self._last is None or self._last[0] != step:
            self._last = step, self._advance_to(step)
        # Copies: a generator may fill the same arrays again while a device still reads them.
        return {name: np.array(array[rows]) for name, array in self._last[1].items()}

    def _advance_to(self, step: int) -> Batch:
        epoch, position = divmod(step, self._num_batches)
        begin = epoch * self._num_batches
        if position == 0 or not begin < self._next <= step:
            self._iterator, self._next = iter(self._make_epoch(epoch)), begin
        while self._next <= step:
            try:
                batch = next(self._iterator)
            except StopIteration:
                raise ValueError(
                    f"epoch {epoch} has {self._next - begin} batches, expected "
                    f"{self._num_batches}; pass the correct num_batches"
                ) from None
            self._next += 1
        return batch
