"""The events of a run: read or drawn, split, and told as the model takes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, at_least
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
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        mark_names: in the order of the model's marks.
        dates: whether times are dates, and so seconds since 1970-01-01 UTC.
        scale: the gap that counts as one, in the file's unit.
        spread: the deviation of the logarithms of gaps.
        resolution: a gap below it counts as it, in the file's unit.
        periods: of whose phases the model is told, in the file's unit.
        clock: the periods of the time since a sequence began, in the file's unit.
        lengths: lengths that pieces of sequences are padded to.
        begins: whether a sequence to train on has a known begin, so that the wait for its first
            event is learned.
        checksum: of the events to train on ("train") and to test ("test").
    """

    dataset: str
    mark_names: tuple[str, ...]
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

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Of an event, see ``models.EventColumns``."""
        return jax.ShapeDtypeStruct((1, 3 + 2 * len(self.all_periods)), jnp.float32)

    @property
    def num_marks(self) -> int:
        """Number M of event types."""
        return len(self.mark_names)

    @property
    def all_periods(self) -> tuple[float, ...]:
        """Those of the model's waves, in units of the scale."""
        return tuple(period / self.scale for period in (*self.periods, *self.clock))

    def check(self) -> None:
        """Checks types and sizes of what was read from the run folder."""
        super().check()
        at_least(1, num_marks=self.num_marks, num_lengths=len(self.lengths))
        for length in self.lengths:
            at_least(1, lengths=length)
        for name, values in (
            ("scale", (self.scale,)),
            ("spread", (self.spread,)),
            ("resolution", (self.resolution,)),
            ("periods", self.periods),
            ("clock", self.clock),
        ):
            if not all(0 < value < float("inf") for value in values):
                raise OptionError(f"{name} must be positive and finite, got {values}.", name)


DAY = 86_400.0
CALENDAR = (DAY, 7 * DAY)
"""The periods of dates, in seconds."""

NOTHING, EVENT, END = 0, 1, 2
"""What a model is asked for after a token: nothing, the next event, or that none comes until the
end of the observation."""

GENERATOR_SEED = 0
"""Of drawn events, which are the same in all runs."""
GENERATOR_END = 100.0
DEFAULT_NUM_SEQUENCES = 200

_RENAME = "rename the column that holds them, as in the file of the run"
_ADVICE = {
    "time": _RENAME,
    "mark": _RENAME,
    "sequence": _RENAME,
    "sort": "sort the rows of each sequence by time",
    "timezone": "correct it, or write it in UTC, such as 2016-07-01 00:00:00+00:00",
    "begin": "leave out the events before, as the run observed none then",
    "end": "leave out the events after, as the run observed none then",
    "gaps": "save times that never go backwards",
    "file_format": "give a file of the format of the run's",
}
"""What to do about another file than the run's, instead of giving an option."""

PROCESSES: dict[str, processes.Process] = {
    "hawkes": processes.HawkesProcess([0.2], [[0.8]], decay=1.0),
    "hawkes-marked": processes.HawkesProcess(
        [0.1, 0.1, 0.05], [[0.5, 0.0, 0.2], [0.3, 0.3, 0.0], [0.0, 0.4, 0.1]], decay=2.0
    ),
    "poisson": processes.PoissonProcess([1.0]),
    "poisson-sine": processes.SIN,
    "renewal": processes.RenewalProcess([0.5, 0.5], [-1.0, 1.0], [0.5, 0.5]),
}
"""By the name of ``EventsData.process``."""


def load_data(source: EventsData) -> EventSequences:
    """The events of a run."""
    if source.file is None:
        end = processes.SIN_END if source.process == "poisson-sine" else GENERATOR_END
        number = source.num_sequences or DEFAULT_NUM_SEQUENCES
        return PROCESSES[source.process].sample(number, end, seed=GENERATOR_SEED)
    try:
        events = load_events(
            source.file,
            source.marks_file,
            format=source.file_format,
            time=source.time,
            mark=source.mark,
            sequence=source.sequence,
            sort=source.sort,
            timezone=source.timezone,
            begin=source.begin or None,
            end=source.end or None,
        )
    except OptionError as error:
        own = {"format": "file_format", "marks": "marks_file"}
        error.options = tuple(own.get(name, name) for name in error.options)
        raise
    if not source.num_sequences:
        return events
    return events.select(range(min(source.num_sequences, len(events))))


