"""Synthetic recall tasks: sequences with queries whose answers occur earlier."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers

_MAX_SYMBOLS = 2**31 - 2  # so that they and a special token are int32


class QueriedSequences(abc.ABC):
    """Base class of recall tasks: sequences of ``length`` tokens with queries."""

    length: int
    num_symbols: int

    @property
    def num_tokens(self) -> int:
        """Number of different tokens, including special ones: 0 to ``num_tokens - 1``."""
        return self.num_symbols + 1

    @property
    def chance(self) -> float:
        """Accuracy of random guesses among the possible answers."""
        return 1 / self.num_symbols

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Generates a batch of sequences with recall queries.

        Returns:
            "tokens", int32 ``[rows, T]``; "targets", int32 ``[rows, T]``, the correct answer after
            each token, 0 if there is no query; "is_query", bool ``[rows, T]``.
        """


@dataclass(frozen=True)
class AssociativeRecall(QueriedSequences):
    """Multi-query associative recall: each key of a sequence is queried once for its value.

    A sequence begins with its pairs of key and value; all keys and all values are distinct. The
    rest consists of slots of two tokens. Each key is queried at the start of a slot, which is
    sampled without replacement with probability proportional to ``slot**(power_a - 1)``, counted
    from 1, so early slots are more likely. All other positions hold token 0. Keys are the lower
    half of the symbols, values the upper half.

    Source: S. Arora et al., "Zoology: Measuring and improving recall in efficient language models"
    (2023), and its public code, which by default has random tokens instead of filler.

    Attributes:
        num_pairs: Number of key-value pairs, and of queries.
        length: Number T of tokens.
        num_symbols: Number of different keys and values, without the filler.
        power_a: Exponent of the power law; 1 samples slots uniformly.

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
        """Accuracy of guesses among all values; among the values that occur, 1 / num_pairs."""
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
        return {"tokens": tokens, "targets": targets, "is_query": targets > 0}

    @property
    def _num_keys(self) -> int:
        return self.num_symbols // 2


@dataclass(frozen=True)
class Copying(QueriedSequences):
    """Copying task: symbols, a separator, and the same symbols again, predicted one by one.

    The last symbol is a target, but its copy is not part of the input.

    Source: S. Jelassi et al., "Repeat after me: Transformers are better than state space models at
    copying" (2024).

    Attributes:
        num_copied: Number of symbols to copy.
        num_symbols: Number of different symbols; the separator is an additional token, the last.
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
            "is_query": is_query.copy(),
        }


@dataclass(frozen=True)
class Induction(QueriedSequences):
    """Induction task: after a repeated trigger, predict the symbol that followed its first use.

    Source: the induction heads of D. Y. Fu et al., "Hungry hungry hippos: Towards language
    modeling with state space models" (2023).

    Attributes:
        length: Number T of tokens.
        num_symbols: Number of different symbols; the trigger is an additional token, the last.

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
        return {"tokens": tokens, "targets": targets, "is_query": is_query}


@dataclass(frozen=True)
class Parity(QueriedSequences):
    """Parity task: after each random bit, predict whether the number of ones so far is odd.

    Attributes:
        length: Number T of bits of a sequence.

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
        return {"tokens": bits, "targets": odd, "is_query": np.ones(bits.shape, bool)}


def _distinct(rng: np.random.Generator, rows: int, number: int, choices: int) -> NDArray[np.int64]:
    """Samples distinct numbers below ``choices`` in random order, ``[rows, number]``."""
    every = np.tile(np.arange(choices), (rows, 1))
    return rng.permuted(every, axis=1)[:, :number]
