"""Named arrays of trees and JSON values on disk, with checksums.

Orbax writes the arrays; a manifest has their shapes and the checksum of every file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from flax_linattn.annotations import fits
from flax_linattn.checkpoint.quiet import quiet_threads
from flax_linattn.checks import quote
from flax_linattn.storage import (
    MAX_JSON_BYTES,
    check_json_size,
    open_regular,
    parse_json,
    write_text,
)

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

FOLDER = "arrays"
"""Name of the folder of the arrays, in the folder of a checkpoint."""


MIN_FREE_BYTES = 1 << 16
"""Bytes that Orbax needs in addition to the arrays."""
MAX_EXTRA_BYTES = 2**26
"""Maximum size of Orbax's own files, in addition to twice the arrays."""
JSON_FORMAT = 2
"""Format number of ``write_json``."""
_MAX_HEAD_BYTES = 1000
"""Maximum size of the format number and the checksum before the values."""


class CorruptCheckpointError(ValueError):
    """A checkpoint on disk is damaged or incomplete."""


class Manifest(TypedDict):
    """Expected content of a folder of arrays, as JSON values."""

    arrays: dict[str, dict[str, str]]
    """Item -> name -> dtype and shape, such as "float32[3, 4]"."""
    files: dict[str, int]
    """Path -> CRC-32 of its bytes."""


def named_leaves(*trees: Any) -> dict[str, jax.Array]:
    """Arrays of trees by path, such as "blocks.0.attention.query"."""
    names: dict[str, jax.Array] = {}
    for tree in trees:
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        # Variables add ".value" to the path of their array.
        names |= {
            jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"): leaf
            for path, leaf in leaves
        }
    return names


def fingerprint(model: nnx.Module) -> int:
    """Fingerprint of the variables of a model (CRC-32 of their bytes).

    Example:
        >>> a, b = (nnx.Linear(2, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1))
        >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
        (True, False)
    """
    crc = 0
    for leaf in jax.tree.leaves(nnx.state(model)):
        crc = zlib.crc32(np.asarray(_key_data(leaf)).tobytes(), crc)
    return crc


def copy_to_host(*trees: Any) -> dict[str, np.ndarray]:
    """Copies all arrays to the host by name, and gathers arrays that processes share.

    Later steps do not overwrite the copies. Random keys become their key data.
    """
    return {name: _to_host(leaf) for name, leaf in named_leaves(*trees).items()}


def write_arrays(path: Path, items: Mapping[str, Mapping[str, np.ndarray]]) -> Manifest:
    """Writes arrays into ``path / "arrays"``.

    Args:
        path: Folder of the checkpoint.
        items: Item -> name -> array; each item can be read on its own.

    Returns:
        Manifest to store, for ``check_files`` and ``read_arrays``.

    Raises:
        Exception: If Orbax fails; an OSError if the disk is full, for example.

    Example:
        >>> import tempfile
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> path = Path(tempfile.mkdtemp())
        >>> manifest = write_arrays(path, {"model": copy_to_host(nnx.state(model))})
        >>> manifest["arrays"]
        {'model': {'bias': 'float32[1]', 'kernel': 'float32[2, 1]'}}
        >>> check_files(path, manifest)
        >>> (state,) = read_arrays(path, "model", manifest, nnx.state(model))
        >>> bool((state["kernel"][...] == model.kernel[...]).all())
        True
    """
    import orbax.checkpoint as ocp  # on first use: importing it takes a quarter of a second

    saved = {
        # Orbax refuses empty arrays, which need not be saved.
        item: ocp.args.StandardSave({k: v for k, v in arrays.items() if v.size})
        for item, arrays in items.items()
    }
    _check_disk_space(path, sum(x.nbytes for arrays in items.values() for x in arrays.values()))
    with _checkpointer() as checkpointer:
        checkpointer.save(path / FOLDER, ocp.args.Composite(**saved))
    return Manifest(
        arrays={
            item: {name: array_signature(x) for name, x in arrays.items()}
            for item, arrays in items.items()
        },
        files=_checksums(path / FOLDER),
    )


def _check_disk_space(path: Path, size: int) -> None:
    """Raises OSError if the disk has too little space; Orbax would leave a partial write."""
    usage = shutil.disk_usage(path)
    if usage.total and usage.free < size + MIN_FREE_BYTES:  # some file systems report 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def check_files(path: Path, manifest: Manifest) -> None:
    """Raises ``CorruptCheckpointError`` unless all files are unchanged.

    Call it before Orbax reads the files: Orbax would print tracebacks of its threads, and does not
    notice every damage.
    """
    _check_manifest(path, manifest)
    _check_size(path, manifest)
    checksums = _checksums(path / FOLDER)
    damaged = [name for name, crc in manifest["files"].items() if checksums.get(name) != crc]
    if damaged:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: {FOLDER}/{damaged[0]} is missing or has changed."
        )


