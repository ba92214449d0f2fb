"""The ``.tsf`` format of the Monash forecasting archive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import quote
from flax_linattn.data.errors import REPAIR_ADVICE
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.tables.cells import MISSING, BadCellError, parse_numbers
from flax_linattn.data.tables.time_index import MonthDay

_SECONDS = {
    "secondly": 1,
    "seconds": 1,
    "minutely": 60,
    "minutes": 60,
    "half_hourly": 1800,
    "hourly": 3600,
    "daily": 86400,
    "weekly": 7 * 86400,
}
_MONTHS = {"monthly": 1, "quarterly": 3, "yearly": 12}
_SERIES_BYTES = 4096
"""Bytes of memory per series, in addition to its values; one with times takes 2,300."""
_LATEST = np.datetime64("9999-12-31T23:59:59", "s")
"""First and last supported time, as in Python; NumPy's times overflow silently."""


def load_tsf(path: str | Path) -> tuple[TimeSeries, ...]:
    r"""Loads the series of a ``.tsf`` file, plain, ``.gz`` or ``.xz``.

    Lines that begin with ``#`` are comments. A header of tags (``@attribute NAME TYPE`` with type
    string, numeric or date, ``@frequency``, ``@horizon``, ``@missing``, ``@equallength``) ends with
    ``@data``; then comes one series per line: its attributes and its values, separated by ``:``,
    the values by ``,``; ``?`` is a missing value.

    Args:
        path: The file.

    Returns:
        The series, each of one channel and its own length, named by its first string attribute
        (else ``series 0``, ...). They have times if the file has a date attribute and a frequency.

    Raises:
        FileNotFoundError: If the file does not exist.
        DataFormatError: If the file breaks the format; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> text = ("@relation toy\n@attribute series_name string\n@attribute start date\n"
        ...         "@frequency daily\n@data\nT1:2024-01-01 00-00-00:1,2,?\n")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.tsf")
        ...     _ = path.write_text(text)
        ...     (series,) = load_tsf(path)
        >>> series.name, series.values.ravel().tolist(), series.index[-1]
        ('T1', [1.0, 2.0, nan], Timestamp('2024-01-03 00:00:00'))
    """
    with LineReader(path) as reader:
        attributes, tags = _read_header(reader)
        all_series = tuple(_read_series(reader, attributes, tags))
        if not all_series:
            raise reader.error("series after @data", "none", "fetch the file again")
        if not reader.terminated:
            raise reader.error(
                "a newline at the end, as the last number may be cut",
                "none",
                "end the last line with a newline if the file is whole, or fetch it again",
            )
        lengths = {series.num_steps for series in all_series}
        if tags.get("equallength") == "true" and len(lengths) > 1:
            raise reader.error(
                "series of one length, as @equallength true says",
                f"lengths from {min(lengths)} to {max(lengths)}",
                "fetch the file again, or correct the header",
            )
        return all_series


def _read_header(reader: LineReader) -> tuple[list[str], dict[str, str]]:
    """Reads the types of the attributes, and the other tags."""
    attributes: list[str] = []
    tags: dict[str, str] = {}
    for name, value in reader.tags("#"):
        tag, words = name.lower().removeprefix("@"), value.lower().split()
        if name.lower() == "@attribute" and len(words) == 2 and words[1] in _TYPES:
            attributes.append(words[1])
        elif tag in tags:
            raise reader.error(
                f"{quote(name.lower())[1:-1]} once",
                "it again",
                "remove one of the two lines",
            )
        elif tag == "frequency" and _step(" ".join(words)) is None:
            raise reader.error(
                f"a frequency such as 10_minutes or {', '.join([*_SECONDS, *_MONTHS])}",
                quote(value),
                "correct the header",
            )
        elif name.startswith("@") and tag != "attribute" and words:
            tags[tag] = " ".join(words)
        else:
            raise reader.error(
                "a tag of the header, such as @attribute series_name string, or @data",
                quote(f"{name} {value}".strip()),
                "fetch the file again",
            )
    return attributes, tags


_TYPES = ("string", "numeric", "date")


def _read_series(
    reader: LineReader, attributes: list[str], tags: dict[str, str]
) -> Iterator[TimeSeries]:
    lines: dict[str, int] = {}
    for index, text in enumerate(reader.content("#", _SERIES_BYTES)):
        *facts, last = text.split(":")
        if len(facts) != len(attributes):
            raise reader.error(
                f"{len(attributes)} attributes and the values, separated by ':'",
                f"{len(facts)} attributes",
                REPAIR_ADVICE,
            )
        values = _values(reader, last)
        if tags.get("missing") == "false" and np.isnan(values).any():
            raise reader.error(
                "no missing values, as the header has @missing false",
                f"{np.isnan(values).sum()}",
                "correct the header or the values",
            )
        name, times = f"series {index}", None
        for kind, fact in zip(reversed(attributes), reversed(facts), strict=True):
            if kind == "string":
                name = fact
            elif kind == "date" and "frequency" in tags:
                times = pd.DatetimeIndex(_times(reader, fact, tags["frequency"], len(values)))
        if name in lines:
            raise reader.error(
                "series of different names",
                f"{quote(name)} again (first on line {lines[name]})",
                "rename one of the two, or remove it",
            )
        lines[name] = reader.line
        on_line = np.full(len(values), reader.line)
        yield TimeSeries(name, values[:, None], (name,), times, on_line)


def _values(reader: LineReader, text: str) -> NDArray[np.float64]:
    cells = text.split(",")
    try:
        return parse_numbers(cells, MISSING - {""})
    except BadCellError as bad:
        raise reader.error(
            "finite numbers separated by ',', or ? for a missing one",
            quote(cells[bad.index].strip()),
            "correct the value",
        ) from None


def _step(frequency: str) -> tuple[str, int] | None:
    """Converts a frequency, such as "10_minutes", to months or seconds."""
    count, unit = 1, frequency.lower()
    if match := re.fullmatch(r"([1-9][0-9]{0,8})_(\w+)", unit):  # more overflow
        count, unit = int(match[1]), match[2]
    if unit in _MONTHS:
        return "M", count * _MONTHS[unit]
    return ("s", count * _SECONDS[unit]) if unit in _SECONDS else None


def _times(reader: LineReader, start: str, frequency: str, length: int) -> NDArray[np.datetime64]:
    try:
        first = np.datetime64(datetime.strptime(start.strip(), "%Y-%m-%d %H-%M-%S"), "s")
    except ValueError:
        raise reader.error(
            "a date such as 2012-01-01 00-00-00", quote(start), "correct it"
        ) from None
    step = _step(frequency)
    assert step is not None  # the header was checked
    unit, count = step
    left = _LATEST.astype(f"M8[{unit}]") - first.astype(f"M8[{unit}]")
    if (length - 1) * count > left.astype(int).item():
        raise reader.error(
            "times up to the year 9999",
            f"{length:,} {frequency} values from {quote(start.strip())} on",
            "correct the date, or @frequency in the header",
        )
    if unit == "s":
        return first + np.arange(length) * np.timedelta64(count, "s")
    every = MonthDay(count, first.item().day)
    return every.after(pd.DatetimeIndex(np.array([first])), np.arange(length)).to_numpy()
