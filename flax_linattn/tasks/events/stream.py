"""A trained model over a stream: events in, what is known of the next one out."""

from __future__ import annotations

import dataclasses
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
from flax_linattn.checks import MAX_INTEGER, OptionError, at_least
from flax_linattn.data.events.clock import format_date
from flax_linattn.data.tables.cells import is_number
from flax_linattn.tasks.events.data import log_gap, observations
from flax_linattn.tasks.events.figures import draw_intensity
from flax_linattn.tasks.events.next_event import StreamedEvent, summarize_next_event
from flax_linattn.tasks.events.rows import Event, EventLines
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream


@dataclasses.dataclass(frozen=True)
class EventsStreamOptions:
    """Options of a stream of events.

    An event is a line: its time, and its mark where the run has any, separated by a comma; a first
    line may name the columns. A blank line begins a new sequence. What comes out are times from the
    event to the next one, in the unit of the run's file (of dates, seconds).

    Attributes:
        quantiles: Quantile levels of the time to the next event, separated by commas.
        marks: Number of the most probable event types to print.
        within: Also print the probability of an event within this time, in the unit of the file; 0
            prints none.
        begin: Start of the observation of each sequence, for a run trained with such starts;
            the first event is then also forecast.
        max_length: Maximum number of events of a sequence, for mechanisms with a cache. Default:
            one more than the longest training segment.
        simulate: Number of futures to sample after the last event, instead of the lines for each
            event.
        events: Number of events of each sampled future.
        seed: Random seed of the sampled futures.
    """

    quantiles: str = "0.05,0.5,0.95"
    marks: int = 1
    within: float = 0.0
    begin: str = ""
    max_length: int | None = None
    simulate: int = 0
    events: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(0, 2**20, marks=self.marks)
        at_least(1, 2**20, events=self.events)
        at_least(0, 2**16, simulate=self.simulate)
        at_least(0, MAX_INTEGER, seed=self.seed)
        at_least(1, max_length=self.max_length)
        if not 0 <= self.within < float("inf"):
            raise OptionError(f"within must be at least 0 and finite, got {self.within}.", "within")
        if self.simulate and self.within:
            raise OptionError(
                "within is not available with simulate, which samples futures; remove one.",
                "within",
                "simulate",
            )
        self.shares()

    def shares(self) -> tuple[float, ...]:
        """The quantiles as numbers.

        Raises:
            OptionError: one is not between 0 and 1.
        """
        cells = [cell for cell in self.quantiles.split(",") if cell.strip()]
        shares = tuple(float(cell) if is_number(cell.strip()) else -1.0 for cell in cells)
        if not all(0 < share < 1 for share in shares):
            raise OptionError(
                f"quantiles must be numbers between 0 and 1, separated by commas, got "
                f"{self.quantiles!r}.",
                "quantiles",
            )
        return shares


DRAWN = 100
"""Last events of the figure."""


