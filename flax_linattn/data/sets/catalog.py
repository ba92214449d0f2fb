"""The public data sets that there are readers for, and where their official files are."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

SEQUENCES = "sequences"
"""A kind of data set: sequences with classes, in a file to train and one to test."""
SERIES = "series"
"""A kind of data set: one series, a row a time."""
TEXTS = "texts"
"""A kind of data set: texts with classes, to train and to test."""
IMAGES = "images"
"""A kind of data set: images with classes, to train and to test."""


class Source(NamedTuple):
    """A file of a data set.

    Attributes:
        name: Name of the file on disk.
        url: The official file, or the zip archive that holds it.
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
    """The entries of a table of one row a file, the first of which describes its data set."""
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
    """How the rows of a series are customarily split, by the name of its file; "" if not known.

    What follows after the first dot of the name does not count.
    """
    return _SPLITS.get(file.partition(".")[0].lower(), "")


_SPLITS = {
    source.name.partition(".")[0].lower(): entry.split
    for entry in CATALOG.values()
    if entry.kind == SERIES
    for source in entry.sources
}
