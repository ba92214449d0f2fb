"""One checked step of a model, and programs compiled once for equal models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn.inference.model import StreamingModel
from flax_linattn.inference.state import check_rows, reset_rows
from flax_linattn.inference.state_diff import diff_states, explain_mismatch
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array, State


class Program:
    """Compiled function of a model, made by ``compile_once``.

    Args:
        function: The function, whose first argument is a model.
        static: Names of static arguments.
        donate: Names of arguments whose memory the program reuses; pass them by name.
    """

    def __init__(
        self, function: Callable[..., Any], static: Sequence[str], donate: Sequence[str]
    ) -> None:
        run = automatic(1)(function)

        @functools.partial(
            jax.jit, static_argnums=0, static_argnames=static, donate_argnames=donate
        )
        def program(
            structure: _Structure, variables: list[Array], *args: Any, **kwargs: Any
        ) -> Any:
            graphdef, tree = structure.parts
            return run(nnx.merge(graphdef, jax.tree.unflatten(tree, variables)), *args, **kwargs)

        self._program = program
        functools.update_wrapper(self, function)

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        return self.bind(model)(*args, **kwargs)

    def bind(self, model: Any) -> Callable[..., Any]:
        """Returns the function of the other arguments; later changes of weights have no effect.

        Many calls are faster than calls with the model, which is split into arrays each time.
        """
        graphdef, variables = nnx.split(model)
        leaves, tree = jax.tree.flatten(variables)
        return functools.partial(self._program, _Structure((graphdef, tree)), leaves)


class _Structure:
    """Static part of a model, with a cached hash: hashing it takes longer than a small step."""

    def __init__(self, parts: tuple[Any, Any]) -> None:
        self.parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Structure) and self.parts == other.parts)


def compile_once(
    *static: str, donate: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Program]:
    """Jits a function whose first argument is a model, once for all models built alike.

    The model's arrays are arguments of the program, so that new weights need no compilation, and
    gradients flow into them. Changes that the function makes to the model are lost.

    Args:
        *static: Names of static arguments.
        donate: Names of arguments whose memory the program reuses; pass them by name.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> traces = []
        >>> @compile_once("power")
        ... def apply(model, x, *, power):
        ...     traces.append(power)
        ...     return model(x) ** power
        >>> for seed in range(3):
        ...     y = apply(nnx.Linear(2, 3, rngs=nnx.Rngs(seed)), jnp.ones((1, 2)), power=2)
        >>> y.shape, traces
        ((1, 3), [2])
    """
    return lambda function: Program(function, static, donate)


@automatic(1)
def step(
    model: StreamingModel,
    x: Array,
    state: State,
    *,
    mask: Array | None = None,
    reset: Array | None = None,
    max_length: int | None = None,
) -> tuple[Array, State]:
    """Processes one observation per row, after resetting the rows of ``reset``.

    Args:
        model: A :class:`StreamingModel`.
        x: Observations, [B, ...].
        state: State of the model, made with ``max_length``.
        mask: Boolean array of shape [B]; where False, the row ignores the observation.
        reset: Boolean array of shape [B]; where True, the row is reset first, whatever ``mask``.
        max_length: Maximum number of observations, needed by mechanisms with a cache.
    """
    if mask is not None:
        mask = check_rows("mask", mask, jnp.shape(x)[0])
    if reset is not None:
        state = reset_rows(state, reset, model.init_state(1, max_length))
    return call_with_state(model, state, jnp.shape(x)[0], lambda: model.step(x, state, mask=mask))


def call_with_state(
    model: StreamingModel,
    state: State,
    batch_size: int,
    call: Callable[[], tuple[Array, State]],
) -> tuple[Array, State]:
    """Calls a function of a state, and explains a failure by the state if it does not fit."""
    try:
        y, new_state = call()
    except Exception as error:
        reason = explain_mismatch(model, state, batch_size)
        if reason is None:
            raise
        raise ValueError(reason) from error
    changes = diff_states(state, new_state)
    if not changes:
        return y, new_state
    reason = explain_mismatch(model, state, batch_size)
    if reason is None and jax.tree.map(jnp.shape, new_state) != jax.tree.map(jnp.shape, state):
        reason = (
            "the state of this model grows with every step, and each step would be compiled again; "
            "pass max_length, the maximum number of observations."
        )
    raise ValueError(
        reason
        or "the state of this model changes its dtypes, and would be compiled again; make it with "
        f"the dtype of the observations (dtype=...):{changes}"
    )
