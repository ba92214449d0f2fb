"""Exact scores of a trained model on whole event sequences of any length."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models
from flax_linattn.data.events import EventSequences
from flax_linattn.tasks.events.baselines import ks_distance, ks_limit
from flax_linattn.tasks.events.data import (
    END,
    EVENT,
    EventsSpec,
    Tokens,
    groups,
    pad_group,
    padded_length,
    tokenize_sequences,
)
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array

BATCH_SIZE = 32
"""Number of sequences in a batch."""
CHUNK_LENGTH = 512
"""Number of tokens in a chunk; longer sequences continue from their state."""
MIN_LENGTH = 32
"""Minimum length that sequences are padded to."""


class Scores(NamedTuple):
    """Log densities, probabilities and point forecasts of the n forecast events.

    Logarithms are natural, and times in units of the file.

    Attributes:
        sequence: Index of the sequence of each event, int64 [n].
        log_gap: Logarithm of the time since the previous event, float64 [n].
        time: Log density of the gap, float64 [n].
        event_type: Log probability of the event type, float64 [n].
        rank: Number of event types that were more probable than the true one, int64 [n].
        rescaled: Integrated intensity over the gap, float64 [n]; for the true model, these are
            independent and exponentially distributed with mean 1.
        log_mean: Logarithm of the expected gap, float64 [n].
        log_median: Logarithm of the median gap, float64 [n].
        survival: Log probability of no event from the last one to the end, float64 [N].
    """

    sequence: NDArray[np.int64]
    log_gap: NDArray[np.float64]
    time: NDArray[np.float64]
    event_type: NDArray[np.float64]
    rank: NDArray[np.int64]
    rescaled: NDArray[np.float64]
    log_mean: NDArray[np.float64]
    log_median: NDArray[np.float64]
    survival: NDArray[np.float64]

    @property
    def num_events(self) -> int:
        """Number n of forecast events."""
        return len(self.time)

    @property
    def total(self) -> float:
        """Log likelihood of all sequences."""
        return float(self.time.sum() + self.event_type.sum() + self.survival.sum())


def score(model: models.EventForecaster, events: EventSequences, data_spec: EventsSpec) -> Scores:
    """Scores every forecast event, conditioned on all earlier events of its sequence."""
    tokens = tokenize_sequences(events, data_spec)
    shift = float(np.log(data_spec.scale))
    columns: dict[str, list[NDArray]] = {name: [] for name in Scores._fields}
    survival = np.zeros(len(events))
    rows = min(BATCH_SIZE, len(tokens))
    for group in groups(tokens, rows):
        parts = _score_group(model, [tokens[i] for i in group], rows)
        for row, index in enumerate(group):
            own = tokens[index]
            event = np.flatnonzero(own.target == EVENT)
            columns["sequence"].append(np.full(len(event), index))
            columns["log_gap"].append(own.log_gap[event] + shift)
            for name, part in parts.items():
                columns[name].append(part[row, event])
            if own.target[-1] == END:
                survival[index] = -parts["rescaled"][row, len(own.target) - 1]
    joined = {name: np.concatenate(column) for name, column in columns.items() if column}
    order = np.argsort(joined["sequence"], kind="stable")
    joined = {name: values[order].astype(np.float64) for name, values in joined.items()}
    joined |= {name: joined[name].astype(np.int64) for name in ("sequence", "rank")}
    joined |= {name: joined[name] + shift for name in ("log_mean", "log_median")}
    return Scores(**joined | {"time": joined["time"] - shift, "survival": survival})


def _score_group(
    model: models.EventForecaster, group: list[Tokens], rows: int
) -> dict[str, NDArray]:
    """Scores of each token, [rows, longest]; rows after the group are padding."""
    longest = len(group[0].target)
    span = CHUNK_LENGTH if longest > CHUNK_LENGTH else max(MIN_LENGTH, padded_length(longest))
    length = -(-longest // span) * span
    padded = pad_group(group, rows, length)
    graphdef, variables = nnx.split(model)
    # Only a sequence of several chunks needs a state.
    state = model.init_state(rows, padded_length(length)) if length > span else None
    parts = []
    for first in range(0, length, span):
        at = slice(first, first + span)
        # The longest come first, so that finished rows are dropped, by powers of two.
        now = min(rows, padded_length(int(padded["mask"][:, first].sum())))
        chunk = {name: values[:now, at] for name, values in padded.items()}
        state = jax.tree.map(lambda leaf, now=now: leaf[:now], state)
        scores, state = _score_chunk(graphdef, variables, chunk, state)
        ended = [(0, rows - now), (0, 0)]
        parts.append({name: np.pad(np.asarray(part), ended) for name, part in scores.items()})
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


@partial(jax.jit, static_argnums=0)
def _score_chunk(
    graphdef: nnx.GraphDef[Any], variables: Any, chunk: dict[str, Array], state: Any
) -> tuple[dict[str, Array], Any]:
    model = nnx.merge(graphdef, variables)
    x, mask = chunk["observations"], chunk["mask"]
    if state is None:
        outputs = model(x, mask=mask)
    else:
        outputs, state = model(x, mask=mask, state=state, return_state=True)
    following = model.next_event(outputs)
    log_probabilities = following.event_type_log_probs()
    own = jnp.take_along_axis(log_probabilities, chunk["event_type"][..., None], axis=-1)
    return {
        "time": following.gap.log_density(chunk["log_gap"]),
        "rescaled": -following.gap.log_survival(chunk["log_gap"]),
        "log_mean": following.gap.log_mean(),
        "log_median": following.gap.log_quantile(0.5),
        "event_type": own[..., 0],
        "rank": jnp.sum(log_probabilities > own, axis=-1),
    }, state


def test_values(run: Run, scores: Scores) -> dict[str, Any]:
    """Likelihoods, errors and calibration of the model, as a report.

    Logarithms are natural, and times in the unit of the file.
    """
    number = scores.num_events
    survival = float(scores.survival.sum())
    parts = {
        "test_time_nll": -(float(scores.time.sum()) + survival) / number,
        "test_mark_nll": -float(scores.event_type.sum()) / number,
        "test_mark_accuracy": float(np.mean(scores.rank < 1)),
        "test_mark_top3": float(np.mean(scores.rank < 3)),
    }
    return {
        "dataset": run.data_spec.dataset,
        "mechanism": mechanism_name(run.config.layers),
        "num_test_events": number,
        "num_test_sequences": len(scores.survival),
        "test_nll": -scores.total / number,
        **(parts if run.data_spec.num_event_types > 1 else {}),
        **_errors(scores),
        "test_ks": ks_distance(scores.rescaled),
        "ks_limit": ks_limit(number),
    }


def _errors(scores: Scores) -> dict[str, float]:
    """Errors of the expected and the median gaps, in the unit of the file."""
    logs = (scores.log_gap, scores.log_mean, scores.log_median)
    with np.errstate(over="ignore"):  # the mean of a heavy tail may be beyond all numbers
        gaps, mean, median = (np.exp(log) for log in logs)
        sums = np.bincount(scores.sequence, mean - gaps)
        return {
            "test_rmse": float(np.sqrt(np.mean((mean - gaps) ** 2))),
            "test_rmse_of_median": float(np.sqrt(np.mean((median - gaps) ** 2))),
            "test_mae": float(np.mean(np.abs(median - gaps))),
            "test_rmse_of_sequence_sums": float(np.sqrt(np.sum(sums**2) / scores.num_events)),
        }
