"""Packing of several short sequences into one row, which saves padding."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_same_length
from flax_linattn.data.batches.batches import check_alike


class Packed(NamedTuple):
    """Sequences packed into rows of equal length.

    Attributes:
        arrays: Packed arrays ``[N, length, ...]`` by name, as ``Batches`` and models accept them,
            with "mask", bool ``[N, length]`` (True marks valid tokens), and "segment_ids", int32
            ``[N, length]`` (a different id for each sequence of a row).
        sequence: Index of the sequence of each token, int32 ``[N, length]``; -1 marks padding.
    """

    arrays: dict[str, NDArray]
    sequence: NDArray[np.int32]

    @property
    def efficiency(self) -> float:
        """Fraction of real tokens among all tokens."""
        return float(np.mean(self.arrays["mask"]))


def pack(arrays: Mapping[str, Sequence[NDArray]], length: int) -> Packed:
    """Packs sequences into rows of equal length, each into the fullest row with enough room.

    Sequences are taken in order of decreasing length (best-fit decreasing), so the rows depend only
    on the lengths. Every sequence is in exactly one row, unsplit.

    Args:
        arrays: Arrays ``[length_i, ...]`` of every sequence, by name; all arrays of a sequence have
            its length.
        length: Number of tokens of a packed row.

    Raises:
        ValueError: If there are no sequences, one is empty or longer than a row, arrays do not
            match, or one is named "mask" or "segment_ids".

    Example:
        >>> packed = pack({"values": [np.ones(3), np.ones(4), np.ones(1)]}, length=4)
        >>> packed.arrays["segment_ids"].tolist(), packed.efficiency
        ([[0, 0, 0, 0], [0, 0, 0, 1]], 1.0)
        >>> packed.sequence.tolist()
        [[1, 1, 1, 1], [0, 0, 0, 2]]
    """
    arrays = {name: [np.asarray(part) for part in parts] for name, parts in arrays.items()}
    lengths = _lengths(arrays, length)
    rows = _best_fit(lengths, length)
    shape = (len(rows), length)
    sequence, segment_ids = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    packed = {
        name: np.zeros((*shape, *parts[0].shape[1:]), parts[0].dtype)
        for name, parts in arrays.items()
    }
    for row, members in enumerate(rows):
        begin = 0
        for segment, index in enumerate(members):
            span = slice(begin, begin + lengths[index])
            sequence[row, span], segment_ids[row, span] = index, segment
            for name, parts in arrays.items():
                packed[name][row, span] = parts[index]
            begin = span.stop
        segment_ids[row, begin:] = len(members) - 1
    return Packed({**packed, "mask": sequence >= 0, "segment_ids": segment_ids}, sequence)


def _lengths(arrays: Mapping[str, Sequence[NDArray]], length: int) -> list[int]:
    if taken := {"mask", "segment_ids"} & set(arrays):
        raise ValueError(
            f"the name {sorted(taken)[0]!r} is reserved for an array that packing adds; "
            "rename that array"
        )
    check_same_length(**arrays)
    lengths = [len(part) for part in next(iter(arrays.values()), [])]
    if not lengths:
        raise ValueError("expected arrays of at least one sequence, got none")
    for name, parts in arrays.items():
        check_alike(name, parts, lengths)
    for index, size in enumerate(lengths):
        if size == 0:
            raise ValueError(f"sequence {index} has no tokens; drop it")
        if size > length:
            raise ValueError(
                f"sequence {index} has {size} tokens, which does not fit rows of {length}; "
                "drop or split it, or raise length"
            )
    return lengths


def _best_fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Returns the sequences of each row."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        place = bisect.bisect_left(room, (size, -1))
        if place < len(room):
            left, row = room.pop(place)
        else:
            left, row = length, len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(room, (left - size, row))
    return rows
