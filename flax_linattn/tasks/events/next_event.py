"""Summaries of the next event of sequences, predicted by a run's model."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import inference, models
from flax_linattn.models.event_forecaster import next_event
from flax_linattn.tasks.events.data import (
    EventBatches,
    Tokens,
    groups,
    pad_group,
    padded_length,
    tokenize_sequences,
)
from flax_linattn.tasks.events.evaluate import BATCH_SIZE, CHUNK_LENGTH, MIN_LENGTH
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array, State

QUANTILE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantile levels of the time of the next event in predictions."""


def predict(run: Run, file: Path | None) -> pd.DataFrame:
    """Predicts the next event of each sequence: expected time, quantiles, and event types.

    A row has the sequence (its name in the file, or its number) and its last time. Predictions are
    made at the last event; they do not use that no event came since.
    """
    batches = run.task.test_batches(run, file)
    assert isinstance(batches, EventBatches)
    events, data_spec = batches.events, run.data_spec
    tokens = tokenize_sequences(events, data_spec)
    outputs = _outputs(run.model, tokens)
    summary = _summarize_outputs(
        run.model.num_components, run.model.spread, QUANTILE_LEVELS, outputs
    )
    logs = np.column_stack([summary["log_mean"], summary["log_quantiles"]]).astype(np.float64)
    probabilities = np.asarray(summary["probabilities"])
    if np.isnan(logs).any() or np.isnan(probabilities).any():
        raise ValueError(
            "the model's outputs are NaN, because it overflows or its parameters hold NaN; check "
            "the times of the events, or train the run again."
        )
    last = np.array([own[-1] for own in events.times])
    with np.errstate(over="ignore"):  # a time beyond the range of float64 becomes inf
        gaps = data_spec.scale * np.exp(logs)
    convert = _dates if data_spec.dates else np.asarray
    ids = np.arange(len(last)) if events.names is None else np.array(events.names, object)
    names = ["sequence", "time", "next", *(f"q{level:g}" for level in QUANTILE_LEVELS)]
    times = [convert(column) for column in (last, *(last + gap for gap in gaps.T))]
    if data_spec.num_event_types > 1:
        best = np.array(data_spec.event_type_names, object)[np.argmax(probabilities, axis=1)]
        names += ["mark", *(f"p({name})" for name in data_spec.event_type_names)]
        return make_table(names, (ids, *times, best, *probabilities.T))
    return make_table(names, (ids, *times))


def _dates(seconds: NDArray[np.float64]) -> pd.DatetimeIndex:
    """Converts seconds since 1970 to dates in UTC; times far out of range become NaT."""
    within = np.abs(seconds) < 2e11  # the year 8307
    microseconds = (np.where(within, seconds, 0) * 1e6).round().astype("M8[us]")
    return pd.DatetimeIndex(np.where(within, microseconds, np.datetime64("NaT", "us")), tz="UTC")


def _outputs(model: models.EventForecaster, tokens: list[Tokens]) -> NDArray[np.float32]:
    """Model outputs after the last event of each sequence, float32 [N, outputs]."""
    rows = min(BATCH_SIZE, len(tokens))
    by_index: dict[int, NDArray[np.float32]] = {}
    for group in groups(tokens, rows):
        length = max(MIN_LENGTH, padded_length(len(tokens[group[0]].target)))
        padded = pad_group([tokens[index] for index in group], rows, length)
        padded["mask"][len(group) :, 0] = True
        outputs = _last_outputs(model, padded["observations"], padded["mask"])
        by_index |= dict(zip(group, np.asarray(outputs), strict=False))
    return np.stack([by_index[index] for index in range(len(tokens))])


def _last_outputs(model: models.EventForecaster, x: NDArray, mask: NDArray) -> Array:
    if model.streams:
        chunk = CHUNK_LENGTH if x.shape[1] > CHUNK_LENGTH else None
        outputs, _ = inference.prefill(
            model, jnp.asarray(x), jnp.asarray(mask), max_length=x.shape[1], chunk_size=chunk
        )
        return outputs
    return _whole(*nnx.split(model), x, mask)


