"""Prefill: processes known observations in parallel, whole or in chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from flax_linattn.checks import check_integers
from flax_linattn.inference.model import StreamingModel, check_model, resolve_state
from flax_linattn.inference.programs import call_with_state, compile_once
from flax_linattn.inference.state import check_rows
from flax_linattn.inference.state_diff import explain_mismatch
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import static_max_length
from flax_linattn.typing import Array, Mask, State


def prefill(
    model: StreamingModel,
    x: Array,
    mask: Mask | None = None,
    *,
    state: State | None = None,
    max_length: int | None = None,
    chunk_size: int | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Array, State]:
    """Processes known observations by the model's parallel form, in one program.

    With ``chunk_size``, chunks are processed by one ``lax.scan``, so temporary memory
    does not grow with T.

    Args:
        model: A :class:`StreamingModel`.
        x: Observations, [B, T, in_features], T >= 1, or tokens, int [B, T].
        mask: Boolean array of shape [B, T]; True marks valid tokens. Padding may be anywhere.
        state: State before the observations; default the initial state. It remains valid.
        max_length: Maximum number of observations of a sequence, including later ones, needed by
            mechanisms with a cache. Not needed with ``state``.
        chunk_size: Number of observations of a chunk; default all.
        dtype: Dtype that the state is made for, see ``StreamingModel``; default that of ``x``.

    Returns:
        The output of ``step`` for the last valid token of each row, [B, ...] (0 for a row without
        valid tokens if the model returns outputs at every position), and the state.

    Raises:
        ValueError: If a shape does not match, the state grows and ``max_length`` is missing, the
            state belongs to another model, or the model cannot stream.
        TypeError: If ``mask`` is not boolean, or ``model`` is not a model.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> x = jnp.linspace(0, 1, 600).reshape(2, 100, 3)
        >>> logits, state = inference.prefill(model, x, chunk_size=32)
        >>> stepped = inference.unroll(model, x)[:, -1]
        >>> bool(jnp.allclose(logits, stepped, atol=1e-5)), state.backbone.position.tolist()
        (True, [100, 100])
    """
    check_model(model, sequences=True)
    x, mask = check_prompt(x, mask, chunk_size)
    if state is None:
        check_capacity(x, mask, max_length)
    output: tuple[Array, State] = _prefill(
        model, x, mask, state, max_length=max_length, chunk_size=chunk_size, dtype=dtype
    )
    return output


def prefill_state(
    model: StreamingModel,
    x: Array,
    mask: Array | None,
    state: State | None,
    *,
    max_length: int | None,
    chunk_size: int | None,
    dtype: DTypeLike | None,
) -> tuple[Array, State]:
    """Computes ``prefill`` for checked arguments, under ``jit``."""
    state = resolve_state(model, x, state, max_length, dtype)
    y = zero_output(model, x, state)
    length = x.shape[1]
    if chunk_size is None or length <= chunk_size:
        return prefill_chunk(model, x, mask, y, state)

    def body(carry: tuple[Array, State], start: Array) -> tuple[tuple[Array, State], None]:
        return prefill_chunk(model, *chunk_at(x, mask, start, chunk_size), *carry), None

    starts = jnp.arange(0, length, chunk_size, dtype=jnp.int32)
    return jax.lax.scan(body, (y, state), starts)[0]


_prefill = compile_once("max_length", "chunk_size", "dtype")(prefill_state)


@automatic(1)
def prefill_chunk(
    model: StreamingModel, x: Array, mask: Array | None, y: Array, state: State
) -> tuple[Array, State]:
    """Processes one chunk; returns the output after the last valid token (else ``y``) and state."""
    outputs, new_state = call_with_state(
        model, state, x.shape[0], lambda: model(x, mask=mask, state=state, return_state=True)
    )
    if outputs.ndim == y.ndim:
        return outputs, new_state
    if mask is None:
        return outputs[:, -1], new_state
    last = x.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    has_tokens = jnp.any(mask, axis=1)
    axes = tuple(range(1, y.ndim))
    outputs = jnp.take_along_axis(outputs, jnp.expand_dims(last, (1, *(a + 1 for a in axes))), 1)
    return jnp.where(jnp.expand_dims(has_tokens, axes), outputs[:, 0], y), new_state


def zero_output(model: StreamingModel, x: Array, state: State) -> Array:
    """Zeros with the shape and dtype of the output of ``step``."""
    try:
        y, _ = jax.eval_shape(model.step, x[:, 0], state)
    except (IndexError, TypeError, ValueError) as error:
        reason = explain_mismatch(model, state, x.shape[0])
        if reason is not None:
            raise ValueError(reason) from error
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            "expected x as sequences of observations of the model, [B, T, ...], got "
            f"{x.dtype}{list(x.shape)}: {error}"
        ) from error
    return jnp.zeros(y.shape, y.dtype)


def chunk_at(x: Array, mask: Array | None, start: Array, chunk_size: int) -> tuple[Array, Array]:
    """Slices the chunk at ``start``, and its mask of valid observations.

    All chunks have the same size: the last one begins earlier, and masks the observations of the
    chunk before it. Padding ``x`` instead would copy it.
    """
    begin = jnp.minimum(start, x.shape[1] - chunk_size)

    def window(whole: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(whole, begin, chunk_size, 1)

    new = begin + jnp.arange(chunk_size, dtype=jnp.int32) >= start
    real = jnp.broadcast_to(new, (x.shape[0], chunk_size))
    return window(x), real if mask is None else real & window(mask)


def check_capacity(x: Array, mask: Array | None, max_length: int | None) -> None:
    """Raises ValueError for more observations than ``max_length``, if the mask is known."""
    length = static_max_length(x.shape[1], mask)
    if max_length is not None and length > max_length:
        raise ValueError(
            f"max_length must be at least {length}, the observations, got {max_length}."
        )


def check_prompt(
    x: ArrayLike, mask: ArrayLike | None, chunk_size: int | None
) -> tuple[Array, Array | None]:
    """Raises unless x is a batch of sequences."""
    x = jnp.asarray(x)
    if x.ndim < 2 or x.shape[1] == 0:
        raise ValueError(f"expected x as [B, T, ...] with T at least 1, got shape {x.shape}.")
    check_integers(1, chunk_size=chunk_size)
    return x, None if mask is None else check_rows("mask", mask, *x.shape[:2])
