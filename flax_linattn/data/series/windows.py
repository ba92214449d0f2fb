"""Windows of a long series, and its chronological split."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.data.batches.batches import ExampleBatches, check_names


class Split(NamedTuple):
    """Rows of a series for training, validation and test, in the order of time.

    Attributes:
        train: The first rows.
        validation: Validation rows, after those for training.
        test: Test rows, after those for validation.
    """

    train: range
    validation: range
    test: range


def chronological_split(num_steps: int, parts: str = "0.7/0.1/0.2") -> Split:
    """Splits rows by time into training, validation and test.

    Args:
        num_steps: Number T of rows.
        parts: Training, validation and test part, separated by "/": fractions of all rows, or
            numbers of rows, which exclude any rows after them. The first and the last fraction are
            rounded down, and the middle part takes the rest, as in Time-Series-Library.

    Raises:
        ValueError: If ``parts`` are not three such numbers, or do not fit the series.

    Example:
        >>> chronological_split(11)
        Split(train=range(0, 7), validation=range(7, 9), test=range(9, 11))
        >>> chronological_split(17420, "8640/2880/2880").test
        range(11520, 14400)
    """
    try:
        train, middle, test = (float(part) for part in parts.split("/"))
    except ValueError:
        raise OptionError(
            f"expected three sizes such as 0.7/0.1/0.2 or 8640/2880/2880, got {parts!r}", "split"
        ) from None
    if min(train, middle, test) < 0 or train == 0:
        raise OptionError(
            f"expected sizes of at least 0, the first above 0, got {parts!r}", "split"
        )
    if max(train, middle, test) <= 1 and not _whole(parts):
        if abs(train + middle + test - 1) > 1e-6:
            raise OptionError(f"expected fractions that add up to 1, got {parts!r}", "split")
        counts = [int(train * num_steps), 0, int(test * num_steps)]
        counts[1] = num_steps - counts[0] - counts[2]
    else:
        if not all(part.is_integer() for part in (train, middle, test)):
            raise OptionError(
                f"expected fractions, or integer numbers of rows, got {parts!r}", "split"
            )
        counts = [int(part) for part in (train, middle, test)]
    if sum(counts) > num_steps:
        raise OptionError(
            f"the series has {num_steps} rows, but {parts} needs {sum(counts)}; choose "
            "another split",
            "split",
        )
    ends = np.cumsum([0, *counts]).tolist()
    return Split(*(range(a, b) for a, b in itertools.pairwise(ends)))


def _whole(parts: str) -> bool:
    """Whether parts up to 1 are numbers of rows: 1/1/1 are numbers, 1/0/0 are fractions."""
    numbers = [part.strip() for part in parts.split("/")]
    return all(number in ("0", "1") for number in numbers) and numbers.count("1") > 1


class Windows(ExampleBatches):
    """Batches of windows of a series, one every ``stride`` rows; see ``Batches``.

    Windows are cut out on demand, so the series is in memory only once.

    Args:
        arrays: Arrays ``[T, ...]`` of equal length.
        rows: Rows that contain the horizons of the windows: a part of a split. Contexts may be in
            the previous part. For several series, which are concatenated in the arrays, a range of
            rows for each; series without a window are skipped.
        context_length: Number of rows of a window before its horizon.
        horizon: Number of rows to forecast.
        stride: Number of rows from one window to the next; 1 gives all windows.
        batch_size: Number B of windows of a batch.
        seed: Random seed of the order in each epoch; None keeps the order of time.
        begins: First row of each series; its windows do not include earlier rows.

    Attributes:
        arrays: As given.
        context_length: As given.
        horizon: As given.
        starts: First row of each window, int64 ``[N]``.
        owners: Index of the series of each window, from 0, int64 ``[N]``.
        begins: First row of each series.
        rows: Range of rows of each series.

    Raises:
        ValueError: If a length is below 1, arrays do not match or are named "weight", rows are too
            few for one window, ``begins`` does not fit the rows, or a batch size or seed is out of
            range.

    Example:
        >>> windows = Windows({"values": np.arange(10.0)}, range(6, 10), context_length=3,
        ...                   horizon=2, batch_size=2, seed=None)
        >>> windows.num_examples, windows.batch(1)["values"].tolist()
        (3, [[5.0, 6.0, 7.0, 8.0, 9.0], [5.0, 6.0, 7.0, 8.0, 9.0]])
        >>> two = Windows({"values": np.arange(10.0)}, [range(4), range(4, 10)], begins=(0, 4),
        ...               context_length=3, horizon=2, batch_size=2, seed=None)
        >>> two.starts.tolist(), two.owners.tolist()  # the first series is too short
        ([4, 5], [1, 1])
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        rows: range | Sequence[range],
        *,
        context_length: int,
        horizon: int,
        stride: int = 1,
        batch_size: int,
        seed: int | None,
        begins: Sequence[int] = (0,),
    ) -> None:
        check_integers(1, context_length=context_length, horizon=horizon, stride=stride)
        of_each = [rows] if isinstance(rows, range) else list(rows)
        if len(of_each) != len(begins):
            raise ValueError(
                f"expected rows of {len(begins)} series, one range per value of begins, got "
                f"{len(of_each)}; pass the same number of both"
            )
        lengths = {name: len(array) for name, array in arrays.items()}
        stop = max((part.stop for part in of_each), default=0)
        if len(set(lengths.values())) != 1 or stop > min(lengths.values()):
            raise ValueError(f"expected arrays of one length of at least {stop}, got {lengths}")
        starts, owners = [], []
        for owner, (begin, part) in enumerate(zip(begins, of_each, strict=True)):
            first = max(part.start - context_length, begin)
            count = part.stop - first - context_length - horizon + 1
            starts.append(np.arange(first, first + count, stride, dtype=np.int64))
            owners.append(np.full(len(starts[-1]), owner, np.int64))
        self.begins = tuple(begins)
        self.rows = tuple(of_each)
        self.starts = np.concatenate(starts)
        self.owners = np.concatenate(owners)
        if not self.starts.size:
            raise ValueError(
                f"a window of {context_length} rows and {horizon} to forecast needs "
                f"{context_length + horizon}, and "
                + (
                    f"rows {first} to {part.stop - 1} are {part.stop - first}"
                    if len(of_each) == 1
                    else f"none of {len(of_each)} series has as many"
                )
                + "; shorten it, or give more data"
            )
        self.context_length, self.horizon = context_length, horizon
        check_names(arrays)
        super().__init__(len(self.starts), batch_size, seed=seed)
        self.arrays = dict(arrays)
        self._offsets = np.arange(context_length + horizon)

    def take(self, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        """Returns windows by their index in the order of time: arrays ``[N, L + H, ...]``."""
        index = self.starts[examples, None] + self._offsets
        return {name: array[index] for name, array in self.arrays.items()}

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        return self.take(examples)
