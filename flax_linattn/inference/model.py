"""The protocol of streaming models, and their initial states."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flax_linattn.typing import Array, Mask, State


@runtime_checkable
class StreamingModel(Protocol):
    """A model that runs as a recurrent network, as all functions of this package need.

    Any ``nnx.Module`` with these three methods qualifies, without a base class.

    ==================================== ==================================================
    method                               who calls it
    ==================================== ==================================================
    ``init_state(batch_size)``           all
    ``step(x_t, state)``                 all
    ``model(x, state=..., ...)``         ``prefill``, ``generate`` and ``Stream.prefill``
    ==================================== ==================================================

    The three share their parameters, and repeated calls of ``step`` equal the call on the whole
    sequence. The state is a tree of arrays with the batch axis first, of constant size if
    ``max_length`` is given. A model that cannot stream raises ``ValueError`` with the reason in
    ``init_state``; models of this library also have the property ``streams``.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, nn
        >>> class Tagger(nnx.Module):
        ...     def __init__(self, features, tags, *, rngs):
        ...         self.attention = nn.Attention(features, 2, mechanism="aaren", rngs=rngs)
        ...         self.head = nnx.Linear(features, tags, rngs=rngs)
        ...     def __call__(self, x, *, mask=None, state=None, return_state=False):
        ...         h, state = self.attention(x, is_causal=True, mask=mask, state=state,
        ...                                   return_state=True)
        ...         return (self.head(h), state) if return_state else self.head(h)
        ...     def init_state(self, batch_size, max_length=None, *, dtype=None):
        ...         return self.attention.init_state(batch_size, max_length, dtype=dtype)
        ...     def step(self, x, state, *, mask=None):
        ...         h, state = self.attention.step(x, state, mask=mask)
        ...         return self.head(h), state
        >>> tagger = Tagger(8, 5, rngs=nnx.Rngs(0))
        >>> isinstance(tagger, inference.StreamingModel)
        True
        >>> y, state = inference.prefill(tagger, jnp.ones((2, 10, 8)))
        >>> y.shape
        (2, 5)
    """

    def __call__(
        self,
        x: Array,
        *,
        mask: Mask | None = None,
        state: State | None = None,
        return_state: Literal[True],
    ) -> tuple[Any, State]:
        """Maps whole sequences, starting from a state.

        Args:
            x: Observations, [B, T, ...], or tokens, int [B, T].
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            state: State before the sequences; None is the initial state.
            return_state: Always True here.

        Returns:
            Outputs at every position, [B, T, ...], or after the last one, [B, ...]; and the state.
        """
        ...

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> State:
        """Returns the state before the first observation.

        Args:
            batch_size: Batch size B.
            max_length: Maximum number of observations, for a state that grows without it; others
                ignore it.
            dtype: Dtype of the observations. It is passed only for float64; a model without float64
                support may omit it.
        """
        ...

    def step(self, x: Array, state: State, *, mask: Array | None = None) -> tuple[Any, State]:
        """Processes one observation per row.

        Args:
            x: Observations, [B, ...].
            state: State from ``init_state``, ``__call__`` or ``step``.
            mask: Boolean array of shape [B]; where False, the row's state is unchanged.

        Returns:
            The output of each row, [B, ...], and the new state, of the same shapes and dtypes.
        """
        ...


def check_model(model: Any, *, sequences: bool = False) -> None:
    """Raises TypeError unless a model streams.

    Example:
        >>> from flax import nnx
        >>> check_model(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        Traceback (most recent call last):
        ...
        TypeError: expected a model that streams, got Linear, which has no init_state and no step; \
    see flax_linattn.inference.StreamingModel.
    """
    if isinstance(model, type):
        raise TypeError(
            f"expected a model that streams, got the class {model.__name__}; pass an instance."
        )
    missing = [n for n in ("init_state", "step") if not callable(getattr(model, n, None))]
    missing += ["__call__"] * (sequences and not callable(model))
    if missing:
        raise TypeError(
            f"expected a model that streams, got {type(model).__name__}, which has "
            f"{' and '.join(f'no {name}' for name in missing)}; "
            "see flax_linattn.inference.StreamingModel."
        )


def resolve_state(
    model: StreamingModel,
    x: Array,
    state: State | None,
    max_length: int | None,
    dtype: DTypeLike | None,
) -> State:
    """Returns the given state, or the model's initial state with one row for each of ``x``.

    Args:
        model: A model that streams.
        x: Observations, [B, ...].
        state: State before the observations; None is the initial state.
        max_length: Maximum number of observations, needed by mechanisms with a cache.
        dtype: Dtype of the observations; None is that of ``x``, or float32 for tokens.
    """
    if state is not None:
        return state
    if dtype is None and jnp.issubdtype(x.dtype, jnp.floating):
        dtype = x.dtype
    return make_state(model, x.shape[0], max_length, jnp.float32 if dtype is None else dtype)


def make_state(
    model: StreamingModel, batch_size: int, max_length: int | None, dtype: DTypeLike
) -> State:
    """Makes an initial state; dtypes narrower than float32 count as float32."""
    if jnp.dtype(dtype).itemsize <= 4:
        return model.init_state(batch_size, max_length)
    return model.init_state(batch_size, max_length, dtype=dtype)


def expected_state(model: StreamingModel, batch_size: int) -> dict[str, tuple[int | None, ...]]:
    """Shape of each leaf of a state by path; None marks sizes that ``max_length`` decides."""
    short, long = (
        jax.tree_util.tree_leaves_with_path(
            jax.eval_shape(lambda length=length: model.init_state(batch_size, length))
        )
        for length in (1, 2)
    )
    return {
        path_name(path): tuple(
            a if a == b else None for a, b in zip(one.shape, two.shape, strict=True)
        )
        for (path, one), (_, two) in zip(short, long, strict=True)
    }


def state_grows(model: StreamingModel) -> bool:
    """Whether a state grows with the number of observations, up to ``max_length``."""
    return any(None in shape for shape in expected_state(model, 1).values())


def describe_array(array: Any) -> dict[str, Any]:
    """JSON values of an array with a batch axis: its shape without that axis, and its dtype."""
    return {"shape": list(array.shape[1:]), "dtype": str(np.dtype(array.dtype))}


def path_name(path: Any) -> str:
    """Formats the path of a leaf, such as "backbone.layers.0.m"."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"
