"""Losses, baselines and predictions of synthetic sequence tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.lines import open_lines
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.synthetic.data import make_batches, make_generator
from flax_linattn.tasks.synthetic.stream import parse_symbols
from flax_linattn.typing import Array

BASELINES = Baselines("accuracy", ("chance", "longest_match", "one_lag"), larger_is_better=True)

NUM_FITTED = 500
"""Number of training series that the lag baseline is fitted on."""
MAX_TABLE_SIZE = 2**26
"""Maximum size of a table of pairs of symbols."""


Model: TypeAlias = models.WindowModel | models.LanguageModel


def squared_difference(scores: Array, targets: Array) -> Array:
    """Squared error to one-hot targets, summed over the symbols: [..., N] -> [...]."""
    one_hot = jax.nn.one_hot(targets, scores.shape[-1], dtype=scores.dtype)
    return jnp.sum((scores - one_hot) ** 2, axis=-1)


def loss_fn(
    error: Any, model: Model, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Computes the mean error of the predictions, the accuracy and the success.

    The success is the fraction of series, or sequences, in which every prediction is right; a batch
    of windows is one series.
    """
    scores = model(batch["tokens"], dropout_key=dropout_key)
    if "target" in batch:  # windows of one series
        is_query = jnp.ones((1, scores.shape[0]), bool)
        scores, targets = scores[None], batch["target"][None]
    else:
        is_query, targets = batch["is_query"], batch["targets"]
    weight = is_query.astype(jnp.float32)
    total, count = jnp.sum(error(scores, targets) * weight), jnp.sum(weight)
    right = jnp.argmax(scores, axis=-1) == targets
    whole = jnp.all(right | ~is_query, axis=1)
    return total / count, {
        "loss": (total, count),
        "accuracy": (jnp.sum(weight, where=right), count),
        "success": (jnp.sum(whole, dtype=jnp.float32), jnp.float32(whole.size)),
    }


LOSSES: dict[str, training.LossFn] = {
    "squared": partial(loss_fn, squared_difference),
    "cross_entropy": partial(loss_fn, optax.softmax_cross_entropy_with_integer_labels),
}
"""Loss functions by ``SyntheticFit.loss``; always the same objects, so that steps stay compiled."""


