"""Catalog of public data sets with supported formats, and the URLs of their official files."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

SEQUENCES = "sequences"
"""Kind of data set: sequences with classes, in a training file and a test file."""
SERIES = "series"
"""Kind of data set: one series, with one row per time."""
TEXTS = "texts"
"""Kind of data set: texts with classes, for training and test."""
IMAGES = "images"
"""Kind of data set: images with classes, for training and test."""


class Source(NamedTuple):
    """A file of a data set.

    Attributes:
        name: Name of the file on disk.
        url: URL of the official file, or of the zip archive that contains it.
        sha256: SHA-256 checksum of the file; None if not known.
    """

    name: str
    url: str
    sha256: str | None = None


class Entry(NamedTuple):
    """A public data set: its files, their source and license.

    Attributes:
        kind: Kind of the data: ``SEQUENCES``, ``SERIES``, ``TEXTS`` or ``IMAGES``.
        about: Description of the data.
        license: License as stated by the source.
        page: Web page of the data set.
        sources: Files of the data set.
        embedded: Whether it comes with the package.
        split: Customary split of the rows in training, validation and test.
    """

    kind: str
    about: str
    license: str
    page: str
    sources: tuple[Source, ...]
    embedded: bool = False
    split: str = ""


def _read() -> dict[str, Entry]:
    """Reads a table with one row per file; the first row of a data set describes it."""
    catalog: dict[str, Entry] = {}
    text = resources.files("flax_linattn.data").joinpath("sets/catalog.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        source = Source(row["file"], row["url"], row["sha256"] or None)
        if name := row["name"]:
            about, page = (row["kind"], row["about"]), (row["license"], row["page"])
            catalog[name] = Entry(*about, *page, (source,), bool(row["embedded"]), row["split"])
        else:
            name, last = catalog.popitem()
            catalog[name] = last._replace(sources=(*last.sources, source))
    return catalog


CATALOG: dict[str, Entry] = _read()
"""Data sets by name."""


def customary_split(file: str) -> str:
    """Returns the customary split of a series by its file name; "" if unknown.

    Everything after the first dot of the name is ignored.
    """
    return _SPLITS.get(file.partition(".")[0].lower(), "")


_SPLITS = {
    source.name.partition(".")[0].lower(): entry.split
    for entry in CATALOG.values()
    if entry.kind == SERIES
    for source in entry.sources
}
