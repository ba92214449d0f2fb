"""Lines of a stream, without comments, and the cells of a line by column name."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, itemize, quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.text_files import MAX_LINE_LENGTH, LineReader, undecodable
from flax_linattn.data.tables.cells import BadCellError, is_comment, split_cells
from flax_linattn.data.tables.dialect import Dialect
from flax_linattn.data.tables.tables import BINARY_SUFFIXES

COMMA = Dialect(separator=",")
"""The dialect of lines whose cells are separated by commas."""
_BINARY = {"PAR1": "a Parquet file", "ARROW1": "an Arrow file", "PK\x03\x04": "an Excel file"}
"""First characters of binary files that users mistake for text."""
_ADVICE = "save the table as CSV, or use `flax-linattn predict`, which reads it."


@contextmanager
def open_lines(path: Path | None, *, exact: bool = False) -> Iterator[Rows]:
    """Opens a text file, or standard input, to read its lines.

    A byte that is not UTF-8 becomes a backslash escape, which the parsers name; with ``exact`` it
    becomes a lone surrogate, so that ``encode("utf-8", "surrogateescape")`` gives the same bytes,
    with carriage returns.
    """
    if path is not None and path.suffix.lower() in BINARY_SUFFIXES:
        raise OptionError(
            f"expected lines of text in {path}, got a binary table; {_ADVICE}", "input"
        )
    if path is None:
        try:
            lines: Iterable[str] = PipeLines(sys.stdin.fileno(), exact=exact)
        except io.UnsupportedOperation:  # text in memory
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(errors=undecodable(exact))
                if exact:
                    sys.stdin.reconfigure(newline="\n")
            lines = sys.stdin
        yield Rows(lines, "standard input:")
        return
    with LineReader(path, exact=exact) as lines:
        yield Rows((line + "\n" * lines.terminated for line in lines), f"{path}:")


class PipeLines:
    """Lines of a pipe or a terminal; see ``open_lines``.

    Args:
        descriptor: File descriptor, from which nothing else reads.
        exact: As in ``open_lines``.

    Attributes:
        before_wait: Called whenever the next line has not arrived yet.
    """

    def __init__(self, descriptor: int, *, exact: bool = False) -> None:
        self._descriptor, self._buffer = descriptor, bytearray()
        self._errors, self._is_exact = undecodable(exact), exact
        self.before_wait: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[str]:
        start = 0  # of what has not been searched for a newline
        while True:
            end = self._buffer.find(b"\n", start) + 1
            if not end:
                start = len(self._buffer)
                if start > MAX_LINE_LENGTH:
                    raise ValueError(
                        f"standard input: expected lines of at most {MAX_LINE_LENGTH:,} bytes, got "
                        "a longer line; check that the input is text."
                    )
                if self._must_wait():
                    self.before_wait()
                chunk = os.read(self._descriptor, 1 << 16)
                self._buffer += chunk
                if chunk:
                    continue
            line = self._buffer[: end or None]
            if not line:
                return
            del self._buffer[: len(line)]
            start = 0
            text = line.decode(errors=self._errors)
            yield text if self._is_exact else text.replace("\r\n", "\n")

    def _must_wait(self) -> bool:
        try:
            return not select.select([self._descriptor], [], [], 0)[0]
        except OSError:  # a pipe on Windows
            return True


class Rows:
    r"""Lines or observations, and the place of the last one for error messages.

    Args:
        rows: Lines with their newlines, or observations.
        place: Text before the number of a row in messages, such as "sales.csv:".

    Attributes:
        number: Number of the last row, from 1; 0 before the first.

    Example:
        >>> rows = Rows(["# a comment\n", "1\n", "2\n", "34"], "input:")
        >>> list(rows.parse(lambda lines: map(int, lines), unfinished=print))
        34
        [1, 2]
        >>> list(Rows(["1\n", "x\n"], "input:").parse(lambda lines: map(float, lines)))
        Traceback (most recent call last):
        ...
        ValueError: input:2: could not convert string to float: 'x'
    """

    def __init__(self, rows: Iterable[Any], place: str) -> None:
        self._rows, self._place, self.number = rows, place, 0

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.number += 1
            yield row

    @property
    def place(self) -> str:
        """The place of the last row, such as "sales.csv:3"."""
        return f"{self._place}{self.number}"

    def call_before_wait(self, callback: Callable[[], None]) -> None:
        """Sets what is called whenever the next row has not arrived yet."""
        if isinstance(self._rows, PipeLines):
            self._rows.before_wait = callback

    @contextmanager
    def located_errors(self) -> Iterator[None]:
        """Context manager: adds the place of the last row to errors."""
        try:
            yield
        except DataFormatError:  # of the file itself, which names its place
            raise
        except OptionError as error:
            raise OptionError(f"{self.place}: {error}", *error.options, **error.values) from error
        except ValueError as error:
            raise ValueError(f"{self.place}: {error}") from error

    def lines(
        self, *, comments: bool = True, unfinished: Callable[[str], None] | None = None
    ) -> Iterator[str]:
        """Lines without newlines, byte-order marks and comment lines.

        Comments are marked as in files, see ``data.tables.cells.is_comment``.

        Args:
            comments: Whether to skip comment lines and byte-order marks; otherwise all is text.
            unfinished: Called with a last line that has no newline, which is then skipped, because
                it may end in the middle of a number. None yields that line.
        """
        begun = False
        for line in self:
            text = line.removesuffix("\n")
            if self.number == 1:
                text = text.lstrip("\ufeff") if comments else text  # byte-order marks
                for begin, kind in _BINARY.items():
                    if text.startswith(begin):
                        raise OptionError(f"expected lines of text, got {kind}; {_ADVICE}", "input")
            if unfinished is not None and text and not line.endswith("\n"):
                unfinished(text)
            elif not (comments and is_comment(text, begun)):
                begun = begun or bool(text.strip())
                yield text

    def parse(
        self, parse: Callable[[Iterable[str]], Iterable[Any]], **options: Any
    ) -> Iterator[Any]:
        """Parses lines to observations; an error begins with the place of its line."""
        observations = iter(parse(self.lines(**options)))
        while True:
            with self.located_errors():
                try:
                    observation = next(observations)
                except StopIteration:
                    return
            yield observation


class Cells(NamedTuple):
    """The cells of a line.

    Attributes:
        texts: Text of each cell by column name; "" is a missing value.
        dialect: Format of the numbers.
        is_json: Whether the line is a JSON object.
    """

    texts: Mapping[str, str]
    dialect: Dialect
    is_json: bool

    def numbers(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Parses numbers, float64 [len(columns)]; NaN is a missing value or column."""
        texts = [self.texts.get(column, "") for column in columns]
        try:
            return self.dialect.numbers(texts)
        except BadCellError as bad:
            missing = "write null" if self.is_json else "leave the cell empty or write ?"
            raise ValueError(
                f"expected a finite number for {columns[bad.index]}, got "
                f"{quote(texts[bad.index])}; {missing} if the value is missing."
            ) from None


