"""Checkpoints on disk: written whole or not at all, verified when read, the best one kept.

A run folder holds ``checkpoints/step_000000051_epoch_00003``: 51 training steps and 3 validated
epochs done. In it are

- ``arrays``: what Orbax wrote, flat dicts of name -> array in two items: ``model`` (parameters and
  the model's other variables) and ``training`` (optimizer state, step, metric sums);
- ``progress.json``: the host's record, the arrays' names and shapes, and every file's checksum.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.experimental import multihost_utils

from flax_linattn.training.processes import is_main
from flax_linattn.training.record import RunRecord
from flax_linattn.training.state import TrainState, split_model

FORMAT = 2
PARTIAL = ".partial"
_NAME = re.compile(r"step_(\d{9})_epoch_(\d{5})")
Tree = TypeVar("Tree")


class CorruptCheckpointError(ValueError):
    """A checkpoint on disk is damaged or incomplete."""


class Checkpoint(NamedTuple):
    """A checkpoint on disk, ordered by how far the run had come."""

    step: int
    epochs_done: int
    path: Path


def list_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Returns a run's checkpoints, oldest first; whether they can be read is not checked."""
    found = []
    for path in _folder(run_dir).glob("step_*"):
        if match := _NAME.fullmatch(path.name):
            found.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(found)


class Snapshot(NamedTuple):
    """All that a checkpoint holds, on the host.

    Attributes:
        step: Training steps done.
        arrays: Item -> name -> array; a copy, which later steps do not overwrite.
        record: The host's record as JSON values.
    """

    step: int
    arrays: dict[str, dict[str, np.ndarray]]
    record: dict[str, Any]

    @classmethod
    def take(cls, state: TrainState, record: RunRecord) -> Snapshot:
        """Copies a state and a record."""
        return cls(int(state.step), _items(state), dataclasses.asdict(record))


def write_checkpoint(run_dir: str | Path, snapshot: Snapshot, keep_latest: int) -> Path:
    """Writes a checkpoint, then removes those that are no longer needed.

    It gets its name only when it is complete, so that a kill at any moment leaves the earlier ones
    as they were. Kept are the newest ``keep_latest`` and the best of each of these: if the newest
    turns out damaged, the one before it still has its best.

    Returns:
        Its path.
    """
    path = _checkpoint_path(run_dir, snapshot.step, len(snapshot.record["history"]))
    if path.exists():
        return path  # Nothing has happened since.
    partial = path.with_name(path.name + PARTIAL)
    partial.mkdir(parents=True)
    saved = {
        # Orbax refuses arrays without entries. There is nothing in them to save.
        item: ocp.args.StandardSave({k: v for k, v in arrays.items() if v.size})
        for item, arrays in snapshot.arrays.items()
    }
    with _checkpointer() as checkpointer:
        checkpointer.save(partial / "arrays", ocp.args.Composite(**saved))
    _write_progress(
        partial,
        {
            "record": snapshot.record,
            "arrays": {
                item: {name: _signature(x) for name, x in arrays.items()}
                for item, arrays in snapshot.arrays.items()
            },
            "files": _checksums(partial / "arrays"),
        },
    )
    partial.rename(path)
    _remove_old(run_dir, keep_latest)
    return path


def set_aside_damaged(run_dir: str | Path) -> None:
    """Renames what is newer than the newest intact checkpoint to ``corrupt_...``, and says so.

    Where none is intact all stay where they are.
    """
    damaged: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            _check_files(checkpoint.path, _read_progress(checkpoint.path))
        except CorruptCheckpointError as error:
            damaged.append((checkpoint.path, error))
            continue
        for path, reason in damaged:
            _set_aside(path, reason, checkpoint)
        return


