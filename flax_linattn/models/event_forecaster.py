"""Event forecaster: causal backbone, log-normal mixture of the next gap, logits of its type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from flax_linattn.checks import check_integers
from flax_linattn.models.backbone import Backbone
from flax_linattn.models.embedding import PositionName
from flax_linattn.models.event_embedding import EventColumns, EventEmbedding
from flax_linattn.models.head import Head, resolve_backbone
from flax_linattn.models.layers import EVENT_LAYERS, Layers, check_causal
from flax_linattn.models.log_normal import LogNormalMixture
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array

MIN_STD = 0.01
"""Minimum std of a component, in stds of all log gaps; repeated gaps would have infinite density.
"""


class NextEvent(NamedTuple):
    """Distribution of the next event: its time and its type, independent of each other.

    Attributes:
        gap: Distribution of the time until the event, in units of the model's scale.
        event_type_logits: Logits of the event types, of shape [..., M].
    """

    gap: LogNormalMixture
    event_type_logits: Float[Array, "... M"]

    def event_type_log_probs(self) -> Float[Array, "... M"]:
        """Log probabilities of the event types."""
        return jax.nn.log_softmax(self.event_type_logits, axis=-1)


class EventForecaster(Head):
    """Forecasts the next event after each event of a sequence: a transformer Hawkes process.

    The time to the next event has a mixture of log-normal distributions, and its type a softmax,
    independent of each other given the history, as in the model that the Aaren paper's table 2
    builds on (Bae et al., "Meta temporal point processes", 2023, after Zuo et al., 2020, and Shchur
    et al., 2020). Departures: the input is the logarithm of gaps instead of waves of times (see
    ``EventEmbedding``), and the mixture is of log gaps in units of their standard deviation, so
    that training does not depend on the unit of time.

    Times are in units of a scale that the caller chooses; the geometric mean of the gaps is a good
    choice. ``next_event`` converts outputs to distributions.

    A call maps events [B, T, 3 + 2 P], see :class:`EventColumns`, to outputs [B, T, 3 K + M].

    Args:
        backbone: A :class:`Backbone` on an :class:`EventEmbedding`; or the number M of event types,
            to build one.
        kernel_size: Kernel size of a new embedding; default 4.
        periods: Periods of a new embedding, in units of the scale.
        spread: Standard deviation of the log gaps, for a new embedding.
        num_components: Number K of components of the mixture.
        position: Position embedding of a new embedding.
        layers: Options of the layers of a new backbone.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Further arguments of a new :class:`Backbone` (num_layers, mechanism with a causal
            form, max_length, ...).

    Raises:
        ValueError: If an option is out of range, or the backbone is not causal or not for events.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.EventForecaster(3, features=16, num_layers=1, num_heads=2,
        ...                                rngs=nnx.Rngs(0))
        >>> x = models.EventColumns(log_gap=jnp.zeros((2, 5)), known=jnp.ones((2, 5)),
        ...                         event_type=jnp.ones((2, 5)),
        ...                         waves=jnp.zeros((2, 5, 0))).to_array()
        >>> following = model.next_event(model(x))
        >>> following.gap.log_mean().shape, following.event_type_log_probs().shape
        ((2, 5), (2, 5, 3))
    """

    option_names = ("backbone", "num_components", "param_dtype")

    def __init__(
        self,
        backbone: Backbone | int,
        *,
        kernel_size: int | None = None,
        periods: Sequence[float] | None = None,
        spread: float | None = None,
        num_components: int = 8,
        position: PositionName | None = None,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_integers(1, 1024, num_components=num_components)
        if not isinstance(backbone, Backbone):
            layers, options = (layers or EVENT_LAYERS).take(options)
            check_causal(layers)
        self.backbone, head_parameters = resolve_backbone(
            backbone,
            layers,
            EVENT_LAYERS,
            embedding=EventEmbedding,
            embedding_options={
                "kernel_size": kernel_size,
                "periods": periods,
                "spread": spread,
                "position": position,
                "kernel_init": options.get("kernel_init"),
            },
            rngs=rngs,
            **options,
        )
        given = self.backbone.input_embedding
        if not self.backbone.is_causal or not isinstance(given, EventEmbedding):
            raise ValueError(
                "expected a causal backbone on events, since an event forecaster forecasts after "
                "each event; make the backbone with is_causal=True and an EventEmbedding."
            )
        self.num_event_types = given.num_event_types
        self.num_components = num_components
        self.spread = given.spread
        self.periods = given.periods
        features = self.layers.features
        # The head computes in at least float32 for any dtype of the layers, since times need it.
        param_dtype = head_parameters.get("param_dtype", jnp.float32)
        head_parameters["dtype"] = accumulation_dtype(param_dtype)
        self.hidden = linear(features, features, rngs=rngs, **head_parameters)
        self.times = linear(features, 3 * num_components, rngs=rngs, **head_parameters)
        self.marks = linear(features, self.num_event_types, rngs=rngs, **head_parameters)

    @property
    def param_dtype(self) -> Any:
        """Dtype of the head's own parameters."""
        return self.hidden.param_dtype

    def read(self, h: Array) -> Array:
        """Computes outputs [..., 3 K + M] of ``next_event`` from features h [..., C].

        They are float32, or float64 if the head's parameters are.
        """
        times = self.times(jnp.tanh(self.hidden(h)))
        return jnp.concatenate([times, self.marks(h)], axis=-1)

    def next_event(self, outputs: Float[Array, "... outputs"]) -> NextEvent:
        """Converts outputs to the distribution of the next event.

        Args:
            outputs: Outputs of a call or of ``step``, of shape [..., 3 K + M].
        """
        return next_event(outputs, self.num_components, self.spread)

    def observation(
        self, before: Float[Array, "... W"], log_gap: Array, event_type: Array
    ) -> Float[Array, "... W"]:
        """Builds the observation of an event that follows another, to sample futures.

        Its phases are the phases of the previous event, rotated by the gap in float32: exact enough
        for up to 1e4 periods.

        Args:
            before: Observation of the previous event, of shape [..., 3 + 2 P].
            log_gap: Log of the time since then, in units of the scale, of shape [...].
            event_type: Type of the event, an integer array of shape [...].
        """
        waves = EventColumns.from_array(before).waves
        log_gap = log_gap.astype(before.dtype)
        if self.periods:
            cosine, sine = jnp.split(waves, 2, axis=-1)
            turns = jnp.exp(log_gap)[..., None] / jnp.asarray(self.periods, waves.dtype)
            # Large floats are integers, so this bound leaves the phase as it is.
            turns = jnp.minimum(turns, jnp.finfo(waves.dtype).max)
            angle = 2 * math.pi * (turns - jnp.floor(turns))
            c, s = jnp.cos(angle), jnp.sin(angle)
            waves = jnp.concatenate([c * cosine - s * sine, c * sine + s * cosine], axis=-1)
        known = jnp.ones_like(log_gap)
        return EventColumns(log_gap, known, event_type.astype(before.dtype), waves).to_array()


def next_event(
    outputs: Float[Array, "... outputs"], num_components: int, spread: float
) -> NextEvent:
    """Converts outputs [..., 3 K + M] of an ``EventForecaster`` without the model."""
    K = num_components
    weights, means, stds = jnp.split(outputs[..., : 3 * K], 3, axis=-1)
    # The means are initially spread over the usual log gaps; a single component is in the middle.
    initial = jnp.linspace(-1.5, 1.5, K, dtype=outputs.dtype) if K > 1 else 0.0
    return NextEvent(
        LogNormalMixture(
            jax.nn.log_softmax(weights, axis=-1),
            (means + initial) * spread,
            (jax.nn.softplus(stds) + MIN_STD) * spread,
        ),
        outputs[..., 3 * K :],
    )
