"""Text files, plain or compressed, read line by line, with line numbers for errors."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.unpacking import TEXT_EXPANSION, check_unpacked_bytes, limit_stream

_COMPRESSED: dict[str, tuple[bytes, Callable[..., Any]]] = {
    ".gz": (b"\x1f\x8b", gzip.open),
    ".xz": (b"\xfd7zXZ\x00", lzma.open),
    ".bz2": (b"BZh", bz2.open),
}
"""First bytes and opener of each compression, by suffix."""
_TEXTS = (".gz", ".xz")
"""Suffixes of compressed text files."""

MAX_LINE_LENGTH = 2**26
"""Maximum number of characters of a line; the longest line of the archives has ten million."""

_EXAMPLE_BYTES = 1024
"""Bytes of memory per example, in addition to its values."""

_ITEM_BYTES = 256
"""Bytes of memory per label, channel, cell or short array while a file is read."""

_ESCAPED = re.compile("[\udc80-\udcff]")
"""Pattern of a byte that the encoding cannot decode."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
STREAM_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def check_is_file(path: Path) -> None:
    """Raises an error if a path is not a file."""
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing"
        raise FileNotFoundError(
            f"expected a data file at {path}, found {got} there; check the path, or "
            f"download the file first (working folder: {Path.cwd()})"
        )


def open_uncompressed(path: Path, expansion: int = TEXT_EXPANSION) -> IO[bytes]:
    """Opens a file for reading bytes, and decompresses gzip, xz and bzip2 by first bytes.

    A stream that unpacks to far more than the size of the file is an error; see ``limit_stream``.
    """
    opener = find_opener(path)
    return open(path, "rb") if opener is None else limit_stream(opener(path, "rb"), path, expansion)


def find_opener(path: Path) -> Callable[..., Any] | None:
    """Finds the function that opens a compressed file, by its first bytes; None for other files."""
    with open(path, "rb") as file:
        start = file.read(6)
    return next((opener for magic, opener in _COMPRESSED.values() if start.startswith(magic)), None)


def text_encoding(path: Path) -> str:
    """Infers the encoding of a text file from its byte-order mark: ``utf-16``, else ``utf-8``."""
    try:
        with open_uncompressed(path) as file:
            return "utf-16" if file.read(2) in _UTF16 else "utf-8"
    except STREAM_DAMAGE:
        return "utf-8"


def undecodable(exact: bool) -> str:
    """Error handler of text: bytes that are not UTF-8 become lone surrogates, or escapes."""
    return "surrogateescape" if exact else "backslashreplace"


