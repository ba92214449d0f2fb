"""The events task: data, model, loss, test, prediction and streams of event sequences."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checks import OptionError, format_count
from flax_linattn.data.events import EventSequences
from flax_linattn.data.events.clock import format_date
from flax_linattn.tasks.baselines import read_or_note
from flax_linattn.tasks.events import evaluate
from flax_linattn.tasks.events.baselines import (
    BASELINES,
    fit_processes,
    hawkes_sequences,
    naive_scores,
    score_process,
)
from flax_linattn.tasks.events.data import (
    END,
    EVENT,
    EventBatches,
    EventsSpec,
    compute_checksum,
    describe,
    load_data,
    load_other,
    make_batches,
    split_data,
    tokenize_sequences,
)
from flax_linattn.tasks.events.evaluate import score
from flax_linattn.tasks.events.figures import plot_calibration
from flax_linattn.tasks.events.next_event import predict
from flax_linattn.tasks.events.options import EventsConfig, EventsOptions, EventsStreamOptions
from flax_linattn.tasks.events.stream import EventsStream
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run import own_part
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.tasks.task import DataSummary, Report, Task
from flax_linattn.typing import Array

MAX_STREAM_EVENTS = 1000
"""Number of events over which the stream is compared with the parallel model."""
MIN_EVENTS = 1e-3
"""Minimum count of events in a batch: one with survivals only would divide by zero."""


class EventsTask(EventsOptions, Task[EventsConfig, EventSequences, EventsSpec]):
    """Forecasts of the time and type of the next event, as a task."""

    DataSpec = EventsSpec
    splits_time = False

    def load(self, config: EventsConfig) -> EventSequences:
        return load_data(config.data)

    def describe(self, data: EventSequences, config: EventsConfig) -> EventsSpec:
        return describe(split_data(data, config.data), config)

    def about_data(self, data: EventSequences, config: EventsConfig) -> DataSummary:
        parts = split_data(data, config.data)
        forecast = ", ".join(f"{part.num_forecast:,}" for part in parts)
        lengths = [len(own) for own in data.times]
        first, last = min(own[0] for own in data.times), max(own[-1] for own in data.times)
        begin, end = map(format_date if data.dates else str, (first, last))
        text = (
            f"{data.name}: {format_count(len(data), 'sequence')} of {min(lengths):,} to "
            f"{format_count(max(lengths), 'event')}, "
            f"{format_count(len(data.event_type_names), 'event type')}, from {begin} to {end}\n"
            f"events of training, validation and test: {forecast}"
        )
        gaps = np.concatenate(data.gaps())
        zeros = int((gaps == 0).sum())
        if not zeros:
            return DataSummary(text)
        note = (
            f"events at the same time as the previous one: {zeros:,} ({zeros / len(gaps):.2g} of "
            "all); a gap of 0 is replaced by the option resolution"
        )
        return DataSummary(text, (note,))

    def batches(
        self,
        data: EventSequences,
        config: EventsConfig,
        data_spec: EventsSpec,
        sequence_shards: int,
    ) -> training.Splits:
        parts = split_data(data, config.data)
        batches = partial(make_batches, config=config, data_spec=data_spec)
        return training.Splits(
            batches(parts.train, seed=config.seed),
            batches(parts.validation, seed=None),
            batches(parts.test, seed=None),
        )

    def model(
        self,
        config: EventsConfig,
        data_spec: EventsSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.EventForecaster:
        return models.EventForecaster(
            data_spec.num_event_types,
            kernel_size=config.model.kernel_size,
            periods=data_spec.all_periods,
            spread=data_spec.spread,
            num_components=config.model.num_components,
            layers=config.layers.map_mechanisms(placement.mechanism),
            max_length=data_spec.lengths[-1],
            rngs=nnx.Rngs(config.seed),
        )

    def objective(
        self, config: EventsConfig, data_spec: EventsSpec, steps_per_epoch: int
    ) -> training.Objective:
        optimizer = config.fit.make_optimizer(steps_per_epoch)
        return training.Objective(events_loss, optimizer, monitor="loss")

    @staticmethod
    def _own(run: Run, name: Literal["train", "test"]) -> EventSequences:
        part: EventSequences = own_part(run, name, load_data, split_data, compute_checksum)
        return part

    def test_batches(self, run: Run, file: Path | None) -> EventBatches:
        if file is None:
            test = self._own(run, "test")
        else:
            test = load_other(run.config.data, file)
            test = test.with_event_types(run.data_spec.event_type_names)
        if test.dates != run.data_spec.dates:
            kind = "dates such as 2016-07-01 00:00:00" if run.data_spec.dates else "numbers"
            raise OptionError(
                f"{file}: expected times as {kind}, as in the training data of the run, got "
                f"{'dates' if test.dates else 'numbers'}; convert the times.",
                "test_file",
            )
        if not test.num_forecast:
            raise OptionError(
                f"{file}: expected sequences with events to forecast, got first events only; add "
                "later events.",
                "test_file",
            )
        return make_batches(test, run.config, run.data_spec, seed=None)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        assert isinstance(batches, EventBatches)
        scores = score(run.model, batches.events, run.data_spec)
        named = {mechanism_name(run.config.layers): scores.rescaled}
        return Report(
            evaluate.test_values(run, scores),
            figures={"calibration.png": partial(plot_calibration, named)},
            baselines=BASELINES,
        )

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        assert isinstance(batches, EventBatches)
        train = read_or_note(partial(self._own, run, "train"))
        if train is None:
            return {}
        report: dict[str, Any] = {
            "num_train_events": train.num_forecast,
            "hawkes_learned_from": hawkes_sequences(train).num_forecast,
        }
        for name, process in fit_processes(train, run.data_spec.resolution).items():
            report |= score_process(name, process, batches.events)
        return report | naive_scores(train, batches.events)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        assert isinstance(batches, EventBatches)
        tokens = max(
            tokenize_sequences(batches.events, run.data_spec), key=lambda own: len(own.target)
        )
        return stream_difference(run.model, tokens.observations[None, :MAX_STREAM_EVENTS])

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        return predict(run, file)

    def stream(self, run: Run, options: EventsStreamOptions) -> EventsStream:
        return EventsStream(run, options)


def events_loss(
    model: models.EventForecaster, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean negative log likelihood (nats) per forecast event, with times in units of the scale.

    The survival of the last interval adds to the sum, but not to the number of events.
    """
    outputs = model(batch["observations"], mask=batch["mask"], dropout_key=dropout_key)
    following = model.next_event(outputs)
    weight = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    event, end = (jnp.where(batch["target"] == kind, weight, 0) for kind in (EVENT, END))
    gaps, log_probabilities = following.gap, following.event_type_log_probs()
    own = jnp.take_along_axis(log_probabilities, batch["event_type"][..., None], axis=-1)[..., 0]
    time = -jnp.sum(gaps.log_density(batch["log_gap"]) * event)
    type_nll = -jnp.sum(own * event)
    survival = -jnp.sum(gaps.log_survival(batch["log_gap"]) * end)
    right = jnp.argmax(log_probabilities, axis=-1) == batch["event_type"]
    total, count = time + type_nll + survival, jnp.maximum(jnp.sum(event), MIN_EVENTS)
    return total / count, {
        "loss": (total, count),
        "time_nll": (time + survival, count),
        "mark_nll": (type_nll, count),
        "mark_accuracy": (jnp.sum(jnp.where(right, event, 0)), count),
    }
