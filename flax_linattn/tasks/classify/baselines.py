"""Baselines of classifiers: the most frequent class; of vectors, of sequences of tokens.

The nearest neighbor and the ridge receive what a model receives, prepared alike: each sequence
standardized, without missing values, padded by zeros to the longest, as one vector of all its steps
and channels. Baselines may learn from the sequences that select the model's parameters, too: they
have nothing to select. Where all would take long, they learn from some of them, evenly spread, and
the ridge from none where that would be fewer than two a class.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.tasks.baselines import read_or_note
from flax_linattn.tasks.classify.metrics import averages, count

MAX_PRODUCTS = 10**11
"""Multiplications of a baseline: some ten seconds of a core."""
MAX_GRAM_ROWS = 3000
"""Rows of a matrix whose eigenvectors are taken: some ten seconds of a core."""
MAX_RIDGE_NUMBERS = 2 * 10**7
"""Numbers of the ridge's examples, which it holds in float64, twice."""
MAX_BLOCK_NUMBERS = 2**24
"""Numbers that are made float64 at once."""
MAX_BLOCK_ROWS = 2**12
"""Rows of a block: a table of the distances between two blocks is held as well."""
RIDGE_STRENGTHS = np.logspace(-4, 4, 17)
"""Regularization of the ridge, in mean eigenvalues of its Gram matrix."""
MAX_VECTOR_NUMBERS = 2 * 10**8
"""Numbers of the vectors that are made of batches."""
MAX_ORDER = 5
"""Tokens of the longest n-grams of naive Bayes."""
TABLE_SIZE = 2**20
"""Places of the table that n-grams are hashed to."""
MAX_TOKENS = 2 * 10**7
"""Tokens that naive Bayes and the first token learn from: some ten seconds."""

Labels = NDArray[np.integer]


class Vectors(NamedTuple):
    """Values [N, T, C] of labeled examples, each the vector of all its numbers, and labels [N]."""

    values: NDArray
    labels: Labels


class Predicted(NamedTuple):
    """Predicted labels [N] of the test data, and the number of training examples learned from."""

    labels: Labels
    num_fitted: int


def baseline_values(
    labels: Labels,
    num_classes: int,
    read_train: Callable[[], training.BatchSource],
    predict: Callable[[Any], Mapping[str, Predicted]],
) -> dict[str, Any]:
    """Metrics of simple methods on the test data: the constant one, and those that learn.

    Those that learn, which ``predict`` applies by name, are left out with a note on standard error
    where the training data cannot be read.
    """

    def scored(name: str, predictions: Labels) -> dict[str, Any]:
        values = averages(count(labels, predictions, num_classes))
        return {f"{name}_{key}": value for key, value in values.items()}

    most_frequent = int(np.bincount(labels, minlength=num_classes).argmax())
    values = scored("constant", np.full(len(labels), most_frequent))
    train = read_or_note(read_train)
    if train is not None:
        values["num_train"] = count_examples(train)
        for name, found in predict(train).items():
            values |= scored(name, found.labels)
            values[f"{name}_learned_from"] = found.num_fitted
    return values