class EventsStream(Streaming):
    """The next event after each, and how well each event was foreseen.

    Args:
        run: the trained run.
        options: as there.

    Attributes:
        log_likelihood: of the events so far, those before a restart too, in natural logarithms and
            the unit of the run's file; without the survival since the last one.
        num_foreseen: events that it is of.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    record_attributes = ("_length", "_origin", "_last", "log_likelihood", "num_foreseen")

    def __init__(self, run: Run, options: EventsStreamOptions) -> None:
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream: its mechanism has no causal form.", "mechanism"
            )
        data, data_spec = run.config.data, run.data_spec
        self._lines = EventLines(data_spec, (data.time, data.mark, data.sequence), data.timezone)
        self._begin: float | None = None
        if options.begin:
            if not data_spec.begins:
                raise OptionError(
                    "the run was trained without starts of observation, so it cannot forecast a "
                    "first event; remove begin, or train with it.",
                    "begin",
                )
            try:
                self._begin = self._lines.time(options.begin)
            except ValueError as error:
                raise OptionError(f"begin: {error}", "begin") from None
        # After the last event of a sequence nothing is asked, and training leaves it out.
        longest = data_spec.lengths[-1] + 1
        length = longest if options.max_length is None else options.max_length
        self._shares = options.shares()
        self._options = options
        self._marks = min(options.marks, data_spec.num_marks if data_spec.num_marks > 1 else 0)
        header = ["step", "time", "log_likelihood", "mean", *(f"q{s:g}" for s in self._shares)]
        header += ["within"] if options.within else []
        header += [name for n in range(1, self._marks + 1) for name in (f"mark{n}", f"p{n}")]
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
            self._shares,
            max(1, self._marks),
        )
        self._seen: deque[StreamedEvent] = deque(maxlen=DRAWN)
        model = run.model
        outputs = np.zeros(3 * model.num_components + model.num_event_types, np.float32)
        self._last = StreamedEvent(
            0.0, outputs, np.zeros(model.backbone.observation_shape, np.float32)
        )
        self._origin = 0.0
        self._length = 0
        self.log_likelihood, self.num_foreseen = 0.0, 0

    def parse(self, lines: Iterable[str]) -> Iterator[Event | None]:
        """Reads an event a line; see ``EventLines``."""
        return self._lines.parse(lines)

    def cells(self, observation: Event | None) -> Sequence[Any] | None:
        """Step within the sequence, and what is known of the next event."""
        if observation is None:
            self._restart()
            self.num_breaks += 1
            return None
        foreseen = self.step(observation)
        if self._options.simulate:
            return None
        return [self._length, self._shown(observation.time), *self._told(foreseen)]

    def step(self, event: Event) -> float | None:
        """Takes in an event.

        Returns:
            Log likelihood of its gap and its mark, in natural logarithms and the unit of the run's
            file; None of an event before which nothing was known.

        Raises:
            ValueError: it has no finite time, or none of the run's marks; its time is before that
                of the last one; no room is left; or NaN comes out.
        """
        data_spec = self._run.data_spec
        if not (math.isfinite(event.time) and 0 <= event.mark < data_spec.num_marks):
            raise ValueError(
                f"expected an event with a finite time and a mark from 0 to "
                f"{data_spec.num_marks - 1}, got {event}."
            )
        if not self._seen and self._begin is not None:
            if event.time < self._begin:
                raise OptionError(
                    f"expected a first time from {self._shown(self._begin)} on, when the "
                    f"observation began, got {self._shown(event.time)}.",
                    "begin",
                )
            self._take_in(self._begin, data_spec.num_marks, math.nan)
        last = self._seen[-1] if self._seen else None
        if last is not None and event.time < last.time:
            raise ValueError(
                f"times go backwards, from {self._shown(last.time)} to {self._shown(event.time)}; "
                "sort the events, or begin a new sequence by a blank line."
            )
        if last is None:
            self._take_in(event.time, event.mark, math.nan)
            self.num_steps, self._length = self.num_steps + 1, self._length + 1
            return None
        gap = float(log_gap(np.array(event.time - last.time), data_spec))
        told = self._said(last, log_gap=gap, mark=event.mark)
        found = float(told["time"]) - math.log(data_spec.scale) + float(told["mark"])
        self._take_in(event.time, event.mark, gap)
        self.num_steps, self._length = self.num_steps + 1, self._length + 1
        self.log_likelihood, self.num_foreseen = self.log_likelihood + found, self.num_foreseen + 1
        return found

    def _take_in(self, time: float, mark: int, gap: float) -> None:
        if not self._stream.num_steps:
            self._origin = time
        x = observations(
            np.array([time]), np.array([mark]), np.array([gap]), self._origin, self._run.data_spec
        )
        with explain_full_stream("a sequence"):
            outputs = np.asarray(self._stream.step(x))[0]
        if np.isnan(outputs).any():
            raise ValueError("the model's outputs are NaN: its numbers overflow.")
        self._last = StreamedEvent(time, outputs, x[0])
        self._seen.append(self._last)

    def _said(
        self, seen: StreamedEvent, log_gap: float = 0.0, mark: int = 0, within: float = 0.0
    ) -> dict[str, NDArray]:
        """Summary of the event after one, fetched from the device at once."""
        told = self._summarize_outputs(seen.outputs, np.float32(log_gap), mark, np.float32(within))
        fetched: dict[str, NDArray] = jax.device_get(told)
        return fetched

    def _told(self, foreseen: float | None) -> list[Any]:
        data_spec, options = self._run.data_spec, self._options
        within = math.log(options.within) - math.log(data_spec.scale) if options.within else 0.0
        told = self._said(self._seen[-1], within=within)
        shift = math.log(data_spec.scale)
        logs = np.array([told["log_mean"], *told["log_quantiles"]], np.float64) + shift
        with np.errstate(over="ignore"):  # a time beyond all numbers is as good as any
            cells = [foreseen, *np.exp(logs)]
        cells += [told["within"][()]] if options.within else []
        for index, share in zip(told["top"][: self._marks], told["p"], strict=False):
            cells += [data_spec.mark_names[int(index)], share]
        return cells

    def last_cells(self) -> Iterator[Sequence[Any]]:
        """The futures, where these are asked for."""
        if not (self._options.simulate and self.num_rows):
            return
        futures = self.simulate(self._options.simulate, self._options.events, self._options.seed)
        for number, (times, marks) in enumerate(zip(*futures, strict=True)):
            for event, (time, mark) in enumerate(zip(times, marks, strict=True), start=1):
                name = self._run.data_spec.mark_names[int(mark)]
                yield [number, event, self._shown(float(time)), name]

    def simulate(
        self, futures: int, events: int, seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Draws what may follow the last event.

        Args:
            futures: N.
            events: E, of each.
            seed: of the draws.

        Returns:
            Times float64 [N, E] in the unit of the run's file, and marks int32 [N, E].

        Raises:
            ValueError: the sequence has no event yet, or a cache has no room for the futures.
        """
        last = self._last_of("futures")
        repeat = jnp.zeros(futures, jnp.int32)
        drawn = inference.sample_events(
            self._run.model,
            jnp.asarray(last.outputs[None])[repeat],
            jnp.asarray(last.observation[None])[repeat],
            inference.gather_rows(self._stream.state, repeat),
            events,
            key=jax.random.key(seed),
        )
        if np.isnan(drawn.log_gaps).any():
            raise OptionError(
                f"the model has no room for {events} events after the last one; give a larger "
                "max_length, or fewer events.",
                "max_length",
                "events",
            )
        with np.errstate(over="ignore"):  # a time beyond all numbers is as good as any
            gaps = np.exp(np.asarray(drawn.log_gaps, np.float64)) * self._run.data_spec.scale
            return last.time + np.cumsum(gaps, axis=1), np.asarray(drawn.event_types)

    def is_possible(self, record: Record) -> bool:
        """No more events than observations."""
        taken = int(record["_stream.num_steps"])
        length = taken - (taken > 0 and self._begin is not None)
        return record["_length"] == length and record["num_foreseen"] <= int(record["num_steps"])

    def resume(self) -> None:
        """The figure begins with the last event."""
        self._seen.clear()
        if self._stream.num_steps:
            self._seen.append(self._last)

    @property
    def max_extra_observations(self) -> int:
        """The begin of a sequence, where that is known."""
        return int(self._begin is not None)

    def end(self) -> str | None:
        """How well events were foreseen."""
        if not self.num_foreseen:
            return None
        nll = -self.log_likelihood / self.num_foreseen
        return f"{self.num_foreseen:,} events foreseen with an NLL of {nll:.4f} each"

    def plot(self, path: Path) -> None:
        """Draws the intensity between the last events, and what it is after them."""
        self._last_of("a figure")
        draw_intensity(self._run, list(self._seen), path)

    def _last_of(self, what: str) -> StreamedEvent:
        if not self._seen:
            raise ValueError(
                f"expected an event for {what}, got none since the last blank line; leave that out."
            )
        return self._seen[-1]

    def _restart(self) -> None:
        self._stream.reset()
        self._seen.clear()
        self._length = 0

    def _shown(self, time: float) -> str:
        return (
            format_date(time) if self._run.data_spec.dates else str(float(time)).removesuffix(".0")
        )