class LineReader:
    """Lines of a text file, plain or compressed by gzip or xz.

    Args:
        path: File; its first bytes determine whether it is compressed.
        encoding: Name of a codec; "auto" is UTF-8, or UTF-16 with a byte-order mark.
        is_strict: Whether an undecodable byte is an error; otherwise it becomes a backslash escape,
            because old files contain Latin-1 comments.
        exact: Whether lines keep every byte: an undecodable byte becomes a lone surrogate, see
            ``undecodable``, and byte-order marks and carriage returns stay.

    Attributes:
        path: The file.
        line: Number of the last line returned, from 1; 0 before the first.
        terminated: Whether the last line returned ended with a newline.
    """

    def __init__(
        self,
        path: str | Path,
        encoding: str = "auto",
        *,
        is_strict: bool = False,
        exact: bool = False,
    ) -> None:
        self.path = Path(path)
        self._errors, self._is_exact = undecodable(is_strict or exact), exact
        self.line = 0
        self.terminated = True
        self._suffix = ""
        check_is_file(self.path)
        self._stored = self.path.stat().st_size
        if encoding == "auto":
            encoding = "utf-8" if exact else text_encoding(self.path)
        self._file = self._open(encoding)

    def _open(self, encoding: str) -> TextIO:
        with open(self.path, "rb") as file:
            start = file.read(6)
        how: dict[str, Any] = {"encoding": encoding, "errors": self._errors}
        if self._is_exact:
            how["newline"] = "\n"
        for suffix in _TEXTS:
            if start.startswith(_COMPRESSED[suffix][0]):
                self._suffix = suffix
                return io.TextIOWrapper(open_uncompressed(self.path), **how)
            if self.path.suffix == suffix:
                raise self.error(
                    f"a whole {suffix} stream",
                    f"a damaged or truncated one, or another kind of file ({start!r})",
                    "fetch the file again, or leave out the suffix if it is plain text",
                )
        return open(self.path, **how)

    def __enter__(self) -> "LineReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> "LineReader":
        return self

    def __next__(self) -> str:
        try:
            text = self._file.readline(MAX_LINE_LENGTH + 1)
        except STREAM_DAMAGE as damage:
            raise self.error(
                f"a whole {self._suffix} stream",
                f"a damaged or truncated one ({damage})",
                "fetch the file again",
            ) from damage
        except UnicodeDecodeError as error:  # of encodings of several bytes, such as UTF-16
            self.line += 1
            raise self._not_decoded(error.object[error.start]) from None
        if not text:
            raise StopIteration
        self.line += 1
        if len(text) > MAX_LINE_LENGTH:
            raise self.error(
                f"lines of at most {MAX_LINE_LENGTH:,} characters", "a longer one", "check the file"
            )
        if "\0" in text:
            raise self.error(
                "text", "a NUL byte", "save it as UTF-8, or fetch the file again if it is damaged"
            )
        if not self._is_exact and not text.isascii() and (escaped := _ESCAPED.search(text)):
            raise self._not_decoded(ord(escaped[0]) - 0xDC00)
        if (
            self.line == 1 and not self._is_exact
        ):  # byte-order marks that editors put first, each its own
            text = text.lstrip("\ufeff")
        self.terminated = text.endswith("\n")
        return text.removesuffix("\n")

    def check_count(self, num_items: int) -> None:
        """Raises an error if a small file has very many items, each of which becomes an object."""
        check_unpacked_bytes(self.path, num_items * _ITEM_BYTES, self._stored)

    def content(self, comment: str, line_bytes: int = _EXAMPLE_BYTES) -> Iterator[str]:
        """Yields stripped lines, without blank lines and comments.

        Each line may be an example or a series of ``line_bytes`` bytes of memory, however short.
        """
        for line in self:
            check_unpacked_bytes(self.path, self.line * line_bytes, self._stored)
            text = line.strip()
            if text and not text.startswith(comment):
                yield text

    def tags(self, comment: str) -> Iterator[tuple[str, str]]:
        """Yields the tags of a header up to ``@data``, each with the rest of its line."""
        for text in self.content(comment):
            tag, *rest = text.split(maxsplit=1)
            if tag.lower() == "@data":
                return
            yield tag, "".join(rest)
        raise self.error(
            "@data and the examples after the header",
            "the end of the file" if self.line else "an empty file",
            "the file is truncated: fetch it again",
        )

    def _not_decoded(self, byte: int) -> DataFormatError:
        head = b""
        with suppress(*STREAM_DAMAGE), open_uncompressed(self.path) as file:
            head = file.read(1024)
        if b"\0" in head and not self._file.encoding.startswith("utf-16"):  # an image, an archive
            return self.error("text", "a binary file", "give a table, or export it as CSV")
        return self.error(
            f"text in {self._file.encoding.upper()}",
            f"the byte 0x{byte:02x}",
            "say how the file is encoded, such as with encoding='latin-1' or 'cp1252', or save it "
            "as UTF-8",
            "encoding",
        )

    def error(self, expected: str, got: str, advice: str, *options: str) -> DataFormatError:
        """Returns the error to raise about the current line."""
        place = f"{self.path}:{max(self.line, 1)}"
        return DataFormatError(f"{place}: expected {expected}, got {got}; {advice}", *options)
