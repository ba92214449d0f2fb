"""Arguments of a token: numbers beside k and v that a mechanism wants of each, such as a decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array


class TokenArgument(NamedTuple):
    """A number or vector of every token and head that a mechanism takes beside k and v.

    It is a keyword argument of ``attend``, ``step`` and ``reference``, and nothing that a mechanism
    can do without. A layer makes it of its inputs: ``activation(x W + b)``.

    Attributes:
        name: of the keyword argument.
        axes: those after [B, S], or after [B] in ``step``: "H", "HK" or "HV".
        low: smallest value.
        high: largest value.
        activation: from any number to one between ``low`` and ``high``.
        bias_init: (key, shape, dtype) -> the first b, as in ``jax.nn.initializers``.
    """

    name: str
    axes: str
    low: float = -math.inf
    high: float = math.inf
    activation: Callable[[Array], Array] = lambda x: x
    bias_init: Callable[[Array, tuple[int, ...], Any], Array] = jax.nn.initializers.zeros

    def layout(self, *, time: bool) -> str:
        """Its axes for people.

        Example:
            >>> TokenArgument("beta", "H").layout(time=True)
            '[B, S, H]'
        """
        return f"[{', '.join(('B', *('S' * time), *self.axes))}]"

    def shape(self, num_heads: int, key_dim: int, value_dim: int) -> tuple[int, ...]:
        """Sizes of ``axes``."""
        sizes = {"H": num_heads, "K": key_dim, "V": value_dim}
        return tuple(sizes[axis] for axis in self.axes)


def check_token_arguments(
    name: str,
    declared: Sequence[TokenArgument],
    given: Mapping[str, ArrayLike | None],
    k: Array,
    v: Array,
    mask: Array | None,
) -> dict[str, Array]:
    """Those that were given, in the dtype of sums.

    A number out of range raises where its value is known; under ``jit``, where it is not, it
    becomes NaN, and so does every output that it reaches, and others of its row and head where
    blocks multiply what is not seen by 0. What stands at masked tokens counts for nothing.

    Args:
        name: of the mechanism.
        declared: what it wants.
        given: by name; None = not given.
        k: keys [..., H, K].
        v: values [..., H, V].
        mask: bool [...], False = padding.

    Raises:
        TypeError: one is missing, no array, or of another dtype.
        ValueError: one is of another shape or out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> decay = TokenArgument("log_decay", "H", high=0.0)
        >>> k = jnp.ones((1, 2, 3, 4))
        >>> check_token_arguments("mine", [decay], {"log_decay": k[..., 0]}, k, k, None)
        Traceback (most recent call last):
        ...
        ValueError: log_decay of 'mine' must be at most 0, got 1.0.
    """
    time, checked = k.ndim == 4, {}
    for argument in declared:
        layout, value = argument.layout(time=time), given.get(argument.name)
        if value is None:
            raise TypeError(
                f"{name!r} needs {argument.name} {layout}, one for each token; pass it by keyword."
            )
        if not hasattr(value, "dtype"):
            raise TypeError(
                f"{argument.name} must be an array {layout}, got {type(value).__name__}; one "
                "number for all is jnp.full(shape, number)."
            )
        array = jnp.asarray(value)
        sums = accumulation_dtype(v.dtype)
        if array.dtype not in (v.dtype, sums):
            wanted = " or ".join(dict.fromkeys((str(v.dtype), str(sums))))
            raise TypeError(f"{argument.name} must be {wanted} as k and v, got {array.dtype}.")
        shape = (*k.shape[:-2], *argument.shape(k.shape[-2], k.shape[-1], v.shape[-1]))
        if array.shape != shape:
            raise ValueError(
                f"{name!r} expects {argument.name} as {layout}, here {shape}, got {array.shape}."
            )
        checked[argument.name] = _in_range(name, argument, zero_padding(array, mask).astype(sums))
    return checked


def _in_range(name: str, argument: TokenArgument, x: Array) -> Array:
    if math.isinf(argument.low) and math.isinf(argument.high):
        return x
    if isinstance(x, jax.core.Tracer):
        return jnp.where((x < argument.low) | (x > argument.high), jnp.nan, x)
    with jax.ensure_compile_time_eval():  # known here, also where something else is being traced
        outside = (x < argument.low) | (x > argument.high)
        found = bool(jnp.any(outside))  # one number leaves the device
    if found:
        limits = [
            f"at {word} {limit:g}"
            for word, limit in (("least", argument.low), ("most", argument.high))
            if math.isfinite(limit)
        ]
        raise ValueError(
            f"{argument.name} of {name!r} must be {' and '.join(limits)}, got "
            f"{np.asarray(x)[np.asarray(outside)][0]}."
        )
    return x
