"""Loading of events, with the file format inferred from the content."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from flax_linattn.checks import OptionError, check_choice, quote
from flax_linattn.data.events.npz import read_event_npz
from flax_linattn.data.events.readers import (
    has_jodie_header,
    read_easytpp,
    read_event_table,
    read_jodie,
    read_rmtpp,
)
from flax_linattn.data.events.rows import EventFileError, EventRows
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.tables.cells import is_number, parse_zone
from flax_linattn.data.tables.tables import BINARY_SUFFIXES

Format = Literal["auto", "rmtpp", "jodie", "npz", "easytpp", "table"]

_READERS: dict[str, tuple[Callable[..., EventRows], frozenset[str]]] = {
    "rmtpp": (read_rmtpp, frozenset({"event_types_file"})),
    "jodie": (read_jodie, frozenset({"event_type", "sequence", "timezone", "sort"})),
    "npz": (read_event_npz, frozenset({"gaps"})),
    "easytpp": (read_easytpp, frozenset()),
    "table": (read_event_table, frozenset({"time", "event_type", "sequence", "timezone", "sort"})),
}
"""Reader of each format, and its options in addition to ``begin`` and ``end``."""

_DEFAULTS: dict[str, Any] = {
    "event_types_file": None,
    "time": "time",
    "event_type": "mark",
    "sequence": "sequence",
    "timezone": "UTC",
    "gaps": None,
    "sort": False,
}

_LINES = 10
"""Number of lines from which the format is inferred."""


def load_events(
    path: str | Path,
    event_types_file: str | Path | None = None,
    *,
    format: Format = "auto",
    time: str = "time",
    event_type: str = "mark",
    sequence: str = "sequence",
    begin: float | str | None = None,
    end: float | str | None = None,
    timezone: str = "UTC",
    gaps: bool | None = None,
    sort: bool = False,
) -> EventSequences:
    r"""Loads sequences of events from a file of any of the formats below.

    ``table``
        One event per row, with a header, in any table format of ``load_series``. Times are numbers,
        or dates: ISO 8601 with or without a fraction and a time zone (``2016-07-01
        00:00:00.25+02:00``), or ``2016/7/1 0:00``; dates become seconds since 1970-01-01 UTC.
        ``20160701`` is a number. When clocks are set back, a date without its own zone in the
        repeated hour is in the first of the two; a time that clocks skip is an error. Event types
        and sequences are any text. Rows of a sequence need not be adjacent.
    ``jodie``
        Interactions of users with items, one per row: a header
        ``user_id,item_id,timestamp,state_label,comma_separated_list_of_features`` (or
        ``user,item,...``) and rows with any number of features, which are ignored; or, without a
        header, ``user item timestamp`` separated by spaces. Times are as in a table.
    ``rmtpp``
        A text file of times and a text file of event types. Each line is a sequence of numbers
        separated by spaces; line i of one file belongs to line i of the other. Event types are
        integers from 0.
    ``easytpp``
        JSON objects, one per line or in one array. Each has ``time_since_start`` and
        ``type_event``, lists of one length. ``time_since_last_event``, ``seq_len`` and
        ``dim_process``, the number of event types, are checked if present; other keys are ignored.
    ``npz``
        Arrays ``times`` [n], concatenated sequences, with their ``lengths``, integers [N]; or
        padded, ``times`` [N, L] with ``masks`` [N, L], 1 or True at events, which are adjacent.
        Both may have event types, ``marks`` of the shape of ``times``, integers from 0, and
        ``t_max``, [N] or one number: the end of the observation, which then starts at 0. Nothing is
        unpickled.

    Text may be plain, ``.gz`` or ``.xz``. Event types are named as in the file, sorted as numbers
    if all are integers, else as text; in EasyTPP they are 0, 1, ... below ``dim_process`` if it is
    present. "auto" recognizes a binary table by its suffix, an ``.npz`` file by its first bytes,
    "rmtpp" by ``event_types_file``, "easytpp" by a first bracket or brace, "jodie" by its header,
    or by lines of three numbers without commas, and "table" by any other header.

    Args:
        path: Path of the file; for "rmtpp" the file of times.
        event_types_file: Path of the file of event types, for "rmtpp". Default: events have no
            types.
        format: Name of a format above, or "auto".
        time: Column of times, for "table".
        event_type: Column of event types. For "table" the default is "mark"; without it, events
            have no types. For "jodie", "user_id", "item_id" or "state_label"; default: the one of
            the first two that is not ``sequence``.
        sequence: Column that identifies the sequence of an event. For "table" the default is
            "sequence"; without it, all events form one sequence. For "jodie", "user_id" (the
            default) or "item_id".
        begin: Start of the observation of every sequence, in the unit of the times, or a date if
            times are dates. Default: unknown, so that the first event of each sequence is not
            forecast.
        end: End of the observation of every sequence, as ``begin``. Default: the last event of
            each.
        timezone: Time zone of dates without their own, a name of the IANA database; for "table" and
            "jodie".
        gaps: For "npz", whether ``times`` are gaps since the previous event; the first one is the
            gap since the start of observation at 0, or 0 if the first event is at 0 and the start
            of observation is unknown. Default: True if ``times`` are padded and decrease in a
            quarter of the sequences or more.
        sort: Whether to sort the events of each sequence by time, for "table" and "jodie";
            otherwise decreasing times are an error.

    Returns:
        The sequences, in the order of their first events in the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        OptionError: If an option does not belong to the format, or is out of range.
        DataFormatError: If the file breaks its format; the message names the line or the array.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rides.csv")
        ...     _ = path.write_text("time,car,mark\n1970-01-01 00:00:01.5,a,out\n"
        ...                         "1970-01-01 00:00:02,b,out\n1970-01-01 00:01:00,a,back\n")
        ...     events = load_events(path, sequence="car")
        >>> [own.tolist() for own in events.times], [own.tolist() for own in events.event_types]
        ([[1.5, 60.0], [2.0]], [[1, 0], [1]])
        >>> events.event_type_names, events.names, events.dates
        (('back', 'out'), ('a', 'b'), True)
    """
    check_choice(("auto", *_READERS), format=format)
    path, zone = Path(path), parse_zone(timezone)
    chosen = _format(path, event_types_file is not None) if format == "auto" else format
    reader, takes = _READERS[chosen]
    options: dict[str, Any] = {"time": time, "event_type": event_type, "sequence": sequence}
    options |= {"event_types_file": event_types_file, "timezone": timezone}
    options |= {"gaps": gaps, "sort": sort}
    options = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    for name in options:
        if name not in takes:
            others = " or ".join(other for other in _READERS if name in _READERS[other][1])
            raise EventFileError(
                f"{name} is an option of format {others}, got {quote(options[name])} for {path} of "
                f"format {chosen}",
                f"remove {name}, or pass another format",
                name,
                "format",
            )
    own = {name: value for name, value in options.items() if name not in ("timezone", "sort")}
    rows = reader(path, **own, **({"zone": zone} if "timezone" in takes else {}))
    if "timezone" in options and not rows.dates:
        raise OptionError(
            f"{path}: timezone={timezone!r} needs dates, got numbers as times; remove timezone.",
            "timezone",
        )
    return rows.sequences(begin, end, zone, sort=sort)


def _format(path: Path, has_types_file: bool) -> str:
    """Infers the format of a file."""
    if path.suffix.lower() in BINARY_SUFFIXES:
        return "table"
    if path.is_file():  # LineReader says so where it is none
        with open(path, "rb") as file:
            if file.read(2) == b"PK":
                return "npz"
    if has_types_file:
        return "rmtpp"
    with LineReader(path) as reader:
        first = [text for text in islice(reader, _LINES) if text.strip()]
        if not first:
            raise reader.error("rows of events", "none", "check that this is the right file")
    if first[0].lstrip()[0] in "[{":
        return "easytpp"
    if has_jodie_header(first[0]):
        return "jodie"
    if not all(is_number(cell) for cell in first[0].split()):
        return "table"
    if all(_is_interaction(text.split()) for text in first):
        return "jodie"
    raise EventFileError(
        f"{path}:1: expected a header, or lines of user, item and timestamp, got lines of other "
        "numbers",
        "if they are times, pass the file of their event types with event_types_file=..., or "
        "format='rmtpp' if there is none",
        "format",
        "event_types_file",
    )


def _is_interaction(cells: list[str]) -> bool:
    return len(cells) == 3 and cells[0].isdigit() and cells[1].isdigit() and is_number(cells[2])
