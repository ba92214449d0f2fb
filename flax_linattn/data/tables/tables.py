"""Tables as data frames: text, Parquet, Feather and Excel files, with line numbers."""

from __future__ import annotations

import codecs
import functools
import io
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast
from xml.parsers import expat

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, csv, parquet

from flax_linattn.checks import import_extra, quote
from flax_linattn.data.errors import REPAIR_ADVICE, DataFormatError, printed, report_damage
from flax_linattn.data.files.text_files import (
    STREAM_DAMAGE,
    LineReader,
    check_is_file,
    open_uncompressed,
    text_encoding,
)
from flax_linattn.data.files.unpacking import check_unpacked_bytes
from flax_linattn.data.tables.arrow_files import read_arrow, read_parquet
from flax_linattn.data.tables.cells import TIME, is_comment, split_cells
from flax_linattn.data.tables.dialect import PLAIN, Dialect, listed_separators
from flax_linattn.safe_npz import read_zip_entry

_ARROW = {
    **dict.fromkeys((".parquet", ".pq"), "Parquet"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "Arrow"),
}
_EXCEL = (".xlsx", ".xlsm")
BINARY_SUFFIXES = (*_ARROW, *_EXCEL)
"""Suffixes of binary tables."""
_CELL_BYTES = 64
"""Bytes of a cell as a Python string in a list."""
_SHEET_EXPANSION = 64
"""Bytes of memory per byte of an Excel file's XML, which becomes a tree of elements."""
_BLOCK = 2**20
"""Number of bytes that are read at once."""
_WIDE = 1000
"""Number of columns from which missing values are searched only if the file has some."""
_COMMENT = re.compile(rb"\n#\s")
_HTML = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """A data frame and its source, for error messages.

    Attributes:
        frame: Data frame with one row for each line; columns may have the same name.
        source: The file, or a name.
        lines: Line of each row in its file, from 1, int64 ``[T]``; None if the file has no lines.
        header_line: Line of the column names.
        has_header: Whether the source has column names.
    """

    frame: pd.DataFrame
    source: str
    lines: NDArray[np.int64] | None = None
    header_line: int = 1
    has_header: bool = True

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the columns, as strings."""
        return [str(name) for name in self.frame.columns]

    def column(self, index: int) -> str:
        """Describes a column in messages."""
        named = f" ({quote(self.names[index])[1:-1]})" if self.has_header else ""
        return f"column {index + 1}{named}"

    def error(
        self, row: int | None, expected: str, got: str, advice: str, *options: str
    ) -> DataFormatError:
        """Returns the error to raise about a row, or about the header."""
        if self.lines is not None:
            place = f":{self.header_line if row is None else self.lines[row]}"
        else:
            place = "" if row is None else f", row {row} (counting from 0)"
        return DataFormatError(
            f"{self.source}{place}: expected {expected}, got {got}; {advice}", *options
        )


def read_table(
    path: str | Path,
    dialect: Dialect = PLAIN,
    *,
    header: bool | None = None,
    texts: Collection[str] = (),
) -> Table:
    r"""Reads a table from a file.

    In a text file, a column that begins with a number is float64 if it holds only numbers and
    missing values. Other columns, and those named in ``texts``, are strings, possibly with
    surrounding spaces.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "toy.csv")
        >>> _ = path.write_text("id;load\n07;1.5\n\n08;NA\n")
        >>> table = read_table(path, texts=["id"])
        >>> table.frame.to_dict("list"), table.lines.tolist()
        ({'id': ['07', '08'], 'load': [1.5, nan]}, [2, 4])
    """
    path = Path(path)
    check_is_file(path)
    suffix = path.suffix.lower()
    if suffix in _ARROW:
        frame = _read_arrow(path, _ARROW[suffix])
        return Table(index_to_columns(frame, {*texts, *dialect.time_columns}), str(path))
    if suffix in _EXCEL:
        return _read_excel(path, header is not False)
    return _read_text(path, dialect, header, {*texts, *dialect.time_columns})


def index_to_columns(frame: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    """Moves named levels of the index to columns: several, or one of ``names``."""
    levels = [level for level in frame.index.names if level is not None]
    if frame.index.nlevels > 1 or any(str(level) in names for level in levels):
        return frame.reset_index(level=levels, allow_duplicates=True)
    return frame


def column_names(path: Path, dialect: Dialect = PLAIN) -> list[str]:
    """Returns the first line of cells of a text file, or the column names of another table."""
    check_is_file(path)
    suffix = path.suffix.lower()
    if _ARROW.get(suffix) == "Parquet":
        with report_damage(path, "a whole Parquet file"):
            return list(parquet.read_schema(path).names)
    if suffix in BINARY_SUFFIXES:
        return read_table(path).names
    with LineReader(path, dialect.encoding, is_strict=True) as reader:
        return next(_Rows(reader, dialect), [])


def frame_of_arrow(table: pa.Table) -> pd.DataFrame:
    """Converts an Arrow table to a data frame; dates become times."""
    frame: pd.DataFrame = table.to_pandas(date_as_object=False, split_blocks=True)
    return frame


def _read_arrow(path: Path, kind: str) -> pd.DataFrame:
    with report_damage(path, f"a whole {kind} file", "fetch it again, or correct its name"):
        if kind == "Parquet":
            return frame_of_arrow(read_parquet(path))
        return frame_of_arrow(read_arrow(path))


def _read_excel(path: Path, header: bool) -> Table:
    import_extra("openpyxl", "Excel files take openpyxl: pip install 'flax-linattn[excel]'.")
    with report_damage(path, "a whole Excel file", "save it again"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and the like
        stored, advice = path.stat().st_size, "save it as CSV if you trust its source"
        unpacked = io.BytesIO()
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(unpacked, "w") as copy:
            infos = archive.infolist()
            num_bytes = sum(info.file_size for info in infos)
            check_unpacked_bytes(path, num_bytes, stored, advice, _SHEET_EXPANSION)
            for info in infos:
                copy.writestr(info.filename, read_zip_entry(archive, info))
        with pd.ExcelFile(unpacked, engine="openpyxl") as book:
            sheet = str(book.sheet_names[0])
            with cast("Any", book.book[sheet])._get_source() as source:
                check_unpacked_bytes(f"{path}:{sheet}", _sheet_bytes(source), stored, advice)
            frame = book.parse(sheet, header=None, dtype=object)
    frame = frame.dropna(axis=1, how="all").dropna(how="all")
    lines = frame.index.to_numpy() + 1
    if header and len(frame):
        names, frame = frame.iloc[0], frame.iloc[1:]
        if (unnamed := names.iloc[1:].isna()).any():
            raise DataFormatError(
                f"{path}:{lines[0]}: expected a name for each of {len(names)} columns in sheet "
                f"{sheet!r}, got none for {unnamed.sum()} of them ({printed(names.dropna())}); "
                "remove rows with a title above the names, or name each column"
            )
        frame.columns = pd.Index(names.fillna("Unnamed: 0"), dtype=object)
        header_line, lines = int(lines[0]), lines[1:]
    else:
        header_line = 1
    frame = frame.reset_index(drop=True).infer_objects()
    return Table(frame, str(path), lines, header_line, has_header=header)


def _sheet_bytes(file: IO[bytes]) -> int:
    """Counts the bytes of the lists for a sheet in pandas: all rows have the maximum width.

    Rows and cells may declare their position, and all skipped ones are then empty.
    """
    row = column = num_rows = num_columns = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal row, column, num_rows, num_columns
        name, at = tag.rpartition(":")[2], attributes.get("r", "")
        if name == "row":
            row, column = int(at or row + 1), 0
            num_rows = max(num_rows, row)
        elif name == "c":
            column += 1
            if letters := at.rstrip("0123456789"):
                column = functools.reduce(lambda n, x: 26 * n + ord(x) % 32, letters, 0)
        elif name in ("v", "is"):  # pandas drops the cells at the end of a row that have no value
            num_columns = max(num_columns, column)

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.ParseFile(file)
    return num_rows * (_CELL_BYTES + 8 * num_columns)


def _read_text(path: Path, dialect: Dialect, header: bool | None, texts: set[str]) -> Table:
    with LineReader(path, dialect.encoding, is_strict=True) as reader:
        rows = _Rows(reader, dialect)
        first = next(rows, None)
        if first is None:
            raise reader.error("rows of a table", "none", "check that this is the right file")
        header_line = reader.line
        has_header = _is_header(reader, first, dialect) if header is None else header
        row = next(rows, None) if has_header else first
        if row is None:
            raise reader.error("rows after the header", "none", "check that this is the right file")
        names = first if has_header else [str(index) for index in range(len(first))]
        skip = header_line if has_header else header_line - 1
        is_text = [
            name in texts or name.lower() in TIME or dialect.number(cell) is None
            for name, cell in zip(names, chain(row, names), strict=False)
        ]
        parsed = _read_whole(path, dialect, rows.separator, skip, is_text)
        if parsed is None:  # with comments, line breaks within quotes, or a fault to find
            stored = path.stat().st_size
            read: list[list[str]] = []
            places: list[int] = []
            for cells in chain([row], rows):
                if len(cells) != len(names):
                    raise reader.error(
                        f"{len(names)} cells, as in the first line", f"{len(cells)}", REPAIR_ADVICE
                    )
                read.append(cells)
                check_unpacked_bytes(path, len(read) * len(names) * _CELL_BYTES, stored)
                places.append(reader.line)
            parsed = pd.DataFrame(read, dtype=object), np.array(places)
    frame, lines = parsed
    frame.columns = pd.Index(names, dtype=object)
    return Table(frame, str(path), lines, header_line, has_header)


class _Rows(Iterator[list[str]]):
    """Cells of each line of a text file, without blank lines and comments.

    Args:
        reader: File; its ``line`` is the line of the last cells returned.
        dialect: Format of the table.

    Attributes:
        separator: Separator of the cells.
    """

    def __init__(self, reader: LineReader, dialect: Dialect) -> None:
        self._reader = reader
        lines = self._content()
        first = [*islice(lines, 2)]
        self._lines = chain(first, lines)
        if first and _HTML.match(first[0][1]):
            reader.line = first[0][0]
            raise reader.error(
                "a table",
                "an HTML page",
                "download the raw file instead of the page that displays it",
            )
        separators = dialect.sniff([text for _, text in first]) if first else [","]
        if len(separators) > 1:
            reader.line = first[0][0]
            raise reader.error(
                "cells separated by one character",
                f"{listed_separators(separators)} as possible separators",
                "choose one with separator=...",
                "separator",
            )
        (self.separator,) = separators

    def _content(self) -> Iterator[tuple[int, str]]:
        begun = False
        for text in self._reader:
            if is_comment(text, begun):
                continue
            if text.strip() or "\t" in text:
                begun = True
                yield self._reader.line, text

    def __next__(self) -> list[str]:
        for line, text in self._lines:
            self._reader.line = line
            if not text.strip() and self.separator != "\t":
                continue
            self._reader.check_count(text.count(self.separator))
            try:
                return split_cells(text, self.separator)
            except ValueError:
                raise self._reader.error(
                    f"cells separated by {self.separator!r} with closed quotes",
                    quote(text),
                    REPAIR_ADVICE,
                ) from None
        raise StopIteration


class _Watched(io.RawIOBase):
    """UTF-8 bytes of a text from a line on, as a file object for another reader.

    Attributes:
        count: Number of lines read.
        is_plain: Whether these lines have no comment, and nothing else that only ``_Rows``
            supports.
    """

    def __init__(self, path: Path, encoding: str, skip: int, row_bytes: int) -> None:
        self._path, self._row_bytes, self._stored = path, row_bytes, path.stat().st_size
        self.count, self.is_plain, self._end = 0, True, b"\n"
        file = open_uncompressed(path)
        self._file = file if encoding == "utf-8" else codecs.EncodedFile(file, "utf-8", encoding)
        for _ in range(skip):
            self._file.readline()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        end, self._end = self._end, content[-2:] if len(content) > 1 else self._end[-1:] + content
        if not content:
            self.count += not end.endswith(b"\n")
            self._end = b"\n"
        self.count += int(np.count_nonzero(np.frombuffer(content, np.uint8) == ord("\n")))
        check_unpacked_bytes(self._path, self.count * self._row_bytes, self._stored)
        if b"\0" in content or (
            (b"#" in content or b"#" in end) and _COMMENT.search(end + content)
        ):
            self.is_plain = False
        return content

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_whole(
    path: Path, dialect: Dialect, separator: str, skip: int, is_text: list[bool]
) -> tuple[pd.DataFrame, NDArray[np.int64]] | None:
    """Reads the rows after the header with Arrow; None if ``_Rows`` might read them differently.

    Columns other than strings must hold only numbers and missing values.
    """
    missing = dialect.missing_texts
    if len(is_text) > _WIDE:  # Arrow builds a trie of these texts for each column
        parsed = _read_arrow_csv(path, dialect, separator, skip, is_text, [""])
        if parsed is not None:
            return parsed
    return _read_arrow_csv(path, dialect, separator, skip, is_text, missing)


def _read_arrow_csv(
    path: Path,
    dialect: Dialect,
    separator: str,
    skip: int,
    is_text: list[bool],
    missing: list[str],
) -> tuple[pd.DataFrame, NDArray[np.int64]] | None:
    names = [str(index) for index in range(len(is_text))]
    kinds = [pa.string() if text else pa.float64() for text in is_text]
    encoding = text_encoding(path) if dialect.encoding == "auto" else dialect.encoding
    try:
        row_bytes = sum(_CELL_BYTES if text else 8 for text in is_text)
        with _Watched(path, encoding, skip, row_bytes) as file:
            table = csv.read_csv(
                pa.PythonFile(file, mode="r"),
                read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK),
                parse_options=csv.ParseOptions(delimiter=separator),
                convert_options=csv.ConvertOptions(
                    column_types=dict(zip(names, kinds, strict=True)),
                    null_values=missing,
                    strings_can_be_null=False,
                    decimal_point=dialect.decimal,
                ),
            )
    except (pa.ArrowException, OSError, UnicodeError, *STREAM_DAMAGE):
        return None
    if not file.is_plain:
        return None
    for index in np.flatnonzero(is_text).tolist():
        odd = compute.match_substring(table[index], '"')  # as after a blank
        if len(names) == 1:
            odd = compute.or_(odd, compute.equal(compute.utf8_trim_whitespace(table[0]), ""))
        if compute.any(odd).as_py():
            return None
    lines = skip + 1 + np.arange(table.num_rows)
    if file.count != table.num_rows:
        with LineReader(path, dialect.encoding, is_strict=True) as reader:
            lines = np.array([reader.line for text in reader if text.strip(" ")], np.int64)
        lines = lines[lines > skip]
        if len(lines) != table.num_rows:
            return None
    # Numbers of many rows are copied once alone, into a series.
    types = {pa.float64(): pd.ArrowDtype(pa.float64())} if len(lines) > _BLOCK // 64 else {}
    frame: pd.DataFrame = table.to_pandas(types_mapper=types.get)
    return frame, lines


def _is_header(reader: LineReader, cells: list[str], dialect: Dialect) -> bool:
    """Whether the first line names the columns; raises an error if that is ambiguous."""
    if cells[0].lower() in TIME:
        return True
    timed = [dialect.time(cell) is not None for cell in cells]
    if timed[0] and dialect.number(cells[0]) is None:
        return False
    pairs = [*zip(cells, timed, strict=True)]
    words = [cell for cell, is_time in pairs if not is_time and not dialect.is_value(cell)]
    others = [cell for cell, is_time in pairs if is_time or dialect.number(cell) is not None]
    if not words and ".txt" in reader.path.suffixes:
        return False
    advice = "set whether it is a header with header=..."
    if not words:
        got = "only numbers"
    elif others:
        got = f"{quote(words[0])} next to {quote(others[0])}"
        advice = f"correct the cell if it is damaged, or {advice}"
    elif all(word[0] in "+-.0123456789" for word in words):
        got = f"{quote(words[0])}, a name or a damaged number"
        advice = f"correct it if it is damaged, or {advice}"
    else:
        return True
    raise reader.error(
        "a first line that names the columns, or that begins with a time", got, advice, "header"
    )
