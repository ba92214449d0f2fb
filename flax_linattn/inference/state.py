"""States of models: trees of arrays, with one row for each stream."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from flax_linattn.inference.state_diff import layout
from flax_linattn.ops.contract import meshes
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array, State


def state_bytes(state: State) -> int:
    """Size of a state in bytes.

    Example:
        >>> from flax_linattn import ops
        >>> state_bytes(ops.get_mechanism("aaren").init_state(1, 8, 64, 64))
        2112
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def reset_rows(state: State, rows: Bool[Array, "B"], initial: State) -> State:
    """Resets chosen rows to the initial state; other rows are unchanged, bit for bit.

    Args:
        state: State of any model or mechanism, batch axis B first.
        rows: Boolean array of shape [B]; True marks rows to reset.
        initial: State of ``init_state`` with B rows or one row, and the same ``max_length``.

    Returns:
        The new state, of the same structure and shapes.

    Raises:
        TypeError: If ``rows`` is not boolean.
        ValueError: If the shape of ``rows`` is not [B], or ``initial`` belongs to another model.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.Backbone(3, 16, num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
        >>> _, state = inference.prefill(model, jnp.ones((3, 5, 3)))
        >>> rows = jnp.array([False, True, False])
        >>> inference.reset_rows(state, rows, model.init_state(1)).position.tolist()
        [5, 0, 5]
    """
    rows = check_rows("reset", rows, batch_size(state))
    structure: Any = jax.tree.structure(state)
    if structure != jax.tree.structure(initial) or any(
        old.shape[1:] != new.shape[1:] or new.shape[0] not in (1, old.shape[0])
        for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(initial), strict=True)
    ):
        raise ValueError(
            "the state and the initial state belong to different models or capacities; make the "
            "initial state by init_state of the same model, with the max_length of the state."
        )
    # init_state returns float32 by default.
    initial = jax.tree.map(lambda new, old: new.astype(old.dtype), initial, state)
    return prefix.select(rows, initial, state)


def gather_rows(state: State, indices: Int[Array, "N"]) -> State:
    """Gathers rows of a state, to fork, reorder or drop streams.

    Args:
        state: State of any model or mechanism, batch axis B first.
        indices: Row indices, int [N]; row i of the result is a copy of row ``indices[i]``.

    Returns:
        State of N rows.

    Raises:
        TypeError: If the dtype of ``indices`` is not an integer dtype.
        ValueError: If ``indices`` is not one-dimensional, or an index is outside 0 ... B - 1 (under
            ``jit`` such a row is NaN instead).

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.Backbone(3, 16, num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
        >>> _, state = inference.prefill(model, jnp.ones((1, 5, 3)))
        >>> inference.gather_rows(state, jnp.zeros(4, int)).position.tolist()
        [5, 5, 5, 5]
    """
    indices = check_indices(indices, batch_size(state))
    # ``take`` fills rows of indices beyond the end, but counts negative indices from the end.
    indices = jnp.where(indices < 0, batch_size(state), indices)

    def gather(state: State, indices: Array) -> State:
        return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0, mode="fill"), state)

    return meshes.run_on_automatic_axes(
        gather, (state, indices), lambda _: jax.tree.map(meshes.partition_axes, state)
    )


def batch_size(state: State) -> int:
    """Number of rows B of a state."""
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(state)}
    if len(sizes) == 1 and () not in sizes:
        return int(sizes.pop()[0])
    lines = "".join(f"\n  {path}: {shape}" for path, shape in layout(state).items())
    raise ValueError(f"expected a state whose leaves have the same first axis, got shapes{lines}")


def check_rows(name: str, rows: ArrayLike, *shape: int) -> Array:
    """Converts to a boolean array; raises an error for another dtype or shape."""
    rows = jnp.asarray(rows)
    _check_rows(name, rows, shape)
    return rows


def check_known_rows(name: str, rows: ArrayLike, *shape: int) -> NDArray[np.bool_]:
    """Like ``check_rows``, but on the host; waits only for arrays on a device."""
    known = rows if isinstance(rows, jax.Array) else np.asarray(rows)
    _check_rows(name, known, shape)
    return np.asarray(known)


def _check_rows(name: str, rows: Array | NDArray[Any], shape: tuple[int, ...]) -> None:
    if rows.dtype != np.bool_:
        raise TypeError(
            f"expected {name} as boolean, got {rows.dtype}; use {name}.astype(bool) if 1 is True."
        )
    if rows.shape != shape:
        raise ValueError(f"expected {name} of shape {list(shape)}, got shape {rows.shape}.")


def check_indices(indices: ArrayLike, batch: int) -> Array:
    """Checks that indices are from 0 to batch - 1, if their values are known."""
    indices = jnp.asarray(indices)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"expected indices of an integer dtype, got {indices.dtype}.")
    if indices.ndim != 1:
        raise ValueError(f"expected indices as [N], got shape {indices.shape}.")
    if not isinstance(indices, jax.core.Tracer):
        wrong = [int(i) for i in np.asarray(indices) if not 0 <= i < batch]
        if wrong:
            raise ValueError(f"expected indices of rows, 0 to {batch - 1}, got {wrong[0]}.")
    return indices
