"""Saved states on disk, so that a stream can continue in another process."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import quote
from flax_linattn.inference.state_diff import diff_states, layout
from flax_linattn.safe_npz import MAX_MEMBERS, SUFFIX, ArrayHeader, NpzError, NpzFile
from flax_linattn.storage import atomic_write, open_regular

FORMAT = 3
"""Format of state files; format 2 had caches of shape [B, L, H, K] instead of [B, H, L, K]."""
MAX_METADATA_BYTES = 1 << 20
_METADATA = "facts"
_MERGE_FIELDS = (
    " If an earlier version wrote the file: it also stored arrays that only `merge` uses (such as "
    "`transition` of gated_delta), and this version does not load such files; start a new stream."
)
Tree = TypeVar("Tree")


def save_state(
    path: str | Path, state: Any, metadata: dict[str, Any], *, allow_nan: bool = False
) -> None:
    """Writes a state to a file atomically: a kill leaves the previous file or the new one.

    Several processes that write to one file leave the state of one of them;
    :func:`flax_linattn.storage.file_lock` excludes others: ``with file_lock(f"{path}.lock"):``.

    Args:
        path: File to write, ``.npz``.
        state: Tree of JAX or NumPy arrays, such as ``Stream.state``.
        metadata: JSON values by name to save with the state, such as the model it belongs to; the
            name "format" is reserved.
        allow_nan: Allow NaN in arrays. The state of a mechanism holds NaN only after a failure.

    Raises:
        ValueError: If the state has too many arrays or too much metadata, or holds NaN that is not
            allowed; the previous file stays.
        OSError: If the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.npz")
        ...     save_state(path, {"sum": jnp.ones(3)}, {"num_steps": 7})
        ...     load_state(path, {"sum": jnp.zeros(3)})
        ({'sum': Array([1., 1., 1.], dtype=float32)}, {'num_steps': 7})
    """
    if "format" in metadata:
        raise ValueError("the name 'format' of metadata is reserved; choose another name.")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    for name, leaf in zip(layout(state), leaves, strict=True):
        if not allow_nan and _has_nan(leaf):
            raise ValueError(
                f"the state holds NaN in {name}, so {path} was not written; pass allow_nan=True if "
                "NaN is valid."
            )
    with atomic_write(path) as file:
        _write_archive(file, leaves, {"format": FORMAT, **metadata})


def load_state(
    path: str | Path,
    like: Tree,
    *,
    check: Callable[[dict[str, Any]], None] | None = None,
    allow_nan: bool = False,
) -> tuple[Tree, dict[str, Any]]:
    """Loads a state of ``save_state``, and its metadata.

    The file may be untrusted: nothing in it is executed, and no more is read than a state of
    this structure needs.

    Args:
        path: File to read.
        like: State of the same structure; its NumPy arrays are read as NumPy arrays, read-only.
        check: Function that raises an error for unexpected metadata, before arrays are compared.
        allow_nan: Allow NaN in arrays, as in ``save_state``.

    Returns:
        The state and the metadata.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, belongs to another model, or holds NaN that is not
            allowed.
    """
    names, leaves = list(layout(like)), jax.tree.leaves(like)
    with _open_archive(path) as archive:
        metadata = _read_metadata(path, archive)
        if check is not None:
            check(metadata)
        stored = archive.arrays
        if len(stored) != len(leaves) or not all(map(_fits, stored, leaves)):
            shapes = {
                name: jax.ShapeDtypeStruct(header.shape, header.dtype)
                for name, header in zip(_leaf_names(names, len(stored)), stored, strict=True)
                if header.dtype.kind in "biufc"
            }
            raise ValueError(
                f"{path} holds the state of another model or of other options; use the "
                "model and options that it was saved with, or choose another file for a new stream."
                + (len(stored) > len(leaves)) * _MERGE_FIELDS
                + diff_states(dict(zip(names, leaves, strict=True)), shapes)
            )
        arrays = []
        for index, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
            with _readable(path):
                array = archive.read(index).view(leaf.dtype)
            if not allow_nan and _has_nan(array):
                raise ValueError(
                    f"{path} holds NaN in {name}, which no stream saves; choose another file for a "
                    "new stream."
                )
            arrays.append(array if isinstance(leaf, np.ndarray) else jnp.asarray(array))
    return jax.tree.unflatten(jax.tree.structure(like), arrays), metadata


class StateFile(NamedTuple):
    """Content of a state file, as ``describe_state`` returns it.

    Attributes:
        metadata: Metadata that was saved with the state.
        arrays: Dtype and shape of each array.
        num_bytes: Size of the arrays in bytes.
    """

    metadata: dict[str, Any]
    arrays: tuple[str, ...]
    num_bytes: int


def describe_state(path: str | Path) -> StateFile:
    """Describes a state file without the model that it belongs to.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, or not a state file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.npz")
        ...     save_state(path, {"sum": jnp.ones(3)}, {"num_steps": 7})
        ...     describe_state(path)
        StateFile(metadata={'num_steps': 7}, arrays=('float32[3]',), num_bytes=12)
    """
    with _open_archive(path) as archive:
        metadata = _read_metadata(path, archive)
        with _readable(path):
            archive.check()
    headers = archive.arrays
    arrays = tuple(f"{header.dtype}{list(header.shape)}" for header in headers)
    return StateFile(metadata, arrays, sum(header.num_bytes for header in headers))


def _write_archive(file: BinaryIO, arrays: Sequence[NDArray], metadata: dict[str, Any]) -> None:
    """Writes arrays and metadata in one ``.npz`` file."""
    text = np.array(json.dumps(metadata))
    if len(arrays) > MAX_MEMBERS or text.nbytes > MAX_METADATA_BYTES // 2:
        raise ValueError(
            f"expected at most {MAX_MEMBERS:,} arrays and {MAX_METADATA_BYTES // 8:,} characters "
            f"of metadata in a state file, got {len(arrays):,} and {text.nbytes // 4:,}."
        )
    names = [*map(str, range(len(arrays))), _METADATA]
    # Like np.savez, which before NumPy 2.2 used allow_pickle as the name of an array.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in zip(names, [*arrays, text], strict=True):
            with archive.open(name + SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)


class _Archive:
    """Untrusted archive: reads metadata and headers first, arrays later.

    Args:
        file: File that stays open while the archive is used.

    Attributes:
        metadata: The metadata.
        arrays: Headers of the arrays.

    Raises:
        ValueError: If the file was not written by ``_write_archive`` (``NpzError``), or its
            metadata is invalid.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._npz = NpzFile(file, strict=True)
        sizes = self._npz.sizes
        if {*sizes} != {*map(str, range(len(sizes) - 1)), _METADATA}:
            raise ValueError("its entries are not the entries of a state file")
        if sizes[_METADATA] > MAX_METADATA_BYTES:
            raise ValueError(f"its metadata is longer than {MAX_METADATA_BYTES:,} bytes")
        text = self._npz.read(_METADATA)
        if text.shape or text.dtype.kind != "U":
            raise ValueError("its metadata is no text")
        self.metadata = json.loads(str(text))
        if not isinstance(self.metadata, dict):
            raise ValueError("its metadata is no JSON object")
        self.arrays = [self._npz.header(str(index)) for index in range(len(sizes) - 1)]
        if any(header.dtype.kind not in "biufcMV" for header in self.arrays):
            raise ValueError("an array has a dtype of another kind")

    def check(self) -> None:
        """Checks the checksums of all entries, one block at a time."""
        self._npz.check()

    def read(self, index: int) -> NDArray:
        """Reads an array, whose size is that of ``arrays[index]``, and checks its checksum."""
        return self._npz.read(str(index))