def predict_vectors(train: Vectors, test: Vectors) -> dict[str, Predicted]:
    """Predictions of the nearest neighbour and of the ridge, in the order of the test examples.

    Without the ridge where it could learn from fewer than two examples a class although there are
    more; a note on standard error says so.
    """
    length = max(train.values.shape[1], test.values.shape[1])
    x, new, labels = _flat(train.values, length), _flat(test.values, length), train.labels
    few = _evenly(len(x), MAX_PRODUCTS // new.size)
    nearest = nearest_neighbour(x[few], labels[few], new)
    found = {"nearest_neighbour": Predicted(nearest, len(few))}
    few = _evenly(len(x), max_ridge_examples(x.shape[1]))
    num_classes = len(np.unique(labels))
    if len(few) < min(len(x), 2 * num_classes):
        print(
            f"note: no ridge as a baseline: of {len(x):,} sequences of {x.shape[1]:,} numbers it "
            f"would learn from {len(few):,}, too few for {num_classes:,} classes",
            file=sys.stderr,
        )
    else:
        found["ridge"] = Predicted(ridge(x[few], labels[few], new), len(few))
    return found


def count_examples(batches: training.BatchSource) -> int:
    """Number of examples of one pass, without filler."""
    found: int | None = getattr(batches, "num_examples", None)
    return len(batches) * len(batches.batch(0)["labels"]) if found is None else found


def read_vectors(batches: training.BatchSource, name: str) -> Vectors:
    """Arrays [B, ...] of one pass as vectors: all examples, or as many as fit, evenly spread."""
    count = count_examples(batches)
    size = int(np.prod(batches.batch(0)[name].shape[1:]))
    chosen = np.zeros(count, bool)
    chosen[_evenly(count, MAX_VECTOR_NUMBERS // size)] = True
    values, labels, begin = [], [], 0
    for index in range(len(batches)):
        batch = batches.batch(index)
        real = np.asarray(batch.get("weight", np.ones(len(batch["labels"])))) > 0
        rows = np.flatnonzero(real)
        rows = rows[chosen[begin : begin + len(rows)]]
        begin += int(real.sum())
        values.append(batch[name][rows].reshape(len(rows), -1, 1).astype(np.float32))
        labels.append(batch["labels"][rows])
    return Vectors(np.concatenate(values), np.concatenate(labels))


def nearest_neighbour(x: NDArray, labels: Labels, new: NDArray) -> Labels:
    """Labels of the nearest examples x [N, D] to new [M, D] by Euclidean distance; the first."""
    best = np.full(len(new), np.inf)
    index = np.zeros(len(new), np.int64)
    for rows, block in _blocks(x):
        squares = np.einsum("nd,nd->n", block, block)
        for places, queries in _blocks(new):
            distances = squares - 2 * queries @ block.T  # less the square of the query
            nearest = distances.argmin(axis=1)
            least = distances[np.arange(len(queries)), nearest]
            closer = least < best[places]
            best[places] = np.where(closer, least, best[places])
            index[places] = np.where(closer, rows.start + nearest, index[places])
    return labels[index]


def ridge(x: NDArray, labels: Labels, new: NDArray) -> Labels:
    """Ridge regression with an intercept on a target of 1 for the class, -1 for the others.

    Its regularization has the least square error over examples x [N, D] left out one at a time,
    which the eigenvectors of the smaller Gram matrix give at once, as in Golub, Heath and Wahba,
    1979. It predicts labels of new [M, D].
    """
    classes, index = np.unique(labels, return_inverse=True)
    targets = 2.0 * np.eye(len(classes))[index] - 1.0
    middle, mean = x.mean(axis=0, dtype=np.float64), targets.mean(axis=0)
    x, centered = x - middle, targets - mean
    # x = vectors * sqrt(values) * (right)^T, of which the smaller side is an eigenproblem.
    is_wide = x.shape[1] > len(x)
    values, vectors = _eigen(x @ x.T if is_wide else x.T @ x)
    if not is_wide:
        vectors = x @ vectors / np.sqrt(values)
    unit = values.sum() / min(x.shape)
    strength = min(RIDGE_STRENGTHS * unit, key=lambda s: _left_out(values, vectors, centered, s))
    weights = x.T @ (vectors @ (vectors.T @ centered / (values + strength)[:, None]))
    scores = np.concatenate([block @ weights for _, block in _blocks(new, middle)])
    return classes[np.argmax(scores + mean, axis=1)]


def max_ridge_examples(num_features: int) -> int:
    """How many examples the ridge learns from at most.

    Example:
        >>> [max_ridge_examples(d) for d in (348, 3000, 8928)]
        [57471, 6666, 2240]
    """
    most = MAX_RIDGE_NUMBERS // num_features
    if num_features <= MAX_GRAM_ROWS:
        return min(most, MAX_PRODUCTS // num_features**2)
    return min(most, MAX_GRAM_ROWS, math.isqrt(MAX_PRODUCTS // num_features))


def _left_out(values: NDArray, vectors: NDArray, centered: NDArray, strength: float) -> float:
    """The mean square error of each example by a ridge without it."""
    shrinkage = values / (values + strength)
    fitted = vectors @ (shrinkage[:, None] * (vectors.T @ centered))
    leverage = np.square(vectors) @ shrinkage + 1 / len(centered)
    left = np.maximum(1 - leverage, np.finfo(np.float64).eps)
    return float(np.mean(np.square((centered - fitted) / left[:, None])))


def _eigen(gram: NDArray) -> tuple[NDArray, NDArray]:
    """Eigenvalues above rounding, and their eigenvectors."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(values[-1], 0.0) * len(gram) * np.finfo(np.float64).eps
    return values[kept], vectors[:, kept]


def _blocks(x: NDArray, middle: NDArray | float = 0.0) -> Iterator[tuple[slice, NDArray]]:
    """Rows less their middle, in float64, some at a time."""
    height = max(1, min(MAX_BLOCK_ROWS, MAX_BLOCK_NUMBERS // x.shape[1]))
    for first in range(0, len(x), height):
        rows = slice(first, min(first + height, len(x)))
        yield rows, x[rows].astype(np.float64) - middle


def _evenly(count: int, most: int) -> NDArray[np.int64]:
    """All of ``count`` rows, or ``most``, evenly spread: of every class in files sorted by it."""
    chosen = max(1, min(count, most))
    return np.arange(chosen) * count // chosen


def _flat(values: NDArray, length: int) -> NDArray:
    """TokenSequences [N, T, C] as vectors [N, length * C]."""
    if values.shape[1] < length:
        values = np.pad(values, ((0, 0), (0, length - values.shape[1]), (0, 0)))
    return values.reshape(len(values), -1)


TokenSequences = Iterable[tuple[NDArray[np.int64], int]]
"""Tokens int64 [T] without padding, and the label, of each of some sequences."""


def iterate_sequences(batches: training.BatchSource) -> Iterator[tuple[NDArray[np.int64], int]]:
    """The real examples of one pass, without padding."""
    for index in range(len(batches)):
        batch: Mapping[str, NDArray] = batches.batch(index)
        tokens, labels = batch["tokens"].astype(np.int64), batch["labels"]
        mask = batch.get("mask", np.ones(tokens.shape, bool))
        weight = batch.get("weight", np.ones(len(labels)))
        for row in np.flatnonzero(weight > 0):
            yield tokens[row][mask[row]], int(labels[row])


def take_tokens(sequences: TokenSequences) -> Iterator[tuple[NDArray[np.int64], int]]:
    """The first sequences, up to ``MAX_TOKENS`` tokens of them."""
    taken = 0
    for tokens, label in sequences:
        yield tokens, label
        taken += len(tokens)
        if taken >= MAX_TOKENS:
            return


def hash_ngrams(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The n-grams of a sequence, of all orders, hashed to places in the table; each place once."""
    found, code = [], np.zeros(len(tokens), np.uint64)
    for order in range(1, min(MAX_ORDER, len(tokens)) + 1):
        last = tokens[order - 1 :].astype(np.uint64)
        # A product with an odd number mixes the bits below; those on top are taken.
        code = (code[: len(last)] + last + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        found.append(code >> np.uint64(44))
    return np.unique(np.concatenate(found)).astype(np.int64) if found else np.zeros(0, np.int64)


def naive_bayes(
    train: TokenSequences, new: Iterable[NDArray[np.int64]], num_classes: int
) -> Predicted:
    """Multinomial naive Bayes on the n-grams of a sequence, with one added to each count."""
    counts = np.ones((num_classes, TABLE_SIZE), np.float64)
    labels = np.zeros(num_classes)
    for tokens, label in train:
        counts[label, hash_ngrams(tokens)] += 1
        labels[label] += 1
    weights = np.log(counts / counts.sum(axis=1, keepdims=True)).T.copy()
    prior = np.log(np.maximum(labels, 0.5))
    scores = [prior + weights[hash_ngrams(tokens)].sum(axis=0) for tokens in new]
    found = np.array([int(np.argmax(score)) for score in scores], np.int64)
    return Predicted(found, int(labels.sum()))


def first_token(
    train: TokenSequences, new: Iterable[NDArray[np.int64]], num_tokens: int, num_classes: int
) -> Predicted:
    """The most frequent class of sequences with the same first token."""
    counts, num_fitted = np.zeros((num_tokens, num_classes), np.int64), 0
    for tokens, label in itertools.islice(train, 10**6):
        if len(tokens):
            counts[tokens[0], label] += 1
        num_fitted += 1
    likeliest = counts.argmax(axis=1)
    found = [likeliest[tokens[0]] if len(tokens) else 0 for tokens in new]
    return Predicted(np.array(found), num_fitted)
