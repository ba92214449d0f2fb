"""NT series: each symbol is the sum of earlier ones modulo the number of symbols."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import OptionError, check_choice, check_integers, itemize, quote

RULES = ("nt", "nt-s", "nt-r")
"""Names of the rules, see ``Rule``."""

_CONDITION = re.compile(r"x([1-9]\d{0,8})=(?:x([1-9]\d{0,8})|(\d{1,9}))")


@dataclass(frozen=True)
class Rule:
    """Rule for the next symbol of a series, given its state: the last ``delay + 1`` symbols.

    With N symbols and a delay of tau:

    - "nt": ``x(t) = x(t-1) + x(t-1-tau) mod N``.
    - "nt-s": ``x(t) = x(t-1) + x(t-2) + ... + x(t-1-tau) mod N``.
    - "nt-r": as "nt-s" where a condition holds, else as "nt"; so there is a rare event to find.

    All three are the same at a delay of 1. "nt" and "nt-s" are invertible: each state lies on a
    cycle, see ``count_cycles``.

    Source: C. Gros, "Climbing the complexity ladder with expressive attention" (2024), equations
    4, 8 and 9.

    Attributes:
        base: Number N of symbols, which are 0 to N - 1.
        delay: Delay tau in steps.
        name: One of ``RULES``.
        condition: Condition of "nt-r" alone: "x1=0" (the last symbol, x(t-1), is 0), "x2=3" (the
            one before is 3), or "x1=x2" (both are the same). The paper does not state its
            condition, only that it holds with probability 1/N. The default does so exactly over all
            states, and the rule stays invertible, as does every condition without the oldest symbol
            of the state, ``x{delay + 1}``. A condition on that symbol makes series leave some
            states for good, and in the long run it may hold more or less often than 1/N. At a delay
            of 2, "x2=0" makes no difference to "nt".

    Raises:
        OptionError: If the base is below 2, the delay below 1, or the name unknown; or if the
            condition cannot be read, holds never or always, or concerns a symbol that is not in the
            state.

    Example:
        >>> Rule(base=2, delay=1).follow([0, 1], length=6)  # XOR
        array([1, 0, 1, 1, 0, 1], dtype=int32)
        >>> Rule(base=16, delay=2, name="nt-r").follow([[9, 8, 0], [9, 8, 1]], length=1)
        array([[ 1],
               [10]], dtype=int32)
    """

    base: int
    delay: int
    name: str = "nt"
    condition: str = "x1=0"

    def __post_init__(self) -> None:
        check_integers(2, 2**31, base=self.base)
        check_integers(1, delay=self.delay)
        check_choice(RULES, name=self.name)
        if self.name == "nt-r":
            self._check_condition()

    @property
    def order(self) -> int:
        """Number of symbols of a state, ``delay + 1``."""
        return self.delay + 1

    def follow(self, state: ArrayLike, length: int) -> NDArray[np.int32]:
        """Continues a state: the next symbols, int32 ``[..., length]``, without the state.

        Args:
            state: Last symbols, int ``[..., order]``, the oldest first.
            length: Number of symbols to return.

        Raises:
            ValueError: If the state has another shape or other symbols, or the length is negative.
        """
        check_integers(0, length=length)
        state = np.asarray(state)
        if state.shape[-1:] != (self.order,) or not np.issubdtype(state.dtype, np.integer):
            raise ValueError(
                f"expected a state int [..., {self.order}], as the delay is {self.delay}, got "
                f"{state.dtype} {list(state.shape)}"
            )
        if np.any((state < 0) | (state >= self.base)):
            raise ValueError(
                f"expected symbols from 0 to {self.base - 1}, got {state.min()} to {state.max()}"
            )
        series = np.empty((self.order + length, *state.shape[:-1]), np.int64)  # time in front
        series[: self.order] = np.moveaxis(state, -1, 0)
        for t in range(self.order, len(series)):
            series[t] = self.next_symbol(series[t - self.order : t])
        return np.moveaxis(series[self.order :], 0, -1).astype(np.int32, order="C")

    def next_symbol(self, window: Sequence[NDArray] | NDArray) -> NDArray[np.int64]:
        """Returns the symbol after each state, given as ``order`` int64 arrays that broadcast."""
        pair = (window[0] + window[-1]) % self.base
        if self.name == "nt":
            return pair
        total = functools.reduce(np.add, window) % self.base
        if self.name == "nt-s":
            return total
        lag, other, symbol = self._read_condition()
        return np.where(window[-lag] == (window[-other] if other else symbol), total, pair)

    def _read_condition(self) -> tuple[int, int, int]:
        """Parses the condition: lag of its symbol, lag of the other symbol or 0, and value."""
        match = _CONDITION.fullmatch(self.condition)
        if match is None:
            raise OptionError(
                'condition must be such as "x1=0" or "x1=x2", with x1 for the last symbol and x2 '
                f"for the one before, got {quote(self.condition)}.",
                "condition",
            )
        lag, other, symbol = (int(part or 0) for part in match.groups())
        return lag, other, symbol

    def _check_condition(self) -> None:
        lag, other, symbol = self._read_condition()
        problem = ""
        if max(lag, other) > self.order:
            problem = f"must be on x1 to x{self.order}, the state at a delay of {self.delay}"
        elif lag == other:
            problem = "must compare two different symbols"
        elif symbol >= self.base:
            problem = f"must ask for a symbol from 0 to {self.base - 1}"
        if problem:
            raise OptionError(f"condition {problem}, got {self.condition!r}.", "condition")


def parse_rules(text: str, base: int, delay: int, condition: str = "x1=0") -> tuple[Rule, ...]:
    """Parses the names of rules: one of ``RULES``, or several joined by "+".

    Raises:
        OptionError: If a name is unknown or repeated, or a number or the condition is invalid.

    Example:
        >>> [rule.name for rule in parse_rules("nt+nt-s", base=16, delay=2)]
        ['nt', 'nt-s']
    """
    names = text.split("+")
    for index, name in enumerate(names):
        check_choice(RULES, rules=name)
        if name in names[:index]:
            raise OptionError(f"rules must differ, got {name!r} twice.", "rules")
    return tuple(Rule(base, delay, name, condition) for name in names)


MAX_STATE_BITS = 24
"""Log2 of the maximum number of states whose cycles are counted."""


def count_cycles(rule: Rule) -> dict[int, int]:
    """Counts the cycles of an invertible rule of at most 2**24 states by length, longest first.

    S states with a longest cycle of L take O(S log L) time and O(S) memory: about 600 MB for the
    maximum number of states.

    Raises:
        OptionError: If the rule is not invertible, or has more states.

    Example:
        >>> cycles = count_cycles(Rule(base=16, delay=2))
        >>> cycles
        {56: 64, 28: 16, 14: 4, 7: 1, 1: 1}
        >>> round(16**3 / sum(cycles.values()), 3)  # the mean length
        47.628
    """
    if rule.order * math.log2(rule.base) > MAX_STATE_BITS:
        raise OptionError(
            f"there must be at most 2**{MAX_STATE_BITS} states, got {rule.base}**{rule.order}; "
            "lower the base or the delay.",
            "base",
            "delay",
        )
    # The state after each one; a state is written as a number of ``order`` digits.
    window = np.ogrid[(slice(rule.base),) * rule.order]
    symbols = np.broadcast_to(rule.next_symbol(window), (rule.base,) * rule.order).ravel()
    after = np.arange(symbols.size) * rule.base % symbols.size + symbols
    if np.bincount(after).max() > 1:
        raise OptionError(
            f"the rule must be invertible, but under the condition {rule.condition!r} "
            "several states have the same successor; choose a condition without "
            f"x{rule.order}.",
            "condition",
        )
    # The least state of the first 1, 2, 4, ... from each one on, until that is all of the cycle.
    roots = np.arange(after.size)
    while np.any((lower := np.minimum(roots, roots[after])) < roots):
        roots, after = lower, after[after]
    lengths = np.bincount(roots)
    lengths, counts = np.unique(lengths[lengths > 0], return_counts=True)
    return dict(zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True))


@dataclass(frozen=True)
class NextSymbol:
    """Task of predicting the next symbol of NT series from the previous symbols.

    Attributes:
        rules: Rule of a series, or rules of a mixture: each series follows one of them, sampled
            uniformly and not revealed.
        context: Number of symbols that a prediction conditions on.

    Raises:
        OptionError: If there are no rules, they differ in their base, or the context cannot hold
            their state.

    Example:
        >>> task = NextSymbol(parse_rules("nt", base=2, delay=1), context=4)
        >>> batch = task.sample(np.random.default_rng(0), rows=3)
        >>> batch["tokens"]
        array([[1, 1, 0, 1],
               [1, 0, 1, 1],
               [0, 1, 1, 0]], dtype=int32)
        >>> batch["target"]
        array([1, 0, 1], dtype=int32)
    """

    rules: tuple[Rule, ...]
    context: int

    def __post_init__(self) -> None:
        check_integers(1, context=self.context)
        bases = sorted({rule.base for rule in self.rules})
        if len(bases) != 1:
            got = f"bases {itemize([str(base) for base in bases])}" if bases else "none"
            raise OptionError(f"rules must be one or more, all of one base, got {got}.", "rules")
        order = max(rule.order for rule in self.rules)
        if self.context < order:
            raise OptionError(
                f"context must be at least {order}, to hold the state for a delay of "
                f"{order - 1}, got {self.context}; raise context, or lower delay.",
                "context",
                "delay",
            )

    @property
    def num_tokens(self) -> int:
        """Number of different symbols, N."""
        return self.rules[0].base

    @property
    def chance(self) -> float:
        """Accuracy of random guesses, 1/N."""
        return 1 / self.num_tokens

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray[np.int32]]:
        """Generates a series and cuts it into overlapping rows, each shifted by one symbol.

        The first symbols fill the context; the targets of the rows are the following symbols. This
        is a batch, and an epoch, of the paper.

        Returns:
            "tokens", int32 ``[rows, context]``, and "target", int32 ``[rows]``.

        Raises:
            OptionError: If the number of rows is below 1.
        """
        check_integers(1, rows=rows)
        (series,) = self.sample_series(rng, 1, self.context + rows)
        windows = np.lib.stride_tricks.sliding_window_view(series, self.context + 1)
        windows = windows.astype(np.int32)  # a copy, which may be written to
        return {"tokens": windows[:, :-1], "target": windows[:, -1]}

    def sample_series(
        self, rng: np.random.Generator, num_series: int, length: int
    ) -> NDArray[np.int32]:
        """Generates series int32 ``[num_series, length]``, each from a uniformly random state.

        Raises:
            OptionError: If a number is below 1.
        """
        check_integers(1, num_series=num_series, length=length)
        chosen = rng.integers(len(self.rules), size=num_series)
        series = np.empty((num_series, length), np.int32)
        for index, rule in enumerate(self.rules):
            own = chosen == index
            state = rng.integers(rule.base, size=(own.sum(), rule.order), dtype=np.int32)
            after = rule.follow(state, max(0, length - rule.order))
            series[own] = np.concatenate([state, after], axis=1)[:, :length]
        return series
