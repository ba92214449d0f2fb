"""When the next event of sequences comes, by a run's model."""

from __future__ import annotations

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
from flax_linattn.tasks.events.evaluate import ROWS, SHORTEST, SPAN
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array

QUANTILE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of the time that are told."""


def predict(run: Run, file: Path | None) -> pd.DataFrame:
    """A row a sequence: its last time, the expected time of the next event, quantiles, marks.

    A sequence has its name from the file, or its number. Predictions say what was known at the last
    event, not that none came since.
    """
    batches = run.task.test_batches(run, file)
    assert isinstance(batches, EventBatches)
    events, data_spec = batches.events, run.data_spec
    tokens = tokenize_sequences(events, data_spec)
    outputs = _outputs(run.model, tokens)
    told = _summarize_outputs(run.model.num_components, run.model.spread, QUANTILE_LEVELS, outputs)
    found = {name: np.asarray(value, np.float64) for name, value in told.items()}
    if any(np.isnan(values).any() for values in found.values()):
        raise ValueError("the model's outputs are NaN: its numbers overflow.")
    last = np.array([own[-1] for own in events.times])
    with np.errstate(over="ignore"):  # a time beyond all numbers is none
        gaps = data_spec.scale * np.exp(
            np.column_stack([found["log_mean"], found["log_quantiles"]])
        )
    show = _dates if data_spec.dates else np.asarray
    ids = np.arange(len(last)) if events.names is None else np.array(events.names, object)
    names = ["sequence", "time", "next", *(f"q{share:g}" for share in QUANTILE_LEVELS)]
    times = [show(column) for column in (last, *(last + gap for gap in gaps.T))]
    if data_spec.num_marks > 1:
        best = np.array(data_spec.mark_names, object)[np.argmax(found["marks"], axis=1)]
        names += ["mark", *(f"p({name})" for name in data_spec.mark_names)]
        return make_table(names, (ids, *times, best, *np.asarray(told["marks"]).T))
    return make_table(names, (ids, *times))


def _dates(seconds: NDArray[np.float64]) -> pd.DatetimeIndex:
    """Seconds since 1970 as dates in UTC; what no year can hold becomes none."""
    within = np.abs(seconds) < 2e11  # the year 8307
    microseconds = (np.where(within, seconds, 0) * 1e6).round().astype("M8[us]")
    return pd.DatetimeIndex(np.where(within, microseconds, np.datetime64("NaT", "us")), tz="UTC")


def _outputs(model: models.EventForecaster, tokens: list[Tokens]) -> NDArray[np.float32]:
    """The model's after the last event of each sequence, float32 [N, outputs]."""
    rows = min(ROWS, len(tokens))
    found: dict[int, NDArray[np.float32]] = {}
    for group in groups(tokens, rows):
        length = max(SHORTEST, padded_length(len(tokens[group[0]].asked)))
        padded = pad_group([tokens[index] for index in group], rows, length)
        padded["mask"][len(group) :, 0] = True
        outputs = _last_outputs(model, padded["observations"], padded["mask"])
        found |= dict(zip(group, np.asarray(outputs), strict=False))
    return np.stack([found[index] for index in range(len(tokens))])


def _last_outputs(model: models.EventForecaster, x: NDArray, mask: NDArray) -> Array:
    if model.streams:
        chunk = SPAN if x.shape[1] > SPAN else None
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
    num_components: int, spread: float, shares: tuple[float, ...], outputs: Array
) -> dict[str, Array]:
    """Logs of times in units of the scale, and the probability of each mark."""
    following = next_event(outputs, num_components, spread)
    quantiles = [following.gap.log_quantile(share) for share in shares]
    return {
        "log_mean": following.gap.log_mean(),
        "log_quantiles": jnp.stack(quantiles, axis=-1),
        "marks": jnp.exp(following.event_type_log_probs()),
    }


class StreamedEvent(NamedTuple):
    """An event of a stream, and what the model said after it.

    Attributes:
        time: of the event, or of the begin of a sequence.
        outputs: of the model after it, float32 [outputs].
        observation: as the model took it in, float32 [W].
    """

    time: float
    outputs: NDArray[np.float32]
    observation: NDArray[np.float32]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def summarize_next_event(
    num_components: int,
    spread: float,
    shares: tuple[float, ...],
    most: int,
    outputs: Array,
    log_gap: Array,
    mark: Array,
    within: Array,
) -> dict[str, Array]:
    """What outputs [3 K + M] say of an event that came, and of the one to come.

    ``log_gap`` and ``mark`` are those of the one that came; ``within`` is the logarithm of a time.
    Times are in units of the scale.

    Returns:
        "time" and "mark", log density and log probability of the one that came; "log_mean" and
        "log_quantiles" [Q], logs of times; "within", the probability of an event up to that time;
        "top" and "p", the likeliest marks and their probabilities, [most].
    """
    following = next_event(outputs, num_components, spread)
    marks = following.event_type_log_probs()
    p, top = jax.lax.top_k(jnp.exp(marks), most)
    return {
        "time": following.gap.log_density(log_gap),
        "mark": marks[mark],
        "log_mean": following.gap.log_mean(),
        "log_quantiles": jnp.array([following.gap.log_quantile(share) for share in shares]),
        "within": following.gap.probability_by(within),
        "p": p,
        "top": top,
    }
