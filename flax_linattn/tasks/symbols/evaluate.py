"""Trained models of symbols: tested, and their streams compared with the parallel model."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import inference, training
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.symbols.data import drawn_of, make_batches
from flax_linattn.tasks.symbols.model import make_loss
from flax_linattn.tasks.symbols.yardsticks import Lag, matches
from flax_linattn.tasks.yardsticks import Yardsticks
from flax_linattn.typing import Array

YARDSTICKS = Yardsticks("accuracy", ("chance", "longest_match", "one_lag"), larger_is_better=True)

FITTED = 500
"""Series of training that the lag is chosen by."""
LARGEST_TABLE = 2**26
"""Most numbers of a table of pairs of symbols."""


def test_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Accuracy and success of the model."""
    metrics = training.evaluate(run.model, make_loss(run.config.fit.loss), batches)
    return {
        "rules": run.config.data.rules,
        "mechanism": mechanism_name(run.config.layers),
        **{f"test_{name}": value for name, value in metrics.items()},
    }


def yardstick_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """The accuracy of what a model has to beat, and of how many guesses."""
    counts = np.sum([matches(batches.batch(i)) for i in range(len(batches))], axis=0)
    return {
        "num_test": int(counts[1]),
        "chance_accuracy": run.problem.chance,
        "longest_match_accuracy": float(counts[0] / counts[1]),
        **one_lag(run, batches),
    }


def one_lag(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Accuracy of the best guess from one earlier symbol, and its lag; nothing where not a series.

    It learns from as many of the run's training series as ``FITTED``.
    """
    data, num_tokens = run.config.data, run.problem.num_tokens
    if data.recalls or num_tokens**2 > LARGEST_TABLE:
        return {}
    train = make_batches(drawn_of(data), run.config).train
    found = Lag.fit((train.batch(step) for step in range(FITTED)), num_tokens)
    parts = [batches.batch(index) for index in range(len(batches))]
    right = sum(found.right(batch) for batch in parts)
    count = sum(len(batch["target"]) for batch in parts)
    return {"one_lag_accuracy": right / count, "one_lag": found.lag}


@nnx.jit
def _scores(model: Any, tokens: Array) -> Array:
    """Compiled once for models that are alike."""
    scores: Array = model(tokens)
    return scores


def stream_error(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """The largest difference between streamed and parallel scores, over the first batch."""
    batch = batches.batch(0)
    model = run.model
    parallel = np.asarray(_scores(model, jnp.asarray(batch["tokens"])))
    if "target" in batch:  # windows of one series, each one symbol later
        context = batch["tokens"].shape[1]
        series = np.concatenate([batch["tokens"][0], batch["tokens"][1:, -1]])
        streamed = inference.unroll(model, jnp.asarray(series[None]))[0, context - 1 :]
    else:
        streamed = inference.unroll(model, jnp.asarray(batch["tokens"]))
    error = float(np.max(np.abs(np.asarray(streamed) - parallel)))
    return {"stream_max_error": error, "stream_steps": int(np.prod(parallel.shape[:-1]))}
