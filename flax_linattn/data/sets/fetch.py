"""Download of the official files of data sets, with checksums."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from flax_linattn.checks import import_extra
from flax_linattn.data.sets.catalog import CATALOG, Entry, Source


def find_entry(name: str) -> Entry:
    """Returns an entry of the catalog by name, ignoring case."""
    if name not in CATALOG:
        names = {known.lower(): known for known in CATALOG}
        if name.lower() not in names:
            raise ValueError(f"unknown data set {name!r}; choose one of: {', '.join(CATALOG)}.")
        name = names[name.lower()]
    return CATALOG[name]


def fetch(name: str, folder: str | Path, *, progress: bool = True) -> list[Path]:
    """Downloads the missing files of a data set with pooch.

    A file with an unexpected checksum is an error; if no checksum is known, that of the file is
    printed.

    Args:
        name: Name in the catalog.
        folder: Destination folder.
        progress: Show the progress on stderr.

    Returns:
        The paths of the files.

    Raises:
        ValueError: If the name is unknown, a file is damaged, or pooch is not installed.
        OSError: If a file could not be downloaded; the message says from where, and where to put
            it.
    """
    entry, folder = find_entry(name), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for url in dict.fromkeys(source.url for source in entry.sources):
        sources = [source for source in entry.sources if source.url == url]
        if all(_is_there(folder / source.name, source) for source in sources):
            continue
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _extract(_download(url, Path(scratch), sources, folder), sources, Path(scratch))
            for source in sources:
                _check(Path(scratch) / source.name, source)
                shutil.move(Path(scratch) / source.name, folder / source.name)
                if progress:
                    print(f"{folder / source.name}: {_state(folder / source.name, source)}",
                          file=sys.stderr)  # fmt: skip
    return [folder / source.name for source in entry.sources]


def _download(url: str, scratch: Path, sources: list[Source], folder: Path) -> Path:
    pooch = import_extra(
        "pooch",
        "downloads need pooch: pip install 'flax-linattn[data]'. Or put "
        f"{_names(sources)} from {url} into {folder} yourself.",
    )
    name = Path(urlsplit(url).path).name
    try:
        return Path(pooch.retrieve(url, known_hash=None, fname=name, path=scratch))
    except Exception as error:  # whatever the library of the protocol raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"could not download {url}: {reason[:200]}. Without a connection, fetch it "
            f"on another machine, and copy {_names(sources)} to {folder}."
        ) from error


def _extract(path: Path, sources: list[Source], scratch: Path) -> None:
    if path.suffix != ".zip" or [source.name for source in sources] == [path.name]:
        return
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{sources[0].url} did not return a complete zip archive; fetch it again, "
            f"or download {_names(sources)} manually."
        )
    with zipfile.ZipFile(path) as archive:
        members = {Path(file_name).name: file_name for file_name in archive.namelist()}
        for source in sources:
            if source.name not in members:
                raise ValueError(
                    f"expected {source.name} in {source.url}, got {', '.join(sorted(members))}; "
                    "the archive has changed: download the file manually."
                )
            target = scratch / source.name
            with archive.open(members[source.name]) as content, open(target, "wb") as file:
                shutil.copyfileobj(content, file)


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_there(path: Path, source: Source) -> bool:
    if not path.is_file():
        return False
    _check(path, source)
    return True


def _check(path: Path, source: Source) -> None:
    if source.sha256 is not None and (checksum := _checksum(path)) != source.sha256:
        raise ValueError(
            f"{path} is not the official file: its SHA-256 is {checksum}, expected "
            f"{source.sha256}; remove it, and fetch it again."
        )


def _state(path: Path, source: Source) -> str:
    if source.sha256 is not None:
        return "checked"
    return f"not checked, no checksum is known here; its SHA-256 is {_checksum(path)}"


def _names(sources: list[Source]) -> str:
    return " and ".join(source.name for source in sources)
