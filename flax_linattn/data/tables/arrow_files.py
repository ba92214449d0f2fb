"""Parquet and Arrow files, whose sizes are checked before they are unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from pyarrow import compute, parquet

from flax_linattn.checks import itemize
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.unpacking import check_unpacked_bytes

_VALUE_BYTES = 8
"""Minimum bytes of a value in memory."""
_NESTED_VALUE_BYTES = 128
"""Bytes of a value in a list or struct, which may be its only value."""
_PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""Substitutes for types to which PyArrow does not convert dictionary references."""
_ADVICE = "save it as CSV if you trust its source"
_MAGIC = b"ARROW1"
_FOOTER_LENGTH = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
"""Entry of a footer: start of a message, bytes of its header and of its body."""
_PAIR = struct.Struct("<qq")
"""Node of a message (values, missing values), or buffer (start, bytes)."""
_DICTIONARY = 2
"""Type code of a message with the values of a dictionary."""

_I32, _I64, _BINARY, _LIST, _SET, _STRUCT = 5, 6, 8, 9, 10, 12
"""Type codes of Thrift's compact protocol."""
_INTEGERS = (4, _I32, _I64)
_BOOLEANS = (1, 2)
_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}
"""Bytes of fixed-size values of Thrift: booleans in a list, bytes and doubles."""
_DELTA_LENGTHS, _DELTA_TEXTS = 6, 7
"""Encodings of strings that PyArrow does not read as dictionary references."""
_PIECE_ROWS, _PIECE_BYTES = 256, 2**28
"""Maximum numbers of rows and bytes of a piece of a column."""
_PAGE_PADDING = 100
"""Bytes that PyArrow may read after a column, because old writers declared it too short."""


def read_parquet(path: Path) -> pa.Table:
    """Reads a Parquet file if its values fit the limit for its size.

    A file may store a string once and refer to it from every row. Strings and bytes are therefore
    read as dictionary references, and decoded when their lengths are known.
    """
    pages = _check_pages(path)
    encodings, unpacked = pages.encodings, pages.unpacked
    if deltas := [name for name in encodings if _DELTA_TEXTS in encodings[name]]:
        # PyArrow cannot read them as references, and their pages do not declare their size.
        for _ in _read_pieces(path, deltas, pages.max_bytes):
            pass
    texts = [name for name in encodings if not encodings[name] & {_DELTA_LENGTHS, _DELTA_TEXTS}]
    table = parquet.read_table(path, partitioning=None, read_dictionary=texts)
    table.validate(full=True)
    columns = {
        index: field
        for index, field in enumerate(pages.schema)
        if table.schema.field(index).type != field.type
    }
    for index in columns:
        unpacked += sum(map(_text_bytes, table.column(index).chunks))
    check_unpacked_bytes(path, unpacked, path.stat().st_size, _ADVICE)
    for index, field in columns.items():
        target = _PLAIN_TYPES.get(field.type, field.type)
        table = table.set_column(index, field.with_type(target), table.column(index).cast(target))
    return table


def read_parquet_column(path: Path, column: str) -> Iterator[Any]:
    """Reads the values of a column with the same limit, a few rows in memory at a time."""
    pages = _check_pages(path)
    if column not in pages.schema.names:
        raise DataFormatError(
            f"{path}: expected a column {column!r}, found {itemize(pages.schema.names)}; choose "
            "another column",
            "column",
        )
    for piece in _read_pieces(path, [column], pages.max_bytes):
        piece.validate(full=True)
        for value in piece.column(column):
            yield value.as_py()


class _Pages(NamedTuple):
    """What the pages of a file declare.

    Attributes:
        schema: Schema of the file.
        unpacked: Bytes of all pages in memory.
        max_bytes: Bytes of the largest page, and so the most bytes of a string.
        encodings: Encodings of each column of strings.
    """

    schema: pa.Schema
    unpacked: int
    max_bytes: int
    encodings: dict[str, set[int]]


