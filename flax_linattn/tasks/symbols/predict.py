"""The next symbol of sequences, by a run's model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.tasks.files import open_lines
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.symbols.stream import parse_symbols
from flax_linattn.typing import Array

ROWS = 128
"""Sequences at once."""


def predict(run: Run, file: Path | None) -> Table:
    """A row a sequence: the likeliest next symbol, or answer, and the probability of each.

    A file has a symbol a line, and a blank line between two sequences. Of series the last symbols
    count, as many as the context; of other sequences the last symbol is what asks. Without a file
    they are those that are tested on, each up to the last symbol that asks.

    A model of the squared difference gives no probabilities: its scores, whose best values are
    probabilities, are cut at 0 and made to add up to 1.

    Raises:
        ValueError: a line that is no symbol, or a sequence of a length that the model cannot take.
        FileNotFoundError: there is no such file.
    """
    sequences = _tested(run) if file is None else _read(run, file)
    scores = _scores(run, sequences)
    if run.config.fit.loss == "squared":
        positive = np.maximum(scores, 0)
        total = positive.sum(axis=1, keepdims=True)
        told = np.where(total > 0, positive / np.where(total > 0, total, 1), 1 / scores.shape[1])
    else:
        told = np.asarray(jax.nn.softmax(jnp.asarray(scores)))
    symbols = [f"p({symbol})" for symbol in range(run.problem.num_tokens)]
    numbers = np.arange(len(sequences))
    return Table(("sequence", "prediction", *symbols), (numbers, scores.argmax(axis=1), *told.T))


def _tested(run: Run) -> list[NDArray[np.int32]]:
    batches = run.task.test_batches(run, None)
    sequences = []
    for index in range(len(batches)):
        batch = batches.batch(index)
        for row, tokens in enumerate(batch["tokens"].astype(np.int32)):
            last = len(tokens) - 1
            if "asked" in batch:
                last = int(np.flatnonzero(batch["asked"][row])[-1])
            sequences.append(tokens[: last + 1])
    return sequences


def _read(run: Run, file: Path) -> list[NDArray[np.int32]]:
    with open_lines(file) as (lines, name):
        symbols = list(parse_symbols(lines, name, run.problem.num_tokens))
    groups = itertools.groupby(symbols, key=lambda symbol: symbol is None)
    sequences = [np.array(list(own), np.int32) for between, own in groups if not between]
    if not sequences:
        raise OptionError(f"{file}: expected symbols, one a line, got none.", "test_file")
    context, lengths = run.config.data.context, [len(own) for own in sequences]
    if run.config.data.recalls and max(lengths) > context:
        raise OptionError(
            f"{file}: expected sequences of at most {context} symbols, as the run learned from, "
            f"got {max(lengths)}; a blank line begins one.",
            "test_file",
        )
    if not run.config.data.recalls and min(lengths) < context:
        raise OptionError(
            f"{file}: expected sequences of at least {context} symbols, which the model looks at, "
            f"got {min(lengths)}; give more of them.",
            "test_file",
        )
    return sequences if run.config.data.recalls else [own[-context:] for own in sequences]


def _scores(run: Run, sequences: list[NDArray[np.int32]]) -> NDArray[np.float32]:
    """After the last symbol of each, float32 [N, symbols]."""
    context, found = run.config.data.context, []
    # What stands behind the last symbol is not seen: the model is causal, or the window is full.
    padded = np.stack([np.pad(own, (0, context - len(own))) for own in sequences])
    for first in range(0, len(padded), ROWS):
        part = padded[first : first + ROWS]
        filled = np.pad(part, ((0, ROWS - len(part)), (0, 0)))
        scores = np.asarray(_tell(run.model, jnp.asarray(filled)))[: len(part)]
        if scores.ndim == 3:
            last = [len(own) - 1 for own in sequences[first : first + ROWS]]
            scores = scores[np.arange(len(part)), last]
        found.append(scores)
    scores = np.concatenate(found)
    if np.isnan(scores).any():
        raise ValueError("the model's scores are NaN: its numbers overflow.")
    return scores


@nnx.jit
def _tell(model: Any, tokens: Array) -> Array:
    scores: Array = model(tokens)
    return scores
