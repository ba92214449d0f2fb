"""What the tests of modules and models share: mechanisms, layouts of padding, programs.

A program belongs to what a module is built of, not to one module or test: modules built alike that
take inputs of equal shapes share it. So tests vary data, such as masks, ids and states.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from flax_linattn.ops.contract.masks import find_segments

WIDTH, HEADS = 6, 2
"""Of the attention layers."""

HYPERPARAMETERS = {
    "aft": "max_length=16",
    "linformer": "max_length=16,num_projections=4",
    "nystrom": "num_landmarks=3",
    "reformer": "bucket_size=2,num_hashes=2",
    "eva": "window_size=1,num_chunks=2",
    "rfa": "num_features=512",
}
"""What layers of some mechanisms need to be told. The weights of ``rfa`` are estimates, whose sums
may nearly vanish, and magnify rounding, where features are few."""

REPRESENTATIVES = ("softmax", "aaren", "taylorshift")
"""One of each kind that a layer treats differently: a cache, a learned query, a learned argument.
Of the others ``test_mechanisms.py`` runs the main program; the rest of their tests is slow."""


def _cases(
    condition: Callable[[ops.Capabilities], bool], fast: tuple[str, ...] = REPRESENTATIVES
) -> list[Any]:
    """The mechanisms of these capabilities, as names with their hyperparameters."""
    return [
        pytest.param(
            f"{name}:{HYPERPARAMETERS[name]}" if name in HYPERPARAMETERS else name,
            id=name,
            marks=() if name in fast else pytest.mark.slow,
        )
        for name in ops.list_mechanisms()
        if condition(ops.get_mechanism(name).capabilities)
    ]


MECHANISMS = _cases(lambda can: True)
ALL_FAST = _cases(lambda can: True, fast=ops.list_mechanisms())
CAUSAL = _cases(lambda can: can.causal)
STACKED = _cases(lambda can: can.causal, fast=("softmax", "aaren"))
"""Of what takes a layer as it is, as blocks, cells and models do: a cache, and a constant state."""
AHEAD = _cases(lambda can: can.causal and can.noncausal)
PACKED = _cases(lambda can: can.causal and can.packed)
PACKED_AHEAD = _cases(lambda can: can.causal and can.noncausal and can.packed)
CROSS = _cases(lambda can: can.cross)
NOT_CROSS = _cases(lambda can: not can.cross)
WHOLE = _cases(lambda can: not can.recurrent)


def make_attention(mechanism: Any, **options: Any) -> nn.Attention:
    """A layer whose parameters are all away from their initial values."""
    layer = nn.Attention(WIDTH, HEADS, mechanism=mechanism, rngs=nnx.Rngs(0), **options)
    for name in ("query_projection", "key_projection", "value_projection", "out_projection"):
        projection = getattr(layer, name)
        bias = None if projection is None else projection.bias
        if bias is not None:  # they start at 0, which would hide that one is left out
            bias[...] = 0.3 * normal(len(name), *bias.shape).astype(bias.dtype)
    if layer.query is not None:  # its small start gives nearly uniform weights
        layer.query[...] = normal(9, WIDTH).astype(layer.query.dtype)
    return layer


attention = functools.cache(make_attention)
"""The same, one of a kind, not to be changed."""


def moved(module: Any, by: float = 0.1) -> Any:
    """With all parameters away from their initial values, which would hide that one is left out."""

    def noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    graph, params, others = nnx.split(module, nnx.Param, ...)
    leaves, tree = jax.tree.flatten(params)
    leaves = [
        (np.asarray(leaf) + by * noise(i, leaf.shape)).astype(leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    params = jax.tree.map(jnp.asarray, jax.tree.unflatten(tree, leaves))
    return nnx.merge(graph, params, others)


@functools.cache
def make_block(mechanism: str = "aaren", **options: Any) -> nn.TransformerBlock:
    """A block whose parameters are away from their initial values, not to be changed."""
    rngs = nnx.Rngs(params=0, dropout=1)
    return moved(
        nn.TransformerBlock(WIDTH, 2, hidden_features=12, mechanism=mechanism, rngs=rngs, **options)
    )


# Four real tokens of six: padding right, left, in the middle, and at several places.
LAYOUTS = np.array(
    [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 1],
        [0, 1, 1, 0, 1, 1],
    ],
    bool,
)


def normal(seed: int, *shape: int) -> jax.Array:
    """Random numbers, the same every time."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def padded(real: jax.Array, filler: float = np.nan, layouts: np.ndarray = LAYOUTS) -> jax.Array:
    """Spreads the real tokens [B, n, C] over the layouts' real positions."""
    batch, _, channels = real.shape
    x = np.full((*layouts.shape, channels), filler, np.float32)
    x[layouts] = np.asarray(real).reshape(-1, channels)
    assert batch == len(layouts)
    return jnp.asarray(x)


