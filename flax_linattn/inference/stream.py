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
from flax_linattn.inference.model import StreamingModel, check_model, make_state
from flax_linattn.inference.prefill import check_capacity, check_prompt, prefill_chunk, zero_output
from flax_linattn.inference.programs import step
from flax_linattn.inference.state import check_indices, gather_rows, reset_rows
from flax_linattn.inference.state_diff import diff_states
from flax_linattn.typing import Array, State


class Stream:
    """Runs a model over a stream of observations, in rows that may begin and end independently.

    Each program is compiled once, on its first call, and reuses the memory of the state. Time and
    memory per observation are constant if the state of the mechanism has constant size.

    Args:
        model: A :class:`StreamingModel`; later changes of its weights have no effect.
        batch_size: Number B of independent rows.
        max_length: Maximum number of observations, needed by mechanisms with a cache.
        dtype: Dtype of the observations; float64 needs a state of float64.

    Attributes:
        max_length: Maximum number of observations, as given.
        state: State of the model, batch axis first. The next call reuses its memory: copy it
            (``jax.tree.map(jnp.copy, stream.state)``) to save it. It may be set, for example to a
            loaded state, which is copied and remains valid.
        num_steps: Number of observations since the last reset of all rows.
        num_compilations: Number of compiled programs: one for ``step`` and one for ``prefill``, if
            all inputs have the same shapes and dtypes.

    Raises:
        ValueError: If the model cannot stream.
        TypeError: If ``model`` is not a model.

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
        self._batch_size, self.max_length = batch_size, max_length
        self._state: State = self.initial_state(batch_size)
        self._capacity = Capacity(model, self._state)
        self.num_steps = 0
        self.num_compilations = 0
        graphdef, variables = nnx.split(model)
        # Flattening nnx variables at every call would take longer than a small step.
        self._variables, tree = jax.tree.flatten(variables)

        def merge(variables: list[Array]) -> Any:
            return nnx.merge(graphdef, jax.tree.unflatten(tree, variables))

        @partial(jax.jit, donate_argnames="state")
        def process(
            variables: list[Array], state: State, x: Array, mask: Array | None, reset: Array | None
        ) -> Any:
            self.num_compilations += 1  # runs while tracing, once per compilation
            return step(merge(variables), x, state, mask=mask, reset=reset, max_length=max_length)

        @partial(jax.jit, donate_argnames=("y", "state"))
        def process_chunk(
            variables: list[Array], y: Array, state: State, x: Array, mask: Array
        ) -> Any:
            self.num_compilations += 1
            return prefill_chunk(merge(variables), x, mask, y, state)

        @jax.jit
        def initial_output(variables: list[Array], state: State, x: Array) -> Array:
            return zero_output(merge(variables), x, state)

        @partial(jax.jit, donate_argnames="state")
        def reset(state: State, rows: Array) -> State:
            return reset_rows(state, rows, self.initial_state(1))

        self._step, self._process_chunk = process, process_chunk
        self._initial_output, self._reset = initial_output, reset

    def initial_state(self, batch_size: int) -> State:
        """Returns the state of this many rows before their first observation."""
        return make_state(self._model, batch_size, self.max_length, self._dtype)

    @property
    def state(self) -> State:
        """State of the model; see the attributes of the class."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        leaves = jax.tree.leaves(state)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
            raise ValueError(
                "the memory of this state was reused by a later call; copy a state to reuse it "
                "later: jax.tree.map(jnp.copy, stream.state)."
            )
        wrong = diff_states(self._state, state)
        trees: Any = [jax.tree.structure(s) for s in (state, self._state)]
        if wrong or trees[0] != trees[1]:
            raise ValueError(
                "expected a state of the same model, batch size, max_length and dtypes as this "
                f"stream has:{wrong or ' the tree structures differ.'}"
            )
        self._state = jax.tree.map(jnp.copy, state)
        self._capacity.counts = self._capacity.read_counts(self._state)

    def step(
        self, x: ArrayLike, mask: ArrayLike | None = None, *, reset: ArrayLike | None = None
    ) -> Array:
        """Processes one observation per row.

        Args:
            x: Observations, [B, in_features].
            mask: Boolean array of shape [B]; where False, the row ignores the observation. If a
                cache or a table of positions limits the model, observations are counted on the
                host: prefer NumPy arrays, because the host waits for masks and resets on a device.
            reset: Boolean array of shape [B]; where True, the row is reset first, so that this
                observation begins a new sequence.

        Returns:
            The model's output for each row.

        Raises:
            ValueError: If a cache or a table of positions is full (the state is unchanged), a shape
                does not match, or the state grows and ``max_length`` is missing. A model of your
                own gives the size of its table of positions as ``num_positions``.
            TypeError: If ``mask`` or ``reset`` is not boolean, or ``jit`` traces the call: the
                stream could not keep its state.
        """
        _check_traced(x, mask, reset)
        if not isinstance(x, jax.Array) and type(x) is not np.ndarray:  # not a masked array
            x = jnp.asarray(x)
        counts = self._capacity.count_after(mask, reset)
        arrays = _copy_if_numpy(x), _copy_if_numpy(mask), _copy_if_numpy(reset)
        y, state = self._step(self._variables, self._state, *arrays)
        self._keep(state)
        self._capacity.counts = counts
        self.num_steps += 1
        return y

    def prefill(
        self, x: ArrayLike, mask: ArrayLike | None = None, *, chunk_size: int = 128
    ) -> Array:
        """Processes many observations per row by the model's parallel form, in chunks of one size.

        One program serves all chunks and all lengths T, and uses the memory of one chunk.

        Args:
            x: Observations, [B, T, in_features], T >= 1.
            mask: Boolean array of shape [B, T]; True marks valid tokens. Padding may be anywhere.
                Rows of padding alone are unchanged: a row may begin while others run.
            chunk_size: Number of observations of a chunk.

        Returns:
            See :func:`flax_linattn.inference.prefill`.

        Raises:
            ValueError: If the observations exceed the capacity of a row (the state is unchanged), a
                shape does not match, or the state grows and ``max_length`` is missing.
            TypeError: If ``mask`` is not boolean, the model cannot be called on sequences, or
                ``jit`` traces the call.

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
        _check_traced(x, mask)
        prompt, real = jax.tree.map(np.asarray, check_prompt(x, mask, chunk_size))
        check_capacity(prompt, real, self.max_length)
        counts = self._capacity.count_after(real, length=prompt.shape[1])
        y = self._initial_output(self._variables, self._state, prompt[:, :1])
        for start in range(0, prompt.shape[1], chunk_size):
            chunk = _pad_chunk(prompt, real, start, chunk_size)
            y, state = self._process_chunk(self._variables, y, self._state, *chunk)
            self._keep(state)
        self._capacity.counts = counts
        self.num_steps += prompt.shape[1]
        return y

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Resets all rows, or only the rows that are True in ``rows``, a boolean array [B].

        Raises:
            TypeError: If ``rows`` is not boolean, or ``jit`` traces the call.
            ValueError: If the shape of ``rows`` is not [B].

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
            self._keep(self.initial_state(self._batch_size))
            self.num_steps = 0
            self._capacity.counts = np.zeros_like(self._capacity.counts)
        else:
            _check_traced(rows)
            self._keep(self._reset(self._state, _copy_if_numpy(rows)))
            self._capacity.counts = self._capacity.count_after(
                np.zeros(self._batch_size, bool), rows
            )

    def gather(self, indices: ArrayLike) -> None:
        """Replaces the state of each row i by the state of row ``indices[i]``.

        This forks a row into several independent rows, or reorders rows.

        Args:
            indices: Row indices, int [B].

        Raises:
            TypeError: If the dtype of ``indices`` is not an integer dtype, or ``jit`` traces the
                call.
            ValueError: If the shape of ``indices`` is not [B], or an index is outside 0 ... B - 1.

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
                f"expected indices of shape [{self._batch_size}], one per row, got shape "
                f"{indices.shape}."
            )
        self._keep(_gather_rows(self._state, indices))
        self._capacity.counts = self._capacity.counts[np.asarray(indices)]

    def _keep(self, state: State) -> None:
        """Sets the state after a call; ``jit`` traces it even if all arguments are constants."""
        _check_traced(state)
        self._state = state


def _check_traced(*arrays: Any) -> None:
    """Raises a TypeError for arrays that ``jit`` traces: a stream would keep a traced state."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays)):
        raise TypeError(
            "a Stream keeps its state outside of jit, and compiles its own step; call it outside, "
            "or run whole sequences by inference.unroll, or model.step in jax.lax.scan."
        )


def _copy_if_numpy(x: Any) -> Any:
    """Copies a NumPy array, which its owner may overwrite while the program still reads it."""
    return np.array(x) if isinstance(x, np.ndarray) else x


_gather_rows = jax.jit(gather_rows, donate_argnames="state")


def _pad_chunk(x: NDArray, mask: NDArray | None, start: int, size: int) -> tuple[NDArray, NDArray]:
    """Slices ``size`` observations on the host, padded at the end, and their mask."""
    x = x[:, start : start + size]
    real = np.ones(x.shape[:2], bool) if mask is None else mask[:, start : start + size]
    padding = [(0, 0), (0, size - x.shape[1])]
    return np.pad(x, padding + [(0, 0)] * (x.ndim - 2)), np.pad(real, padding)
