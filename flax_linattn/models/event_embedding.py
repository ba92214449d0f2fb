"""Embedding of events: their type, the gap before them, and periodic features of their time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import nn
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.embedding import (
    EMBEDDING_INIT,
    ConvolvedEmbedding,
    PositionName,
)
from flax_linattn.nn.linear import UniformFanIn
from flax_linattn.typing import Array

FREQUENCIES = tuple(math.pi / 8 * 2**n for n in range(6))
"""Frequencies of the waves that encode a gap's scaled logarithm, periods 16 to 0.5."""

MAX_EVENT_TYPE = 2**24
"""Largest integer up to which float32 is exact: event types are columns of float observations."""


class EventColumns(NamedTuple):
    """Columns of an observation of ``EventEmbedding``.

    Attributes:
        log_gap: Log of the time since the previous event, in units of the model's scale, of shape
            [...]; 0 where ``known`` is 0.
        known: 1 if there was a previous event or a beginning of the observation, else 0; shape
            [...].
        event_type: Event type 0 ... M - 1, or M for the beginning of an observation, which is not
            an event; shape [...].
        waves: Cosines, then sines, of the time's phase in each of the P periods, of shape [..., 2
            P].
    """

    log_gap: Array
    known: Array
    event_type: Array
    waves: Array

    @classmethod
    def from_array(cls, x: Array) -> EventColumns:
        """Splits observations [..., 3 + 2 P] into columns."""
        return cls(x[..., 0], x[..., 1], x[..., 2], x[..., 3:])

    def to_array(self) -> Array:
        """Concatenates the columns to observations [..., 3 + 2 P]."""
        first = jnp.stack([self.log_gap, self.known, self.event_type], axis=-1)
        return jnp.concatenate([first, self.waves], axis=-1)


class EventEmbedding(ConvolvedEmbedding):
    """Embeds events: a table of event types, plus a short convolution over types and times.

    The logarithm of the gap before an event is encoded by waves of ``FREQUENCIES``, so that no unit
    is too large or too small. The phase of an event in each of some periods (hour of the day, day
    of the week) is encoded by a cosine and a sine, which the host computes in float64. The
    transformer Hawkes process (Zuo et al., 2020) adds such waves of the absolute time, with
    geometrically increasing periods; here ``periods`` can be chosen. Its embedding depends on one
    event only, as with ``kernel_size=1``.

    An event type outside 0 ... M gives NaN.

    Args:
        num_event_types: Number M of event types 0 ... M - 1; the type M stands for the beginning of
            an observation.
        features: Number of features C.
        kernel_size: Number of events that the convolution covers, the current one included.
        periods: Lengths of the P periods, in units of the model's scale.
        spread: Standard deviation of the log gaps, by which they are divided.
        position: Embedding of the event's index: "none", "sinusoidal" or "learned".
        max_length: Maximum number of tokens of a sequence; needed for learned positions.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        embedding_init: Initializer of the table.
        kernel_init: Initializer of the convolution.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If observations are neither float32 nor float64 (raised by the calls).

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = EventEmbedding(3, 8, periods=(24.0, 168.0), rngs=nnx.Rngs(0))
        >>> h, _ = embedding(jnp.ones((2, 5, 7)), positions=jnp.arange(5)[None])
        >>> h.shape, embedding.observation_shape
        ((2, 5, 8), (7,))
    """

    option_names = (
        *("num_event_types", "features", "kernel_size", "periods", "spread", "position"),
        *("max_length", "dtype", "param_dtype"),
    )

    def __init__(
        self,
        num_event_types: int,
        features: int,
        *,
        kernel_size: int = 4,
        periods: Sequence[float] = (),
        spread: float = 1.0,
        position: PositionName = "none",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: nnx.Initializer = EMBEDDING_INIT,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, features=features)
        check_integers(1, MAX_EVENT_TYPE - 1, num_event_types=num_event_types)
        for name, value in (("spread", spread), *(("periods", period) for period in periods)):
            if not 0 < value < math.inf:
                raise OptionError(f"{name} must be positive and finite, got {value}.", name)
        self.num_event_types = int(num_event_types)
        self.features = features
        self.periods = tuple(float(period) for period in periods)
        self.spread = float(spread)
        self.observation_shape = (3 + 2 * len(self.periods),)
        self.dtype = dtype
        self.table = nnx.Param(
            embedding_init(rngs.params(), (num_event_types + 1, features), param_dtype)
        )
        num_inputs = 2 + 2 * len(FREQUENCIES) + 2 * len(self.periods) + features
        self.window = nn.ValueEmbedding(
            num_inputs,
            features,
            kernel_size=kernel_size,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or UniformFanIn(kernel_size * num_inputs),
            rngs=rngs,
        )
        self._set_positions(position, max_length, rngs)

    @property
    def param_dtype(self) -> Any:
        """Dtype of the embedding table."""
        return self.table.dtype

    @property
    def _convolution(self) -> nn.ValueEmbedding:
        return self.window

    def _inputs(self, x: Array) -> tuple[Array, Array]:
        """Encodes times and types [..., inputs] for the convolution, and types alone [..., C]."""
        if x.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"observations of events must be float32 or float64, got {x.dtype}, which cannot "
                "represent every event type; cast them, for example x.astype(jnp.float32)."
            )
        log_gap, known, event_type, waves = EventColumns.from_array(x)
        angles = (log_gap / self.spread)[..., None] * jnp.asarray(FREQUENCIES, x.dtype)
        gap = jnp.concatenate(
            [(log_gap / self.spread)[..., None], jnp.cos(angles), jnp.sin(angles)], axis=-1
        )
        times = jnp.concatenate([known[..., None], gap * known[..., None], waves], axis=-1)
        unknown = (
            (event_type < 0)
            | (event_type > self.num_event_types)
            | (event_type != jnp.round(event_type))
        )
        token = jnp.where(unknown, self.num_event_types + 1, event_type)
        types = jnp.take(
            self.table[...], token.astype(jnp.int32), axis=0, mode="fill", fill_value=jnp.nan
        )
        return jnp.concatenate([times, types.astype(times.dtype)], axis=-1), types

    def _outputs(self, h: Array, own: Array) -> Array:
        return h + (own * jnp.asarray(self.features**0.5, own.dtype)).astype(h.dtype)
