"""ListOps generators: Long Range Arena's, by rejection, and TaylorShift's, of exact length."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.data.generators.listops.expressions import (
    DIGITS,
    END,
    MAX,
    MED,
    MIN,
    OPERATIONS,
    SM,
    apply_operation,
)


class GeneratedListOps(abc.ABC):
    """Generator of expressions for ``data.GeneratedBatches``; the labels are the values."""

    num_classes = DIGITS

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Generates a batch of expressions and their values.

        Returns:
            "tokens", int32 ``[rows, T]``; "mask", bool ``[rows, T]``, False at the padding at the
            end; "labels", int32 ``[rows]``, the values.
        """


class RandomIntegers:
    """Random integers one by one, for loops that cannot be vectorized.

    They come from a buffer, because a call of the NumPy generator for each integer is slow.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left: list[float] = []

    def below(self, bound: int) -> int:
        """Samples an integer from 0 to ``bound - 1`` uniformly, with 53 bits of precision."""
        if not self._left:
            self._left = self._rng.random(4096).tolist()
        return int(self._left.pop() * bound)


LRA_OPERATIONS = (MIN, MAX, MED, SM)
"""Operations of Long Range Arena."""


@dataclass(frozen=True)
class SampledListOps(GeneratedListOps):
    """Generator of expressions with lengths between two bounds, by rejection sampling.

    A value is a list with probability ``list_probability`` while lists may be deeper, else a digit;
    a list has 2 to ``max_arguments`` values and one of four operations.

    Source: Y. Tay et al., "Long Range Arena" (2021), ``listops.py`` of its public code, which keeps
        lengths from 501 to 1,999. It removes duplicates, which do not occur among random
        expressions of hundreds of tokens.

    Attributes:
        min_length: Minimum number of tokens of an expression.
        max_length: Maximum number of tokens of an expression; batches are padded to it.
        max_depth: Lists in lists, the outermost one among them.
        max_arguments: Values of a list, at least 2.
        list_probability: Probability that a value that may be a list is one.

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> task = SampledListOps(min_length=5, max_length=12)
        >>> batch = task.sample(np.random.default_rng(0), 2)
        >>> batch["tokens"].shape, bool((batch["mask"].sum(axis=1) >= 5).all())
        ((2, 12), True)
    """

    min_length: int = 501
    max_length: int = 1999
    max_depth: int = 10
    max_arguments: int = 10
    list_probability: float = 0.25

    def __post_init__(self) -> None:
        check_integers(4, 10**6, min_length=self.min_length)
        check_integers(self.min_length, 10**6, max_length=self.max_length)
        check_integers(1, 100, max_depth=self.max_depth)
        check_integers(2, 1000, max_arguments=self.max_arguments)
        if not 0 < self.list_probability < 1:
            raise OptionError(
                f"list_probability must be above 0 and below 1, got {self.list_probability}.",
                "list_probability",
            )
        mean = self.list_probability * (2 + self.max_arguments) / 2
        if mean <= 1 and self.min_length > 100:
            raise OptionError(
                f"expressions of {self.min_length:,} tokens are too rare, because a list "
                f"contains {mean:.2g} lists on average; raise list_probability.",
                "list_probability",
                "min_length",
            )

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        randoms = RandomIntegers(rng)
        tokens = np.zeros((rows, self.max_length), np.int32)
        mask = np.zeros((rows, self.max_length), bool)
        labels = np.zeros(rows, np.int32)
        for row in range(rows):
            own: list[int] = []
            while True:
                own.clear()
                value = self._sample(randoms, own)
                if value is not None and len(own) >= self.min_length:
                    break
            tokens[row, : len(own)], mask[row, : len(own)], labels[row] = own, True, value
        return {"tokens": tokens, "mask": mask, "labels": labels}

    def _sample(self, randoms: RandomIntegers, tokens: list[int]) -> int | None:
        """Writes an expression, and returns its value; None once it is too long."""
        below, probability = randoms.below, self.list_probability
        open_lists: list[tuple[int, int, list[int]]] = []  # operation, number of values, values
        while True:
            if len(tokens) + len(open_lists) >= self.max_length:
                return None
            if len(open_lists) < self.max_depth and below(2**32) < probability * 2**32:
                operation = LRA_OPERATIONS[below(len(LRA_OPERATIONS))]
                tokens.append(operation)
                open_lists.append((operation, 2 + below(self.max_arguments - 1), []))
                continue
            value = below(DIGITS)
            tokens.append(value)
            while open_lists:
                operation, size, values = open_lists[-1]
                values.append(value)
                if len(values) < size:
                    break
                tokens.append(END)
                value = apply_operation(operation, values)
                open_lists.pop()
            if not open_lists:
                return value


MAX_ATTEMPTS = 1000
"""Maximum number of attempts for an expression of the required length."""

MIN_LENGTH = 4
"""Number of tokens of a list of two digits."""


@dataclass(frozen=True)
class GrownListOps(GeneratedListOps):
    """Generator of expressions that grow to an exact length, one length per batch.

    An expression starts as a list of digits. While five tokens are left, a random digit, except in
    the deepest lists, is replaced by a list of digits; finally, digits are added to lists that have
    room. There are six operations; the median of an even number of values is the upper one.

    Source: T. Nauen et al., "TaylorShift" (2024), ``ListOps`` of its public code, which samples the
        length of each batch from 500 to 2,000. It uses random numbers in another order.

    Attributes:
        min_length: Minimum number of tokens of an expression.
        max_length: Maximum number of tokens; the length of a batch is sampled between the two.
        max_depth: Lists in lists, the outermost one among them.
        max_arguments: Values of a list, at least 2.
        multiple_of: Batches are padded to a multiple of this number, which limits the number of
            compiled programs.

    Raises:
        OptionError: If a number is out of range, or no expression can have that length.

    Example:
        >>> task = GrownListOps(min_length=9, max_length=9)
        >>> batch = task.sample(np.random.default_rng(0), 2)
        >>> batch["tokens"].shape, batch["mask"].all(), batch["labels"].dtype
        ((2, 9), np.True_, dtype('int32'))
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_arguments: int = 10
    multiple_of: int = 1

    def __post_init__(self) -> None:
        check_integers(MIN_LENGTH, 10**6, min_length=self.min_length)
        check_integers(self.min_length, 10**6, max_length=self.max_length)
        check_integers(1, 100, max_depth=self.max_depth)
        check_integers(2, 1000, max_arguments=self.max_arguments)
        check_integers(1, 10**6, multiple_of=self.multiple_of)
        # Half of what a full tree holds: above it few of the drawn trees reach the length.
        max_tokens = sum(self.max_arguments**depth for depth in range(min(self.max_depth, 8) + 1))
        if self.max_length > max_tokens / 2:
            raise OptionError(
                f"max_length must be at most half of {max_tokens:,}, the tokens of lists of "
                f"{self.max_arguments} values nested {self.max_depth} deep; got "
                f"max_length={self.max_length:,}.",
                "max_length",
                "max_depth",
                "max_arguments",
            )

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Generates expressions of one length; see ``GeneratedListOps.sample``.

        Raises:
            ValueError: If no expression has that length, such as where lists have few values.
        """
        randoms = RandomIntegers(rng)
        length = self.min_length + randoms.below(self.max_length - self.min_length + 1)
        padded = -(-length // self.multiple_of) * self.multiple_of
        tokens = np.zeros((rows, padded), np.int32)
        labels = np.zeros(rows, np.int32)
        for row in range(rows):
            tokens[row, :length], labels[row] = self._expression(randoms, length)
        mask = np.broadcast_to(np.arange(padded) < length, tokens.shape).copy()
        return {"tokens": tokens, "mask": mask, "labels": labels}

    def _expression(self, randoms: RandomIntegers, length: int) -> tuple[list[int], int]:
        for _ in range(MAX_ATTEMPTS):
            root = self._grown(randoms, length)
            if root is not None:
                tokens: list[int] = []
                value = _write(root, tokens)
                return tokens, value
        raise ValueError(
            f"none of {MAX_ATTEMPTS:,} expressions reached {length:,} tokens with at "
            f"most {self.max_arguments} values per list; raise max_arguments, or choose "
            "another length."
        )

    def _grown(self, randoms: RandomIntegers, length: int) -> list[Any] | None:
        """Grows a tree of ``length`` tokens, lists of an operation and values; None if it is full.

        A value is a digit or a list.
        """
        below, max_values = randoms.below, self.max_arguments
        lists: list[list[Any]] = []
        digits: list[tuple[list[Any], int, int]] = []  # that may turn: list, place, depth

        def new_list(room: int, depth: int) -> list[Any]:
            size = 2 + below(min(room, max_values) - 1)
            made = [DIGITS + below(len(OPERATIONS)), *(below(DIGITS) for _ in range(size))]
            lists.append(made)
            if depth < self.max_depth:
                digits.extend((made, place, depth) for place in range(1, size + 1))
            return made

        root = new_list(length - 2, 1)
        taken = len(root) + 1
        while taken < length - MIN_LENGTH and digits:
            at = below(len(digits))
            parent, place, depth = digits[at]
            digits[at] = digits[-1]
            digits.pop()
            child = new_list(length - taken - 2, depth + 1)
            parent[place] = child
            taken += len(child)
        slots = [own for own in lists for _ in range(max_values + 1 - len(own))]
        if len(slots) < length - taken:
            return None
        for _ in range(length - taken):
            at = below(len(slots))
            slots[at].append(below(DIGITS))
            slots[at] = slots[-1]
            slots.pop()
        return root


def _write(node: list[Any], tokens: list[int]) -> int:
    """Appends a list and its content to the tokens; returns its value."""
    operation = node[0]
    tokens.append(operation)
    values = []
    for value in node[1:]:
        if isinstance(value, int):
            tokens.append(value)
            values.append(value)
        else:
            values.append(_write(value, tokens))
    tokens.append(END)
    if operation == MED:
        return sorted(values)[len(values) // 2]
    return apply_operation(operation, values)
