"""Messages about states that differ, by dtype and shape of each leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn.inference.model import StreamingModel, expected_state, path_name
from flax_linattn.typing import State

MAX_LINES = 4
"""Maximum number of leaves that a message names; the others are counted."""


def layout(state: State) -> dict[str, str]:
    """Dtype and shape of each leaf, by path.

    Example:
        >>> layout({"sum": jnp.ones((2, 3))})
        {'sum': 'float32[2, 3]'}
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {path_name(path): _signature(leaf) for path, leaf in leaves}


def diff_states(expected: State, got: State) -> str:
    """One line for each leaf that differs in dtype or shape; empty if none does.

    Example:
        >>> print(diff_states({"sum": jnp.ones(3)}, {"sum": jnp.ones(2), "n": jnp.ones(2)}))
        <BLANKLINE>
          n: expected nothing, got float32[2]
          sum: expected float32[3], got float32[2]
    """
    return _lines(layout(expected), layout(got))


def explain_mismatch(model: StreamingModel, state: State, batch_size: int) -> str | None:
    """Explains why a state does not belong to this model and batch size; None if it does.

    Called after a failure, to report its cause.
    """
    try:
        expected = expected_state(model, batch_size)
    except Exception:  # the original error of the model is raised instead
        return None
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = {path_name(path): jnp.shape(leaf) for path, leaf in leaves}
    if not _mismatches(expected, shapes):
        return None
    rows = {shape[:1] for shape in shapes.values()}
    size = rows.pop() if len(rows) == 1 else ()
    if size and not _mismatches(expected_state(model, *size), shapes):
        return f"expected {size[0]} observations, one per row of the state, got {batch_size}."
    wrong = _mismatches(expected, shapes)
    lines = _lines(
        {path: _format_shape(expected[path]) for path in wrong if path in expected},
        {path: _format_shape(shapes[path]) for path in wrong if path in shapes},
    )
    return (
        f"expected a state of this {type(model).__name__} with {batch_size} rows, from init_state "
        f"or an earlier call (* is max_length), got another state:{lines}"
    )


def _mismatches(
    expected: dict[str, tuple[int | None, ...]], shapes: dict[str, tuple[int, ...]]
) -> list[str]:
    """Paths of the leaves of a state that do not fit."""
    return [
        path
        for path in expected.keys() | shapes.keys()
        if path not in expected or path not in shapes or not _fits(expected[path], shapes[path])
    ]


def _fits(expected: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    return len(expected) == len(shape) and all(
        size in (None, actual) for size, actual in zip(expected, shape, strict=True)
    )


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('*' if size is None else str(size) for size in shape)}]"


def _signature(leaf: Any) -> str:
    try:
        # The dtype of a NumPy array, even if JAX has no 64-bit dtypes.
        return f"{getattr(leaf, 'dtype', None) or jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
    except TypeError:  # no array of JAX, and its repr may be long
        return type(leaf).__name__


def _lines(expected: dict[str, str], got: dict[str, str]) -> str:
    lines = [
        f"\n  {path}: expected {expected.get(path, 'nothing')}, got {got.get(path, 'nothing')}"
        for path in sorted(expected.keys() | got.keys())
        if expected.get(path) != got.get(path)
    ]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"\n  and {len(lines) - MAX_LINES} more"]
    return "".join(lines)
