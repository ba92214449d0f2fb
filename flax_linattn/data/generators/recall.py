"""Sequences with questions at marked positions, each answered by what came before."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers

_MAX_SYMBOLS = 2**31 - 2  # so that they and a special token are int32


class QueriedSequences(abc.ABC):
    """Sequences of T = ``length`` tokens, most of ``num_symbols`` symbols and a special token."""

    length: int
    num_symbols: int

    @property
    def num_tokens(self) -> int:
        """Different tokens, the special ones among them; they are 0 to ``num_tokens - 1``."""
        return self.num_symbols + 1

    @property
    def chance(self) -> float:
        """How often a guess at random among the possible answers is right."""
        return 1 / self.num_symbols

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Generates a batch of sequences with recall queries.

        Returns:
            "tokens", int32 ``[rows, T]``; "targets", int32 ``[rows, T]``, the right answer after
            each token, 0 where there is no question; "asked", bool ``[rows, T]``, True where there
            is one.
        """


@dataclass(frozen=True)
class AssociativeRecall(QueriedSequences):
    """Multi-query associative recall: each key of the sequence is asked for its value, once.

    A sequence begins with its pairs, key and value in turn, all keys and all values different. What
    follows are slots of two tokens; a key that is asked stands in front of one, drawn without
    replacement with probabilities falling as ``slot**(power_a - 1)``, slots being counted from 1:
    early slots are more likely. The rest is filled with token 0. Keys are of the lower half of the
    symbols, values of the upper.

    Source: S. Arora et al., "Zoology: Measuring and improving recall in efficient language models"
    (2023), and its public code, which by default has random tokens instead of filler.

    Attributes:
        num_pairs: Pairs, and questions.
        length: Number T of tokens.
        num_symbols: Keys and values that there are, without the filler.
        power_a: The power law's; 1 asks at uniform positions.

    Raises:
        OptionError: If the pairs and the slots do not fit the length, there are too few symbols for
            different ones, or the power is outside (0, 1].

    Example:
        >>> task = AssociativeRecall(num_pairs=2, length=10, num_symbols=8)
        >>> batch = task.sample(np.random.default_rng(0), rows=1)
        >>> batch["tokens"]
        array([[3, 8, 1, 7, 3, 0, 0, 0, 1, 0]], dtype=int32)
        >>> batch["targets"]
        array([[0, 0, 0, 0, 8, 0, 0, 0, 7, 0]], dtype=int32)
    """

    num_pairs: int
    length: int
    num_symbols: int
    power_a: float = 0.01

    def __post_init__(self) -> None:
        check_integers(1, num_pairs=self.num_pairs, length=self.length)
        check_integers(2, _MAX_SYMBOLS, num_symbols=self.num_symbols)
        if self.length < 4 * self.num_pairs:
            raise OptionError(
                f"length must be at least {4 * self.num_pairs}, 4 tokens for each of num_pairs "
                f"{self.num_pairs}, got {self.length}.",
                "length",
                "num_pairs",
            )
        if self._num_keys < self.num_pairs:
            raise OptionError(
                f"num_symbols must be at least {2 * self.num_pairs}, a key and a value for each of "
                f"num_pairs {self.num_pairs}, got {self.num_symbols}.",
                "num_symbols",
                "num_pairs",
            )
        if not 0 < self.power_a <= 1:
            raise OptionError(f"power_a must be in (0, 1], got {self.power_a}.", "power_a")

    @property
    def chance(self) -> float:
        """Accuracy of a guess among all values; among a sequence's it is 1 / num_pairs."""
        return 1 / (self.num_symbols - self._num_keys)

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        keys = 1 + _distinct(rng, rows, self.num_pairs, self._num_keys)
        num_values = self.num_symbols - self._num_keys
        values = 1 + self._num_keys + _distinct(rng, rows, self.num_pairs, num_values)
        begin = 2 * self.num_pairs
        tokens, targets = np.zeros((2, rows, self.length), np.int32)
        tokens[:, 0:begin:2], tokens[:, 1:begin:2] = keys, values
        # The first to ring of independent clocks, then the next: a draw without replacement.
        rates = np.arange(1.0, (self.length - begin) // 2 + 1) ** (self.power_a - 1)
        clocks = rng.exponential(size=(rows, len(rates))) / rates
        query_positions = begin + 2 * np.argsort(clocks, axis=1)[:, : self.num_pairs]
        np.put_along_axis(tokens, query_positions, keys, axis=1)
        np.put_along_axis(targets, query_positions, values, axis=1)
        return {"tokens": tokens, "targets": targets, "asked": targets > 0}

    @property
    def _num_keys(self) -> int:
        return self.num_symbols // 2


@dataclass(frozen=True)
class Copying(QueriedSequences):
    """Symbols, a separator, and the same symbols again, each asked for after the one before.

    The last symbol is asked for and not shown a second time.

    Source: S. Jelassi et al., "Repeat after me: Transformers are better than state space models at
    copying" (2024).

    Attributes:
        num_copied: Symbols to copy.
        num_symbols: Symbols that there are; the separator is one more token, the last.
        length: Number T of tokens, twice ``num_copied``; not an argument.

    Raises:
        OptionError: If there is less than 1 symbol to copy, or fewer than 2 to choose from.

    Example:
        >>> batch = Copying(num_copied=3, num_symbols=8).sample(np.random.default_rng(0), rows=1)
        >>> batch["tokens"]
        array([[6, 5, 4, 8, 6, 5]], dtype=int32)
        >>> batch["targets"]
        array([[0, 0, 0, 6, 5, 4]], dtype=int32)
    """

    num_copied: int
    num_symbols: int
    length: int = field(init=False)

    def __post_init__(self) -> None:
        check_integers(1, num_copied=self.num_copied)
        check_integers(2, _MAX_SYMBOLS, num_symbols=self.num_symbols)
        object.__setattr__(self, "length", 2 * self.num_copied)

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        symbols = rng.integers(self.num_symbols, size=(rows, self.num_copied), dtype=np.int32)
        separator = np.full((rows, 1), self.num_symbols, np.int32)
        is_query = np.broadcast_to(np.arange(self.length) >= self.num_copied, (rows, self.length))
        return {
            "tokens": np.concatenate([symbols, separator, symbols[:, :-1]], axis=1),
            "targets": np.concatenate([np.zeros_like(symbols), symbols], axis=1),
            "asked": is_query.copy(),
        }


@dataclass(frozen=True)
class Induction(QueriedSequences):
    """Random symbols with a trigger among them, and again at the end: what came after the first?

    Source: the induction heads of D. Y. Fu et al., "Hungry hungry hippos: Towards language
    modeling with state space models" (2023).

    Attributes:
        length: Number T of tokens.
        num_symbols: Symbols that there are; the trigger is one more token, the last.

    Raises:
        OptionError: If there are fewer than 3 tokens, or 2 symbols.

    Example:
        >>> batch = Induction(length=8, num_symbols=9).sample(np.random.default_rng(0), rows=1)
        >>> batch["tokens"]
        array([[7, 9, 4, 2, 2, 0, 0, 9]], dtype=int32)
        >>> batch["targets"]
        array([[0, 0, 0, 0, 0, 0, 0, 4]], dtype=int32)
    """

    length: int
    num_symbols: int

    def __post_init__(self) -> None:
        check_integers(3, length=self.length)
        check_integers(2, _MAX_SYMBOLS, num_symbols=self.num_symbols)

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        tokens = rng.integers(self.num_symbols, size=(rows, self.length), dtype=np.int32)
        trigger_at = rng.integers(self.length - 2, size=rows)
        each = np.arange(rows)
        tokens[each, trigger_at] = tokens[:, -1] = self.num_symbols
        targets = np.zeros_like(tokens)
        targets[:, -1] = tokens[each, trigger_at + 1]
        is_query = np.zeros(tokens.shape, bool)
        is_query[:, -1] = True
        return {"tokens": tokens, "targets": targets, "asked": is_query}


@dataclass(frozen=True)
class Parity(QueriedSequences):
    """Random bits: is the number of ones so far odd? Asked after each.

    Attributes:
        length: Number T of bits.

    Raises:
        OptionError: If ``length`` is below 1.

    Example:
        >>> batch = Parity(length=6).sample(np.random.default_rng(0), rows=1)
        >>> batch["tokens"]
        array([[1, 1, 1, 0, 0, 0]], dtype=int32)
        >>> batch["targets"]
        array([[1, 0, 1, 1, 1, 1]], dtype=int32)
    """

    length: int
    num_symbols: int = field(init=False, default=2)

    def __post_init__(self) -> None:
        check_integers(1, length=self.length)

    @property
    def num_tokens(self) -> int:
        return 2

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        bits = rng.integers(2, size=(rows, self.length), dtype=np.int32)
        odd = np.bitwise_xor.accumulate(bits, axis=1)
        return {"tokens": bits, "targets": odd, "asked": np.ones(bits.shape, bool)}


def _distinct(rng: np.random.Generator, rows: int, number: int, choices: int) -> NDArray[np.int64]:
    """Different numbers below ``choices`` in each row, in random order, ``[rows, number]``."""
    every = np.tile(np.arange(choices), (rows, 1))
    return rng.permuted(every, axis=1)[:, :number]
