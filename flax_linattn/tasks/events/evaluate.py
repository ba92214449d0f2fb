"""Exact scores of a trained model on whole sequences of events, however long."""

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

ROWS = 32
"""Sequences that are scored at once."""
SPAN = 512
"""Tokens that are taken in at once; a longer sequence goes on from its state."""
SHORTEST = 32
"""Tokens that a sequence is padded to at least."""


class Scores(NamedTuple):
    """What a model says of the n events that are asked for, in natural logarithms.

    Times are in units of the file.

    Attributes:
        sequence: of which each is, int64 [n].
        log_gap: of the time since the event before, float64 [n].
        time: log densities of the gaps, float64 [n].
        mark: log probabilities of the marks, float64 [n].
        rank: how many marks were likelier than that which came, int64 [n].
        rescaled: integrated intensities over the gaps, float64 [n]: exponential with mean one and
            independent, if the model is right.
        log_mean: of the expected gaps, float64 [n].
        log_median: of the median gaps, float64 [n].
        survival: log probabilities of no event from the last one to the end, float64 [N].
    """

    sequence: NDArray[np.int64]
    log_gap: NDArray[np.float64]
    time: NDArray[np.float64]
    mark: NDArray[np.float64]
    rank: NDArray[np.int64]
    rescaled: NDArray[np.float64]
    log_mean: NDArray[np.float64]
    log_median: NDArray[np.float64]
    survival: NDArray[np.float64]

    @property
    def num_events(self) -> int:
        """Number n of events."""
        return len(self.time)

    @property
    def total(self) -> float:
        """Log likelihood of all sequences."""
        return float(self.time.sum() + self.mark.sum() + self.survival.sum())


def score(model: models.EventForecaster, events: EventSequences, data_spec: EventsSpec) -> Scores:
    """Scores every forecast event, each by all that came before it in its sequence."""
    tokens = tokenize_sequences(events, data_spec)
    shift = float(np.log(data_spec.scale))
    found: dict[str, list[NDArray]] = {name: [] for name in Scores._fields}
    survival = np.zeros(len(events))
    rows = min(ROWS, len(tokens))
    for group in groups(tokens, rows):
        parts = _score_group(model, [tokens[i] for i in group], rows)
        for row, index in enumerate(group):
            own = tokens[index]
            event = np.flatnonzero(own.asked == EVENT)
            found["sequence"].append(np.full(len(event), index))
            found["log_gap"].append(own.log_gap[event] + shift)
            for name, part in parts.items():
                found[name].append(part[row, event])
            if own.asked[-1] == END:
                survival[index] = -parts["rescaled"][row, len(own.asked) - 1]
    joined = {name: np.concatenate(parts) for name, parts in found.items() if parts}
    order = np.argsort(joined["sequence"], kind="stable")
    joined = {name: values[order].astype(np.float64) for name, values in joined.items()}
    joined |= {name: joined[name].astype(np.int64) for name in ("sequence", "rank")}
    joined |= {name: joined[name] + shift for name in ("log_mean", "log_median")}
    return Scores(**joined | {"time": joined["time"] - shift, "survival": survival})


def _score_group(
    model: models.EventForecaster, group: list[Tokens], rows: int
) -> dict[str, NDArray]:
    """Of each token, [rows, longest]; rows behind those of the group are filler."""
    longest = len(group[0].asked)
    span = SPAN if longest > SPAN else max(SHORTEST, padded_length(longest))
    length = -(-longest // span) * span
    padded = pad_group(group, rows, length)
    graphdef, variables = nnx.split(model)
    # A state only where there is more than one span.
    state = model.init_state(rows, padded_length(length)) if length > span else None
    parts = []
    for first in range(0, length, span):
        at = slice(first, first + span)
        # The longest stand first: rows that have ended drop out, by powers of two.
        now = min(rows, padded_length(int(padded["mask"][:, first].sum())))
        piece = {name: values[:now, at] for name, values in padded.items()}
        state = jax.tree.map(lambda leaf, now=now: leaf[:now], state)
        found, state = _score_span(graphdef, variables, piece, state)
        ended = [(0, rows - now), (0, 0)]
        parts.append({name: np.pad(np.asarray(part), ended) for name, part in found.items()})
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


@partial(jax.jit, static_argnums=0)
def _score_span(
    graphdef: nnx.GraphDef[Any], variables: Any, piece: dict[str, Array], state: Any
) -> tuple[dict[str, Array], Any]:
    model = nnx.merge(graphdef, variables)
    x, mask = piece["observations"], piece["mask"]
    if state is None:
        outputs = model(x, mask=mask)
    else:
        outputs, state = model(x, mask=mask, state=state, return_state=True)
    following = model.next_event(outputs)
    marks = following.event_type_log_probs()
    own = jnp.take_along_axis(marks, piece["mark"][..., None], axis=-1)
    return {
        "time": following.gap.log_density(piece["log_gap"]),
        "rescaled": -following.gap.log_survival(piece["log_gap"]),
        "log_mean": following.gap.log_mean(),
        "log_median": following.gap.log_quantile(0.5),
        "mark": own[..., 0],
        "rank": jnp.sum(marks > own, axis=-1),
    }, state


def test_values(run: Run, scores: Scores) -> dict[str, Any]:
    """Likelihoods, errors and calibration of the model.

    Natural logarithms, and times in the unit of the file.
    """
    number = scores.num_events
    survival = float(scores.survival.sum())
    marks = {
        "test_time_nll": -(float(scores.time.sum()) + survival) / number,
        "test_mark_nll": -float(scores.mark.sum()) / number,
        "test_mark_accuracy": float(np.mean(scores.rank < 1)),
        "test_mark_top3": float(np.mean(scores.rank < 3)),
    }
    return {
        "dataset": run.data_spec.dataset,
        "mechanism": mechanism_name(run.config.layers),
        "num_test_events": number,
        "num_test_sequences": len(scores.survival),
        "test_nll": -scores.total / number,
        **(marks if run.data_spec.num_marks > 1 else {}),
        **_errors(scores),
        "test_ks": ks_distance(scores.rescaled),
        "ks_limit": ks_limit(number),
    }


def _errors(scores: Scores) -> dict[str, float]:
    """Of the expected gaps and of the median ones, in the unit of the file."""
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