def at_real(y: Any, layouts: np.ndarray = LAYOUTS) -> np.ndarray:
    """The outputs [B, n, C] at the layouts' real positions."""
    y = np.asarray(y)
    return y[layouts].reshape(len(layouts), -1, y.shape[-1])


_STATIC = ("is_causal", "form", "every_step", "ended", "return_state")


@functools.partial(jax.jit, static_argnums=0, static_argnames=_STATIC)
def _call(graph: Any, variables: Any, *args: Any, **options: Any) -> Any:
    return nnx.merge(graph, variables)(*args, **options)


def call(module: nnx.Module, *args: Any, **options: Any) -> Any:
    """``module(*args, **options)``, compiled."""
    return jax.tree.map(np.asarray, _call(*nnx.split(module), *args, **options))


class Pulled(NamedTuple):
    """A module's outputs, the state if asked for, and gradients into parameters and inputs."""

    y: Any
    state: Any
    params: Any
    x: Any


@functools.partial(jax.jit, static_argnums=0, static_argnames=_STATIC)
def _pulled(graph: Any, params: Any, x: Any, weights: Any, **options: Any) -> Pulled:
    def outputs(params: Any, x: Any) -> Any:
        y = nnx.merge(graph, params)(x, **options)
        return y if options.get("return_state") else (y, None)

    y, pull, state = jax.vjp(outputs, params, x, has_aux=True)
    return Pulled(y, state, *pull(weights))


def pulled(module: nnx.Module, x: Any, weights: Any, **options: Any) -> Pulled:
    """``module(x, **options)`` and the gradients of the sum of its outputs times ``weights``."""
    return jax.tree.map(np.asarray, _pulled(*nnx.split(module), x, weights, **options))


def positions(
    module: Any, mask: np.ndarray, ids: np.ndarray | None = None, start: Any = 0
) -> dict[str, Any]:
    """The argument ``positions`` of a layer that has them, after ``start`` earlier tokens."""
    if not isinstance(module, (nn.Attention, nn.TransformerBlock)):
        return {}  # models count positions themselves
    if getattr(module, "attention", module).position is None:
        return {}
    mask = jnp.asarray(mask)
    segments = None if ids is None else find_segments(jnp.asarray(ids), mask)
    offset = jnp.full(len(mask), start, jnp.int32)
    return {"positions": np.asarray(nn.token_positions(mask, segments, offset)[0])}


@functools.partial(jax.jit, static_argnums=0)
def _step(graph: Any, variables: Any, x: Any, state: Any, **options: Any) -> Any:
    return nnx.merge(graph, variables).step(x, state, **options)


def run_steps(
    module: Any, x: Any, state: Any, mask: Any = None, start: Any = 0
) -> tuple[np.ndarray, Any]:
    """The recurrent network, one token after the other: outputs [B, T, ...] and the last state.

    ``start`` is the number of tokens before, of all rows or of each.
    """
    graph, variables = nnx.split(module)
    x, mask = np.asarray(x), None if mask is None else np.asarray(mask)
    real = np.ones(x.shape[:2], bool) if mask is None else mask
    each = {"mask": mask} | positions(module, real, start=start)
    outputs = []
    for t in range(x.shape[1]):
        options = {name: None if a is None else a[:, t] for name, a in each.items()}
        y, state = _step(graph, variables, x[:, t], state, **options)
        outputs.append(np.asarray(y))
    return np.stack(outputs, axis=1), state
