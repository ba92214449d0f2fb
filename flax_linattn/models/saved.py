"""Saving and loading of models with their options, without the code that built them."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any, TypedDict, TypeVar, overload

import jax
from flax import nnx

from flax_linattn import checkpoint, storage
from flax_linattn.annotations import fits
from flax_linattn.models.description import NotDescribedError, build_abstract, describe

FORMAT = 1
FILE = "model.json"
PREFIX = "arrays-"
_FOLDER = re.compile(re.escape(PREFIX) + "[0-9a-f]{32}")

Saved = TypedDict(
    "Saved",
    {
        "format": int,
        "class": str,
        "description": dict[str, Any] | None,
        "not_described": str | None,
        "folder": str,
        "manifest": checkpoint.Manifest,
    },
)
"""Content of ``model.json``, as JSON values."""

M = TypeVar("M", bound=nnx.Module)


def save_model(path: str | Path, model: nnx.Module) -> None:
    """Saves a model with its options, so that ``load_model`` needs nothing else.

    Saving is atomic: a kill at any moment leaves the previous model or the new one. Nothing is
    pickled. With several processes, all of them must call it; the first one writes.

    Args:
        path: A new folder, or the folder of a saved model, which is replaced.
        model: A model of :mod:`flax_linattn.models`, or any other ``nnx.Module``, which is then
            loaded by ``load_model(path, like=...)``.

    Raises:
        ValueError: If the folder holds other files, or the model has no variables.
        OSError: If the model cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   mechanism="aaren", rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "classifier")
        ...     models.save_model(path, model)
        ...     loaded = models.load_model(path)
        >>> bool((loaded.kernel[...] == model.kernel[...]).all())
        True
    """
    path = Path(path).absolute()
    _check_folder(path)
    arrays = checkpoint.copy_to_host(nnx.state(model))
    if not arrays:
        raise ValueError(
            f"expected a model with variables to save, got a {type(model).__name__} without any; "
            "such a model can be made again from its options."
        )
    if jax.process_index() != 0:
        return
    folder = path / f"{PREFIX}{uuid.uuid4().hex}"
    storage.make_folder(path)
    folder.mkdir()
    try:
        manifest = checkpoint.write_arrays(folder, {"model": arrays})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    description, reason = _describe(model)
    checkpoint.write_json(
        folder / FILE,
        {
            "format": FORMAT,
            "class": type(model).__name__,
            "description": description,
            "not_described": reason,
            "folder": folder.name,
            "manifest": manifest,
        },
    )
    storage.sync_folder(folder)
    storage.sync_file(path)
    os.replace(folder / FILE, path / FILE)  # from here on the folder holds the new model
    storage.sync_file(path)
    storage.sync_file(path.parent)
    for other in path.glob(f"{PREFIX}*"):
        if other != folder:
            shutil.rmtree(other)


@overload
def load_model(path: str | Path) -> Any: ...


@overload
def load_model(path: str | Path, like: M) -> M: ...


def load_model(path: str | Path, like: nnx.Module | None = None) -> Any:
    """Loads a model saved by ``save_model``, after checking every file.

    Args:
        path: Folder of a saved model.
        like: A model of the same structure, which is not changed: for modules of your own, or to
            load parameters with its sharding or its dtypes.

    Returns:
        The model, in evaluation mode; with ``like``, a model of its class and mode.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the folder is damaged, was not written by ``save_model`` or by a later
            version, or differs from ``like``; or the class is not of this package and needs
            ``like``.

    Example:
        >>> import pathlib, tempfile
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "layer")
        ...     models.save_model(path, layer)
        ...     loaded = models.load_model(path, like=nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
        >>> bool((loaded.kernel[...] == layer.kernel[...]).all())
        True
    """
    path = Path(path).absolute()
    if not path.exists():
        raise FileNotFoundError(f"There is no folder {path}. Check the path of the saved model.")
    if not (path / FILE).is_file():
        raise ValueError(
            f"{path} holds no model saved by save_model: there is no {FILE} in it. If it is a run "
            "folder, read it with flax_linattn.training.load_best."
        )
    saved = _read(path)
    # An abstract model needs no memory, so that shapes are checked before any is allocated.
    model = _abstract(path, saved) if like is None else nnx.clone(like)
    folder, manifest = path / saved["folder"], saved["manifest"]
    (state,) = checkpoint.read_arrays(folder, "model", manifest, nnx.state(model))
    nnx.update(model, state)
    return model


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of ``model.json``, after checking it and all files it names."""
    again = "Restore it from a copy, or save the model again."
    try:
        saved = checkpoint.read_json(path / FILE)
        if saved.get("format") != FORMAT and "format" in saved:
            raise ValueError(
                f"{path} was saved by a later version (format {saved['format']}, this one reads "
                f"{FORMAT}); load it with the version of flax_linattn that saved it."
            )
        if not fits(saved, Saved) or not _FOLDER.fullmatch(saved["folder"]):
            raise ValueError(f"{path / FILE} was not written by save_model. {again}")
        checkpoint.check_files(path / saved["folder"], saved["manifest"])
    except checkpoint.CorruptCheckpointError as error:
        raise checkpoint.CorruptCheckpointError(f"{error} {again}") from error
    return saved


def _describe(model: nnx.Module) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the description and None, or None and the reason why there is none."""
    try:
        description = describe(model)
    except NotDescribedError as error:
        return None, str(error)
    again = nnx.state(build_abstract(description))
    if _signatures(again) != _signatures(nnx.state(model)):
        return None, f"its modules differ from the modules that {type(model).__name__} makes"
    return description, None


def _signatures(state: Any) -> dict[str, Any]:
    leaves = checkpoint.named_leaves(state)
    return {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}


def _abstract(path: Path, saved: dict[str, Any]) -> Any:
    name = saved["class"]
    if saved["description"] is None:
        raise ValueError(
            f"{path} holds a {name} that cannot be made from the file alone: "
            f"{saved['not_described']}. Make a model of the same structure and pass it: "
            "load_model(path, like=model)."
        )
    try:
        return build_abstract(saved["description"])
    except (
        ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        raise ValueError(
            f"this version of flax_linattn cannot make the {name} in {path}: {error} Load it with "
            "the version that saved it, or pass a model of the same structure: "
            "load_model(path, like=model)."
        ) from error


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"expected a folder to save the model in, got the file {path}.")
    others = [
        entry.name
        for entry in (path.iterdir() if path.exists() else ())
        if entry.name != FILE and not entry.name.startswith(PREFIX)
    ]
    if others:
        raise ValueError(
            f"{path} holds other files, such as {sorted(others)[0]!r}; save the model in a folder "
            "of its own."
        )