def _check_size(path: Path, manifest: Manifest) -> None:
    """Raises ``CorruptCheckpointError`` if the files are far larger than their arrays.

    A sparse file of terabytes takes no space, and its checksum would take hours.
    """
    shapes = [_parse(x) for arrays in manifest["arrays"].values() for x in arrays.values()]
    arrays = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
    files = sum(file.stat().st_size for file in (path / FOLDER).rglob("*") if file.is_file())
    if files > 2 * arrays + MAX_EXTRA_BYTES:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: {FOLDER} has {files:,} bytes for arrays of "
            f"{arrays:,} bytes."
        )


def read_arrays(
    path: Path,
    item: str,
    manifest: Manifest,
    *trees: Any,
    other: str = "model is not the one",
) -> tuple[Any, ...]:
    """Reads an item as trees with the structure of the given trees.

    Args:
        path: Folder of the checkpoint, as in ``write_arrays``.
        item: Name of the item.
        manifest: Manifest of ``write_arrays``.
        *trees: Trees of arrays or ``jax.ShapeDtypeStruct``, whose structures, shapes, dtypes and
            devices are used. Floating-point arrays of another width are converted, with a note on
            standard error.
        other: First words of the error about other arrays: "The ... saved in ...".

    Returns:
        One tree for each of ``trees``.

    Raises:
        ValueError: If names or shapes differ from the saved arrays, or the arrays do not fit in
            memory.
        CorruptCheckpointError: If Orbax cannot read the arrays.
    """
    leaves = named_leaves(*trees)
    saved = _signatures(path, item, manifest)
    requested = {name: array_signature(leaf) for name, leaf in leaves.items()}
    _check_same_arrays(path, saved, requested, other)
    converted = [name for name in leaves if saved[name] != requested[name]]
    if converted:
        first = converted[0]
        print(
            f"note: {first} and {len(converted) - 1} more arrays of {path} are converted from "
            f"{saved[first].split('[')[0]} to {leaves[first].dtype}.",
            file=sys.stderr,
        )
    arrays = read_item(path, item, manifest)
    return jax.tree.unflatten(
        jax.tree.structure(trees),
        [_to_device(arrays[name], leaf) for name, leaf in leaves.items()],
    )


def read_item(path: Path, item: str, manifest: Manifest) -> dict[str, np.ndarray]:
    """Reads all arrays of an item by their names.

    Raises:
        ValueError: If the arrays do not fit in memory.
        CorruptCheckpointError: If the item does not exist, or Orbax cannot read it.
    """
    import orbax.checkpoint as ocp

    saved = _signatures(path, item, manifest)
    try:
        target = {name: np.zeros(*_parse(signature)) for name, signature in saved.items()}
    except (MemoryError, ValueError) as error:
        raise ValueError(f"The arrays of {path} do not fit in memory: {error}.") from error
    nonempty = {name: array for name, array in target.items() if array.size}
    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(nonempty)})
    try:
        with _checkpointer() as checkpointer:
            arrays: dict[str, np.ndarray] = checkpointer.restore(path / FOLDER, args)[item]
    except Exception as error:
        # The checksums are right, so another version of Orbax probably wrote it.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CorruptCheckpointError(
            f"The checkpoint {path} is whole, but Orbax cannot read it: {reason[:300]}."
        ) from error
    return target | arrays


def check_shapes(path: Path, item: str, manifest: Manifest, *trees: Any) -> None:
    """Checks that an item holds the arrays of trees of arrays or ``jax.ShapeDtypeStruct``.

    Raises:
        ValueError: If names or shapes differ from the saved arrays.
        CorruptCheckpointError: If the item does not exist.
    """
    _check_manifest(path, manifest)
    signatures = _signatures(path, item, manifest)
    requested = {name: array_signature(leaf) for name, leaf in named_leaves(*trees).items()}
    saved = {name: signatures[name] for name in requested if name in signatures}
    _check_same_arrays(path, saved, requested, "model is not the one")


def _signatures(path: Path, item: str, manifest: Manifest) -> dict[str, str]:
    if item not in manifest["arrays"]:
        raise CorruptCheckpointError(f"The checkpoint {path} is damaged: {item!r} is missing.")
    return manifest["arrays"][item]


@contextmanager
def _checkpointer() -> Iterator[ocp.Checkpointer]:
    """Orbax's checkpointer of this process: one process writes, and each reads on its own."""
    import orbax.checkpoint as ocp

    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process} if jax.process_count() > 1 else None,
        barrier_sync_key_prefix=f"process_{process}",
    )
    options = ocp.CompositeOptions(multiprocessing_options=alone)
    handler = ocp.CompositeCheckpointHandler(composite_options=options)
    with (
        quiet_threads(),
        ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer,
    ):
        yield checkpointer


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _to_host(leaf: jax.Array) -> np.ndarray:
    array = _key_data(leaf)
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.array(array)
    return np.array(multihost_utils.process_allgather(array, tiled=True))