def _check_pages(path: Path) -> _Pages:
    """Checks the declared size of all pages without unpacking them."""
    stored = path.stat().st_size
    with parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    unpacked, max_bytes = 0, 1
    encodings = {leaf.path: set[int]() for leaf in leaves}
    with open(path, "rb") as content:
        # PyArrow ends the process where the metadata of a column are damaged: not read by it.
        content.seek(-8 - metadata.serialized_size, 2)
        for group in _thrift_struct(content)[4, _LIST]:
            for leaf, column in zip(leaves, group[1, _LIST], strict=True):
                value_bytes = _NESTED_VALUE_BYTES if leaf.path != leaf.name else _VALUE_BYTES
                value_bytes = max(leaf.length or 0, value_bytes)
                encodings[leaf.path].update(column[3, _STRUCT][2, _LIST])
                for count, size in _page_sizes(content, column[3, _STRUCT]):
                    unpacked += max(count * value_bytes, size)
                    max_bytes = max(max_bytes, size)
                check_unpacked_bytes(path, unpacked, stored, _ADVICE)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return _Pages(schema, unpacked, max_bytes, {name: encodings[name] for name in texts})


def _read_pieces(path: Path, names: Sequence[str], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Reads rows of some columns, as few at a time as ``_PIECE_BYTES`` hold in any case."""
    unpacked, stored = 0, path.stat().st_size
    num_rows = max(1, min(_PIECE_ROWS, _PIECE_BYTES // max_bytes))
    # Otherwise PyArrow reads all pages of a row group, often the whole file, before the first row.
    streamed = {"buffer_size": 2**20, "pre_buffer": False}
    with parquet.ParquetFile(path, **streamed) as file:
        for piece in file.iter_batches(num_rows, columns=names):
            unpacked += piece.nbytes
            check_unpacked_bytes(path, unpacked, stored, _ADVICE)
            yield piece


def _text_bytes(values: pa.Array) -> int:
    """Counts the bytes of the strings of a dictionary array, once per reference."""
    if pa.types.is_dictionary(values.type):
        sizes = compute.binary_length(values.dictionary).take(values.indices)
        return compute.sum(sizes).as_py() or 0
    if pa.types.is_struct(values.type):
        return sum(map(_text_bytes, values.flatten()))
    return _text_bytes(values.flatten()) if pa.types.is_nested(values.type) else 0


def _page_sizes(file: BinaryIO, column: dict[tuple[int, int], Any]) -> Iterator[tuple[int, int]]:
    """Yields the number of values and unpacked bytes of each page that PyArrow reads."""
    starts = column[9, _I64], column.get((11, _I64), 0)  # data and dictionary
    start = min(place for place in starts if place > 0)
    end = start + column[7, _I64] + _PAGE_PADDING
    missing = column[5, _I64]
    while missing > 0 and start < end:
        file.seek(start)
        page = _thrift_struct(file)
        sizes = page[2, _I32], page[3, _I32]
        data = page.get((5, _STRUCT)) or page.get((8, _STRUCT))
        header = data or page.get((7, _STRUCT)) or {(1, _I32): 0}
        if min(*sizes, header[1, _I32]) < 0:
            raise ValueError("negative size of a page")
        yield header[1, _I32], sizes[0]
        missing -= header[1, _I32] if data else 0
        start = file.tell() + sizes[1]


def _thrift_struct(file: BinaryIO) -> dict[tuple[int, int], Any]:
    """Parses the fields of a struct in Thrift's compact protocol, by number and type.

    Parquet's own are in its ``parquet.thrift``. A reader ignores a field of another type.
    """
    fields = {}
    number = 0
    while head := file.read(1)[0]:
        kind = head & 15
        number = number + (head >> 4) if head >> 4 else _thrift_value(file, _I32)
        fields[number, kind] = None if kind in _BOOLEANS else _thrift_value(file, kind)
    return fields


def _thrift_value(file: BinaryIO, kind: int) -> Any:
    """Parses a value in Thrift's compact protocol; None if no size depends on it."""
    if kind == _STRUCT:
        return _thrift_struct(file)
    if kind in (_LIST, _SET):
        head = file.read(1)[0]
        count = head >> 4 if head >> 4 < 15 else _varint(file)
        return [_thrift_value(file, head & 15) for _ in range(count)]
    if kind == _BINARY:
        file.seek(_varint(file), 1)
    elif kind in _INTEGERS:
        value = _varint(file)
        return value >> 1 ^ -(value & 1)
    elif kind in _WIDTHS:
        if len(file.read(_WIDTHS[kind])) < _WIDTHS[kind]:  # a list may declare any length
            raise EOFError("the end of a value is missing")
    else:
        raise ValueError(f"unknown type {kind} of Thrift")
    return None


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):  # ten bytes hold 64 bits
        byte = file.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("an integer of more than ten bytes")


