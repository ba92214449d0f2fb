"""Loading of events by what a file looks like."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from flax_linattn.checks import OptionError, choice, shown
from flax_linattn.data.cells import is_number
from flax_linattn.data.events.easytpp import load_easytpp
from flax_linattn.data.events.jodie import has_jodie_header, load_jodie
from flax_linattn.data.events.npz import load_event_npz
from flax_linattn.data.events.rmtpp import load_rmtpp
from flax_linattn.data.events.sequences import EventSequences
from flax_linattn.data.events.table import load_event_table
from flax_linattn.data.files import LineReader
from flax_linattn.data.tables import BINARY_SUFFIXES

Format = Literal["auto", "rmtpp", "jodie", "npz", "easytpp", "table"]

_READERS: dict[str, tuple[Callable[..., EventSequences], frozenset[str]]] = {
    "rmtpp": (load_rmtpp, frozenset({"marks"})),
    "jodie": (load_jodie, frozenset({"mark", "sequence", "sort"})),
    "npz": (load_event_npz, frozenset({"gaps"})),
    "easytpp": (load_easytpp, frozenset()),
    "table": (load_event_table, frozenset({"time", "mark", "sequence", "timezone", "sort"})),
}
"""What reads a format, and the options that it takes beside begin and end."""

_DEFAULTS: dict[str, Any] = {
    "marks": None,
    "time": "time",
    "mark": "mark",
    "sequence": "sequence",
    "timezone": "UTC",
    "gaps": None,
    "sort": False,
}

_LINES = 10
"""That are looked at."""


def load_events(
    path: str | Path,
    marks: str | Path | None = None,
    *,
    format: Format = "auto",
    time: str = "time",
    mark: str = "mark",
    sequence: str = "sequence",
    begin: float | str | None = None,
    end: float | str | None = None,
    timezone: str = "UTC",
    gaps: bool | None = None,
    sort: bool = False,
) -> EventSequences:
    r"""Loads sequences of events from a file of any of the formats below.

    "auto" knows a table that is no text by its name, an ``.npz`` file by its first bytes, "rmtpp"
    by a file of marks beside it, "easytpp" by a first bracket or brace, "jodie" by its header, or
    by lines of three numbers without commas, and "table" by any other header.

    Args:
        path: The file; of times, for "rmtpp".
        marks: The file of marks, for "rmtpp".
        format: "rmtpp" (``load_rmtpp``), "jodie" (``load_jodie``), "npz" (``load_event_npz``),
            "easytpp" (``load_easytpp``), "table" (``load_event_table``), or "auto".
        time: The column of times, for "table".
        mark: The column of marks, for "table" and "jodie".
        sequence: The column of sequences, for "table" and "jodie".
        begin: When the observation of every sequence began, in the unit of the times, or a date
            where they are dates.
        end: When it ended, likewise.
        timezone: Of dates without their own, for "table".
        gaps: Whether times are gaps, for "npz".
        sort: Whether to sort the events of each sequence by time, for "table" and "jodie".

    Raises:
        FileNotFoundError: There is no such file.
        OptionError: An option is not of the format, or has no such value.
        DataFormatError: The file breaks its format; the message names the line, or the array.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.csv")
        ...     _ = path.write_text("time,mark\n0.5,look\n2,buy\n")
        ...     events = load_events(path, end=3)
        >>> events.times[0].tolist(), events.mark_names, events.ends.tolist()
        ([0.5, 2.0], ('buy', 'look'), [3.0])
    """
    choice(("auto", *_READERS), format=format)
    chosen = _format(Path(path), marks is not None) if format == "auto" else format
    reader, takes = _READERS[chosen]
    options = {
        "marks": marks,
        "time": time,
        "mark": mark,
        "sequence": sequence,
        "timezone": timezone,
        "gaps": gaps,
        "sort": sort,
    }
    options = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    for name in options:
        if name not in takes:
            others = " or ".join(other for other in _READERS if name in _READERS[other][1])
            raise OptionError(
                f"{name} is an option of format {others}, got {shown(options[name])} for {path} of "
                f"format {chosen}; leave it out, or give the format.",
                name,
                "format",
            )
    return reader(path, begin=begin, end=end, **options)


def _format(path: Path, marked: bool) -> str:
    """The format that a file looks like."""
    if path.suffix.lower() in BINARY_SUFFIXES:
        return "table"
    if _starts_with(path, b"PK"):
        return "npz"
    if marked:
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
        reader.line = 1
        raise reader.error(
            "a header, or lines of user, item and timestamp",
            "lines of other numbers",
            "if they are times, give the file of their marks with marks=..., or say that there "
            "are none with format='rmtpp'",
            "format",
            "marks",
        )


def _starts_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():  # LineReader says so
        return False
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _is_interaction(cells: list[str]) -> bool:
    return len(cells) == 3 and cells[0].isdigit() and cells[1].isdigit() and is_number(cells[2])
