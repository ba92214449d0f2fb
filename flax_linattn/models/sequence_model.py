"""Base class of models: calls on whole sequences, and steps as a recurrent network."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn.checks import check_array
from flax_linattn.nn.call import Call
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.checks import check_mask, check_segments
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import Array, Mask, SegmentIds, SequenceOptions, State


class CallOptions(SequenceOptions, total=False):
    """Keyword options of a call of ``SequenceModel``."""

    dropout_key: Array | None
    ended: bool
    every_step: bool
    positions: Int[Array, "P"] | None


class SequenceModel(nnx.Module, abc.ABC):
    """Base class of models that map whole sequences in parallel and run as recurrent networks.

    ``__call__`` and ``step`` validate their arguments, zero padding, and shard outputs like inputs,
    for all models alike. A subclass implements ``_map`` and ``_map_step``, which receive validated
    arguments, ``init_state``, and the properties ``observation_shape``, ``streams`` and
    ``num_positions``.

    Attributes:
        state_type: Class of the model's states.
        option_names: Constructor arguments that are attributes of the same name, see ``options``.
        output_axes: Number of leading axes that outputs share with inputs: 2 if there is always an
            output for each observation, else 1.
    """

    state_type: ClassVar[type]
    output_axes: ClassVar[int] = 1
    option_names: ClassVar[tuple[str, ...]] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        return {name: getattr(self, name) for name in self.option_names}

    @property
    @abc.abstractmethod
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation, see ``Embedding``."""

    @property
    def observation_columns(self) -> str:
        """Description of an observation's columns, for error messages."""
        return ""

    @property
    @abc.abstractmethod
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""

    @property
    @abc.abstractmethod
    def num_positions(self) -> int | None:
        """Maximum length of a sequence imposed by positions; None if unlimited."""

    @overload
    def __call__(
        self, x: Array, *, return_state: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> Array: ...

    @overload
    def __call__(
        self, x: Array, *, return_state: Literal[True], **options: Unpack[CallOptions]
    ) -> tuple[Array, Any]: ...

    @automatic(lambda model: model.output_axes)
    def __call__(
        self,
        x: Array,
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: State | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
        **own: Any,
    ) -> Array | tuple[Array, State]:
        """Maps whole sequences of observations to outputs, in parallel.

        Args:
            x: Observations of shape ``[B, T, *observation_shape]``, T >= 1.
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            segment_ids: Integer array of shape [B, T]; ids of packed sequences.
            state: State returned by an earlier call, whose observations precede these.
            return_state: Whether to return ``(outputs, state)`` instead of ``outputs``.
            dropout_key: Random key that enables dropout; None disables it; see
                ``nn.TransformerBlock``.
            form: Form of the computation; see ``ops.Mechanism.attend``.
            **own: ``every_step`` for models with one output for each sequence: return the outputs
                after every observation instead of the last; ``positions`` for forecasters: return
                the forecasts after these observations; ``ended`` for ``MiniRocketClassifier``:
                whether the series end with this call.

        Returns:
            Outputs, and the state if ``return_state``. Outputs are [B, T, ...] for models with an
            output for each observation and with ``every_step``, else [B, ...]. At masked positions
            they are meaningless.

        Raises:
            ValueError: If shapes do not match, a sequence is too long, a state is passed or
                requested and the model cannot stream, or sequences are packed and the model does
                not support that.
            TypeError: If x is not an array.
        """
        self._check_input(x, mask, segment_ids)
        mask = check_mask("mask", mask, x.shape[:2])
        if state is not None or return_state:
            self._check_streams()
        if state is not None:
            check_state(state, self.state_type, batch_size=x.shape[0])
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            state=state,
            dropout_key=dropout_key,
            return_state=return_state,
            form=form,
        )
        y, after = self._map(zero_padding(x, mask), call, **own)
        return (y, after) if return_state else y

    @abc.abstractmethod
    def _map(self, x: Array, call: Call, *args: Any, **own: Any) -> tuple[Array, State]:
        """Implements the call on observations that are 0 at padding.

        Returns outputs, and the state or None.
        """

    @abc.abstractmethod
    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> State:
        """Returns the state before the first observation.

        Args:
            batch_size: Batch size B.
            max_length: Maximum number of observations, needed by mechanisms with a cache; default
                the model's.
            dtype: Dtype of the inputs: float64 inputs need a float64 state.

        Raises:
            ValueError: If the model cannot stream.
        """

    @automatic(1)
    def step(self, x: Array, state: State, *, mask: Array | None = None) -> tuple[Array, Any]:
        """Processes one observation per row, without dropout.

        Args:
            x: Observations of shape ``[B, *observation_shape]``.
            state: State from ``init_state``, ``__call__`` or ``step``.
            mask: Boolean array of shape [B]; where False, the row's state is unchanged and its
                output is undefined.

        Returns:
            Outputs [B, ...] and the new state.

        Raises:
            ValueError: If shapes do not match, or the model cannot stream.
        """
        self._check_streams()
        self._check_shape(x, "B")
        check_state(state, self.state_type, batch_size=x.shape[0])
        return self._map_step(x, state, check_mask("mask", mask, x.shape[:1]))

    @abc.abstractmethod
    def _map_step(self, x: Array, state: State, mask: Array | None) -> tuple[Array, State]:
        """Implements ``step``; returns outputs and the new state."""

    def _check_input(self, x: Array, mask: Mask | None, segment_ids: SegmentIds | None) -> None:
        """Validates observations and segment ids.

        Raises:
            ValueError: If shapes are wrong, there are more observations than positions, or
                sequences are packed and the model does not support it.
            TypeError: If x is not an array.
        """
        self._check_shape(x, "B", "T >= 1")
        if segment_ids is not None:
            check_segments(segment_ids, x.shape[:2])
            self._check_packs()
        # Rows with padding or several segments may be longer than any of their sequences.
        whole, limit = mask is None and segment_ids is None, self.num_positions
        if limit is not None and whole and x.shape[1] > limit:
            raise ValueError(
                f"the model has positions for {limit} observations, got {x.shape[1]}; make it with "
                "a larger max_length, or without learned positions and the pooling 'flatten'."
            )

    def _check_shape(self, x: Array, *leading: str) -> None:
        layout = f"[{', '.join(map(str, (*leading, *self.observation_shape)))}]"
        check_array(layout, observations=x)
        given = x.shape[: len(leading)], x.shape[len(leading) :]
        if len(given[0]) < len(leading) or given[1] != self.observation_shape or 0 in given[0][1:]:
            raise ValueError(
                f"expected observations {layout}{self.observation_columns}, got shape {x.shape}."
            )

    def _check_packs(self) -> None:
        """Raises ValueError with the reason if the model does not support packed sequences."""

    def _check_streams(self) -> None:
        """Raises ValueError with the reason if the model has no state."""


def check_state(
    state: Any, kind: type, num_layers: int | None = None, *, batch_size: int | None = None
) -> None:
    """Validates the state passed to a model.

    Raises:
        ValueError: If it is not a state of this class, or has another number of layers or rows.

    Example:
        >>> from flax_linattn.models import BackboneState
        >>> check_state((1, 2), BackboneState)
        Traceback (most recent call last):
        ...
        ValueError: expected a BackboneState from init_state or an earlier call of this model, got \
    tuple.
    """
    if not isinstance(state, kind):
        raise ValueError(
            f"expected a {kind.__name__} from init_state or an earlier call of this model, got "
            f"{type(state).__name__}."
        )
    layers = getattr(state, "layers", ())
    if num_layers is not None and len(layers) != num_layers:
        raise ValueError(
            f"expected a state with {num_layers} layers, as this model has, got {len(layers)}; "
            "pass a state of this model."
        )
    if batch_size is None:
        return
    rows = jax.tree.leaves(state)[0].shape[0]
    if rows != batch_size:
        raise ValueError(
            f"the state has {rows} rows, but the observations have {batch_size}; pass as many rows "
            "as the state has, or make a state with init_state(batch_size)."
        )
