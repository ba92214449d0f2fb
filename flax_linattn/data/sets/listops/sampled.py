"""ListOps by rejection: Long Range Arena's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least
from flax_linattn.data.sets.listops.expressions import (
    DIGITS,
    END,
    MAX,
    MED,
    MIN,
    SM,
    apply_operation,
)
from flax_linattn.data.sets.listops.generated import GeneratedListOps, RandomIntegers

OPERATIONS = (MIN, MAX, MED, SM)
"""Those of Long Range Arena."""


@dataclass(frozen=True)
class SampledListOps(GeneratedListOps):
    """Expressions as they fall, of which those of a length between two bounds are kept.

    A value is a list with a probability of ``list_share`` while lists may still be deeper, and else
    a digit; a list has 2 to ``max_arguments`` values and one of four operations.

    Source: Y. Tay et al., "Long Range Arena" (2021), ``listops.py`` of its public code, which keeps
    lengths from 501 to 1,999. It never keeps an expression twice, which drawn ones of hundreds of
    tokens never are.

    Attributes:
        min_length: Tokens of an expression, at least.
        max_length: At most; batches are padded to it.
        max_depth: Lists in lists, the outermost one among them.
        max_arguments: Values of a list, at least 2.
        list_share: Of values that may be lists.

    Raises:
        OptionError: A number is out of range.

    Example:
        >>> task = SampledListOps(min_length=5, max_length=12)
        >>> batch = task.draw(np.random.default_rng(0), 2)
        >>> batch["tokens"].shape, bool((batch["mask"].sum(axis=1) >= 5).all())
        ((2, 12), True)
    """

    min_length: int = 501
    max_length: int = 1999
    max_depth: int = 10
    max_arguments: int = 10
    list_share: float = 0.25

    def __post_init__(self) -> None:
        at_least(4, 10**6, min_length=self.min_length)
        at_least(self.min_length, 10**6, max_length=self.max_length)
        at_least(1, 100, max_depth=self.max_depth)
        at_least(2, 1000, max_arguments=self.max_arguments)
        if not 0 < self.list_share < 1:
            raise OptionError(
                f"list_share must be above 0 and below 1, got {self.list_share}.", "list_share"
            )
        mean = self.list_share * (2 + self.max_arguments) / 2
        if mean <= 1 and self.min_length > 100:
            raise OptionError(
                f"a list holds {mean:.2g} lists on average, so that expressions of "
                f"{self.min_length:,} tokens hardly ever come; raise list_share.",
                "list_share",
                "min_length",
            )

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Draws expressions.

        Args:
            rng: The source of chance.
            rows: How many.

        Returns:
            "tokens", int32 ``[rows, max_length]``; "mask", bool ``[rows, max_length]``, False at
            the padding behind; "labels", int32 ``[rows]``, the values.
        """
        randoms = RandomIntegers(rng)
        tokens = np.zeros((rows, self.max_length), np.int32)
        mask = np.zeros((rows, self.max_length), bool)
        labels = np.zeros(rows, np.int32)
        for row in range(rows):
            own: list[int] = []
            while True:
                own.clear()
                value = self._draw(randoms, own)
                if value is not None and len(own) >= self.min_length:
                    break
            tokens[row, : len(own)], mask[row, : len(own)], labels[row] = own, True, value
        return {"tokens": tokens, "mask": mask, "labels": labels}

    def _draw(self, randoms: RandomIntegers, tokens: list[int]) -> int | None:
        """Writes an expression, and returns its value; None once it is too long."""
        below, share = randoms.below, self.list_share
        open_lists: list[tuple[int, int, list[int]]] = []  # operation, values asked for, values
        while True:
            if len(tokens) + len(open_lists) >= self.max_length:
                return None
            if len(open_lists) < self.max_depth and below(2**32) < share * 2**32:
                operation = OPERATIONS[below(len(OPERATIONS))]
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
