"""Baselines of classifiers: the most frequent class, nearest neighbor, ridge, naive Bayes.

The nearest neighbor and the ridge receive the model's inputs: standardized sequences, padded by
zeros, as one vector of all steps and channels. Baselines are also fitted on the
validation sequences, because they select no parameters. On large data they are fitted on an evenly
spaced subset; the ridge is skipped if that has fewer than two examples per class.
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
from flax_linattn.models.closed_form import Labels, fit_ridge
from flax_linattn.tasks.baselines import read_or_note
from flax_linattn.tasks.classify.metrics import averages, count

MAX_PRODUCTS = 10**11
"""Maximum multiplications of a baseline: some ten seconds of a core."""
MAX_GRAM_ROWS = 3000
"""Maximum rows of an eigenvalue problem: some ten seconds of a core."""
MAX_RIDGE_NUMBERS = 2 * 10**7
"""Maximum numbers of the examples of the ridge, which holds them twice in float64."""
MAX_BLOCK_NUMBERS = 2**24
"""Maximum numbers of a block, which is converted to float64."""
MAX_BLOCK_ROWS = 2**12
"""Maximum rows of a block; the distances between two blocks are in memory too."""
MAX_VECTOR_NUMBERS = 2 * 10**8
"""Maximum numbers of the vectors of all examples."""
MAX_ORDER = 5
"""Length of the longest n-grams of naive Bayes."""
TABLE_SIZE = 2**20
"""Size of the hash table of n-grams."""
MAX_TOKENS = 2 * 10**7
"""Maximum tokens that naive Bayes and the first-token baseline are fitted on: ten seconds."""


class Vectors(NamedTuple):
    """Values [N, T, C] and labels [N] of examples; each example is one vector of T * C numbers."""

    values: NDArray
    labels: Labels


class BaselinePredictions(NamedTuple):
    """Predicted labels [N] of the test data, and the number of examples that were fitted."""

    labels: Labels
    num_fitted: int


def baseline_values(
    labels: Labels,
    num_classes: int,
    read_train: Callable[[], training.BatchSource],
    predict: Callable[[Any], Mapping[str, BaselinePredictions]],
) -> dict[str, Any]:
    """Computes the test metrics of the most frequent class and of trained baselines.

    ``predict`` maps training data to the predictions of each trained baseline; these are skipped
    with a note on standard error if the training data cannot be read.
    """

    def score(name: str, predictions: Labels) -> dict[str, Any]:
        values = averages(count(labels, predictions, num_classes))
        return {f"{name}_{key}": value for key, value in values.items()}

    majority = int(np.bincount(labels, minlength=num_classes).argmax())
    values = score("constant", np.full(len(labels), majority))
    train = read_or_note(read_train)
    if train is not None:
        values["num_train"] = count_examples(train)
        for name, predictions in predict(train).items():
            values |= score(name, predictions.labels)
            values[f"{name}_learned_from"] = predictions.num_fitted
    return values


def predict_vectors(train: Vectors, test: Vectors) -> dict[str, BaselinePredictions]:
    """Predicts test labels by the nearest neighbor and by the ridge.

    The ridge is skipped, with a note on standard error, if its subset of a larger training set has
    fewer than two examples per class.
    """
    length = max(train.values.shape[1], test.values.shape[1])
    x, new, labels = _flatten(train.values, length), _flatten(test.values, length), train.labels
    few = _spread_evenly(len(x), MAX_PRODUCTS // new.size)
    nearest = nearest_neighbor(x[few], labels[few], new)
    predictions = {"nearest_neighbor": BaselinePredictions(nearest, len(few))}
    few = _spread_evenly(len(x), max_ridge_examples(x.shape[1]))
    num_classes = len(np.unique(labels))
    if len(few) < min(len(x), 2 * num_classes):
        print(
            f"note: the ridge baseline is skipped, because it could be fitted on {len(few):,} of "
            f"{len(x):,} sequences of {x.shape[1]:,} numbers, too few for {num_classes:,} classes",
            file=sys.stderr,
        )
    else:
        predictions["ridge"] = BaselinePredictions(ridge(x[few], labels[few], new), len(few))
    return predictions


def count_examples(batches: training.BatchSource) -> int:
    """Number of examples in one epoch, without padding."""
    count: int | None = getattr(batches, "num_examples", None)
    return len(batches) * len(batches.batch(0)["labels"]) if count is None else count


def read_vectors(batches: training.BatchSource, name: str) -> Vectors:
    """Reads one epoch as vectors: all examples, or an evenly spaced subset that fits in memory."""
    count = count_examples(batches)
    size = int(np.prod(batches.batch(0)[name].shape[1:]))
    chosen = np.zeros(count, bool)
    chosen[_spread_evenly(count, MAX_VECTOR_NUMBERS // size)] = True
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


def nearest_neighbor(x: NDArray, labels: Labels, new: NDArray) -> Labels:
    """Labels of the examples x [N, D] that are nearest to new [M, D] in Euclidean distance."""
    best = np.full(len(new), np.inf)
    index = np.zeros(len(new), np.int64)
    for rows, block in _blocks(x):
        squares = np.einsum("nd,nd->n", block, block)
        for places, queries in _blocks(new):
            distances = squares - 2 * queries @ block.T  # up to the square of the query
            nearest = distances.argmin(axis=1)
            distance = distances[np.arange(len(queries)), nearest]
            closer = distance < best[places]
            best[places] = np.where(closer, distance, best[places])
            index[places] = np.where(closer, rows.start + nearest, index[places])
    return labels[index]


def ridge(x: NDArray, labels: Labels, new: NDArray) -> Labels:
    """Predicts labels of new [M, D] by ridge regression on examples x [N, D]."""
    classes, index = np.unique(labels, return_inverse=True)
    fit = fit_ridge(x, index, len(classes))
    scores = np.concatenate([block @ fit.kernel for _, block in _blocks(new)])
    return classes[np.argmax(scores + fit.bias, axis=1)]


def max_ridge_examples(num_features: int) -> int:
    """Maximum number of examples that the ridge is fitted on.

    Example:
        >>> [max_ridge_examples(d) for d in (348, 3000, 8928)]
        [57471, 6666, 2240]
    """
    limit = MAX_RIDGE_NUMBERS // num_features
    if num_features <= MAX_GRAM_ROWS:
        return min(limit, MAX_PRODUCTS // num_features**2)
    return min(limit, MAX_GRAM_ROWS, math.isqrt(MAX_PRODUCTS // num_features))


def _blocks(x: NDArray) -> Iterator[tuple[slice, NDArray]]:
    """Yields blocks of rows in float64."""
    height = max(1, min(MAX_BLOCK_ROWS, MAX_BLOCK_NUMBERS // x.shape[1]))
    for first in range(0, len(x), height):
        rows = slice(first, min(first + height, len(x)))
        yield rows, x[rows].astype(np.float64)


def _spread_evenly(count: int, max_count: int) -> NDArray[np.int64]:
    """Evenly spaced indices of up to ``max_count`` rows, so that sorted files give every class."""
    chosen = max(1, min(count, max_count))
    return np.arange(chosen) * count // chosen


def _flatten(values: NDArray, length: int) -> NDArray:
    """Pads values [N, T, C] to ``length`` steps, and flattens them to [N, length * C]."""
    if values.shape[1] < length:
        values = np.pad(values, ((0, 0), (0, length - values.shape[1]), (0, 0)))
    return values.reshape(len(values), -1)


TokenSequences = Iterable[tuple[NDArray[np.int64], int]]
"""Sequences of tokens, int64 [T] without padding, each with its label."""


def iterate_sequences(batches: training.BatchSource) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yields the examples of one epoch, without padding."""
    for index in range(len(batches)):
        batch: Mapping[str, NDArray] = batches.batch(index)
        tokens, labels = batch["tokens"].astype(np.int64), batch["labels"]
        mask = batch.get("mask", np.ones(tokens.shape, bool))
        weight = batch.get("weight", np.ones(len(labels)))
        for row in np.flatnonzero(weight > 0):
            yield tokens[row][mask[row]], int(labels[row])


