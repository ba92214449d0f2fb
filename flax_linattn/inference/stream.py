"""Models as recurrent networks: one observation at a time, one compiled step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike, DTypeLike
from numpy.typing import NDArray

from flax_linattn.inference.capacity import Capacity
from flax_linattn.inference.compiled import step
from flax_linattn.inference.model import StreamingModel, check_model, make_state
from flax_linattn.inference.prefill import check_capacity, check_prompt, prefill_chunk, zero_output
from flax_linattn.inference.state import check_indices, gather_rows, reset_rows
from flax_linattn.inference.state_diff import diff_states
from flax_linattn.typing import Array, State


class Stream:
    """Runs a model over observations as they come, in rows that may begin and end independently.

    Each program is compiled once, on its first call, and reuses the state's memory: time and
    memory an observation do not depend on how many came before, if the mechanism's state has
    constant size.

    Args:
        model: A :class:`StreamingModel`, whose weights are taken as they are now.
        batch_size: B, independent streams side by side.
        max_length: Maximum number of observations, needed by mechanisms with a cache.
        dtype: Of the observations: float64 ones need a state of float64.

    Attributes:
        state: The model's state, batch axis first. The next call reuses its memory: copy it
            (``jax.tree.map(jnp.copy, stream.state)``) to keep it. It may be set, to one saved
            earlier for example, which is copied and stays usable.
        num_steps: Observations taken in since the last reset of all rows.
        num_compilations: Programs compiled for taking in observations: one for ``step`` and one for
            ``prefill``, if all inputs are alike.

    Raises:
        ValueError: The model cannot stream.
        TypeError: It is no model.

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
        self,
        model: StreamingModel,
        *,
        batch_size: int = 1,
        max_length: int | None = None,
        dtype: DTypeLike = jnp.float32,
    ) -> None:
        check_model(model)
        self._model, self._dtype = model, dtype
        self._batch_size, self._max_length = batch_size, max_length
        self._state: State = self.initial_state(batch_size)
        self._capacity = Capacity(model, self._state)
        self.num_steps = 0
        self.num_compilations = 0
        graphdef, variables = nnx.split(model)
        # Python flattens nnx variables anew at every call, which takes longer than a small step.
        self._variables, tree = jax.tree.flatten(variables)

        def of(variables: list[Array]) -> Any:
            return nnx.merge(graphdef, jax.tree.unflatten(tree, variables))

        @partial(jax.jit, donate_argnames="state")
        def take_in(
            variables: list[Array], state: State, x: Array, mask: Array | None, reset: Array | None
        ) -> Any:
            self.num_compilations += 1  # while tracing, hence once a compilation
            return step(of(variables), x, state, mask=mask, reset=reset, max_length=max_length)

        @partial(jax.jit, donate_argnames=("y", "state"))
        def take_in_many(
            variables: list[Array], y: Array, state: State, x: Array, mask: Array
        ) -> Any:
            self.num_compilations += 1
            return prefill_chunk(of(variables), x, mask, y, state)

        @jax.jit
        def before(variables: list[Array], state: State, x: Array) -> Array:
            return zero_output(of(variables), x, state)

        @partial(jax.jit, donate_argnames="state")
        def reset(state: State, rows: Array) -> State:
            return reset_rows(state, rows, self.initial_state(1))

        self._step, self._take_in_many, self._before = take_in, take_in_many, before
        self._reset = reset

    def initial_state(self, batch_size: int) -> State:
        """Returns the state of this many rows before their first observation."""
        return make_state(self._model, batch_size, self._max_length, self._dtype)

    @property
    def state(self) -> State:
        """The model's state; see the class."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        leaves = jax.tree.leaves(state)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
            raise ValueError(
                "the memory of this state was reused by a later call; save a copy: "
                "jax.tree.map(jnp.copy, stream.state)."
            )
        wrong = diff_states(self._state, state)
        trees: Any = [jax.tree.structure(s) for s in (state, self._state)]
        if wrong or trees[0] != trees[1]:
            raise ValueError(
                "expected a state as this stream has it, of the same model, rows, max_length and "
                f"dtypes:{wrong or ' its tree is another one.'}"
            )
        self._state = jax.tree.map(jnp.copy, state)
        self._capacity.taken = self._capacity.of(self._state)

    def step(
        self, x: ArrayLike, mask: ArrayLike | None = None, *, reset: ArrayLike | None = None
    ) -> Array:
        """Processes one observation per row.

        Args:
            x: [B, in_features].
            mask: Boolean array of shape [B]; where False, the row ignores the observation. Where
                the model's room has an end (a cache, a table of positions), rows are counted on the
                host: a mask or reset on a device is waited for, one of NumPy is not.
            reset: Bool [B]; where True the row first forgets all observations, so that this one
                begins a new sequence.

        Returns:
            The model's output for each row.

        Raises:
            ValueError: A cache or a table of positions has no room for the observation, which is
                not taken in; shapes that do not fit; or the state grows, for want of
                ``max_length``. (A model of one's own with such a table says so in
                ``num_positions``; else its outputs tell.)
            TypeError: ``mask`` or ``reset`` is not bool.
        """
        if not isinstance(x, jax.Array) and type(x) is not np.ndarray:  # not a masked array
            x = jnp.asarray(x)
        taken = self._capacity.after(mask, reset)
        given = _copy_if_numpy(x), _copy_if_numpy(mask), _copy_if_numpy(reset)
        y, self._state = self._step(self._variables, self._state, *given)
        self._capacity.taken = taken
        self.num_steps += 1
        return y

    def prefill(
        self, x: ArrayLike, mask: ArrayLike | None = None, *, chunk_size: int = 128
    ) -> Array:
        """Takes in many observations a row by the model's parallel form, in pieces of one size.

        One program serves all pieces of all lengths T, and its memory is that of one piece.

        Args:
            x: [B, T, in_features], T >= 1.
            mask: Boolean array of shape [B, T]; True marks valid tokens, padding anywhere. Rows of
                padding alone stay as they are: streams may begin while others run.
            chunk_size: Observations of a piece.

        Returns:
            See :func:`flax_linattn.inference.prefill`.

        Raises:
            ValueError: A row has no room for its observations, none of which is taken in; shapes
                that do not fit; or the state grows, for want of ``max_length``.
            TypeError: ``mask`` is not bool, or the model has no call on sequences.

        Example:
            >>> import jax.numpy as jnp
            >>> from flax import nnx
            >>> from flax_linattn import inference, models
            >>> model = models.Backbone(3, 16, num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
            >>> stream = inference.Stream(model, batch_size=2)
            >>> for length in (100, 300):
            ...     h = stream.prefill(jnp.ones((2, length, 3)))
            >>> h.shape, stream.num_steps, stream.num_compilations
            ((2, 16), 400, 1)
        """
        check_model(self._model, sequences=True)
        prompt, real = jax.tree.map(np.asarray, check_prompt(x, mask, chunk_size))
        check_capacity(prompt, real, self._max_length)
        taken = self._capacity.after(real, length=prompt.shape[1])
        y = self._before(self._variables, self._state, prompt[:, :1])
        for start in range(0, prompt.shape[1], chunk_size):
            piece = _pad_chunk(prompt, real, start, chunk_size)
            y, self._state = self._take_in_many(self._variables, y, self._state, *piece)
        self._capacity.taken = taken
        self.num_steps += prompt.shape[1]
        return y

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Forgets all observations, of chosen rows only if ``rows``, bool [B], is given.

        Raises:
            TypeError: ``rows`` is not bool.
            ValueError: ``rows`` is not [B].

        Example:
            >>> import jax.numpy as jnp
            >>> from flax import nnx
            >>> from flax_linattn import inference, models
            >>> model = models.Backbone(3, 16, num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
            >>> stream = inference.Stream(model, batch_size=3)
            >>> h = stream.step(jnp.ones((3, 3)))
            >>> stream.reset(jnp.array([False, True, False]))
            >>> stream.state.position.tolist()
            [1, 0, 1]
        """
        if rows is None:
            self._state, self.num_steps = self.initial_state(self._batch_size), 0
            self._capacity.taken = np.zeros_like(self._capacity.taken)
        else:
            self._state = self._reset(self._state, _copy_if_numpy(rows))
            self._capacity.taken = self._capacity.after(np.zeros(self._batch_size, bool), rows)

    def gather(self, indices: ArrayLike) -> None:
        """Lets each row go on from another one's state: row i from that of ``indices[i]``.

        This forks a row into several, which then run independently, and reorders rows.

        Args:
            indices: Int [B].

        Raises:
            TypeError: ``indices`` is not of an integer dtype.
            ValueError: ``indices`` is not [B], or one is outside 0 ... B - 1.

        Example:
            >>> import jax.numpy as jnp
            >>> from flax import nnx
            >>> from flax_linattn import inference, models
            >>> model = models.Backbone(3, 16, num_layers=1, num_heads=4, rngs=nnx.Rngs(0))
            >>> stream = inference.Stream(model, batch_size=3)
            >>> h = stream.step(jnp.ones((3, 3)), jnp.array([True, False, False]))
            >>> stream.gather(jnp.array([0, 0, 2]))
            >>> stream.state.position.tolist()
            [1, 1, 0]
        """
        indices = check_indices(indices, self._batch_size)
        if indices.shape != (self._batch_size,):
            raise ValueError(
                f"expected indices as [{self._batch_size}], the row that each row goes on from, "
                f"got shape {indices.shape}."
            )
        self._state = _gather_rows(self._state, indices)
        self._capacity.taken = self._capacity.taken[np.asarray(indices)]


def _copy_if_numpy(x: Any) -> Any:
    """A copy of a NumPy array, which its owner may fill anew while the program still reads it."""
    return np.array(x) if isinstance(x, np.ndarray) else x


_gather_rows = jax.jit(gather_rows, donate_argnames="state")


def _pad_chunk(x: NDArray, mask: NDArray | None, start: int, size: int) -> tuple[NDArray, NDArray]:
    """The observations from ``start`` on the host, padded to ``size``, and which are real."""
    x = x[:, start : start + size]
    real = np.ones(x.shape[:2], bool) if mask is None else mask[:, start : start + size]
    room = [(0, 0), (0, size - x.shape[1])]
    return np.pad(x, room + [(0, 0)] * (x.ndim - 2)), np.pad(real, room)
