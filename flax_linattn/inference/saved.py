"""States on disk, so that a stream goes on after its process has ended."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.inference.differences import differences

FORMAT = 1
_FACTS = "facts"
Tree = TypeVar("Tree")


def save_state(path: str | Path, state: Any, facts: dict[str, Any]) -> None:
    """Writes a state to a file; a kill leaves the file before, or the new one.

    Args:
        path: the file, ``.npz``.
        state: arrays in any tree, such as ``Stream.state``.
        facts: JSON values to keep beside it, among them what tells whose state it is.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.npz")
        ...     save_state(path, {"sum": jnp.ones(3)}, {"num_steps": 7})
        ...     load_state(path, {"sum": jnp.zeros(3)})
        ({'sum': Array([1., 1., 1.], dtype=float32)}, {'num_steps': 7})
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    text = json.dumps({"format": FORMAT, **facts})
    with open(partial, "wb") as file:
        np.savez(file, **leaves, **{_FACTS: np.array(text)})  # type: ignore[arg-type]
    os.replace(partial, path)


def load_state(
    path: str | Path, like: Tree, *, check: Callable[[dict[str, Any]], None] | None = None
) -> tuple[Tree, dict[str, Any]]:
    """Reads what ``save_state`` wrote.

    Args:
        path: the file.
        like: a state of the same structure.
        check: refuses facts of something else, before the arrays are compared.

    Returns:
        The state and the facts.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or the state of something else.
    """
    leaves, structure = jax.tree.flatten(like)
    try:
        with open(path, "rb") as opened, np.load(opened) as file:
            facts = json.loads(str(file[_FACTS]))
            arrays = [file[str(i)] for i in range(len(file.files) - 1)]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is no state file, or a damaged one ({type(error).__name__}); give another "
            "name to begin anew."
        ) from error
    if facts.pop("format", None) != FORMAT:
        raise ValueError(f"{path} was written by another version; give another name to begin anew.")
    if check is not None:
        check(facts)
    expected = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if [(array.shape, array.dtype) for array in arrays] != expected:
        raise ValueError(
            f"{path} holds the state of another model or of other options; give those that it was "
            "made with, or remove it to begin anew."
            + differences(dict(enumerate(leaves)), dict(enumerate(arrays)))
        )
    return jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays]), facts
