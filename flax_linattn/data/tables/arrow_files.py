"""Parquet and Arrow files, whose sizes are checked before they are unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import compute, feather, parquet

from flax_linattn.data.files.unpacking import check_unpacked_bytes

_VALUE_BYTES = 8
"""Bytes of a value in memory, however few the file takes for it."""
_NESTED_VALUE_BYTES = 128
"""Bytes of a value of a list or struct, as it may be alone in one."""
_PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""What is read instead of types to which PyArrow does not convert references."""
_ADVICE = "save it as CSV if you trust its source"
_MAGIC = b"ARROW1"
_FOOTER_LENGTH = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
"""Of a footer: where a message begins, the bytes of its header, and those of its body."""
_PAIR = struct.Struct("<qq")
"""A node of a message (values, missing values), or a buffer (where it begins, its bytes)."""
_DICTIONARY = 2
"""The type of a message that holds the values of a dictionary."""


def read_parquet(path: Path) -> pa.Table:
    """Reads a Parquet file if its values fit the limit for its size.

    A file may hold a text once and refer to it from every row. Texts and bytes are therefore read
    as references, and written out when their lengths are known.
    """
    stored = path.stat().st_size
    with parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    unpacked = 0
    for group in range(metadata.num_row_groups):
        for index, leaf in enumerate(leaves):
            column = metadata.row_group(group).column(index)
            value_bytes = _NESTED_VALUE_BYTES if leaf.path != leaf.name else _VALUE_BYTES
            size = column.num_values * max(leaf.length or 0, value_bytes)
            unpacked += max(size, column.total_uncompressed_size)
    check_unpacked_bytes(path, unpacked, stored, _ADVICE)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    table = parquet.read_table(path, partitioning=None, read_dictionary=texts)
    columns = {
        index: field
        for index, field in enumerate(schema)
        if table.schema.field(index).type != field.type
    }
    for index in columns:
        unpacked += sum(map(_text_bytes, table.column(index).chunks))
    check_unpacked_bytes(path, unpacked, stored, _ADVICE)
    for index, field in columns.items():
        target = _PLAIN_TYPES.get(field.type, field.type)
        table = table.set_column(index, field.with_type(target), table.column(index).cast(target))
    return table


def _text_bytes(values: pa.Array) -> int:
    """Bytes of the texts to which an array refers, once for each reference."""
    if pa.types.is_dictionary(values.type):
        sizes = compute.binary_length(values.dictionary).take(values.indices)
        return compute.sum(sizes).as_py() or 0
    if pa.types.is_struct(values.type):
        return sum(map(_text_bytes, values.flatten()))
    return _text_bytes(values.flatten()) if pa.types.is_nested(values.type) else 0


def read_arrow(path: Path) -> pa.Table:
    """Reads an Arrow file if its buffers fit the limit for its size."""
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) == _MAGIC:  # else in the first version, without compression
            check_unpacked_bytes(path, sum(_message_sizes(file)), path.stat().st_size, _ADVICE)
    return feather.read_table(path)


def _message_sizes(file: BinaryIO) -> Iterator[int]:
    """Bytes of the record batches and dictionaries of an Arrow file in memory.

    Arrow's format is that of its ``Message.fbs`` and ``File.fbs``. PyArrow shows these sizes only
    for what it has unpacked.
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
    """Bytes of the values of a message in memory."""
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
    """Where the table or vector begins that a place of a FlatBuffer refers to."""
    return place + struct.unpack_from("<I", data, place)[0]


def _field(data: bytes, table: int, index: int) -> int:
    """Where a field of a table of a FlatBuffer stands; 0 if it has its default."""
    offsets = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, offsets)
    if 4 + 2 * index >= length:
        return 0
    (offset,) = struct.unpack_from("<H", data, offsets + 4 + 2 * index)
    return table + offset if offset else 0


def _structs(data: bytes, table: int, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
    """The structs of a vector of a FlatBuffer."""
    if place := _field(data, table, field):
        vector = _follow(data, place)
        (count,) = struct.unpack_from("<I", data, vector)
        for index in range(count):
            yield kind.unpack_from(data, vector + 4 + kind.size * index)