def read_arrow(path: Path) -> pa.Table:
    """Reads an Arrow file if its buffers fit the limit for its size.

    Feather version 1 is an error: PyArrow does not check its offsets, and may read other memory.
    """
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataFormatError(
                f"{path}: expected an Arrow file (Feather version 2), got none, or Feather "
                "version 1; save it again with pandas.DataFrame.to_feather"
            )
        check_unpacked_bytes(path, sum(_message_sizes(file)), path.stat().st_size, _ADVICE)
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def _message_sizes(file: BinaryIO) -> Iterator[int]:
    """Yields the bytes in memory of the record batches and dictionaries of an Arrow file.

    ``Message.fbs`` and ``File.fbs`` define Arrow's format. PyArrow gives these sizes only after
    unpacking.
    """
    file.seek(-_FOOTER_LENGTH.size, 2)
    length, _ = _FOOTER_LENGTH.unpack(file.read(_FOOTER_LENGTH.size))
    file.seek(-_FOOTER_LENGTH.size - length, 2)
    footer = file.read(length)
    root = _follow(footer, 0)
    for field in (2, 3):  # dictionaries and record batches
        for offset, header_length, _ in _structs(footer, root, field, _BLOCK):
            file.seek(offset)
            yield _message_size(file, file.read(header_length), offset + header_length)


def _message_size(file: BinaryIO, header: bytes, body: int) -> int:
    """Returns the bytes of the values of a message in memory."""
    header = header[8:]  # after the mark of a message, and the length of its header
    message = _follow(header, 0)
    batch = _follow(header, _field(header, message, 2))
    if header[_field(header, message, 1)] == _DICTIONARY:
        batch = _follow(header, _field(header, batch, 1))
    values = sum(count for count, _ in _structs(header, batch, 1, _PAIR))
    unpacked = 0
    for offset, size in _structs(header, batch, 2, _PAIR):
        if size and _field(header, batch, 3):  # compressed: a buffer begins with its own size
            file.seek(body + offset)
            (declared,) = struct.unpack("<q", file.read(8))
            size = max(size, declared)
        unpacked += size
    return max(unpacked, _VALUE_BYTES * values)


def _follow(data: bytes, place: int) -> int:
    """Returns the start of the table or vector at an offset of a FlatBuffer."""
    return place + struct.unpack_from("<I", data, place)[0]


def _field(data: bytes, table: int, index: int) -> int:
    """Returns the position of a field in a table of a FlatBuffer; 0 if it has its default."""
    offsets = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, offsets)
    if 4 + 2 * index >= length:
        return 0
    (offset,) = struct.unpack_from("<H", data, offsets + 4 + 2 * index)
    return table + offset if offset else 0


def _structs(data: bytes, table: int, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Reads the structs of a vector of a FlatBuffer."""
    if place := _field(data, table, field):
        vector = _follow(data, place)
        (count,) = struct.unpack_from("<I", data, vector)
        for index in range(count):
            yield kind.unpack_from(data, vector + 4 + kind.size * index)
