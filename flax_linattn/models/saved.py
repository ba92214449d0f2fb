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

    It is written whole or not at all: a kill at any moment leaves the model that was there before,
    or the new one. Nothing is pickled. Of several processes all have to call, and the first writes.

    Args:
        path: A folder, new or of a model saved before, which is replaced.
        model: Of :mod:`flax_linattn.models`; any other ``nnx.Module`` is saved, too, and then
            loaded by ``load_model(path, like=...)``.

    Raises:
        ValueError: The folder holds something else, or the model no variable.
        OSError: It cannot be written.

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
            f"this {type(model).__name__} has no variables, so there is nothing to save; make it "
            "again from its options."
        )
    if jax.process_index() != 0:
        return
    folder = path / f"{PREFIX}{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
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
    os.replace(folder / FILE, path / FILE)  # from here on it is the new model
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
    """Loads what ``save_model`` saved, once every file is checked.

    Args:
        path: Folder of a saved model.
        like: A model of the same structure, which stays as it is: for modules of your own, for
            parameters that are to lie on a mesh as its own do, or to have its dtypes.

    Returns:
        The model, in evaluation mode; with ``like`` one of its class and mode.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: It is damaged, not of ``save_model``, of a later version, or not ``like`` the
            model given; or it is of a class that is not of this package, and needs ``like``.

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
        raise FileNotFoundError(f"There is no folder {path}.")
    if not (path / FILE).is_file():
        raise ValueError(
            f"{path} holds no model of save_model: there is no {FILE} in it. If it is the folder "
            "of a run, read it with flax_linattn.training.load_best."
        )
    saved = _read(path)
    # What it takes in memory is known to be saved before any is taken.
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
            raise ValueError(f"{path / FILE} is no file of save_model. {again}")
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
        return None, f"its parts are not those that {type(model).__name__} makes"
    return description, None


def _signatures(state: Any) -> dict[str, Any]:
    leaves = checkpoint.named_leaves(state)
    return {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}


def _abstract(path: Path, saved: dict[str, Any]) -> Any:
    name = saved["class"]
    if saved["description"] is None:
        raise ValueError(
            f"{path} holds a {name} that cannot be made from the file alone: "
            f"{saved['not_described']}. Make a model like it and pass it: "
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
            "the version that saved it, or pass a model like it: load_model(path, like=model)."
        ) from error


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give a folder to save the model in.")
    others = [
        entry.name
        for entry in (path.iterdir() if path.exists() else ())
        if entry.name != FILE and not entry.name.startswith(PREFIX)
    ]
    if others:
        raise ValueError(
            f"{path} holds other things than a model, {sorted(others)[0]!r} for example; give a "
            "folder of its own."
        )
