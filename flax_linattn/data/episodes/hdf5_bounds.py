"""What a dataset of an HDF5 file takes to read, judged before it is read."""

from __future__ import annotations

import math
import zlib
from typing import Any

from flax_linattn.data.files import DataFormatError

LARGEST = 2**31
"""Bytes of all arrays that are read of a file."""

_GZIP, _SHUFFLE, _CHECKSUM = 1, 2, 3  # as HDF5 numbers its filters
_SLACK = 64
"""Bytes by which a filter may make a chunk longer, beside a thousandth of it."""


def check_dataset(place: str, dataset: Any, already: int) -> int:
    """Refuses what is not stored whole in the file itself, or takes more memory than it says.

    Args:
        place: Of the dataset, for messages.
        dataset: Of h5py.
        already: Bytes of the arrays read before.

    Returns:
        The bytes of this one and those before.

    Raises:
        DataFormatError: It holds no numbers, lies in other files, is compressed by something else
            than gzip, is larger than what is stored of it can be, or than 2 GiB with the others.
    """
    if dataset.is_virtual or dataset.external:
        raise DataFormatError(
            f"{place}: expected its numbers in the file itself, got a reference to other files, "
            "which is not followed; copy them into one file"
        )
    if dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise DataFormatError(
            f"{place}: expected numbers, got {dataset.dtype}; save the array as float32"
        )
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    if already + size > LARGEST:
        raise DataFormatError(
            f"{place}: expected arrays of at most {LARGEST:,} bytes in all, got "
            f"{already + size:,}; split the file"
        )
    if dataset.chunks is not None:
        _check_chunks(place, dataset, size)
    elif (stored := dataset.id.get_storage_size()) != size:
        raise _incomplete(place, size, stored)
    return already + size


def _check_chunks(place: str, dataset: Any, size: int) -> None:
    """Each chunk is there, and as long as it says when it is inflated."""
    filters = _filters(place, dataset)
    shape, chunk = dataset.shape, dataset.chunks
    expected = math.prod(-(-length // own) for length, own in zip(shape, chunk, strict=True))
    if (found := dataset.id.get_num_chunks()) != expected:
        raise DataFormatError(
            f"{place}: expected {expected} chunks for {list(shape)}, got {found}; the file is not "
            "whole: fetch it again, or write it anew"
        )
    chunk_size = math.prod(chunk) * dataset.dtype.itemsize
    if chunk_size > LARGEST:
        raise DataFormatError(
            f"{place}: expected chunks of at most {LARGEST:,} bytes, got {chunk_size:,}; write it "
            "anew with smaller ones"
        )
    most = chunk_size + chunk_size // 1000 + _SLACK
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    for info in chunks:
        if info.size > most:
            raise _incomplete(place, chunk_size, info.size)
        skipped = _GZIP in filters and bool(info.filter_mask >> filters.index(_GZIP) & 1)
        if _GZIP in filters and not skipped:
            # HDF5 inflates to whatever length comes out: here no more than one byte too many.
            _, raw = dataset.id.read_direct_chunk(info.chunk_offset)
            inflated = len(zlib.decompressobj().decompress(raw, most + 1))
            if not chunk_size <= inflated <= most:
                raise _incomplete(place, chunk_size, inflated)
        elif info.size < chunk_size:
            raise _incomplete(place, chunk_size, info.size)


def _filters(place: str, dataset: Any) -> list[int]:
    """The numbers of the filters, each once: others would be looked for as programs to load."""
    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(index)[0] for index in range(creation.get_nfilters())]
    if not set(filters) <= {_GZIP, _SHUFFLE, _CHECKSUM} or len(set(filters)) < len(filters):
        raise DataFormatError(
            f"{place}: expected gzip or no compression, got HDF5 filters {filters}; write it anew "
            "with gzip, as h5repack with GZIP=4 does"
        )
    return filters


def _incomplete(place: str, expected: int, got: int) -> DataFormatError:
    return DataFormatError(
        f"{place}: expected {expected:,} bytes, got {got:,}; the file is damaged or not whole: "
        "fetch it again, or write it anew"
    )
