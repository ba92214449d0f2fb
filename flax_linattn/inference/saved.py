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
from flax_linattn.storage import atomic_write

FORMAT = 2
MAX_BYTES_OF_FACTS = 1 << 20
_FACTS = "facts"
Tree = TypeVar("Tree")


def save_state(
    path: str | Path, state: Any, facts: dict[str, Any], *, allow_nan: bool = False
) -> None:
    """Writes a state to a file; a kill leaves the file before, or the new one.

    Several processes that write to one file leave it whole, too; whose it is then is a matter of
    chance, which :func:`flax_linattn.storage.file_lock` prevents, with a lock file of its own:
    ``with file_lock(f"{path}.lock"):``.

    Args:
        path: The file, ``.npz``.
        state: Arrays in any tree, such as ``Stream.state``, of JAX or of NumPy.
        facts: JSON values to keep beside it, among them what tells whose state it is; none is
            called "format".
        allow_nan: For arrays that may hold NaN. No state of a mechanism does unless it has failed.

    Raises:
        ValueError: More facts or arrays than a file takes, or numbers that are NaN where they are
            not allowed; the file before stays.
        OSError: It cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.npz")
        ...     save_state(path, {"sum": jnp.ones(3)}, {"num_steps": 7})
        ...     load_state(path, {"sum": jnp.zeros(3)})
        ({'sum': Array([1., 1., 1.], dtype=float32)}, {'num_steps': 7})
    """
    if "format" in facts:
        raise ValueError("the fact 'format' is the file's own; give yours another name.")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    for name, leaf in zip(layout(state), leaves, strict=True):
        if not allow_nan and _has_nan(leaf):
            raise ValueError(
                f"the state holds NaN in {name}, and {path} stays as it was; give allow_nan=True "
                "where NaN is no sign of a failure."
            )
    with atomic_write(path) as file:
        _write_archive(file, leaves, {"format": FORMAT, **facts})


def load_state(
    path: str | Path,
    like: Tree,
    *,
    check: Callable[[dict[str, Any]], None] | None = None,
    allow_nan: bool = False,
) -> tuple[Tree, dict[str, Any]]:
    """Loads a state that ``save_state`` saved, and the facts saved with it.

    The file may come from anywhere: nothing in it is run, and no more is read than a state like
    this takes.

    Args:
        path: The file.
        like: A state of the same structure; its NumPy arrays are read as such, read-only.
        check: Refuses facts of something else, before the arrays are compared.
        allow_nan: As in ``save_state``.

    Returns:
        The state and the facts.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, the state of something else, or of a stream that had failed: its
            numbers are NaN, and not allowed.
    """
    names, leaves = list(layout(like)), jax.tree.leaves(like)
    with _open_archive(path) as archive:
        facts = _read_facts(path, archive)
        if check is not None:
            check(facts)
        stored = archive.arrays
        if len(stored) != len(leaves) or not all(map(_fits, stored, leaves)):
            found = {
                name: jax.ShapeDtypeStruct(of.shape, of.dtype)
                for name, of in zip(_leaf_names(names, len(stored)), stored, strict=True)
                if of.dtype.kind in "biufc"
            }
            raise ValueError(
                f"{path} holds the state of another model or of other options; give those that it "
                "was made with, or remove it to begin anew."
                + diff_states(dict(zip(names, leaves, strict=True)), found)
            )
        arrays = []
        for index, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
            with _readable(path):
                array = archive.read(index).view(leaf.dtype)
            if not allow_nan and _has_nan(array):
                raise ValueError(
                    f"{path} holds NaN in {name}, which no stream saves; remove it to begin anew."
                )
            arrays.append(array if isinstance(leaf, np.ndarray) else jnp.asarray(array))
    return jax.tree.unflatten(jax.tree.structure(like), arrays), facts


class StateFile(NamedTuple):
    """Content of a state file, as ``describe_state`` returns it.

    Attributes:
        facts: That were saved beside the state.
        arrays: Dtype and shape of each.
        num_bytes: Of their values.
    """

    facts: dict[str, Any]
    arrays: tuple[str, ...]
    num_bytes: int