def one_lag(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Accuracy and lag of the best prediction from one earlier symbol; empty for recall tasks.

    Series have cycles: the symbol one cycle earlier is the target, and half a cycle earlier it may
    be the target modulo half the base. If the context is long enough, a table of the symbols that
    follow at one distance is as good as attention that learns this alone.
    """
    data, num_tokens = run.config.data, run.data_spec.num_tokens
    if data.recalls or num_tokens**2 > MAX_TABLE_SIZE:
        return {}
    train = make_batches(make_generator(data), run.config).train
    lag, guesses = fit_lag((train.batch(step) for step in range(NUM_FITTED)), num_tokens)
    parts = [batches.batch(index) for index in range(len(batches))]
    hits = np.concatenate([guesses[part["tokens"][:, -lag]] == part["target"] for part in parts])
    return {"one_lag_accuracy": int(hits.sum()) / hits.size, "one_lag": lag}


@nnx.jit
def predict_scores(model: Any, tokens: Array) -> Array:
    """Computes the scores of tokens; models of equal structure share a program."""
    scores: Array = model(tokens)
    return scores


def longest_match(tokens: NDArray[np.integer]) -> NDArray[np.integer]:
    """Predicts the token that followed the longest earlier match of the last tokens.

    The last of several matches counts; without a match the prediction is the token itself.
    Compressors of the Lempel-Ziv family predict in this way. [B, T] -> [B, T].

    Example:
        >>> longest_match(np.array([[1, 2, 3, 1, 2]]))
        array([[1, 2, 3, 2, 3]])
    """
    rows, length = tokens.shape
    guesses = tokens.copy()
    common = np.zeros((rows, length + 1), np.int32)  # length of the match at each position + 1
    for t in range(length):
        same = tokens[:, :t] == tokens[:, t : t + 1]
        now = np.zeros_like(common)
        now[:, 1 : t + 1] = np.where(same, common[:, :t] + 1, 0)
        common = now
        if t:
            ends = now[:, t:0:-1]  # the last position first
            at = t - 1 - np.argmax(ends, axis=1)
            has_match = ends.max(axis=1) > 0
            after = np.take_along_axis(tokens, at[:, None] + 1, axis=1)[:, 0]
            guesses[:, t] = np.where(has_match, after, tokens[:, t])
    return guesses


def count_matches(batch: Mapping[str, NDArray]) -> tuple[int, int]:
    """Number of a batch's targets that the longest match predicts, and of all targets."""
    guesses = longest_match(batch["tokens"])
    if "target" in batch:
        right = guesses[:, -1] == batch["target"]
        return int(right.sum()), len(right)
    right = (guesses == batch["targets"]) & batch["is_query"]
    return int(right.sum()), int(batch["is_query"].sum())


def fit_lag(
    batches: Iterable[Mapping[str, NDArray]], num_symbols: int
) -> tuple[int, NDArray[np.integer]]:
    """Fits the lag baseline: the best lag, and its prediction for each symbol [N].

    The shortest of equally good lags is chosen; a lag of 1 is the last symbol of the window.
    """
    parts = [(batch["tokens"], batch["target"]) for batch in batches]
    tokens, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
    best_right, best = -1, (0, np.zeros(0, np.int64))
    for lag in range(1, tokens.shape[1] + 1):
        pairs = tokens[:, -lag].astype(np.int64) * num_symbols + targets
        table = np.bincount(pairs, minlength=num_symbols**2).reshape(num_symbols, -1)
        right = int(table.max(axis=1).sum())
        if right > best_right:
            best_right, best = right, (lag, table.argmax(axis=1))
    return best


ROWS = 128
"""Number of sequences of a prediction batch."""


def predict(run: Run, file: Path | None) -> pd.DataFrame:
    """Predicts the next symbol of each sequence, with the probability of each symbol.

    A file has one symbol per line, and a blank line between two sequences. The context of a series
    is its last symbols; in other tasks the last symbol is the query. Without a file the test
    sequences are used, each up to its last query.

    The squared error trains scores towards probabilities, but does not normalize them: they are
    clipped at 0 and divided by their sum.
    """
    sequences = _read_test(run) if file is None else _read_file(run, file)
    scores = _predict_last_scores(run, sequences)
    if run.config.fit.loss == "squared":
        positive = np.maximum(scores, 0)
        total = positive.sum(axis=1, keepdims=True)
        weights = positive / np.where(total > 0, total, 1)
        probabilities = np.where(total > 0, weights, 1 / scores.shape[1])
    else:
        probabilities = np.asarray(jax.nn.softmax(jnp.asarray(scores)))
    symbols = [f"p({symbol})" for symbol in range(run.data_spec.num_tokens)]
    numbers = np.arange(len(sequences))
    names = ("sequence", "prediction", *symbols)
    return make_table(names, (numbers, scores.argmax(axis=1), *probabilities.T))


def _read_test(run: Run) -> list[NDArray[np.int32]]:
    batches = run.task.test_batches(run, None)
    sequences = []
    for index in range(len(batches)):
        batch = batches.batch(index)
        for row, tokens in enumerate(batch["tokens"].astype(np.int32)):
            last = len(tokens) - 1
            if "is_query" in batch:
                last = int(np.flatnonzero(batch["is_query"][row])[-1])
            sequences.append(tokens[: last + 1])
    return sequences


def _read_file(run: Run, file: Path) -> list[NDArray[np.int32]]:
    with open_lines(file) as rows:
        symbols = rows.parse(partial(parse_symbols, num_tokens=run.data_spec.num_tokens))
        groups = itertools.groupby(symbols, key=lambda symbol: symbol is None)
        sequences = [np.array(list(own), np.int32) for between, own in groups if not between]
    if not sequences:
        raise OptionError(
            f"expected symbols in {file}, one per line, got an empty file.", "test_file"
        )
    context, lengths = run.config.data.context, [len(own) for own in sequences]
    if run.config.data.recalls and max(lengths) > context:
        raise OptionError(
            f"expected sequences of at most {context} symbols in {file}, as in training, got "
            f"{max(lengths)}; a blank line begins a new sequence.",
            "test_file",
        )
    if not run.config.data.recalls and min(lengths) < context:
        raise OptionError(
            f"expected sequences of at least {context} symbols in {file}, the context length, got "
            f"{min(lengths)}; add earlier symbols.",
            "test_file",
        )
    return sequences if run.config.data.recalls else [own[-context:] for own in sequences]


def _predict_last_scores(run: Run, sequences: list[NDArray[np.int32]]) -> NDArray[np.float32]:
    """Computes the scores after the last symbol of each sequence, float32 [N, symbols]."""
    context, batches = run.config.data.context, []
    # Padding after the last symbol has no effect: the model is causal, or the window is full.
    padded = np.stack([np.pad(own, (0, context - len(own))) for own in sequences])
    for first in range(0, len(padded), ROWS):
        part = padded[first : first + ROWS]
        filled = np.pad(part, ((0, ROWS - len(part)), (0, 0)))
        scores = np.asarray(predict_scores(run.model, jnp.asarray(filled)))[: len(part)]
        if scores.ndim == 3:
            last = [len(own) - 1 for own in sequences[first : first + ROWS]]
            scores = scores[np.arange(len(part)), last]
        batches.append(scores)
    scores = np.concatenate(batches)
    if np.isnan(scores).any():
        raise ValueError("the scores of the model are NaN, because its numbers overflow.")
    return scores
