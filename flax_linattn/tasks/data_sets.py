"""The ``flax-linattn data`` commands."""

from __future__ import annotations

import shlex
from pathlib import Path

from flax_linattn.data.catalog import CATALOG, Entry
from flax_linattn.data.fetch import fetch, find_entry


def list_data() -> int:
    """Lists the data sets that there are readers for.

    Returns:
        The exit status.
    """
    width = max(map(len, CATALOG))
    for name, entry in CATALOG.items():
        here = " (comes with the package)" if entry.embedded else ""
        print(f"{name:<{width}}  {entry.task:<8}  {entry.about}{here}")
    return 0


def info_data(name: str, /) -> int:
    """Shows what a data set holds, its licence, its files, and how to use them.

    Args:
        name: of the data set, see ``flax-linattn data list``.

    Returns:
        The exit status.
    """
    entry = find_entry(name)
    print(f"{name}: {entry.about}\nlicence: {entry.licence}\nsee {entry.page}")
    for source in entry.sources:
        print(f"file {source.name}\n  from {source.url}\n  SHA-256 {source.sha256 or 'not known'}")
    print(_usage(name, entry, Path("data") / name))
    return 0


def fetch_data(name: str, /, to: Path | None = None) -> int:
    """Downloads the official files of a data set, and checks them.

    Args:
        name: of the data set, see ``flax-linattn data list``.
        to: the folder for them; default data/NAME.

    Returns:
        The exit status.
    """
    folder = Path("data") / name if to is None else to
    fetch(name, folder)
    print(_usage(name, find_entry(name), folder))
    return 0


def _usage(name: str, entry: Entry, folder: Path) -> str:
    """The command that trains on it."""
    flags = ["--train-file", "--test-file"] if entry.task == "classify" else ["--csv"]
    files = [str(folder / source.name) for source in entry.sources]
    named = [word for pair in zip(flags, files, strict=False) for word in pair]
    return shlex.join(["flax-linattn", "train", entry.task, *named, *entry.options.split()])
