"""Streams of a trained event model: the distribution of the next event after each event."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, format_count
from flax_linattn.data.events.clock import format_date
from flax_linattn.tasks.events.data import log_gap, observations
from flax_linattn.tasks.events.figures import plot_intensity
from flax_linattn.tasks.events.next_event import (
    NextEventSummary,
    StreamedEvent,
    summarize_next_event,
)
from flax_linattn.tasks.events.options import EventsStreamOptions
from flax_linattn.tasks.events.rows import Event, EventLines
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream

MAX_PLOTTED_EVENTS = 100
"""Maximum number of last events in the figure."""


class EventsStream(Streaming):
    """Stream that predicts the next event after each event, and scores each event.

    Args:
        run: The trained run.
        options: Options of the stream.

    Attributes:
        log_likelihood: Natural log likelihood of the events so far, including those before a
            restart, in the unit of the run's file; without the survival since the last event.
        num_foreseen: Number of events in ``log_likelihood``.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    record_attributes = ("_length", "_origin", "_last", "log_likelihood", "num_foreseen")

    def __init__(self, run: Run, options: EventsStreamOptions) -> None:
        if not run.model.streams:
            raise OptionError(
                "expected a run whose mechanism has a causal form, which streams need, got "
                f"{mechanism_name(run.config.layers)!r}; train with another mechanism.",
                "mechanism",
            )
        data, data_spec = run.config.data, run.data_spec
        columns = data.time, data.event_type, data.sequence
        self._lines = EventLines(data_spec, columns, data.timezone)
        self._begin: float | None = None
        if options.begin:
            if not data_spec.begins:
                raise OptionError(
                    f"begin={options.begin!r} needs a run trained with starts of observation, "
                    "which forecasts first events; remove begin, or train with begin.",
                    "begin",
                )
            try:
                self._begin = self._lines.time(options.begin)
            except ValueError as error:
                raise OptionError(f"begin: {error}", "begin") from None
        # Training chunks exclude the last event of a sequence, which has no target.
        default = data_spec.lengths[-1] + 1
        length = default if options.max_length is None else options.max_length
        self._levels = options.levels()
        self._options = options
        self._num_top = min(
            options.top_event_types,
            data_spec.num_event_types if data_spec.num_event_types > 1 else 0,
        )
        self._time_columns = ["mean", *(f"q{level:g}" for level in self._levels)]
        header = ["step", "time", "log_likelihood", *self._time_columns]
        header += ["within"] if options.within else []
        header += [name for n in range(1, self._num_top + 1) for name in (f"mark{n}", f"p{n}")]
        if options.simulate:
            header = ["future", "event", "time", "mark"]
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length + (self._begin is not None)),
            header,
            max_length=length,
            begin=options.begin,
        )
        self._summarize_outputs = partial(
            summarize_next_event,
            run.model.num_components,
            run.model.spread,
            self._levels,
            max(1, self._num_top),
        )
        self._events: deque[StreamedEvent] = deque(maxlen=MAX_PLOTTED_EVENTS)
        model = run.model
        outputs = np.zeros(3 * model.num_components + model.num_event_types, np.float32)
        self._last = StreamedEvent(
            0.0, outputs, np.zeros(model.backbone.observation_shape, np.float32)
        )
        self._origin = 0.0
        self._length = 0
        self.log_likelihood, self.num_foreseen = 0.0, 0

    def exported_model(self) -> inference.StreamingModel:
        """Returns the model with the summary of the next event as its outputs."""
        if self._begin is not None:
            return super().exported_model()
        return NextEventSummary(self._run.model, self._levels)

    def interface(self) -> dict[str, Any] | None:
        """Describes the times and types of events; None with ``begin``."""
        if self._begin is not None:
            return None
        data_spec = self._run.data_spec
        names = self._time_columns
        event = {
            "kind": "event",
            "names": list(data_spec.event_type_names),
            "initial": [0.0, 0.0],
            "dates": data_spec.dates,
            "scale": data_spec.scale,
            "resolution": data_spec.resolution,
            "periods": list(data_spec.periods),
            "clock": list(data_spec.clock),
        }
        columns = [*names, *(f"p({name})" for name in data_spec.event_type_names)]
        std = [data_spec.scale] * len(names) + [1.0] * data_spec.num_event_types
        outputs = {"kind": "targets", "columns": columns, "mean": [0.0] * len(std), "std": std}
        return {"inputs": [event], "outputs": outputs}

    def parse(self, lines: Iterable[str]) -> Iterator[Event | None]:
        return self._lines.parse(lines)

    def cells(self, observation: Event | None) -> Sequence[Any] | None:
        if observation is None:
            self._restart()
            self.num_breaks += 1
            return None
        score = self.step(observation)
        if self._options.simulate:
            return None
        return [self._length, self._format_time(observation.time), *self._next_event_cells(score)]

    def step(self, event: Event) -> float | None:
        """Adds an event to the stream, and scores it.

        Returns:
            Natural log likelihood of its gap and its type, in the unit of the run's file; None for
            the first event of a sequence without a start of observation.

        Raises:
            ValueError: If the time is not finite or before the last one, the event type is unknown,
                the cache is full, or an output is NaN.
        """
        data_spec = self._run.data_spec
        if not (math.isfinite(event.time) and 0 <= event.event_type < data_spec.num_event_types):
            raise ValueError(
                "expected an event with a finite time and an event type from 0 to "
                f"{data_spec.num_event_types - 1}, got {event}."
            )
        if not self._events and self._begin is not None:
            if event.time < self._begin:
                raise OptionError(
                    f"expected times from begin={self._format_time(self._begin)!r} on, got "
                    f"{self._format_time(event.time)}; set an earlier begin, or remove the event.",
                    "begin",
                )
            self._update(self._begin, data_spec.num_event_types, math.nan)
        last = self._events[-1] if self._events else None
        if last is not None and event.time < last.time:
            raise ValueError(
                f"expected times that do not decrease, got {self._format_time(event.time)} after "
                f"{self._format_time(last.time)}; sort the events, or start a new sequence with a "
                "blank line."
            )
        if last is None:
            self._update(event.time, event.event_type, math.nan)
            self.num_steps, self._length = self.num_steps + 1, self._length + 1
            return None
        gap = float(log_gap(np.array(event.time - last.time), data_spec))
        summary = self._summarize_next(last, log_gap=gap, event_type=event.event_type)
        time_score = float(summary["time"]) - math.log(data_spec.scale)
        score = time_score + float(summary["event_type"])
        self._update(event.time, event.event_type, gap)
        self.num_steps, self._length = self.num_steps + 1, self._length + 1
        self.log_likelihood, self.num_foreseen = self.log_likelihood + score, self.num_foreseen + 1
        return score

    def _update(self, time: float, event_type: int, gap: float) -> None:
        """Steps the model with an event, or with the start of observation."""
        if not self._stream.num_steps:
            self._origin = time
        columns = (np.array([time]), np.array([event_type]), np.array([gap]))
        x = observations(*columns, self._origin, self._run.data_spec)
        with explain_full_stream():
            outputs = np.asarray(self._stream.step(x))[0]
        if np.isnan(outputs).any():
            raise ValueError(
                f"the model's outputs after {self._format_time(time)} are NaN, because it "
                "overflows or its parameters hold NaN; check the times of the stream, or train the "
                "run again."
            )
        self._last = StreamedEvent(time, outputs, x[0])
        self._events.append(self._last)

    def _summarize_next(
        self, last: StreamedEvent, log_gap: float = 0.0, event_type: int = 0, within: float = 0.0
    ) -> dict[str, NDArray]:
        """Summary of the event after ``last``, fetched from the device at once."""
        summary = self._summarize_outputs(
            last.outputs, np.float32(log_gap), event_type, np.float32(within)
        )
        fetched: dict[str, NDArray] = jax.device_get(summary)
        return fetched

    def _next_event_cells(self, score: float | None) -> list[Any]:
        data_spec, options = self._run.data_spec, self._options
        within = math.log(options.within) - math.log(data_spec.scale) if options.within else 0.0
        summary = self._summarize_next(self._events[-1], within=within)
        shift = math.log(data_spec.scale)
        logs = np.array([summary["log_mean"], *summary["log_quantiles"]], np.float64) + shift
        with np.errstate(over="ignore"):  # a time beyond the range of float64 becomes inf
            cells = [score, *np.exp(logs)]
        cells += [summary["within"][()]] if options.within else []
        for index, p in zip(summary["top"][: self._num_top], summary["p"], strict=False):
            cells += [data_spec.event_type_names[int(index)], p]
        return cells

    def last_cells(self) -> Iterator[Sequence[Any]]:
        if not (self._options.simulate and self.num_rows):
            return
        futures = self.simulate(self._options.simulate, self._options.events, self._options.seed)
        for number, (times, event_types) in enumerate(zip(*futures, strict=True)):
            for event, (time, index) in enumerate(zip(times, event_types, strict=True), start=1):
                name = self._run.data_spec.event_type_names[int(index)]
                yield [number, event, self._format_time(float(time)), name]

    def simulate(
        self, futures: int, events: int, seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Samples sequences of events that may follow the last event.

        Args:
            futures: Number N of sampled sequences.
            events: Number E of events of each sequence.
            seed: Random seed.

        Returns:
            Times float64 [N, E] in the unit of the run's file, and event types int32 [N, E].

        Raises:
            ValueError: If the sequence has no event yet, or the cache is too small for the futures.
        """
        last = self._last_event("simulate")
        repeat = jnp.zeros(futures, jnp.int32)
        sampled = inference.sample_events(
            self._run.model,
            jnp.asarray(last.outputs[None])[repeat],
            jnp.asarray(last.observation[None])[repeat],
            inference.gather_rows(self._stream.state, repeat),
            events,
            key=jax.random.key(seed),
        )
        if np.isnan(sampled.log_gaps).any():
            raise OptionError(
                f"the cache of the mechanism is too small for {events} events after the last one; "
                "set a larger max_length, or fewer events.",
                "max_length",
                "events",
            )
        with np.errstate(over="ignore"):  # a time beyond the range of float64 becomes inf
            gaps = np.exp(np.asarray(sampled.log_gaps, np.float64)) * self._run.data_spec.scale
            return last.time + np.cumsum(gaps, axis=1), np.asarray(sampled.event_types)

    def is_possible(self, record: Record) -> bool:
        taken = int(record["_stream.num_steps"])
        length = taken - (taken > 0 and self._begin is not None)
        return record["_length"] == length and record["num_foreseen"] <= int(record["num_steps"])

    def resume(self) -> None:
        self._events.clear()
        if self._stream.num_steps:
            self._events.append(self._last)

    def num_observations(self, record: Record) -> int:
        return int(record["num_steps"]) + (self._begin is not None)

    def end(self) -> str | None:
        if not self.num_foreseen:
            return None
        nll = -self.log_likelihood / self.num_foreseen
        return f"mean NLL of {format_count(self.num_foreseen, 'event')}: {nll:.4f}"

    def plot(self, path: Path) -> None:
        self._last_event("the figure")
        plot_intensity(self._run, list(self._events), path)

    def _last_event(self, what: str) -> StreamedEvent:
        if not self._events:
            raise ValueError(
                f"{what} needs an event, got none since the last blank line; add an event, or "
                f"remove {what}."
            )
        return self._events[-1]

    def _restart(self) -> None:
        self._stream.reset()
        self._events.clear()
        self._length = 0

    def _format_time(self, time: float) -> str:
        return (
            format_date(time) if self._run.data_spec.dates else str(float(time)).removesuffix(".0")
        )
