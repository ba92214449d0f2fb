"""The task of events, as the commands see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checks import OptionError
from flax_linattn.data.events import EventSequences
from flax_linattn.data.events.clock import format_date
from flax_linattn.tasks.baselines import read_or_note
from flax_linattn.tasks.events import evaluate
from flax_linattn.tasks.events.baselines import (
    BASELINES,
    fit_processes,
    for_hawkes,
    guesses,
    process_values,
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
from flax_linattn.tasks.events.figures import draw_calibration
from flax_linattn.tasks.events.next_event import predict
from flax_linattn.tasks.events.options import EventsConfig, thp
from flax_linattn.tasks.events.stream import EventsStream, EventsStreamOptions
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run import own_part
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.tasks.task import DataSummary, Report, Task
from flax_linattn.typing import Array

COMPARED = 1000
"""Events over which the stream is compared with the parallel model."""
NO_EVENT = 1e-3
"""Events that a batch of survivals alone counts as, so that its mean and its sum both exist."""


class EventsTask(Task[EventsConfig, EventSequences, EventsSpec]):
    """When the next event comes, and of which mark."""

    name = "events"
    Config = EventsConfig
    DataSpec = EventsSpec
    is_causal = True
    splits_time = False
    StreamOptions = EventsStreamOptions
    presets: ClassVar[Mapping[str, Any]] = {"thp": thp}

    def load(self, config: EventsConfig) -> EventSequences:
        """Loads the events of all parts."""
        return load_data(config.data)

    def describe(self, data: EventSequences, config: EventsConfig) -> EventsSpec:
        """Finds the event types, scales and periods of the data."""
        return describe(split_data(data, config.data), config)

    def about_data(self, data: EventSequences, config: EventsConfig) -> DataSummary:
        """Sequences, events, marks and times; gaps of zero."""
        parts = split_data(data, config.data)
        forecast = ", ".join(f"{part.num_forecast:,}" for part in parts)
        lengths = [len(own) for own in data.times]
        first, last = min(own[0] for own in data.times), max(own[-1] for own in data.times)
        shown = format_date if data.dates else str
        text = (
            f"{data.name}: {len(data):,} sequences of {min(lengths):,} to {max(lengths):,} events, "
            f"{len(data.mark_names):,} marks, from {shown(first)} to {shown(last)}\n"
            f"events to train, validate and test on: {forecast}"
        )
        gaps = np.concatenate(data.gaps())
        zeros = int((gaps == 0).sum())
        if not zeros:
            return DataSummary(text)
        note = (
            f"events at the time of the one before: {zeros:,}, {zeros / len(gaps):.2g} of all; "
            "their gap counts as the resolution"
        )
        return DataSummary(text, (note,))

    def batches(
        self,
        data: EventSequences,
        config: EventsConfig,
        data_spec: EventsSpec,
        sequence_shards: int,
    ) -> training.Splits:
        """Makes batches of sequence chunks."""
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
        """Builds the ``models.EventForecaster`` of a run."""
        return models.EventForecaster(
            data_spec.num_marks,
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
        """Negative log likelihood, minimized by Adam."""
        optimizer = config.fit.make_optimizer(steps_per_epoch)
        return training.Objective(events_loss, optimizer, monitor="loss")

    @staticmethod
    def _own(run: Run, name: Literal["train", "test"]) -> EventSequences:
        part: EventSequences = own_part(run, name, load_data, split_data, compute_checksum)
        return part

    def test_batches(self, run: Run, file: Path | None) -> EventBatches:
        """The test part of the run's events, or all events of another file of the same format."""
        if file is None:
            test = self._own(run, "test")
        else:
            test = load_other(run.config.data, file).with_marks(run.data_spec.mark_names)
        if test.dates != run.data_spec.dates:
            kind = "dates such as 2016-07-01 00:00:00" if run.data_spec.dates else "numbers"
            raise OptionError(
                f"{file}: expected times as {kind}, as the run has them, got "
                f"{'dates' if test.dates else 'numbers'}; write them so.",
                "test_file",
            )
        if not test.num_forecast:
            raise OptionError(
                f"{file}: expected events to forecast, got none; give longer sequences.",
                "test_file",
            )
        return make_batches(test, run.config, run.data_spec, seed=None)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Likelihoods, errors, calibration: exact, over whole sequences."""
        assert isinstance(batches, EventBatches)
        scores = score(run.model, batches.events, run.data_spec)
        named = {mechanism_name(run.config.layers): scores.rescaled}
        return Report(
            evaluate.test_values(run, scores),
            figures={"calibration.png": partial(draw_calibration, named)},
            baselines=BASELINES,
        )

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of Poisson, renewal and Hawkes processes, and of simple guesses."""
        assert isinstance(batches, EventBatches)
        train = read_or_note(partial(self._own, run, "train"))
        if train is None:
            return {}
        report: dict[str, Any] = {
            "num_train_events": train.num_forecast,
            "hawkes_learned_from": for_hawkes(train).num_forecast,
        }
        for name, process in fit_processes(train, run.data_spec.resolution).items():
            report |= process_values(name, process, batches.events)
        return report | guesses(train, batches.events)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of the model's outputs, over the longest sequence."""
        assert isinstance(batches, EventBatches)
        tokens = max(
            tokenize_sequences(batches.events, run.data_spec), key=lambda own: len(own.asked)
        )
        return stream_difference(run.model, tokens.observations[None, :COMPARED])

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """When the next event of each sequence comes, and of which mark."""
        return predict(run, file)

    def stream(self, run: Run, options: EventsStreamOptions) -> EventsStream:
        """The next event after each."""
        return EventsStream(run, options)


def events_loss(
    model: models.EventForecaster, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean negative log likelihood (nats) per forecast event, times in units of the scale.

    The survival of the last interval counts in the sum, and not as an event.
    """
    outputs = model(batch["observations"], mask=batch["mask"], dropout_key=dropout_key)
    following = model.next_event(outputs)
    weight = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    event, end = (jnp.where(batch["asked"] == kind, weight, 0) for kind in (EVENT, END))
    gaps, marks = following.gap, following.event_type_log_probs()
    time = -jnp.sum(gaps.log_density(batch["log_gap"]) * event)
    mark = -jnp.sum(jnp.take_along_axis(marks, batch["mark"][..., None], axis=-1)[..., 0] * event)
    survival = -jnp.sum(gaps.log_survival(batch["log_gap"]) * end)
    right = jnp.argmax(marks, axis=-1) == batch["mark"]
    total, count = time + mark + survival, jnp.maximum(jnp.sum(event), NO_EVENT)
    return total / count, {
        "loss": (total, count),
        "time_nll": (time + survival, count),
        "mark_nll": (mark, count),
        "mark_accuracy": (jnp.sum(jnp.where(right, event, 0)), count),
    }
