"""Values of a JSON file one after the other, each with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from flax_linattn.checks import shown
from flax_linattn.data.files import MEND, LineReader

_BLANKS = re.compile(r"[ \t\n\r]*")


def json_values(reader: LineReader) -> Iterator[Any]:
    r"""The elements of the one array in a file, or its values between blanks, such as one a line.

    Args:
        reader: The file; while a value is looked at, its line is that at which the value begins.

    Raises:
        DataFormatError: The file is no such JSON, or holds no value.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.json")
        ...     _ = path.write_text("[1,\n\n{}]")
        ...     with LineReader(path) as reader:
        ...         [(value, reader.line) for value in json_values(reader)]
        [(1, 1), ({}, 3)]
    """
    text = _Text(reader)
    array = text.take("[")
    if text.ended or (array and text.take("]")):
        raise reader.error("at least one value", "none", "check that this is the right file")
    while not text.ended:
        value, stop = text.decode()
        yield value
        text.move(stop)
        if array and not text.take(","):
            if not text.take("]"):
                raise reader.error("',' or ']' after a value", text.next, MEND)
            if not text.ended:
                raise reader.error("the end of the file after ']'", text.next, MEND)
            return
    if array:
        raise reader.error("']' at the end", "the end of the file", "fetch it again")


class _Text:
    """The text of a file and a place in it, behind blanks; the line of the reader is that place's.

    Args:
        reader: The file, unread.
    """

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._text = "\n".join(reader)
        self._at = 0
        self._decoder = json.JSONDecoder()
        reader.line = 1
        self.move(0)

    @property
    def ended(self) -> bool:
        return self._at == len(self._text)

    @property
    def next(self) -> str:
        """What comes, for a message."""
        return shown(self._text[self._at : self._at + 50]) if not self.ended else "nothing"

    def move(self, stop: int) -> None:
        blanks = _BLANKS.match(self._text, stop)
        stop = blanks.end() if blanks else stop
        self._reader.line += self._text.count("\n", self._at, stop)
        self._at = stop

    def take(self, character: str) -> bool:
        """Whether it comes; goes behind it."""
        if not self._text.startswith(character, self._at):
            return False
        self.move(self._at + 1)
        return True

    def decode(self) -> tuple[Any, int]:
        """The value that comes, and where it ends."""
        expected = "a value as JSON"
        try:
            return self._decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._reader.line = error.lineno
            got = f"{error.msg} at character {error.colno}"
            raise self._reader.error(expected, got, MEND) from None
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            raise self._reader.error(expected, shown(error), MEND) from None
