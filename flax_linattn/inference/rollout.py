"""Loops of steps in one program: over observations, or over the model's own outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flax_linattn.checks import check_integers
from flax_linattn.inference.model import StreamingModel, check_model, resolve_state
from flax_linattn.inference.prefill import check_prompt
from flax_linattn.inference.programs import compile_once, step
from flax_linattn.inference.state import check_rows
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Mask, State


@register_state
class Rollout(NamedTuple):
    """Result of ``rollout``; ``rollout(model, r.x, n, state=r.state)`` continues it.

    Attributes:
        outputs: Outputs, [B, num_steps, ...].
        x: The next observation, made from the last output, [B, ...].
        state: State after all observations before ``x``.
    """

    outputs: Array
    x: Array
    state: State


def unroll(
    model: StreamingModel,
    x: Array,
    mask: Mask | None = None,
    *,
    reset: Mask | None = None,
    state: State | None = None,
    max_length: int | None = None,
    dtype: DTypeLike | None = None,
    return_state: bool = False,
) -> Any:
    """Runs the model's ``step`` over whole sequences in one ``lax.scan``.

    Args:
        model: A :class:`StreamingModel`.
        x: Observations, [B, T, in_features], or tokens, int [B, T].
        mask: Boolean array of shape [B, T]; True marks valid tokens.
        reset: Boolean array of shape [B, T]; True resets the row before this observation, which
            begins a new sequence (an episode, in reinforcement learning).
        state: State of an earlier call; default the initial state.
        max_length: Maximum number of observations of a sequence, needed by mechanisms with a cache:
            that of ``state`` if it is given, T by default.
        dtype: Dtype that the state is made for, see ``StreamingModel``; default that of ``x``.
        return_state: Whether to return ``(y, state)`` instead of ``y``.

    Returns:
        The outputs after every observation, [B, T, ...], and the state if ``return_state``.

    Raises:
        ValueError: If a shape does not match, the state belongs to another model, or the model
            cannot stream.
        TypeError: If ``mask`` or ``reset`` is not boolean, or ``model`` is not a model.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> inference.unroll(model, jnp.ones((2, 7, 3))).shape
        (2, 7, 5)
    """
    check_model(model)
    x, mask = check_prompt(x, mask, None)
    batch, length = x.shape[:2]
    reset = reset if reset is None else check_rows("reset", reset, batch, length)
    if max_length is None and state is None:
        max_length = length
    y, state = _unroll(model, x, mask, reset, state, max_length=max_length, dtype=dtype)
    return (y, state) if return_state else y


@compile_once("max_length", "dtype")
def _unroll(
    model: StreamingModel,
    x: Array,
    mask: Array | None,
    reset: Array | None,
    state: State | None,
    *,
    max_length: int | None,
    dtype: DTypeLike | None,
) -> tuple[Array, State]:
    def body(state: State, at: tuple[Array, Array | None, Array | None]) -> tuple[State, Array]:
        x, mask, reset = at
        y, state = step(model, x, state, mask=mask, reset=reset, max_length=max_length)
        return state, y

    state = resolve_state(model, x, state, max_length, dtype)
    by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (x, mask, reset))
    state, y = jax.lax.scan(body, state, by_time)
    return jnp.moveaxis(y, 0, 1), state


def rollout(
    model: StreamingModel,
    x: Array,
    num_steps: int,
    *,
    feedback: Callable[[Array, Array], Array] | None = None,
    mask: Array | None = None,
    state: State | None = None,
    max_length: int | None = None,
    dtype: DTypeLike | None = None,
) -> Rollout:
    """Feeds the model's outputs back as its next observations, in one compiled ``lax.scan``.

    Args:
        model: A :class:`StreamingModel`.
        x: The first observation, [B, ...].
        num_steps: Number of observations to process.
        feedback: ``feedback(y, x)`` returns the next observation, of the shape and dtype of ``x``,
            from the output ``y`` and the observation ``x``; default the output itself. It is part
            of the program: a new function object is compiled again, and values it closes over,
            weights included, stay as at the first call.
        mask: Boolean array of shape [B]; where False, the state of the row is unchanged, and its
            outputs are meaningless.
        state: State of ``prefill`` or steps; default the initial state. It remains valid.
        max_length: Maximum number of observations of a sequence, needed by mechanisms with a cache:
            that of ``state`` if it is given, num_steps by default.
        dtype: Dtype that the state is made for, see ``StreamingModel``; default that of ``x``.

    Returns:
        Outputs, the next observation and the state.

    Raises:
        ValueError: If the feedback is not an observation of the model, the state grows and
            ``max_length`` is missing, the state belongs to another model, or ``num_steps`` is
            negative.
        TypeError: If ``mask`` is not boolean, or ``model`` is not a model.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.Backbone(4, 4, num_layers=1, num_heads=2, rngs=nnx.Rngs(0))
        >>> _, state = inference.prefill(model, jnp.ones((2, 9, 4)))
        >>> def drift(y, x):
        ...     return x + 0.1 * y
        >>> r = inference.rollout(model, jnp.ones((2, 4)), 5, feedback=drift, state=state)
        >>> r.outputs.shape, r.state.position.tolist()
        ((2, 5, 4), [14, 14])
    """
    check_model(model)
    check_integers(0, num_steps=num_steps)
    x = jnp.asarray(x)
    if x.ndim == 0:
        raise ValueError("expected x as [B, ...], one observation per row, got a number.")
    if max_length is None and state is None:
        max_length = num_steps
    return _rollout(
        model,
        x,
        state,
        mask,
        num_steps=num_steps,
        feedback=feedback,
        max_length=max_length,
        dtype=dtype,
    )


@compile_once("num_steps", "feedback", "max_length", "dtype")
def _rollout(
    model: StreamingModel,
    x: Array,
    state: State | None,
    mask: Array | None,
    *,
    num_steps: int,
    feedback: Callable[[Array, Array], Array] | None,
    max_length: int | None,
    dtype: DTypeLike | None,
) -> Rollout:
    def body(carry: tuple[Array, State], _: None) -> tuple[tuple[Array, State], Array]:
        x, state = carry
        y, state = step(model, x, state, mask=mask)
        following = y if feedback is None else feedback(y, x)
        if following.shape != x.shape or following.dtype != x.dtype:
            raise ValueError(
                f"expected the next observation as {x.dtype} {x.shape}, got {following.dtype} "
                f"{following.shape}; pass feedback, a function of the output and the observation "
                "that returns the next observation."
            )
        return (following, state), y

    state = resolve_state(model, x, state, max_length, dtype)
    (x, state), y = jax.lax.scan(body, (x, state), length=num_steps)
    return Rollout(jnp.moveaxis(y, 0, 1), x, state)
