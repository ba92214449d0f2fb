"""Trained models of events: tested, and their streams compared with the parallel model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flax_linattn.data.events import EventSequences
from flax_linattn.tasks.events.calibration import ks_distance, ks_limit
from flax_linattn.tasks.events.data import checksum_of, load_data, split_data, tokens_of
from flax_linattn.tasks.events.score import Scores
from flax_linattn.tasks.events.yardsticks import (
    fit_processes,
    for_hawkes,
    guesses,
    process_values,
)
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streamed import stream_difference
from flax_linattn.tasks.yardsticks import at_hand

COMPARED = 1000
"""Events over which the stream is compared with the parallel model."""


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
        "dataset": run.problem.dataset,
        "mechanism": mechanism_name(run.config.layers),
        "num_test_events": number,
        "num_test_sequences": len(scores.survival),
        "test_nll": -scores.total / number,
        **(marks if run.problem.num_marks > 1 else {}),
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


def yardstick_values(run: Run, test: EventSequences) -> dict[str, Any]:
    """Of processes and guesses that learn from the run's training events, if at hand."""
    train = at_hand(partial(read_train, run))
    if train is None:
        return {}
    report: dict[str, Any] = {
        "num_train_events": train.num_forecast,
        "hawkes_learned_from": for_hawkes(train).num_forecast,
    }
    for name, process in fit_processes(train, run.problem.resolution).items():
        report |= process_values(name, process, test)
    return report | guesses(train, test)


def read_train(run: Run) -> EventSequences:
    """The events that the run was trained on.

    Raises:
        ValueError: they have changed, or are damaged.
        FileNotFoundError: a file is missing.
    """
    with reading_data(of_run=True):
        events = load_data(run.config.data) if run.data is None else run.data
        train = split_data(events, run.config.data).train
    if checksum_of(train) != run.problem.checksum["train"]:
        raise ValueError("the data of the run have changed since")
    return train


def stream_error(run: Run, events: EventSequences) -> dict[str, Any]:
    """The largest difference between streamed and parallel outputs, over the longest sequence."""
    tokens = max(tokens_of(events, run.problem), key=lambda own: len(own.asked))
    return stream_difference(run.model, tokens.observations[None, :COMPARED])