def _to_device(array: np.ndarray, like: jax.Array) -> jax.Array:
    if _is_key(like):
        impl = jax.random.key_impl(jnp.empty(0, like.dtype))
        leaf = jax.random.wrap_key_data(jnp.asarray(array), impl=impl)
    else:
        leaf = jnp.array(array, like.dtype)
    return jax.device_put(leaf, like.sharding) if getattr(like, "committed", False) else leaf


def array_signature(leaf: Any) -> str:
    """Dtype and shape of an array, as in manifests.

    Example:
        >>> array_signature(jnp.zeros((3, 4)))
        'float32[3, 4]'
    """
    array = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return f"{array.dtype}{list(array.shape)}"


def _parse(signature: str) -> tuple[tuple[int, ...], jnp.dtype]:
    """Parses a signature to shape and dtype."""
    dtype, shape = signature.removesuffix("]").split("[")
    return tuple(int(size) for size in shape.split(",") if size), jnp.dtype(dtype)


def _check_manifest(path: Path, values: Any) -> None:
    """Raises ``CorruptCheckpointError`` for an invalid manifest."""
    try:
        if not fits(values, Manifest):
            raise TypeError
        for signatures in values["arrays"].values():
            for signature in signatures.values():
                _parse(signature)
    except (ValueError, TypeError):
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its list of arrays and files is invalid."
        ) from None


def _fits(saved: str | None, requested: str | None) -> bool:
    """Whether a saved array can be read as requested: the width of floats may differ."""
    if saved is None or requested is None or saved == requested:
        return saved == requested
    (saved_shape, saved_dtype), (shape, dtype) = _parse(saved), _parse(requested)
    both_float = jnp.issubdtype(saved_dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)
    return saved_shape == shape and both_float


def _check_same_arrays(
    path: Path, saved: dict[str, str], requested: dict[str, str], other: str
) -> None:
    differences = [
        f"{name}: saved {saved.get(name, 'not')}, requested {requested.get(name, 'not')}"
        for name in sorted(saved.keys() | requested.keys())
        if not _fits(saved.get(name), requested.get(name))
    ]
    if not differences:
        return
    if len(differences) > 8:
        differences[8:] = [f"and {len(differences) - 8} more"]
    raise ValueError(
        f"The {other} saved in {path}:\n  "
        + "\n  ".join(differences)
        + "\nUse the settings that it was saved with."
    )


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file below a folder."""
    sums = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        crc = 0
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                crc = zlib.crc32(block, crc)
        sums[path.relative_to(folder).as_posix()] = crc
    return sums


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Writes JSON values with a format number and a checksum, under the stem of the file name.

    Raises:
        ValueError: If they are too large to be read again.
    """
    text = json.dumps(values)
    head = json.dumps({"format": JSON_FORMAT, "crc32": zlib.crc32(text.encode())})
    text = f"{head[:-1]}{_text_before_values(file)}{text}}}"
    try:
        check_json_size(text.encode())
    except ValueError as error:
        raise ValueError(
            f"{file.name} would be too large to load: {error}; in a run, validate less often"
        ) from None
    write_text(file, text)


def read_json(file: Path) -> dict[str, Any]:
    """Reads JSON values that ``write_json`` wrote, and checks them.

    Raises:
        CorruptCheckpointError: If the file is missing or damaged, or has another format.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "progress.json")
        >>> write_json(file, {"step": 3})
        >>> read_json(file)
        {'step': 3}
    """
    with _readable(file):
        values = parse_json(read_json_text(file))
        if not isinstance(values, dict):
            raise TypeError
    return cast(dict[str, Any], values)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Converts any error about untrusted JSON to one that names the checkpoint."""
    try:
        yield
    except CorruptCheckpointError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} cannot be read "
            f"({type(error).__name__})."
        ) from error


def read_json_text(file: Path) -> bytes:
    """Reads and checks values like ``read_json``, but does not parse their JSON text.

    The checksum is that of the text, since a long history takes a second to parse.
    """
    with _readable(file):
        with open_regular(file) as opened:
            content = opened.read(MAX_JSON_BYTES)  # what is longer ends too early: damaged
        head, _, values = content.removesuffix(b"}").partition(_text_before_values(file).encode())
        info = json.loads(head[:_MAX_HEAD_BYTES] + b"}")
        version = info["format"]
        is_known = version == JSON_FORMAT  # the keys of other formats may be others
        whole = zlib.crc32(values) == info.get("crc32") and content.endswith(b"}")
    if not is_known:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} has format {quote(version)}, but this version reads "
            f"format {JSON_FORMAT}; use the version of flax_linattn that wrote it."
        )
    if not whole:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} has changed."
        )
    return values


def _text_before_values(file: Path) -> str:
    return f", {json.dumps(file.stem)}: "
