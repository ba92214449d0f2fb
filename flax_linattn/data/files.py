"""Text files, plain or compressed, read line by line with their place kept for error messages."""

import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from flax_linattn.checks import OptionError

_COMPRESSED: dict[str, tuple[bytes, Callable[..., TextIO]]] = {
    ".gz": (b"\x1f\x8b", gzip.open),
    ".xz": (b"\xfd7zXZ\x00", lzma.open),
}
"""First bytes, and what opens it, by suffix."""

MEND = "correct the line, or fetch the file again if it is cut short or damaged"
"""What to do about a line that is not as it should be."""

LONGEST_LINE = 2**26
"""Characters of a line; the longest series of the archives takes some ten millions."""

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class DataFormatError(OptionError):
    """A data file breaks its format; the message begins with ``path:line:``, or ``path`` alone."""


def check_is_file(path: Path) -> None:
    """Refuses what is no file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing"
        raise FileNotFoundError(
            f"expected a data file at {path}, found {got} there; check the path, or "
            f"download the file first (working folder: {Path.cwd()})"
        )


class LineReader:
    r"""Lines of a text file, plain or compressed by gzip or xz.

    A byte that is not UTF-8 (old files hold Latin-1 comments) becomes a backslash escape.

    Args:
        path: The file; its first bytes say whether it is compressed.

    Attributes:
        path: The file.
        line: Number of the last line given, from 1; 0 before the first.
        terminated: Whether the last line given ended with a newline.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: The file is no UTF-8 text, or not what its suffix says; while reading,
            where the compressed stream is damaged or cut short, a line holds a NUL byte, or more
            than 64 Mi characters.

    Example:
        >>> import gzip, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "greeting.txt.gz")
        ...     _ = path.write_bytes(gzip.compress(b"hello\nworld"))
        ...     with LineReader(path) as reader:
        ...         print(list(reader), reader.line, reader.terminated)
        ['hello', 'world'] 2 False
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.line = 0
        self.terminated = True
        self._suffix = ""
        check_is_file(self.path)
        self._file = self._open()

    def _open(self) -> TextIO:
        with open(self.path, "rb") as file:
            start = file.read(6)
        if start.startswith(_UTF16):
            raise self.error("UTF-8 text", "UTF-16", "save it as UTF-8")
        how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
        for suffix, (magic, opener) in _COMPRESSED.items():
            if start.startswith(magic):
                self._suffix = suffix
                return opener(self.path, "rt", **how)
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
            text = self._file.readline(LONGEST_LINE + 1)
        except _DAMAGE as damage:
            raise self.error(
                f"a whole {self._suffix} stream",
                f"a damaged or truncated one ({damage})",
                "fetch the file again",
            ) from damage
        if not text:
            raise StopIteration
        self.line += 1
        if len(text) > LONGEST_LINE:
            raise self.error(
                f"lines of at most {LONGEST_LINE:,} characters", "a longer one", "check the file"
            )
        if "\0" in text:
            raise self.error(
                "text", "a NUL byte", "save it as UTF-8, or fetch the file again if it is damaged"
            )
        if self.line == 1:  # byte-order marks that editors put first, each its own
            text = text.lstrip("\ufeff")
        self.terminated = text.endswith("\n")
        return text.removesuffix("\n")

    def error(self, expected: str, got: str, advice: str, *options: str) -> DataFormatError:
        """Returns the error to raise about the current line.

        Args:
            expected: What the format asks for at this place.
            got: What is there instead.
            advice: What the user can do about it.
            *options: Names of the options that the advice is about.
        """
        place = f"{self.path}:{max(self.line, 1)}"
        return DataFormatError(f"{place}: expected {expected}, got {got}; {advice}", *options)