def describe_state(path: str | Path) -> StateFile:
    """Describes a state file without the model that it belongs to.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or no state file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.npz")
        ...     save_state(path, {"sum": jnp.ones(3)}, {"num_steps": 7})
        ...     describe_state(path)
        StateFile(facts={'num_steps': 7}, arrays=('float32[3]',), num_bytes=12)
    """
    with _open_archive(path) as archive:
        facts = _read_facts(path, archive)
        with _readable(path):
            archive.check()
    arrays = tuple(f"{of.dtype}{list(of.shape)}" for of in archive.arrays)
    return StateFile(facts, arrays, sum(of.num_bytes for of in archive.arrays))


def _write_archive(file: BinaryIO, arrays: Sequence[NDArray], facts: dict[str, Any]) -> None:
    """Writes arrays and facts in one ``.npz`` file."""
    text = np.array(json.dumps(facts))
    if len(arrays) > MAX_MEMBERS or text.nbytes > MAX_BYTES_OF_FACTS // 2:
        raise ValueError(
            f"expected at most {MAX_MEMBERS:,} arrays and {MAX_BYTES_OF_FACTS // 8:,} characters "
            f"of facts, got {len(arrays):,} and {text.nbytes // 4:,}."
        )
    names = [*map(str, range(len(arrays))), _FACTS]
    # As np.savez does, which before NumPy 2.2 took allow_pickle as the name of an array.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in zip(names, [*arrays, text], strict=True):
            with archive.open(name + SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)


class _Archive:
    """Archive of untrusted origin: reads facts and headers first, arrays later.

    Args:
        file: Open for as long as the archive is used.

    Attributes:
        facts: As written.
        arrays: The headers of its arrays.

    Raises:
        ValueError: The file is none that ``_write_archive`` wrote (``NpzError``), or its facts are
            none.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._npz = NpzFile(file, strict=True)
        sizes = self._npz.sizes
        if {*sizes} != {*map(str, range(len(sizes) - 1)), _FACTS}:
            raise ValueError("it holds other entries than a state's")
        if sizes[_FACTS] > MAX_BYTES_OF_FACTS:
            raise ValueError(f"its facts are longer than {MAX_BYTES_OF_FACTS:,} bytes")
        text = self._npz.read(_FACTS)
        if text.shape or text.dtype.kind != "U":
            raise ValueError("its facts are no text")
        self.facts = json.loads(str(text))
        if not isinstance(self.facts, dict):
            raise ValueError("its facts are no names and values")
        self.arrays = [self._npz.header(str(index)) for index in range(len(sizes) - 1)]
        if any(header.dtype.kind not in "biufcMV" for header in self.arrays):
            raise ValueError("an array is of another kind")

    def check(self) -> None:
        """Compares all checksums, a piece at a time."""
        self._npz.check()

    def read(self, index: int) -> NDArray:
        """Reads an array, whose size is that of ``arrays[index]``, and checks its checksum."""
        return self._npz.read(str(index))


@contextmanager
def _open_archive(path: str | Path) -> Iterator[_Archive]:
    try:
        opened = open(path, "rb")  # noqa: SIM115  (closed below)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no state file {path}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give a file.") from error
    with opened as file:
        with _readable(path):
            archive = _Archive(file)
        yield archive


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Whatever a stranger's bytes raise, one kind of error leaves this context."""
    try:
        yield
    except Exception as error:
        why = str(error) if type(error) in (ValueError, NpzError) else type(error).__name__
        raise ValueError(
            f"{path} is no state file, or a damaged one ({why}); give another name to begin anew."
        ) from error


def _read_facts(path: str | Path, archive: _Archive) -> dict[str, Any]:
    form = archive.facts.pop("format", None)
    if form != FORMAT:
        raise ValueError(
            f"{path} was written by another version (format {quote(form)}, this one reads "
            f"{FORMAT}); give another name to begin anew."
        )
    return archive.facts


def _leaf_names(names: list[str], count: int) -> list[str]:
    """Names of that many leaves: those that are known, then numbers."""
    return [names[i] if i < len(names) else str(i) for i in range(count)]


def _fits(stored: ArrayHeader, leaf: Any) -> bool:
    """Whether an array can be this leaf; dtypes that NumPy does not know come as raw bytes."""
    dtype = np.dtype(leaf.dtype)
    same = stored.dtype == (f"V{dtype.itemsize}" if dtype.kind == "V" else dtype)
    return stored.shape == leaf.shape and same


def _has_nan(array: NDArray) -> bool:
    """No state of a mechanism holds NaN; infinite is what a maximum over nothing is."""
    return jnp.issubdtype(array.dtype, jnp.inexact) and bool(np.isnan(array).any())
