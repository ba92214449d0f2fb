"""Training, validation and test parts of sequences of events."""

from __future__ import annotations

from typing import NamedTuple

from flax_linattn.checks import OptionError, check_choice
from flax_linattn.data.events.sequences import EventSequences, Piece
from flax_linattn.data.series.windows import Split, chronological_split

MIN_SEQUENCES = 5
"""Minimum number of sequences to split by sequence; a fifth of fewer is less than one."""


class EventSplit(NamedTuple):
    """Sequences of events for training, validation and test.

    Attributes:
        train: The first sequences, or the first events of each.
        validation: Validation events, after those for training.
        test: Test events, after those for validation.
    """

    train: EventSequences
    validation: EventSequences
    test: EventSequences


def split_events(
    events: EventSequences, split: str = "0.6/0.2/0.2", by: str | None = None
) -> EventSplit:
    """Splits event sequences into three parts, each with events to forecast.

    Args:
        events: Events of N sequences.
        split: Training, validation and test part, separated by "/": fractions or numbers, as in
            ``chronological_split``, of the sequences; or, by time, of the forecast events of each
            sequence.
        by: "sequences" assigns whole sequences in their order, unshuffled. "time" cuts each
            sequence: in a later part, all earlier events are given, so the whole history is known.
            None splits by sequence if there are 5 or more, or 3 and ``split`` has numbers; by time
            otherwise.

    Raises:
        OptionError: If ``split`` is invalid, does not fit the events, or leaves a part without an
            event to forecast.

    Example:
        >>> import numpy as np
        >>> one = EventSequences("a", (np.arange(10.0),), (np.zeros(10, np.int32),),
        ...                      begin=np.zeros(1))
        >>> train, validation, test = split_events(one, "0.5/0.2/0.3")
        >>> train.num_forecast, validation.num_forecast, test.num_forecast
        (5, 2, 3)
        >>> len(test.times[0]), test.num_given.tolist(), test.gaps()[0].tolist()
        (10, [7], [1.0, 1.0, 1.0])
    """
    if by is None:
        min_sequences = MIN_SEQUENCES if "." in split else len(EventSplit._fields)
        by = "sequences" if len(events) >= min_sequences else "time"
    check_choice(("sequences", "time"), by=by)
    parts = _by_time(events, split) if by == "time" else _whole(events, split)
    empty = _empty(parts)
    if empty is not None:
        advice = "split each sequence by time" if by == "sequences" else "provide more events"
        raise OptionError(
            f"{events.name}: expected an event to forecast in each part, but {split} by {by} "
            f"leaves none for {empty}; choose a larger fraction for {empty}, or {advice}.",
            "split",
            **({"split_by": "time"} if by == "sequences" else {}),
        )
    return EventSplit(*(events.pieces(part) for part in parts))


def _empty(parts: list[list[Piece]]) -> str | None:
    """Returns the name of the first part without an event to forecast."""
    for name, part in zip(EventSplit._fields, parts, strict=True):
        if not any(piece.forecast < piece.stop for piece in part):
            return name
    return None


def _whole(events: EventSequences, split: str) -> list[list[Piece]]:
    """Assigns whole sequences to each part."""
    given = events.num_given.tolist()
    return [
        [Piece(i, 0, given[i], len(events.times[i])) for i in part]
        for part in _ranges(events.name, len(events), split, "sequences")
    ]


def _by_time(events: EventSequences, split: str) -> list[list[Piece]]:
    """Cuts each sequence in time; each part includes all earlier events, as given."""
    parts: list[list[Piece]] = [[], [], []]
    for sequence, given in enumerate(events.num_given.tolist()):
        what = f"events to forecast of sequence {sequence}"
        number = len(events.times[sequence]) - given
        for part, own in zip(parts, _ranges(events.name, number, split, what), strict=True):
            if own:
                part.append(Piece(sequence, 0, given + own.start, given + own.stop))
    return parts


def _ranges(name: str, number: int, split: str, what: str) -> Split:
    try:
        return chronological_split(number, split)
    except OptionError as error:
        raise OptionError(f"{name}: {number} {what}: {error}", "split") from None