def _set_aside(path: Path, reason: Exception, instead: Checkpoint) -> None:
    """Frees a checkpoint's name, so that the run can save that step again."""
    aside = path.with_name(f"corrupt_{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    print(f"warning: {reason} Falling back to {instead.path.name}.", file=sys.stderr)


def restore_latest(run_dir: str | Path, state: TrainState) -> tuple[TrainState, RunRecord]:
    """Reads the newest checkpoint that can be read; newer ones are set aside, and named.

    Args:
        run_dir: The run folder.
        state: A state of the same structure: its shapes, dtypes and devices are used.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If none can be read, or if the model or optimizer is not the saved one.
    """
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(
            f"There is no checkpoint to resume from in {_folder(run_dir)}. "
            "Check the folder, or start the run without resume."
        )
    unread: list[tuple[Path, CorruptCheckpointError]] = []
    for checkpoint in reversed(checkpoints):
        try:
            restored = _read_state(checkpoint.path, state)
        except CorruptCheckpointError as error:
            unread.append((checkpoint.path, error))
            continue
        for path, reason in unread if is_main() else ():
            _set_aside(path, reason, checkpoint)
        return restored
    raise ValueError(
        f"None of the {len(checkpoints)} checkpoints in {_folder(run_dir)} can be read. "
        f"The newest: {unread[0][1]} Restore the folder from a copy, or start a new run in "
        "another run_dir."
    )


def load_checkpoint(model: nnx.Module, path: str | Path) -> None:
    """Reads a checkpoint's parameters and other variables into a model of the same structure.

    Args:
        model: Changed in place.
        path: A checkpoint's folder, such as one of ``list_checkpoints(run_dir)``.

    Raises:
        FileNotFoundError: If there is no such folder.
        CorruptCheckpointError: If it cannot be read.
        ValueError: If the model is not the saved one; names the variables that differ.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no checkpoint folder {path}.")
    _, params, model_state = split_model(model)
    progress = _read_progress(path)
    _check_files(path, progress)
    nnx.update(model, *_read_item(path, "model", progress, (params, model_state)))


def load_best(model: nnx.Module, run_dir: str | Path) -> Path:
    """Reads the parameters of a run's best epoch into a model of the same structure.

    Args:
        model: A freshly built model; changed in place.
        run_dir: The run folder that ``fit`` wrote.

    Returns:
        The folder of the checkpoint that was read.

    Raises:
        FileNotFoundError: If the run folder or a checkpoint in it is missing.
        CorruptCheckpointError: If the best checkpoint cannot be read.
        ValueError: If no epoch has finished, or if the model is not the saved one; names the
            variables that differ.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"There is no run folder {run_dir}.")
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint in {_folder(run_dir)}.")
    for checkpoint in reversed(checkpoints):
        try:
            best = _best_path(run_dir, _read_progress(checkpoint.path))
        except CorruptCheckpointError as error:
            print(f"warning: {error} Using an older one.", file=sys.stderr)
            continue
        if best is None:
            raise ValueError(
                f"No epoch of the run in {run_dir} has finished, so there is no best one yet. "
                f"Resume the run, or read {checkpoint.path} with load_checkpoint."
            )
        load_checkpoint(model, best)
        return best
    raise CorruptCheckpointError(
        f"None of the {len(checkpoints)} checkpoints in {_folder(run_dir)} can be read. "
        "Restore the folder from a copy, or train again in another run_dir."
    )


