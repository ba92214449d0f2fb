"""Models as recurrent networks: one observation at a time, one compiled step."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State


class Streams(Protocol):
    """A model with the two recurrent calls."""

    def init_state(self, batch_size: int, max_length: int | None = None) -> State:
        """The state before the first observation."""
        ...

    def step(
        self, x: FeaturesStep, state: State, *, mask: Array | None = None
    ) -> tuple[Array, State]:
        """Takes in one observation a row."""
        ...


def state_bytes(state: State) -> int:
    """Size of a state in bytes.

    Example:
        >>> from flax_linattn import ops
        >>> state_bytes(ops.get_mechanism("aaren").init_state(1, 8, 64, 64))
        2112
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


class Stream:
    """Runs a model over observations as they come.

    The step is compiled once, on the first call, and the state's memory is reused: time and
    memory an observation do not depend on how many came before, if the mechanism's state has
    constant size.

    Args:
        model: an ``nnx.Module`` with ``init_state`` and ``step``.
        batch_size: B, independent streams side by side.
        max_length: most observations, for mechanisms with a cache.

    Attributes:
        state: the model's state, batch axis first. The next step reuses its memory: copy it
            (``jax.tree.map(jnp.copy, stream.state)``) to keep it.
        num_steps: observations taken in since the last reset.
        num_compilations: how often the step was compiled: once, if all inputs are alike.

    Raises:
        ValueError: the model cannot stream.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> stream = inference.Stream(model)
        >>> for _ in range(3):
        ...     logits = stream.step(jnp.ones((1, 3)))
        >>> logits.shape, stream.num_steps
        ((1, 5), 3)
    """

    def __init__(
        self, model: Streams, *, batch_size: int = 1, max_length: int | None = None
    ) -> None:
        self._init = partial(model.init_state, batch_size, max_length)
        self.state: State = self._init()
        self.num_steps = 0
        graphdef, self._variables = nnx.split(model)

        self.num_compilations = 0

        @partial(jax.jit, donate_argnames="state")
        def step(variables: Any, state: State, x: Array, mask: Array | None) -> Any:
            self.num_compilations += 1  # while tracing, hence once a compilation
            y, new_state = nnx.merge(graphdef, variables).step(x, state, mask=mask)
            if jax.tree.map(jnp.shape, new_state) != jax.tree.map(jnp.shape, state):
                raise ValueError(
                    "this model's state grows with every step, and each would be compiled anew; "
                    "give max_length, the most observations of a stream."
                )
            return y, new_state

        self._step = step

    def step(self, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
        """Takes in one observation a row.

        Args:
            x: [B, in_features].
            mask: bool [B]; where False the row's state stays as it is.

        Returns:
            The model's output for each row; NaN from the observation on for which a cache or a
            table of positions has no room.

        Raises:
            ValueError: the state grows, for want of ``max_length``.
        """
        y, self.state = self._step(self._variables, self.state, x, mask)
        self.num_steps += 1
        return y

    def reset(self) -> None:
        """Forgets all observations."""
        self.state, self.num_steps = self._init(), 0


def unroll(model: Streams, x: Features, mask: Mask | None = None) -> Array:
    """Runs the model's ``step`` over whole sequences in one ``lax.scan``.

    Args:
        model: an ``nnx.Module`` with ``init_state`` and ``step``.
        x: [B, T, in_features].
        mask: bool [B, T], True = a real token.

    Returns:
        The outputs after every observation, [B, T, ...].

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> inference.unroll(model, jnp.ones((2, 7, 3))).shape
        (2, 7, 5)
    """
    if mask is None:
        mask = jnp.ones(x.shape[:2], bool)

    def body(state: State, observation: tuple[Array, Array]) -> tuple[State, Array]:
        x, mask = observation
        y, state = model.step(x, state, mask=mask)
        return state, y

    state = model.init_state(x.shape[0], x.shape[1])
    _, y = jax.lax.scan(body, state, (jnp.moveaxis(x, 1, 0), mask.T))
    return jnp.moveaxis(y, 0, 1)
