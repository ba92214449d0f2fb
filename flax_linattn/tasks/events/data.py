"""The events of a run: reading or generating, splits, tokens and batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.data.events import (
    EventFileError,
    EventSequences,
    EventSplit,
    Piece,
    load_events,
    split_events,
)
from flax_linattn.data.generators import processes
from flax_linattn.tasks.events.options import EventsConfig, EventsData
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.spec import DataSpec


@dataclasses.dataclass(frozen=True)
class EventsSpec(DataSpec):
    """Metadata of the training data, saved in the run folder; a run needs no training data.

    Attributes:
        dataset: Name of the data set.
        event_type_names: Names of the event types, in the order of the model's outputs.
        dates: Whether times are dates, stored as seconds since 1970-01-01 UTC.
        scale: Gap that is scaled to 1, in the file's unit.
        spread: Standard deviation of the logarithms of gaps.
        resolution: Minimum gap, which replaces shorter ones, in the file's unit.
        periods: Periods whose phases are model inputs, in the file's unit.
        clock: Periods of the time since the start of a sequence, in the file's unit.
        lengths: Lengths that chunks of sequences are padded to.
        begins: Whether a training sequence has a known start of observation, so that the wait for
            its first event is learned.
        checksum: Checksums of the training ("train") and the test events ("test").
    """

    dataset: str
    event_type_names: tuple[str, ...]
    dates: bool
    scale: float
    spread: float
    resolution: float
    periods: tuple[float, ...]
    clock: tuple[float, ...]
    lengths: tuple[int, ...]
    begins: bool = True
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scale_fields: ClassVar[tuple[str, ...]] = ("scale", "spread", "resolution", "clock")
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "lengths", "begins", "checksum")
    json_keys = MappingProxyType({"event_type_names": "mark_names"})

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, 3 + 2 * len(self.all_periods)), jnp.float32)

    @property
    def num_event_types(self) -> int:
        """Number M of event types."""
        return len(self.event_type_names)

    @property
    def all_periods(self) -> tuple[float, ...]:
        """Periods of all sinusoidal inputs of the model, in units of the scale."""
        return tuple(period / self.scale for period in (*self.periods, *self.clock))

    def check(self) -> None:
        super().check()
        check_integers(1, num_event_types=self.num_event_types, num_lengths=len(self.lengths))
        for length in self.lengths:
            check_integers(1, lengths=length)
        for name, values in (
            ("scale", (self.scale,)),
            ("spread", (self.spread,)),
            ("resolution", (self.resolution,)),
            ("periods", self.periods),
            ("clock", self.clock),
        ):
            if not all(0 < value < float("inf") for value in values):
                raise OptionError(f"expected {name} as positive numbers, got {values}.", name)


DAY = 86_400.0
CALENDAR = (DAY, 7 * DAY)
"""Default periods for dates, in seconds."""

NO_TARGET, EVENT, END = 0, 1, 2
"""Target after a token: none, the next event, or no event until the end of the observation."""

GENERATOR_SEED = 0
"""Seed of synthetic events, which are the same in all runs."""
GENERATOR_END = 100.0
"""End of the observation of synthetic sequences."""
DEFAULT_NUM_SEQUENCES = 200

_RENAME = "rename the column as in the file of the run"
_ADVICE = {
    "time": _RENAME,
    "event_type": _RENAME,
    "sequence": _RENAME,
    "sort": "sort the rows of each sequence by time",
    "timezone": "correct it, or write it in UTC, such as 2016-07-01 00:00:00+00:00",
    "begin": "remove the events before the start of observation of the run",
    "end": "remove the events after the end of observation of the run",
    "gaps": "save times that never decrease",
    "file_format": "pass a file in the format of the run's file",
}
"""Advice for errors about a file other than the run's, by the option that the error names."""

PROCESSES: dict[str, processes.Process] = {
    "hawkes": processes.HawkesProcess([0.2], [[0.8]], decay=1.0),
    "hawkes-marked": processes.HawkesProcess(
        [0.1, 0.1, 0.05], [[0.5, 0.0, 0.2], [0.3, 0.3, 0.0], [0.0, 0.4, 0.1]], decay=2.0
    ),
    "poisson": processes.PoissonProcess([1.0]),
    "poisson-sine": processes.SIN,
    "renewal": processes.RenewalProcess([0.5, 0.5], [-1.0, 1.0], [0.5, 0.5]),
}
"""Processes that generate synthetic events, by the name of ``EventsData.process``."""