@contextmanager
def _open_archive(path: str | Path) -> Iterator[_Archive]:
    try:
        opened = open_regular(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"the state file {path} does not exist.") from None
    except OSError as error:
        raise ValueError(f"the state file {path} cannot be read: {error.strerror}.") from error
    with opened as file:
        with _readable(path):
            archive = _Archive(file)
        yield archive


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Converts any error about untrusted bytes to a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        why = str(error) if type(error) in (ValueError, NpzError) else type(error).__name__
        raise ValueError(
            f"{path} is no state file, or is damaged ({why}); choose another file for a new stream."
        ) from error


def _read_metadata(path: str | Path, archive: _Archive) -> dict[str, Any]:
    form = archive.metadata.pop("format", None)
    if form != FORMAT:
        reason = " (caches store each head's tokens together since format 3)" if form == 2 else ""
        raise ValueError(
            f"{path} has format {quote(form)}, but this version reads format {FORMAT}{reason}; "
            "choose another file for a new stream."
        )
    return archive.metadata


def _leaf_names(names: list[str], count: int) -> list[str]:
    """Names of ``count`` leaves: the known names, then numbers."""
    return [names[i] if i < len(names) else str(i) for i in range(count)]


def _fits(stored: ArrayHeader, leaf: Any) -> bool:
    """Whether an array fits a leaf; dtypes unknown to NumPy are stored as raw bytes."""
    dtype = np.dtype(leaf.dtype)
    same = stored.dtype == (f"V{dtype.itemsize}" if dtype.kind == "V" else dtype)
    return stored.shape == leaf.shape and same


def _has_nan(array: NDArray) -> bool:
    """Whether an array holds NaN. Infinity is valid: it is the maximum over no tokens."""
    return jnp.issubdtype(array.dtype, jnp.inexact) and bool(np.isnan(array).any())
