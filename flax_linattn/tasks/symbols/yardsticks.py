"""What a model of symbols has to beat: the longest match, and a single earlier symbol.

A symbol a whole cycle before is the one to be guessed, and half a cycle before it may be so modulo
half the base; where the context reaches as far, a table of what follows a symbol at one distance
does as well as attention that learns no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def longest_match(tokens: NDArray[np.integer]) -> NDArray[np.integer]:
    """After each token, the one that followed where most of the last tokens stood before.

    Of several such places it is the last; where the token itself was never there, the guess is the
    token. That is how compressors of the Lempel-Ziv family predict.

    Args:
        tokens: int [B, T].

    Returns:
        int [B, T].

    Example:
        >>> longest_match(np.array([[1, 2, 3, 1, 2]]))
        array([[1, 2, 3, 2, 3]])
    """
    rows, length = tokens.shape
    guesses = tokens.copy()
    common = np.zeros((rows, length + 1), np.int32)  # with the tokens up to t - 1, by position + 1
    for t in range(length):
        same = tokens[:, :t] == tokens[:, t : t + 1]
        now = np.zeros_like(common)
        now[:, 1 : t + 1] = np.where(same, common[:, :t] + 1, 0)
        common = now
        if t:
            ends = now[:, t:0:-1]  # the latest place first
            at = t - 1 - np.argmax(ends, axis=1)
            found = ends.max(axis=1) > 0
            after = np.take_along_axis(tokens, at[:, None] + 1, axis=1)[:, 0]
            guesses[:, t] = np.where(found, after, tokens[:, t])
    return guesses


def matches(batch: Mapping[str, NDArray]) -> tuple[int, int]:
    """How many of a batch's questions the longest match answers right, and of how many."""
    guesses = longest_match(batch["tokens"])
    if "target" in batch:
        right = guesses[:, -1] == batch["target"]
        return int(right.sum()), len(right)
    right = (guesses == batch["targets"]) & batch["asked"]
    return int(right.sum()), int(batch["asked"].sum())


class Lag(NamedTuple):
    """A guess from one earlier symbol.

    Attributes:
        lag: how far before the symbol to be guessed it stands, from 1.
        guesses: int [N], what to guess after each.
    """

    lag: int
    guesses: NDArray[np.integer]

    @classmethod
    def fit(cls, batches: Iterable[Mapping[str, NDArray]], num_symbols: int) -> Lag:
        """The lag that guesses most of some windows right; of equal ones the shortest.

        Args:
            batches: windows: "tokens" int [B, context] and "target" int [B].
            num_symbols: N.

        Example:
            >>> tokens = np.array([[2, 0, 1], [0, 1, 2], [1, 2, 0]])
            >>> Lag.fit([{"tokens": tokens, "target": np.array([0, 1, 2])}], 3).lag
            1
        """
        parts = [(batch["tokens"], batch["target"]) for batch in batches]
        tokens, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        most, best = -1, cls(0, np.zeros(0, np.int64))
        for lag in range(1, tokens.shape[1] + 1):
            pairs = tokens[:, -lag].astype(np.int64) * num_symbols + targets
            table = np.bincount(pairs, minlength=num_symbols**2).reshape(num_symbols, -1)
            right = int(table.max(axis=1).sum())
            if right > most:
                most, best = right, cls(lag, table.argmax(axis=1))
        return best

    def right(self, batch: Mapping[str, NDArray]) -> int:
        """How many of a batch's targets it guesses."""
        return int((self.guesses[batch["tokens"][:, -self.lag]] == batch["target"]).sum())