def take_tokens(sequences: TokenSequences) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yields the first sequences, up to ``MAX_TOKENS`` tokens in total."""
    taken = 0
    for tokens, label in sequences:
        yield tokens, label
        taken += len(tokens)
        if taken >= MAX_TOKENS:
            return


def hash_ngrams(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct hash codes of the n-grams of a sequence, of all orders up to ``MAX_ORDER``."""
    codes, code = [], np.zeros(len(tokens), np.uint64)
    for order in range(1, min(MAX_ORDER, len(tokens)) + 1):
        last = tokens[order - 1 :].astype(np.uint64)
        # Multiplication by an odd number mixes the low bits into the high bits, which are used.
        code = (code[: len(last)] + last + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        codes.append(code >> np.uint64(44))
    return np.unique(np.concatenate(codes)).astype(np.int64) if codes else np.zeros(0, np.int64)


def naive_bayes(
    train: TokenSequences, new: Iterable[NDArray[np.int64]], num_classes: int
) -> BaselinePredictions:
    """Multinomial naive Bayes on the n-grams of a sequence, with add-one smoothing."""
    counts = np.ones((num_classes, TABLE_SIZE), np.float64)
    labels = np.zeros(num_classes)
    for tokens, label in train:
        counts[label, hash_ngrams(tokens)] += 1
        labels[label] += 1
    weights = np.log(counts / counts.sum(axis=1, keepdims=True)).T.copy()
    prior = np.log(np.maximum(labels, 0.5))
    scores = [prior + weights[hash_ngrams(tokens)].sum(axis=0) for tokens in new]
    predictions = np.array([int(np.argmax(score)) for score in scores], np.int64)
    return BaselinePredictions(predictions, int(labels.sum()))


def first_token(
    train: TokenSequences, new: Iterable[NDArray[np.int64]], num_tokens: int, num_classes: int
) -> BaselinePredictions:
    """Predicts the most frequent class of sequences with the same first token."""
    counts, num_fitted = np.zeros((num_tokens, num_classes), np.int64), 0
    for tokens, label in itertools.islice(train, 10**6):
        if len(tokens):
            counts[tokens[0], label] += 1
        num_fitted += 1
    likeliest = counts.argmax(axis=1)
    predictions = [likeliest[tokens[0]] if len(tokens) else 0 for tokens in new]
    return BaselinePredictions(np.array(predictions), num_fitted)