def fingerprint(model: nnx.Module) -> int:
    """A number that tells models with different variables apart (CRC-32 of their bytes).

    Example:
        >>> a, b = (nnx.Linear(2, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1))
        >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
        (True, False)
    """
    crc = 0
    for leaf in jax.tree.leaves(nnx.state(model)):
        array = (
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        crc = zlib.crc32(np.asarray(array).tobytes(), crc)
    return crc


def open_for_writing(run_dir: str | Path, *, resume: bool) -> None:
    """Makes the run folder ready, and clears what a kill left unfinished.

    Raises:
        ValueError: If it holds checkpoints and ``resume`` is False.
    """
    if not resume and list_checkpoints(run_dir):
        raise ValueError(
            f"{_folder(run_dir)} already holds checkpoints of a run. Pass resume=True to go on "
            "with that run, or choose another run_dir for a new one."
        )
    if not resume:
        _folder(run_dir).mkdir(parents=True, exist_ok=True)
    for path in _folder(run_dir).glob(f"*{PARTIAL}"):
        shutil.rmtree(path)


def _checkpointer() -> ocp.Checkpointer:
    """Orbax's, of this process alone: one of several writes for all, and each reads by itself."""
    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process} if jax.process_count() > 1 else None,
        barrier_sync_key_prefix=f"process_{process}",
    )
    options = ocp.CompositeOptions(multiprocessing_options=alone)
    handler = ocp.CompositeCheckpointHandler(composite_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _folder(run_dir: str | Path) -> Path:
    return Path(run_dir).absolute() / "checkpoints"


def _checkpoint_path(run_dir: str | Path, step: int, epochs_done: int) -> Path:
    return _folder(run_dir) / f"step_{step:09d}_epoch_{epochs_done:05d}"


def _best_path(run_dir: str | Path, progress: dict[str, Any]) -> Path | None:
    record = progress["record"]
    if record["best_step"] is None:
        return None
    return _checkpoint_path(run_dir, record["best_step"], record["best_epoch"])


def _remove_old(run_dir: str | Path, keep_latest: int) -> None:
    checkpoints = list_checkpoints(run_dir)
    kept: set[Path | None] = set()
    for checkpoint in checkpoints[-keep_latest:]:
        kept.add(checkpoint.path)
        try:
            kept.add(_best_path(run_dir, _read_progress(checkpoint.path)))
        except CorruptCheckpointError:
            continue  # Resuming deals with it.
    for checkpoint in checkpoints:
        if checkpoint.path not in kept:
            shutil.rmtree(checkpoint.path)


def named_leaves(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a tree by their paths, such as "blocks.0.attention.query"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    # Variables add ".value" to the path of what they hold.
    return {
        jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"): leaf
        for path, leaf in leaves
    }


def _model_tree(state: TrainState) -> tuple[nnx.State, nnx.State]:
    return state.params, state.model_state


def _training_tree(state: TrainState) -> dict[str, Any]:
    return {
        "step": state.step,
        "opt_state": state.opt_state,
        "metrics": state.metrics,
        "first_bad_step": state.first_bad_step,
        "skipped": state.skipped,
        "loss_scale": state.loss_scale,
    }


def _items(state: TrainState) -> dict[str, dict[str, np.ndarray]]:
    """Copies of all arrays on the host, one after another."""
    model: dict[str, jax.Array] = {}
    for part in _model_tree(state):
        model |= named_leaves(part)
    items = {"model": model, "training": named_leaves(_training_tree(state))}
    return {
        item: {name: _to_host(leaf) for name, leaf in leaves.items()}
        for item, leaves in items.items()
    }


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaf: jax.Array) -> np.ndarray:
    array = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.array(array)
    return np.array(multihost_utils.process_allgather(array, tiled=True))


def _to_device(array: np.ndarray, like: jax.Array) -> jax.Array:
    if _is_key(like):
        found = jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    else:
        found = jnp.array(array, like.dtype)
    return jax.device_put(found, like.sharding) if like.committed else found


def _signature(leaf: Any) -> str:
    array = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return f"{array.dtype}{list(array.shape)}"


def _parse(signature: str) -> tuple[tuple[int, ...], jnp.dtype]:
    """Shape and dtype of a signature."""
    dtype, shape = signature.removesuffix("]").split("[")
    return tuple(int(size) for size in shape.split(",") if size), jnp.dtype(dtype)


def _fits(saved: str | None, wanted: str | None) -> bool:
    """Whether what was saved can be read as what is wanted: floating numbers of any width."""
    if saved is None or wanted is None or saved == wanted:
        return saved == wanted
    (shape, dtype), (wanted_shape, wanted_dtype) = _parse(saved), _parse(wanted)
    both_float = jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(wanted_dtype, jnp.floating)
    return shape == wanted_shape and both_float


def _checksums(folder: Path) -> dict[str, int]:
    """Returns the CRC-32 of every file below a folder."""
    sums = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        crc = 0
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                crc = zlib.crc32(block, crc)
        sums[path.relative_to(folder).as_posix()] = crc
    return sums


def _check_files(path: Path, progress: dict[str, Any]) -> None:
    # Before Orbax reads them: it would print the tracebacks of its threads, and does not itself
    # notice every damage.
    found = _checksums(path / "arrays")
    damaged = [name for name, crc in progress["files"].items() if found.get(name) != crc]
    if damaged:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: arrays/{damaged[0]} is missing or not as saved."
        )