class CellLines:
    """Reads lines of cells: in a fixed order, by the names of a header, or as JSON objects.

    Args:
        *forms: Column names of a line without header, one tuple for each possible length.
        optional: Columns that a line with names may omit.
        header: Meaning of a first line of words: "names" (column names), "order" (names that are
            ignored, for columns in a fixed order) or "none" (cells like others).
        blanks: Whether spaces separate cells, too.
        dialect: Separator and format of numbers.
        hint: Advice at the end of messages about missing columns.

    Example:
        >>> lines = ["load,time", "5,9:00", "", '{"time": 1, "load": null}']
        >>> rows = CellLines(("time", "load")).cells(lines)
        >>> [None if cells is None else dict(cells.texts) for cells in rows]
        [{'load': '5', 'time': '9:00'}, None, {'time': '1', 'load': ''}]
    """

    def __init__(
        self,
        *forms: tuple[str, ...],
        optional: Iterable[str] = (),
        header: Literal["names", "order", "none"] = "names",
        blanks: bool = False,
        dialect: Dialect = COMMA,
        hint: str = "",
    ) -> None:
        self._forms, self._dialect, self._hint = forms, dialect, f" {hint}" if hint else ""
        self._header, self._blanks = header, blanks
        self._needed = tuple(name for name in forms[0] if name not in frozenset(optional))
        # The numbers of JSON have points.
        self._json = dataclasses.replace(dialect, decimal=".", separator="auto")

    def cells(self, lines: Iterable[str]) -> Iterator[Cells | None]:
        """Cells of each line of ``Rows.lines``; None for a blank line."""
        columns: Sequence[str] | None = None
        separator = "" if self._dialect.separator == "auto" else self._dialect.sniff([])[0]
        first = True
        for line in lines:
            text = line.strip()
            if not text and not (separator == "\t" and "\t" in line):
                yield None
                continue
            if text.startswith("{"):
                yield Cells(self._object(text), self._json, True)
            else:
                separator = separator or self._dialect.sniff([line])[0]
                cells = self._split(line, separator)
                if first and self._header != "none" and self.is_header(cells):
                    if self._header == "names":
                        self.check_names(cells, "write numbers, or name each column once.")
                    columns = cells if self._header == "names" else self._form(cells)
                else:
                    form = self._form(cells) if columns is None else columns
                    if len(form) != len(cells):
                        raise ValueError(
                            f"expected {len(form)} cells, as in the first line, got {len(cells)}."
                        )
                    yield Cells(dict(zip(form, cells, strict=True)), self._dialect, False)
            first = False

    def is_header(self, cells: Sequence[str]) -> bool:
        """Whether a first line is a header: words alone, or words with all required names."""
        dialect = self._dialect
        words = [c for c in cells if not dialect.is_value(c) and dialect.time(c) is None]
        return len(words) == len(cells) or bool(words and set(self._needed) <= set(cells))

    def check_names(self, names: Sequence[str], advice: str) -> None:
        """Checks that each required column is named exactly once."""
        counts = Counter(names)
        for name in dict.fromkeys((*self._needed, *self._forms[-1])):
            if counts[name] > 1 or (name in self._needed and not counts[name]):
                fault = "appears twice" if counts[name] else "is missing"
                raise ValueError(
                    f"expected the columns {itemize(self._needed)}, got {itemize(names)}: {name!r} "
                    f"{fault}; {advice}{self._hint}"
                )

    def column_forms(self, cells: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """Column names that a line without header may have."""
        return self._forms

    def _form(self, cells: Sequence[str]) -> Sequence[str]:
        forms = self.column_forms(cells)
        for form in forms:
            if len(form) == len(cells):
                return form
        expected = " or ".join(f"{len(form)} cells ({itemize(form)})" for form in forms)
        raise ValueError(f"expected {expected}, got {len(cells)}.{self._hint}")

    def _split(self, line: str, separator: str) -> list[str]:
        if self._blanks:
            return line.replace(separator, " ").split()
        try:
            return split_cells(line, separator)
        except ValueError as error:
            raise ValueError(f"{error}.") from None

    def _object(self, text: str) -> dict[str, str]:
        try:
            # Numbers stay text: Python refuses to read integers of thousands of digits.
            pairs = json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deeply nested"
            raise ValueError(
                f"expected a JSON object, got invalid JSON ({reason}): {quote(text)}."
            ) from None
        names = [name for name, _ in pairs]
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(f"expected each name once, got {quote(name)} twice; remove one.")
        self.check_names(names, "write null for a missing value.")
        return {name: "" if value is None else str(value) for name, value in pairs}
