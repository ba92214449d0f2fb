"""Bundles: a streaming model as one file that runs without this library.

A bundle is an uncompressed zip archive: ``signature.json`` (shapes, dtypes, names, versions and
checksums), ``weights.safetensors``, and the programs ``init_state``, ``step`` and ``prefill`` as
StableHLO of ``jax.export``. Programs take and return states as lists of arrays in the order of the
signature, so that a loader needs no classes of this library; ``linattn_runtime.py`` is one.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx

from flax_linattn.checks import OptionError, check_choice, check_integers, import_extra
from flax_linattn.inference.linattn_runtime import CHECKSUM, FORMAT, SIGNATURE, WEIGHTS
from flax_linattn.inference.model import (
    StreamingModel,
    check_model,
    describe_array,
    path_name,
    state_grows,
)
from flax_linattn.inference.prefill import prefill_chunk
from flax_linattn.inference.saved import FORMAT as STATE_FORMAT
from flax_linattn.inference.state import state_bytes
from flax_linattn.storage import atomic_write
from flax_linattn.typing import Array

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that ``jax.export`` can compile for."""
READABLE_DAYS = 180
"""Days for which JAX guarantees that it can read an exported program."""


def export(
    path: str | Path,
    model: StreamingModel,
    observation: jax.ShapeDtypeStruct | Array,
    *,
    max_length: int | None = None,
    chunk_sizes: Sequence[int] = (128,),
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    task: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes a bundle: one file that runs a model where this library is not installed.

    The batch size of the programs is symbolic: one bundle serves any number of rows. See
    ``linattn_runtime.Bundle``, which reads it with jax, NumPy and flatbuffers alone.

    Args:
        path: File to write, atomically.
        model: Model that streams.
        observation: Observations of ``model.step``, [B, ...]; only shape and dtype matter.
        max_length: Maximum number of observations, for mechanisms with a cache.
        chunk_sizes: Numbers of observations that ``prefill`` processes in parallel; the bundle has
            one program for each number. Pass ``()`` for a model that only steps.
        platforms: Platforms to compile for: "cpu", "cuda", "rocm", "tpu".
        task: JSON description of raw observations and outputs, for ``linattn_runtime.Session``.

    Returns:
        The signature.

    Raises:
        ValueError: If the model cannot stream or cannot be exported, its state grows and
            ``max_length`` is missing, an option is out of range, or flatbuffers or safetensors are
            missing (the extra ``export``).
        TypeError: If ``model`` is not a :class:`StreamingModel`.

    Example:
        >>> import pathlib, tempfile
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> from flax_linattn.inference.linattn_runtime import Bundle
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> path = pathlib.Path(tempfile.mkdtemp(), "model.linattn")
        >>> signature = inference.export(path, model, jnp.ones((1, 3)), chunk_sizes=())
        >>> bundle = Bundle(path)
        >>> y, state = bundle.step(jnp.ones((2, 3)), bundle.init_state(2))
        >>> y.shape, signature["state_bytes"]
        ((2, 5), 192)
    """
    for module in ("flatbuffers", "safetensors"):
        import_extra(module, f"bundles need {module}: pip install 'flax-linattn[export]'.")
    from safetensors.flax import save as save_arrays

    check_model(model, sequences=bool(chunk_sizes))
    check_integers(1, max_length=max_length)
    for size in chunk_sizes:
        check_integers(1, 2**20, chunk_sizes=size)
    for platform in platforms:
        check_choice(PLATFORMS, platforms=platform)
    grows = state_grows(model)
    if grows and max_length is None:
        raise OptionError(
            "expected max_length for a mechanism with a cache, got none; set max_length=....",
            "max_length",
        )
    max_length = max_length if grows else None
    weights, merge = _split(model)
    initial = jax.eval_shape(lambda: model.init_state(1, max_length))
    paths, tree = jax.tree_util.tree_flatten_with_path(initial)
    names = [path_name(path) for path, _ in paths]
    (batch,) = jax.export.symbolic_shape("b")

    def rows(leaf: Any, *lead: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *lead, *leaf.shape[1:]), leaf.dtype)

    def init_state(mask: Array) -> list[Array]:
        leaves = jax.tree.leaves(model.init_state(1, max_length))
        return [jnp.broadcast_to(leaf, (*mask.shape, *leaf.shape[1:])) for leaf in leaves]

    def step(weights: list[Array], state: list[Array], x: Array, mask: Array) -> Any:
        y, new = merge(weights).step(x, jax.tree.unflatten(tree, state), mask=mask)
        return y, jax.tree.leaves(new)

    def prefill(weights: list[Array], state: list[Array], y: Array, x: Array, mask: Array) -> Any:
        y, new = prefill_chunk(merge(weights), x, mask, y, jax.tree.unflatten(tree, state))
        return y, jax.tree.leaves(new)

    state, x = [rows(leaf) for _, leaf in paths], rows(observation)
    values = [*weights.values()]
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    mask = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    one = jax.ShapeDtypeStruct((1, *observation.shape[1:]), observation.dtype)
    output, _ = jax.eval_shape(lambda x: model.step(x, model.init_state(1, max_length)), one)
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "init_state": (init_state, (mask,)),
        "step": (step, (shapes, state, x, mask)),
    }
    for size in chunk_sizes:
        chunk = jax.ShapeDtypeStruct((batch, size), jnp.bool_)
        arguments = (shapes, state, rows(output), rows(observation, size), chunk)
        calls[f"prefill-{size}"] = (prefill, arguments)
    parts = {
        f"{name}.bin": bytes(
            jax.export.export(jax.jit(call), platforms=tuple(platforms))(*given).serialize()
        )
        for name, (call, given) in calls.items()
    }
    parts[WEIGHTS] = save_arrays({name: jnp.asarray(value) for name, value in weights.items()})
    today = datetime.date.today()
    signature = {
        "format": FORMAT,
        "created": today.isoformat(),
        "readable_until": (today + datetime.timedelta(days=READABLE_DAYS)).isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")},
        "platforms": list(platforms),
        "observation": describe_array(observation),
        "output": describe_array(output),
        "state": [
            {"name": n, **describe_array(leaf)} for n, (_, leaf) in zip(names, paths, strict=True)
        ],
        "state_bytes": state_bytes(initial),
        "state_format": STATE_FORMAT,
        "max_length": max_length,
        "chunk_sizes": sorted(chunk_sizes),
        "weights": list(weights),
        "task": None if task is None else dict(task),
        "parts": {
            name: {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}
            for name, part in parts.items()
        },
    }
    text = json.dumps(signature, indent=1, allow_nan=False).encode()
    checksum = hashlib.sha256(text).hexdigest().encode()
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in {SIGNATURE: text, CHECKSUM: checksum, **parts}.items():
            archive.writestr(zipfile.ZipInfo(name), part)
    return signature


def _split(model: Any) -> tuple[dict[str, Array], Any]:
    """Returns the weights of a model by name, and a function that makes the model from weights.

    Random keys, which no step uses, become constants of the programs.
    """
    graphdef, variables = nnx.split(model)
    paths, tree = jax.tree_util.tree_flatten_with_path(variables)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for _, leaf in paths]
    weights = {path_name(p): leaf for (p, leaf), key in zip(paths, is_key, strict=True) if not key}

    def merge(values: list[Array]) -> Any:
        given = iter(values)
        leaves = [
            leaf if key else next(given) for (_, leaf), key in zip(paths, is_key, strict=True)
        ]
        return nnx.merge(graphdef, jax.tree.unflatten(tree, leaves))

    return weights, merge
