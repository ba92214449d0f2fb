"""What a model of tokens has to beat: naive Bayes on short runs of tokens, and the first token.

Both are fitted on one pass over (some of) the training data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training

ORDERS = (1, 2, 3, 4, 5)
"""Lengths of the runs of tokens."""
TABLE = 2**20
"""Places of the table that runs are hashed to."""
MOST_TOKENS = 2 * 10**7
"""That naive Bayes learns from: some ten seconds."""


class Example(NamedTuple):
    """A sequence without its padding.

    Attributes:
        tokens: int64 [T].
        label: its class.
    """

    tokens: NDArray[np.int64]
    label: int


def examples(batches: training.BatchSource) -> Iterator[Example]:
    """The real examples of one pass."""
    for index in range(len(batches)):
        batch: Mapping[str, NDArray] = batches.batch(index)
        tokens, labels = batch["tokens"].astype(np.int64), batch["labels"]
        mask = batch.get("mask", np.ones(tokens.shape, bool))
        weight = batch.get("weight", np.ones(len(labels)))
        for row in np.flatnonzero(weight > 0):
            yield Example(tokens[row][mask[row]], int(labels[row]))


def some(all_examples: Iterable[Example]) -> Iterator[Example]:
    """As many as have ``MOST_TOKENS``."""
    taken = 0
    for example in all_examples:
        yield example
        taken += len(example.tokens)
        if taken >= MOST_TOKENS:
            return


def runs_of(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which runs of tokens a sequence has, as places in the table.

    Example:
        >>> len(runs_of(np.array([5, 5, 5, 5, 5, 5])))  # 5, 5 5, 5 5 5, ...
        5
    """
    found, code = [], np.zeros(len(tokens), np.uint64)
    for order in range(1, max(ORDERS) + 1):
        if order > len(tokens):
            break
        last = tokens[order - 1 :].astype(np.uint64)
        # A product with an odd number mixes the bits below; those on top are taken.
        mixed = (code[: len(last)] + last + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        code = mixed
        if order in ORDERS:
            found.append(np.unique(mixed >> np.uint64(44)))
    return np.unique(np.concatenate(found)).astype(np.int64) if found else np.zeros(0, np.int64)


class NaiveBayes:
    """Multinomial naive Bayes on which runs of tokens there are, with one added to each count.

    Args:
        fitted: training examples.
        num_classes: classes.

    Attributes:
        num_fitted: how many examples there were.

    Example:
        >>> word = lambda text: np.frombuffer(text, np.uint8).astype(np.int64)
        >>> bayes = NaiveBayes([Example(word(b"good"), 1), Example(word(b"bad"), 0)], 2)
        >>> bayes.predict([word(b"so good"), word(b"too bad")])
        array([1, 0])
    """

    def __init__(self, fitted: Iterable[Example], num_classes: int) -> None:
        counts = np.ones((num_classes, TABLE), np.float64)
        labels = np.zeros(num_classes)
        self.num_fitted = 0
        for example in fitted:
            counts[example.label, runs_of(example.tokens)] += 1
            labels[example.label] += 1
            self.num_fitted += 1
        self._log = np.log(counts / counts.sum(axis=1, keepdims=True)).T.copy()
        self._prior = np.log(np.maximum(labels, 0.5))

    def predict(self, sequences: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The most likely class of each."""
        scores = [self._prior + self._log[runs_of(tokens)].sum(axis=0) for tokens in sequences]
        return np.array([int(np.argmax(score)) for score in scores], np.int64)


class FirstToken:
    """The most frequent class behind the same first token.

    Args:
        fitted: training examples.
        num_tokens: different tokens.
        num_classes: classes.

    Example:
        >>> fitted = [Example(np.array([3, 1]), 0), Example(np.array([2, 1]), 1)]
        >>> FirstToken(fitted, 4, 2).predict([np.array([2, 7])])
        array([1])
    """

    def __init__(self, fitted: Iterable[Example], num_tokens: int, num_classes: int) -> None:
        counts = np.zeros((num_tokens, num_classes), np.int64)
        self.num_fitted = 0
        for example in itertools.islice(fitted, 10**6):
            if len(example.tokens):
                counts[example.tokens[0], example.label] += 1
            self.num_fitted += 1
        self._class = counts.argmax(axis=1)

    def predict(self, sequences: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The class of each."""
        return np.array([self._class[tokens[0]] if len(tokens) else 0 for tokens in sequences])