def load_other(source: EventsData, file: Path) -> EventSequences:
    """The events of another file, read as the run's own was; its errors name no option of that."""
    # Marks in a file of their own are those of the run's file alone.
    form = source.file_format if source.marks_file is None else "auto"
    source = dataclasses.replace(source, file=file, marks_file=None, file_format=form,
                                 num_sequences=0, process=EventsData.process)  # fmt: skip
    try:
        events = load_data(source)
    except EventFileError as error:
        advice = next((_ADVICE[name] for name in error.options if name in _ADVICE), None)
        if advice is None:
            raise
        told = f"{error.reason}; {advice}"
        raise OptionError(told, "test_file") from None
    return dataclasses.replace(events, name=str(file))  # for messages


def split_data(events: EventSequences, source: EventsData) -> EventSplit:
    """Splits sequences into training, validation and test parts."""
    return split_events(
        events, source.split, by=None if source.split_by == "auto" else source.split_by
    )


def describe(parts: EventSplit, config: EventsConfig) -> EventsSpec:
    """What a run has to know of its data; scales are those of the training part."""
    train = parts.train
    gaps = np.concatenate(train.gaps())
    above = gaps[gaps > 0]
    if not above.size:
        raise OptionError(
            f"{train.name}: the events to train on have no gap above 0, and so no scale of time; "
            "give another split, or events at several times.",
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
        mark_names=train.mark_names,
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
    sizes = [
        piece.stop - piece.start for piece in _pieces(tokenize_sequences(train, data_spec), config)
    ]
    lengths = {math.ceil(length) for length in np.quantile(sizes, (0.5, 1.0))}
    return dataclasses.replace(data_spec, lengths=tuple(sorted(lengths)))


def _clock(scale: float, events: EventSequences) -> tuple[float, ...]:
    """Periods from the scale on to four times the longest sequence, as in Vaswani et al., 2017."""
    first, last_events = (np.array([own[at] for own in events.times]) for at in (0, -1))
    begins = np.where(np.isnan(events.begins), first, events.begins)
    last = max(4 * float((last_events - begins).max()), 10 * scale)
    return tuple(np.geomspace(2 * math.pi * scale, max(last, 4 * math.pi * scale), 16).tolist())


def compute_checksum(events: EventSequences) -> str:
    """Of times, marks, their names, and bounds."""
    bounds = (events.begins, events.ends, events.num_given)
    return checksum([*events.times, *events.marks, *bounds, np.array(events.mark_names)])


class Tokens(NamedTuple):
    """What a model takes in of a sequence, and what it is asked after each token.

    Attributes:
        observations: float32 [n, 3 + 2 P], see ``models.EventColumns``; the first is the begin of
            the observation where that is known.
        log_gap: float32 [n], log of the time to the next event, or to the end, in units of the
            scale.
        mark: int32 [n], of the next event.
        asked: int8 [n], NOTHING, EVENT or END.
    """

    observations: NDArray[np.float32]
    log_gap: NDArray[np.float32]
    mark: NDArray[np.int32]
    asked: NDArray[np.int8]


def tokenize_sequences(events: EventSequences, data_spec: EventsSpec) -> list[Tokens]:
    """The tokens of each sequence."""
    parts = (events.times, events.marks, events.begins, events.ends, events.num_given)
    tokens = []
    for times, marks, begin, end, given in zip(*parts, strict=True):
        begins = not np.isnan(begin)
        if begins:
            times = np.concatenate([[begin], times])
            marks = np.concatenate([[data_spec.num_marks], marks]).astype(np.int32)
        log_gaps = log_gap(np.diff(times), data_spec)
        rest = end - times[-1]
        asked = np.full(len(times), EVENT, np.int8)
        asked[: int(given) - 1 + begins] = NOTHING
        asked[-1] = END if rest > 0 else NOTHING
        last = math.log(rest / data_spec.scale) if rest > 0 else 0.0
        own = Tokens(
            observations(times, marks, np.concatenate([[np.nan], log_gaps]), times[0], data_spec),
            np.concatenate([log_gaps, [last]]).astype(np.float32),
            np.concatenate([marks[1:], [0]]).astype(np.int32),
            asked,
        )
        tokens.append(own)
    return tokens


def log_gap(gaps: NDArray[np.float64], data_spec: EventsSpec) -> NDArray[np.float64]:
    """Logs of gaps in units of the scale, none below the resolution: float64 of their shape."""
    return np.log(np.maximum(gaps, data_spec.resolution) / data_spec.scale)


def observations(
    times: NDArray[np.float64],
    marks: NDArray[np.integer],
    log_gaps: NDArray[np.float64],
    origin: float,
    data_spec: EventsSpec,
) -> NDArray[np.float32]:
    """Events [n] of a sequence as the model takes them in: float32 [n, 3 + 2 P].

    ``log_gaps`` are those before each; NaN = nothing is known before.
    """
    known = ~np.isnan(log_gaps)
    turns = [times[:, None] / np.array(data_spec.periods)] if data_spec.periods else []
    if data_spec.clock:
        turns.append((times - origin)[:, None] / np.array(data_spec.clock))
    turns = turns or [np.zeros((len(times), 0))]
    angles = 2 * np.pi * (np.concatenate(turns, axis=1) % 1.0)
    first = np.stack([np.where(known, log_gaps, 0.0), known, marks], axis=1)
    return np.concatenate([first, np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _pieces(tokens: list[Tokens], config: EventsConfig) -> list[Piece]:
    """Tokens that are learned from at once; ``forecast`` is the first that is asked after.

    That are ``length`` ones, the last of a sequence one more at most.
    """
    pieces = []
    for index, own in enumerate(tokens):
        asked = np.flatnonzero(own.asked)
        if not asked.size:
            continue
        last = int(asked[-1])
        # An end alone would be a piece without an event: it goes with the events before.
        begins = range(int(asked[0]), max(last, int(asked[0]) + 1), config.fit.length)
        for first in begins:
            stop = last + 1 if first == begins[-1] else first + config.fit.length
            pieces.append(Piece(index, max(0, first - config.fit.history), first, stop))
    return pieces


class EventBatches(data.RaggedBatches):
    """Batches of pieces of sequences of events.

    Attributes:
        events: the whole sequences.
    """

    events: EventSequences


def make_batches(
    events: EventSequences, config: EventsConfig, data_spec: EventsSpec, *, seed: int | None
) -> EventBatches:
    """Pieces of sequences, in batches."""
    tokens = tokenize_sequences(events, data_spec)
    arrays: dict[str, list[NDArray]] = {name: [] for name in Tokens._fields}
    for piece in _pieces(tokens, config):
        for name, values in tokens[piece.sequence]._asdict().items():
            arrays[name].append(values[piece.start : piece.stop])
        asked = arrays["asked"][-1] = arrays["asked"][-1].copy()
        asked[: piece.forecast - piece.start] = NOTHING
    longest = max(len(values) for values in arrays["asked"])
    batches = EventBatches(
        arrays, config.fit.batch_size, lengths=(*data_spec.lengths, longest), seed=seed
    )
    batches.events = events
    return batches


def groups(tokens: list[Tokens], rows: int) -> Iterator[list[int]]:
    """Sequences of about one length, so many at a time, the longest first."""
    order = sorted(range(len(tokens)), key=lambda i: (-len(tokens[i].asked), i))
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def pad_group(group: list[Tokens], rows: int, length: int) -> dict[str, NDArray]:
    """The arrays [rows, length] of a model's call, and their "mask"; other rows are filler."""
    padded: dict[str, NDArray] = {"mask": np.zeros((rows, length), bool)}
    for name in ("observations", "log_gap", "mark"):
        first = getattr(group[0], name)
        padded[name] = np.zeros((rows, length, *first.shape[1:]), first.dtype)
    for row, own in enumerate(group):
        padded["mask"][row, : len(own.asked)] = True
        for name in ("observations", "log_gap", "mark"):
            padded[name][row, : len(own.asked)] = getattr(own, name)
    return padded


def padded_length(tokens: int) -> int:
    """The next power of two, so that few programs are compiled."""
    return 1 << (tokens - 1).bit_length()
