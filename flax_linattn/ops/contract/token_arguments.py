"""Per-token inputs: numbers for every token in addition to k and v, such as gates and decays."""

from __future__ import annotations

import dataclasses
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array

RESERVED_NAMES = (
    *("q", "k", "v", "query", "latents", "is_causal", "mask", "query_mask", "segment_ids"),
    *("initial_state", "return_state", "form", "state", "self"),
)
"""Argument names of ``attend``, ``step``, ``reference`` and ``lift``."""


def identity(x: Array) -> Array:
    """Returns ``x``: the activation of a per-token input without limits."""
    return x


@dataclasses.dataclass(frozen=True)
class TokenArgument:
    """Per-token input of a mechanism: a number or vector for every token and head.

    It is a required keyword argument of ``attend``, ``step`` and ``reference``. A layer computes it
    from its inputs: ``activation(x W + b)``.

    Attributes:
        name: Name of the keyword argument.
        axes: Axes after [B, S] (after [B] in ``step``), each at most once: "H", "HK", "HV".
        low: Minimum value.
        high: Maximum value.
        activation: Function from any number to a number between ``low`` and ``high``; required if
            one of them is finite.
        bias_init: Initializer (key, shape, dtype) -> b, as in ``jax.nn.initializers``.

    Raises:
        ValueError: If the name is invalid or reserved, an axis is unknown or repeated, ``low`` is
            above ``high``, or an activation is missing.

    Example:
        >>> import jax
        >>> TokenArgument("rate", "H", low=0.0, activation=jax.nn.softplus).layout(time=False)
        '[B, H]'
        >>> TokenArgument("mask", "H")
        Traceback (most recent call last):
        ...
        ValueError: a token argument cannot be named 'mask', because attend, step or lift has an
        argument of that name; choose another name.
    """

    name: str
    axes: str
    low: float = -math.inf
    high: float = math.inf
    activation: Callable[[Array], Array] = identity
    bias_init: Callable[[Array, tuple[int, ...], Any], Array] = jax.nn.initializers.zeros

    def __post_init__(self) -> None:
        name, axes = self.name, self.axes
        if not str(name).isidentifier() or keyword.iskeyword(name):
            raise ValueError(
                f"the name of a token argument must be a Python identifier, got {name!r}; it is a "
                "keyword argument of attend and step, such as log_decay."
            )
        if name in RESERVED_NAMES:
            raise ValueError(
                f"a token argument cannot be named {name!r}, because attend, step or lift "
                "has an argument of that name; choose another name."
            )
        if not axes or not set(axes) <= set("HKV") or len(set(axes)) < len(axes):
            raise ValueError(
                f"the axes of {name!r} after batch and time must be some of H, K and V, "
                f'each at most once, such as "H" or "HK", got {axes!r}.'
            )
        if not self.low <= self.high:
            raise ValueError(
                f"{name!r} must have low <= high, got {self.low:g} and {self.high:g}; omit "
                "a limit that does not apply."
            )
        if self.activation is identity and (math.isfinite(self.low) or math.isfinite(self.high)):
            raise ValueError(
                f"{name!r} has limits, {self.low:g} and {self.high:g}, so a layer needs an "
                "activation within them; pass one, such as jax.nn.sigmoid for 0 to 1."
            )

    @property
    def accepts_negative_infinity(self) -> bool:
        """Whether -inf is valid, as in a log-decay, whose token forgets everything before it."""
        return math.isinf(self.low) and math.isfinite(self.high)

    def layout(self, *, time: bool) -> str:
        """Returns the axes as a string for error messages.

        Example:
            >>> TokenArgument("beta", "H").layout(time=True)
            '[B, S, H]'
        """
        return f"[{', '.join(('B', *('S' * time), *self.axes))}]"

    def shape(self, num_heads: int, key_dim: int, value_dim: int) -> tuple[int, ...]:
        """Returns the shape of one token's input, the sizes of ``axes``."""
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
    """Checks the per-token inputs of a call and returns them in the accumulation dtype.

    A number out of range raises an error if its value is known. Under ``jit`` it becomes NaN, and
    so does every output that attends to it. Masked tokens may hold any number.

    Args:
        name: Name of the mechanism.
        declared: Per-token inputs that the mechanism declares.
        given: Values by name; None means not passed.
        k: Keys of shape [..., H, K].
        v: Values of shape [..., H, V].
        mask: Boolean array of shape [...]; False marks padding.

    Raises:
        TypeError: If an input is missing, not an array, or has a wrong dtype.
        ValueError: If an input has a wrong shape or is out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> decay = TokenArgument("log_decay", "H", high=0.0, activation=jax.nn.log_sigmoid)
        >>> k = jnp.ones((1, 2, 3, 4))
        >>> check_token_arguments("mine", [decay], {"log_decay": k[..., 0]}, k, k, None)
        Traceback (most recent call last):
        ...
        ValueError: log_decay of 'mine' must be at most 0, got 1.0 at [0, 0, 0] of
        [B, S, H]; a layer makes it by log_sigmoid, or clip it: jnp.clip(x, max=0).
    """
    time, checked = k.ndim == 4, {}
    for argument in declared:
        layout, value = argument.layout(time=time), given.get(argument.name)
        if value is None:
            raise TypeError(
                f"{name!r} needs {argument.name} {layout}, with a value for each token; "
                "pass it by keyword."
            )
        if not hasattr(value, "dtype"):
            raise TypeError(
                f"{argument.name} must be an array {layout}, got {type(value).__name__}; "
                "for the same value everywhere use jnp.full(shape, value)."
            )
        array = jnp.asarray(value)
        sums = accumulation_dtype(v.dtype)
        if array.dtype not in (v.dtype, sums):
            wanted = " or ".join(dict.fromkeys((str(v.dtype), str(sums))))
            raise TypeError(
                f"{argument.name} must have the dtype {wanted} of k and v, got {array.dtype}."
            )
        shape = (*k.shape[:-2], *argument.shape(k.shape[-2], k.shape[-1], v.shape[-1]))
        if array.shape != shape:
            raise ValueError(
                f"{name!r} expects {argument.name} as {layout}, here {shape}, got {array.shape}."
            )
        checked[argument.name] = _check_range(
            name, argument, zero_padding(array, mask).astype(sums), time=time
        )
    return checked