def load_data(source: EventsData) -> EventSequences:
    """Reads or generates the events of a run."""
    if source.file is None:
        end = processes.SIN_END if source.process == "poisson-sine" else GENERATOR_END
        number = source.num_sequences or DEFAULT_NUM_SEQUENCES
        return PROCESSES[source.process].sample(number, end, seed=GENERATOR_SEED)
    try:
        events = load_events(
            source.file,
            source.event_types_file,
            format=source.file_format,
            time=source.time,
            event_type=source.event_type,
            sequence=source.sequence,
            sort=source.sort,
            timezone=source.timezone,
            begin=source.begin or None,
            end=source.end or None,
        )
    except OptionError as error:
        error.options = tuple("file_format" if name == "format" else name for name in error.options)
        raise
    if not source.num_sequences:
        return events
    return events.select(range(min(source.num_sequences, len(events))))


def load_other(source: EventsData, file: Path) -> EventSequences:
    """Reads another file with the options of the run; errors advise on the file, not on options."""
    # A separate file of event types belongs to the run's own file only.
    file_format = source.file_format if source.event_types_file is None else "auto"
    source = dataclasses.replace(source, file=file, event_types_file=None, file_format=file_format,
                                 num_sequences=0, process=EventsData.process)  # fmt: skip
    try:
        events = load_data(source)
    except EventFileError as error:
        advice = next((_ADVICE[name] for name in error.options if name in _ADVICE), None)
        if advice is None:
            raise
        raise OptionError(f"{error.reason}; {advice}", "test_file") from None
    return dataclasses.replace(events, name=str(file))  # messages name the path


def split_data(events: EventSequences, source: EventsData) -> EventSplit:
    """Splits sequences into training, validation and test parts."""
    return split_events(
        events, source.split, by=None if source.split_by == "auto" else source.split_by
    )


def describe(parts: EventSplit, config: EventsConfig) -> EventsSpec:
    """Makes the data spec of a run; scales are computed from the training part."""
    train = parts.train
    gaps = np.concatenate(train.gaps())
    above = gaps[gaps > 0]
    if not above.size:
        raise OptionError(
            f"{train.name}: expected training events at different times, which give the scale of "
            "gaps, got gaps of 0 only; choose another split, or add events at other times.",
            "split",
        )
    resolution = config.model.resolution or float(above.min())
    logs = np.log(np.maximum(gaps, resolution))
    spread = float(logs.std())
    given = config.model.given_periods()
    periods = (CALENDAR if train.dates else ()) if given is None else given
    scale = config.model.scale or float(np.exp(logs.mean()))
    data_spec = EventsSpec(
        dataset=train.name,
        event_type_names=train.event_type_names,
        dates=train.dates,
        scale=scale,
        spread=spread if spread > 1e-3 else 1.0,
        resolution=resolution,
        periods=periods,
        clock=_clock(scale, train) if config.model.clock else (),
        lengths=(config.fit.length + config.fit.history + 1,),
        begins=bool(((train.num_given == 0) & ~np.isnan(train.begins)).any()),
        checksum={"train": compute_checksum(train), "test": compute_checksum(parts.test)},
    )
    chunks = _split_chunks(tokenize_sequences(train, data_spec), config)
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    lengths = {math.ceil(length) for length in np.quantile(sizes, (0.5, 1.0))}
    return dataclasses.replace(data_spec, lengths=tuple(sorted(lengths)))


def _clock(scale: float, events: EventSequences) -> tuple[float, ...]:
    """Periods from the scale to four times the longest sequence, as in Vaswani et al., 2017."""
    first, last_events = (np.array([own[at] for own in events.times]) for at in (0, -1))
    begins = np.where(np.isnan(events.begins), first, events.begins)
    last = max(4 * float((last_events - begins).max()), 10 * scale)
    return tuple(np.geomspace(2 * math.pi * scale, max(last, 4 * math.pi * scale), 16).tolist())


def compute_checksum(events: EventSequences) -> str:
    """Checksum of times, event types with their names, and observation bounds."""
    names = np.array(events.event_type_names)
    bounds = (events.begins, events.ends, events.num_given)
    return checksum([*events.times, *events.event_types, *bounds, names])


class Tokens(NamedTuple):
    """Inputs and targets of a sequence, one of each per token.

    Attributes:
        observations: Inputs float32 [n, 3 + 2 P], see ``models.EventColumns``; the first is the
            start of the observation, if it is known.
        log_gap: Logarithm of the time to the next event, or to the end, in units of the scale,
            float32 [n].
        event_type: Type of the next event, int32 [n].
        target: Kind of the target, NO_TARGET, EVENT or END, int8 [n].
    """

    observations: NDArray[np.float32]
    log_gap: NDArray[np.float32]
    event_type: NDArray[np.int32]
    target: NDArray[np.int8]