def _write_progress(path: Path, progress: dict[str, Any]) -> None:
    crc = zlib.crc32(json.dumps(progress).encode())
    (path / "progress.json").write_text(
        json.dumps({"format": FORMAT, "crc32": crc, "progress": progress})
    )


def _read_progress(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / "progress.json").read_text())
        version, crc, progress = content["format"], content["crc32"], content["progress"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its progress.json cannot be read "
            f"({type(error).__name__})."
        ) from error
    if version != FORMAT:
        raise ValueError(
            f"The checkpoint {path} has format {version!r}, this version reads {FORMAT}. "
            "Use the version of flax_linattn that wrote it."
        )
    if zlib.crc32(json.dumps(progress).encode()) != crc:
        raise CorruptCheckpointError(
            f"The checkpoint {path} is damaged: its progress.json is not as saved."
        )
    return progress


def _read_state(path: Path, like: TrainState) -> tuple[TrainState, RunRecord]:
    progress = _read_progress(path)
    _check_files(path, progress)
    params, model_state = _read_item(path, "model", progress, _model_tree(like))
    training = _read_item(path, "training", progress, _training_tree(like))
    state = TrainState(params=params, model_state=model_state, **training)
    return state, RunRecord(**progress["record"])


def _read_item(path: Path, item: str, progress: dict[str, Any], like: Tree) -> Tree:
    leaves: dict[str, jax.Array] = {}
    for part in like if isinstance(like, tuple) else (like,):
        leaves |= named_leaves(part)
    saved = progress["arrays"][item]
    wanted = {name: _signature(leaf) for name, leaf in leaves.items()}
    _check_same_arrays(path, item, saved, wanted)
    other = [name for name in leaves if saved[name] != wanted[name]]
    if other:
        print(
            f"note: {other[0]} and {len(other) - 1} more arrays of {path} are read as "
            f"{leaves[other[0]].dtype}; they were saved as {saved[other[0]].split('[')[0]}.",
            file=sys.stderr,
        )
    target = {name: np.zeros(*_parse(saved[name])) for name in leaves}
    nonempty = {name: array for name, array in target.items() if array.size}
    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(nonempty)})
    try:
        with _checkpointer() as checkpointer:
            arrays = target | checkpointer.restore(path / "arrays", args)[item]
    except Exception as error:
        # Whole by its checksums, and yet: most likely another version of Orbax wrote it.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CorruptCheckpointError(
            f"The checkpoint {path} is whole, but Orbax cannot read it: {reason[:300]}."
        ) from error
    return jax.tree.unflatten(
        jax.tree.structure(like),
        [_to_device(arrays[name], leaf) for name, leaf in leaves.items()],
    )


def _check_same_arrays(
    path: Path, item: str, saved: dict[str, str], wanted: dict[str, str]
) -> None:
    differences = [
        f"{name}: saved {saved.get(name, 'not')}, wanted {wanted.get(name, 'not')}"
        for name in sorted(saved.keys() | wanted.keys())
        if not _fits(saved.get(name), wanted.get(name))
    ]
    if not differences:
        return
    if len(differences) > 8:
        differences[8:] = [f"and {len(differences) - 8} more"]
    what = (
        "model is not the one"
        if item == "model"
        else "optimizer, or what the loss function reports, is not what was"
    )
    raise ValueError(
        f"The {what} saved in {path}:\n  "
        + "\n  ".join(differences)
        + "\nUse the settings of the run that was saved."
    )