def _check_range(name: str, argument: TokenArgument, x: Array, *, time: bool) -> Array:
    if math.isinf(argument.low) and math.isinf(argument.high):
        return x
    if isinstance(x, jax.core.Tracer):
        return jnp.where((x < argument.low) | (x > argument.high), jnp.nan, x)
    with jax.ensure_compile_time_eval():  # known even while another array is traced
        outside = (x < argument.low) | (x > argument.high)
        any_outside = bool(jnp.any(outside))  # one number leaves the device
    if any_outside:
        raise ValueError(
            _range_message(name, argument, np.asarray(x), np.asarray(outside), time=time)
        )
    return x


def _range_message(
    name: str, argument: TokenArgument, x: NDArray[Any], outside: NDArray[Any], *, time: bool
) -> str:
    """Returns the error message for a number out of range: limits, first offender, remedy."""
    limits = {"least": argument.low, "most": argument.high}
    limits = {word: limit for word, limit in limits.items() if math.isfinite(limit)}
    allowed = " and ".join(f"at {word} {limit:g}" for word, limit in limits.items())
    where = [int(index[0]) for index in np.nonzero(outside)]
    ends = {"least": "min", "most": "max"}
    cut = ", ".join(f"{ends[word]}={limit:g}" for word, limit in limits.items())
    made = getattr(argument.activation, "__name__", "its activation")
    return (
        f"{argument.name} of {name!r} must be {allowed}, got {x[tuple(where)]} at {where} of "
        f"{argument.layout(time=time)}; a layer makes it by {made}, or clip it: "
        f"jnp.clip(x, {cut})."
    )