@partial(jax.jit, static_argnums=0)
def _whole(graphdef: nnx.GraphDef[Any], variables: Any, x: Array, mask: Array) -> Array:
    model = nnx.merge(graphdef, variables)
    last = jnp.sum(mask, axis=1, dtype=jnp.int32) - 1
    outputs: Array = model(x, mask=mask)
    return outputs[jnp.arange(len(x), dtype=jnp.int32), last]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _summarize_outputs(
    num_components: int, spread: float, levels: tuple[float, ...], outputs: Array
) -> dict[str, Array]:
    """Logarithms of times in units of the scale, and probabilities of the event types."""
    following = next_event(outputs, num_components, spread)
    quantiles = [following.gap.log_quantile(level) for level in levels]
    return {
        "log_mean": following.gap.log_mean(),
        "log_quantiles": jnp.stack(quantiles, axis=-1),
        "probabilities": jnp.exp(following.event_type_log_probs()),
    }


class NextEventSummary(nnx.Module):
    """An event model whose outputs are times to the next event and probabilities of its type.

    Args:
        model: The model.
        levels: Quantile levels Q of the time.

    A step returns [B, 1 + Q + M]: the mean and the quantiles of the time, in units of the scale,
    and the probabilities of the M event types.
    """

    def __init__(self, model: models.EventForecaster, levels: tuple[float, ...]) -> None:
        self.model, self.levels = model, levels

    def __call__(self, x: Array, **options: Any) -> tuple[Array, State]:
        outputs, state = self.model(x, **options)
        return self._summarize(outputs), state

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: Any = jnp.float32
    ) -> State:
        return self.model.init_state(batch_size, max_length, dtype=dtype)

    def step(self, x: Array, state: State, *, mask: Array | None = None) -> tuple[Array, State]:
        outputs, state = self.model.step(x, state, mask=mask)
        return self._summarize(outputs), state

    def _summarize(self, outputs: Array) -> Array:
        summary = _summarize_outputs(
            self.model.num_components, self.model.spread, self.levels, outputs
        )
        logs = jnp.concatenate([summary["log_mean"][..., None], summary["log_quantiles"]], axis=-1)
        # A bundle refuses infinite outputs; a mean may be beyond the range of the dtype.
        times = jnp.exp(jnp.minimum(logs, math.log(jnp.finfo(logs.dtype).max) - 1e-3))
        return jnp.concatenate([times, summary["probabilities"]], axis=-1)


class StreamedEvent(NamedTuple):
    """An event of a stream, with the model's input and outputs.

    Attributes:
        time: Time of the event, or of the start of observation.
        outputs: Outputs of the model after it, float32 [outputs].
        observation: Input of the model, float32 [W].
    """

    time: float
    outputs: NDArray[np.float32]
    observation: NDArray[np.float32]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def summarize_next_event(
    num_components: int,
    spread: float,
    levels: tuple[float, ...],
    num_top: int,
    outputs: Array,
    log_gap: Array,
    event_type: Array,
    within: Array,
) -> dict[str, Array]:
    """Likelihood of an event, and distribution of the next event, from outputs [3 K + M].

    ``log_gap`` and ``event_type`` belong to the event to score; ``within`` is the logarithm of
    a time. Times are in units of the scale.

    Returns:
        "time" and "event_type", log density and log probability of the event; "log_mean" and
        "log_quantiles" [Q], logarithms of times; "within", the probability of an event up to that
        time; "top" and "p", the most probable event types and their probabilities, [num_top].
    """
    following = next_event(outputs, num_components, spread)
    log_probabilities = following.event_type_log_probs()
    p, top = jax.lax.top_k(jnp.exp(log_probabilities), num_top)
    return {
        "time": following.gap.log_density(log_gap),
        "event_type": log_probabilities[event_type],
        "log_mean": following.gap.log_mean(),
        "log_quantiles": jnp.array([following.gap.log_quantile(level) for level in levels]),
        "within": following.gap.probability_by(within),
        "p": p,
        "top": top,
    }
