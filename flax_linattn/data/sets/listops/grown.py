"""ListOps of an exact length: TaylorShift's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least
from flax_linattn.data.sets.listops.expressions import (
    DIGITS,
    END,
    MED,
    OPERATIONS,
    apply_operation,
)
from flax_linattn.data.sets.listops.generated import GeneratedListOps, RandomIntegers

ATTEMPTS = 1000
"""Expressions that are begun for one that has the length."""

SMALLEST = 4
"""Tokens of a list of two digits."""


@dataclass(frozen=True)
class GrownListOps(GeneratedListOps):
    """Expressions of one length a batch, which grow until they have it.

    An expression begins as a list of digits; then a digit, any but those of the deepest lists,
    turns into a list of digits, again and again while five tokens are left; at last digits join
    lists that have room. There are six operations; the median of an even number of values is the
    upper one.

    Source: T. Nauen et al., "TaylorShift" (2024), ``ListOps`` of its public code, which draws each
    batch's length from 500 to 2,000; the order of its random numbers is not that of ours.

    Attributes:
        min_length: Least tokens of an expression.
        max_length: Most; the length of a batch is drawn between the two.
        max_depth: Lists in lists, the outermost one among them.
        max_arguments: Values of a list, at least 2.
        multiple_of: Batches are padded to a multiple of so many tokens, so that few programs are
            compiled.

    Raises:
        OptionError: A number is out of range, or no expression can have that length.

    Example:
        >>> task = GrownListOps(min_length=9, max_length=9)
        >>> batch = task.draw(np.random.default_rng(0), 2)
        >>> batch["tokens"].shape, batch["mask"].all(), batch["labels"].dtype
        ((2, 9), np.True_, dtype('int32'))
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_arguments: int = 10
    multiple_of: int = 1

    def __post_init__(self) -> None:
        at_least(SMALLEST, 10**6, min_length=self.min_length)
        at_least(self.min_length, 10**6, max_length=self.max_length)
        at_least(1, 100, max_depth=self.max_depth)
        at_least(2, 1000, max_arguments=self.max_arguments)
        at_least(1, 10**6, multiple_of=self.multiple_of)
        # Half of what a full tree holds: above it few of the drawn trees reach the length.
        most = sum(self.max_arguments**depth for depth in range(min(self.max_depth, 8) + 1))
        if self.max_length > most / 2:
            raise OptionError(
                f"lists of {self.max_arguments} values, {self.max_depth} deep, hold at most "
                f"{most:,} tokens or so, of which half can be asked for; got "
                f"max_length={self.max_length:,}.",
                "max_length",
                "max_depth",
                "max_arguments",
            )

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Draws expressions of one length.

        Args:
            rng: The source of chance.
            rows: How many.

        Returns:
            "tokens", int32 ``[rows, T]``; "mask", bool ``[rows, T]``, False at the padding behind;
            "labels", int32 ``[rows]``, the values.

        Raises:
            ValueError: No expression has that length, as where lists have few values.
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
        for _ in range(ATTEMPTS):
            root = self._grown(randoms, length)
            if root is not None:
                tokens: list[int] = []
                value = _write(root, tokens)
                return tokens, value
        raise ValueError(
            f"none of {ATTEMPTS:,} expressions grew to {length:,} tokens, with at most "
            f"{self.max_arguments} values a list; allow more, or another length."
        )

    def _grown(self, randoms: RandomIntegers, length: int) -> list[Any] | None:
        """A tree of so many tokens: each list is its operation and its values; None if it is full.

        A value is a digit or a list.
        """
        below, most = randoms.below, self.max_arguments
        lists: list[list[Any]] = []
        digits: list[tuple[list[Any], int, int]] = []  # that may turn: list, place, depth

        def new_list(room: int, depth: int) -> list[Any]:
            size = 2 + below(min(room, most) - 1)
            made = [DIGITS + below(len(OPERATIONS)), *(below(DIGITS) for _ in range(size))]
            lists.append(made)
            if depth < self.max_depth:
                digits.extend((made, place, depth) for place in range(1, size + 1))
            return made

        root = new_list(length - 2, 1)
        taken = len(root) + 1
        while taken < length - SMALLEST and digits:
            at = below(len(digits))
            parent, place, depth = digits[at]
            digits[at] = digits[-1]
            digits.pop()
            child = new_list(length - taken - 2, depth + 1)
            parent[place] = child
            taken += len(child)
        slots = [own for own in lists for _ in range(most + 1 - len(own))]
        if len(slots) < length - taken:
            return None
        for _ in range(length - taken):
            at = below(len(slots))
            slots[at].append(below(DIGITS))
            slots[at] = slots[-1]
            slots.pop()
        return root


def _write(node: list[Any], tokens: list[int]) -> int:
    """Writes a list and what is in it behind the tokens; returns its value."""
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
