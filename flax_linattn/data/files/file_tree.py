"""Trees of many files, in a folder or an archive, read without unpacking to disk."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from flax_linattn.checks import quote
from flax_linattn.data.errors import DataFormatError, report_damage
from flax_linattn.data.files.text_files import open_uncompressed
from flax_linattn.data.files.unpacking import check_unpacked_bytes
from flax_linattn.safe_npz import read_zip_entry

MAX_FILE_BYTES = 2**30
"""Maximum size in bytes of a file in a tree; the largest official file has 35 million."""

MAX_DEPTH = 12
"""Maximum depth of nested folders; deeper ones indicate a cycle of links."""

MAX_HEADER_BYTES = 2**20
"""Maximum size in bytes of a tar header; long names and attributes take a few thousand."""

_ENTRY_BYTES = 512
"""Bytes of memory per file of an archive, in addition to its name."""

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
"""Suffixes of archives, for messages; archives are recognized by their first bytes."""


class _Entry(NamedTuple):
    """A file of an archive: its first byte in a tar or its index in a zip, and its size."""

    place: int
    size: int


class FileTree:
    """The files below a folder, or those in a ``.tar``, ``.tar.gz``, ``.tar.xz`` or ``.zip``.

    Nothing is written to disk, and links in archives are not followed. Files and folders whose
    names begin with a dot, "__MACOSX", and links in archives are skipped.

    Args:
        path: Folder or archive.

    Attributes:
        path: As given.
        sizes: Size in bytes of each file, by name: its path relative to the top, with "/".
        links: Number of skipped links of an archive.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.links = 0
        if not self.path.is_file() and not self.path.is_dir():
            got = "a pipe or a device" if self.path.exists() else "nothing"
            raise FileNotFoundError(
                f"expected a folder or an archive at {self.path}, found {got} there; check the "
                f"path, or download the files first (working folder: {Path.cwd()})"
            )
        expected = "a folder, or a whole .tar, .tar.gz, .tar.xz or .zip"
        self._guard = partial(report_damage, self.path, expected)
        self._is_folder, self._is_zip = self.path.is_dir(), False
        self._entries: dict[str, _Entry] = {}
        with self._guard():
            if self._is_folder:
                self.sizes = dict(_below(self.path))
                return
            self._is_zip = self._start().startswith(b"PK")
            stored, listed = self.path.stat().st_size, 0
            for name, entry in self._listed_zip() if self._is_zip else self._listed_tar():
                parts = name.split("/")
                if entry is None:
                    self.links += 1
                elif len(parts) <= MAX_DEPTH + 1 and not _is_hidden(parts):
                    self._entries[name] = entry  # the last of a name stands, as when unpacked
                    listed += _ENTRY_BYTES + 2 * len(name)
                    check_unpacked_bytes(self.path, listed, stored)
        self.sizes = {name: entry.size for name, entry in self._entries.items()}

    @property
    def name(self) -> str:
        """The name of the folder or archive, without the suffixes of archives."""
        name = self.path.resolve().name
        for suffix in (".gz", ".xz", ".bz2", ".tar", ".tgz", ".zip"):
            name = name.removesuffix(suffix)
        return name

    def place(self, name: str) -> str:
        """Describes the place of a file in messages: its path, or archive + "!" + name."""
        return f"{self.path / name}" if self._is_folder else f"{self.path}!{quote(name, 200)[1:-1]}"

    def read(
        self, names: Collection[str], max_bytes: int | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Yields the content of each file, in an archive in the order of the archive.

        A file of more than ``max_bytes`` (default 1 GiB) is an error, and so are files that need
        far more memory than the size of the archive suggests.
        """
        max_bytes = MAX_FILE_BYTES if max_bytes is None else max_bytes
        for name in names:
            if self.sizes[name] > max_bytes:
                raise DataFormatError(
                    f"{self.place(name)}: expected a file of at most {max_bytes:,} bytes, got "
                    f"one of {self.sizes[name]:,}; check that this is the right file"
                )
        if self._is_folder:
            for name in dict.fromkeys(names):
                yield name, self._read_file(name)
            return
        unpacked = sum(self.sizes[name] for name in names)
        check_unpacked_bytes(self.path, unpacked, self.stored_bytes(*names))
        in_order = sorted(dict.fromkeys(names), key=lambda name: self._entries[name].place)
        contents = self._contents_of_zip if self._is_zip else self._contents_of_tar
        with self._guard():
            yield from contents(in_order)

    def read_all(self, names: Collection[str], max_bytes: int | None = None) -> dict[str, bytes]:
        """Reads the contents of a few files by name; see ``read``."""
        return dict(self.read(names, max_bytes))

    def stored_bytes(self, *names: str) -> int:
        """Returns the bytes of files on disk, or the size of their archive if that is less."""
        unpacked = sum(self.sizes[name] for name in names)
        return unpacked if self._is_folder else min(unpacked, self.path.stat().st_size)

    def _read_file(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise DataFormatError(
                f"{self.place(name)}: expected a file that can be read, got an error "
                f"({quote(error, 100)}); check its permissions and the disk"
            ) from error

    def _listed_zip(self) -> Iterator[tuple[str, _Entry | None]]:
        with zipfile.ZipFile(self.path) as archive:
            for place, info in enumerate(archive.infolist()):
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                if not info.is_dir():
                    entry = None if is_link else _Entry(place, info.file_size)
                    yield info.filename.removeprefix("./"), entry

    def _contents_of_zip(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.path) as archive:
            infos = archive.infolist()
            for name in names:
                yield name, read_zip_entry(archive, infos[self._entries[name].place])

    def _listed_tar(self) -> Iterator[tuple[str, _Entry | None]]:
        """Reads the archive to its end, so that its checksums are compared."""
        end = 0
        with (
            self._opened_tar() as content,
            tarfile.open(fileobj=cast("Any", headers := _Headers(content)), mode="r:") as archive,
        ):
            while (info := archive.next()) is not None:
                if archive.offset <= end:  # a size below zero; tarfile would read on forever
                    raise ValueError("its headers overlap")
                end, headers.num_bytes = archive.offset, 0
                cast("Any", archive).members = []  # which tarfile keeps; there may be a million
                name = info.name.removeprefix("./")
                if info.issym() or info.islnk():
                    yield name, None
                elif info.isreg() and not info.issparse():
                    yield name, _Entry(info.offset_data, info.size)
            # An empty block ends a whole archive; to tarfile a damaged header does so, too.
            content.seek(archive.offset)
            if content.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError("its end is missing, or a header is damaged")
            while content.read(2**20):
                pass

    def _contents_of_tar(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with self._opened_tar() as content:
            for name in names:
                place, size = self._entries[name]
                content.seek(place)
                data = content.read(size)
                if len(data) != size:
                    raise EOFError(f"{len(data):,} of {size:,} bytes of {quote(name)}")
                yield name, data

    def _start(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(6)

    @contextmanager
    def _opened_tar(self) -> Iterator[io.BufferedReader[Any]]:
        """Opens a compressed tar with a buffer, since tarfile reads half a kilobyte at a time."""
        with (
            open_uncompressed(self.path, expansion=1) as opened,
            io.BufferedReader(cast("Any", opened), 2**18) as content,
        ):
            yield content


class _Headers:
    """Limits the bytes that tarfile reads of headers, which may declare any length.

    Attributes:
        num_bytes: Number of bytes read since the attribute was last set to 0.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        self.seek, self.tell = file.seek, file.tell
        self._read, self.num_bytes = file.read, 0

    def read(self, size: int) -> bytes:
        """Reads a part of a header."""
        self.num_bytes += size
        if size < 0 or self.num_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"the header of a file takes more than {MAX_HEADER_BYTES:,} bytes")
        return self._read(size)


def _is_hidden(parts: Iterable[str]) -> bool:
    """Whether a name is a hidden or system file or folder, or leads out of the tree."""
    return any(part in ("", "__MACOSX") or part.startswith(".") for part in parts)


def _below(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Lists the files below a folder with their sizes, sorted."""
    if depth > MAX_DEPTH:
        return
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        if _is_hidden([entry.name]):
            continue
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _below(folder / entry.name, f"{name}/", depth + 1)
        elif entry.is_file():  # no device, and no link that leads nowhere
            yield name, entry.stat().st_size