def tokenize_sequences(events: EventSequences, data_spec: EventsSpec) -> list[Tokens]:
    """Makes the tokens of each sequence."""
    parts = (events.times, events.event_types, events.begins, events.ends, events.num_given)
    tokens = []
    for times, event_types, begin, end, given in zip(*parts, strict=True):
        begins = not np.isnan(begin)
        if begins:
            times = np.concatenate([[begin], times])
            event_types = np.concatenate([[data_spec.num_event_types], event_types]).astype(
                np.int32
            )
        log_gaps = log_gap(np.diff(times), data_spec)
        rest = end - times[-1]
        target = np.full(len(times), EVENT, np.int8)
        target[: int(given) - 1 + begins] = NO_TARGET
        target[-1] = END if rest > 0 else NO_TARGET
        last = math.log(rest / data_spec.scale) if rest > 0 else 0.0
        own = Tokens(
            observations(
                times, event_types, np.concatenate([[np.nan], log_gaps]), times[0], data_spec
            ),
            np.concatenate([log_gaps, [last]]).astype(np.float32),
            np.concatenate([event_types[1:], [0]]).astype(np.int32),
            target,
        )
        tokens.append(own)
    return tokens


def log_gap(gaps: NDArray[np.float64], data_spec: EventsSpec) -> NDArray[np.float64]:
    """Logarithms of gaps, clipped to the resolution, in units of the scale: float64."""
    return np.log(np.maximum(gaps, data_spec.resolution) / data_spec.scale)


def observations(
    times: NDArray[np.float64],
    event_types: NDArray[np.integer],
    log_gaps: NDArray[np.float64],
    origin: float,
    data_spec: EventsSpec,
) -> NDArray[np.float32]:
    """Model inputs of the events [n] of a sequence: float32 [n, 3 + 2 P].

    ``log_gaps`` are those before each event; NaN = no previous event is known.
    """
    known = ~np.isnan(log_gaps)
    turns = [times[:, None] / np.array(data_spec.periods)] if data_spec.periods else []
    if data_spec.clock:
        turns.append((times - origin)[:, None] / np.array(data_spec.clock))
    turns = turns or [np.zeros((len(times), 0))]
    angles = 2 * np.pi * (np.concatenate(turns, axis=1) % 1.0)
    first = np.stack([np.where(known, log_gaps, 0.0), known, event_types], axis=1)
    return np.concatenate([first, np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _split_chunks(tokens: list[Tokens], config: EventsConfig) -> list[Piece]:
    """Cuts sequences into training chunks; ``forecast`` is the first token with a target.

    A chunk has ``length`` targets, the last chunk of a sequence at most one more.
    """
    chunks = []
    for index, own in enumerate(tokens):
        with_target = np.flatnonzero(own.target)
        if not with_target.size:
            continue
        first, last = int(with_target[0]), int(with_target[-1])
        # An END alone would be a chunk without an event, so it joins the previous chunk.
        begins = range(first, max(last, first + 1), config.fit.length)
        for begin in begins:
            stop = last + 1 if begin == begins[-1] else begin + config.fit.length
            chunks.append(Piece(index, max(0, begin - config.fit.history), begin, stop))
    return chunks


class EventBatches(data.RaggedBatches):
    """Batches of chunks of event sequences.

    Attributes:
        events: The whole sequences.
    """

    events: EventSequences


def make_batches(
    events: EventSequences, config: EventsConfig, data_spec: EventsSpec, *, seed: int | None
) -> EventBatches:
    """Makes batches of chunks of sequences."""
    tokens = tokenize_sequences(events, data_spec)
    arrays: dict[str, list[NDArray]] = {name: [] for name in Tokens._fields}
    for chunk in _split_chunks(tokens, config):
        for name, values in tokens[chunk.sequence]._asdict().items():
            arrays[name].append(values[chunk.start : chunk.stop])
        target = arrays["target"][-1] = arrays["target"][-1].copy()
        target[: chunk.forecast - chunk.start] = NO_TARGET
    longest = max(len(values) for values in arrays["target"])
    batches = EventBatches(
        arrays, config.fit.batch_size, lengths=(*data_spec.lengths, longest), seed=seed
    )
    batches.events = events
    return batches


def groups(tokens: list[Tokens], rows: int) -> Iterator[list[int]]:
    """Groups of up to ``rows`` sequences of similar length, by index, the longest first."""
    order = sorted(range(len(tokens)), key=lambda i: (-len(tokens[i].target), i))
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def pad_group(group: list[Tokens], rows: int, length: int) -> dict[str, NDArray]:
    """Pads a group to arrays [rows, length] with their "mask"; further rows are padding."""
    padded: dict[str, NDArray] = {"mask": np.zeros((rows, length), bool)}
    for name in ("observations", "log_gap", "event_type"):
        first = getattr(group[0], name)
        padded[name] = np.zeros((rows, length, *first.shape[1:]), first.dtype)
    for row, own in enumerate(group):
        padded["mask"][row, : len(own.target)] = True
        for name in ("observations", "log_gap", "event_type"):
            padded[name][row, : len(own.target)] = getattr(own, name)
    return padded


def padded_length(tokens: int) -> int:
    """The next power of two, which limits the number of compiled programs."""
    return 1 << (tokens - 1).bit_length()
