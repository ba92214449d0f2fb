"""Sampling of future events by the recurrent step of an event model."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.checks import check_integers
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.inference.programs import compile_once, step
from flax_linattn.inference.sampling import row_keys
from flax_linattn.models.event_forecaster import NextEvent
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, State


class EventModel(StreamingModel, Protocol):
    """A streaming model of events, such as ``models.EventForecaster``."""

    def next_event(self, outputs: Array) -> NextEvent:
        """Distribution of the next event, from outputs of the model."""
        ...

    def observation(self, before: Array, log_gap: Array, event_type: Array) -> Array:
        """Makes the observation of an event that follows the observation ``before``."""
        ...


@register_state
class SampledEvents(NamedTuple):
    """Events that ``sample_events`` sampled, and the state to continue from.

    Attributes:
        log_gaps: Logs of the times between events, [B, N], in units of the model's scale; the first
            gap starts at the last observed event.
        event_types: Event types, int32 [B, N].
        outputs: Outputs of the model after the last event, [B, ...].
        x: Observation of the last event, [B, W].
        state: State after the last event.
    """

    log_gaps: Float[Array, "B N"]
    event_types: Int[Array, "B N"]
    outputs: Array
    x: Array
    state: State


def sample_events(
    model: EventModel,
    outputs: Array,
    x: Float[Array, "B W"],
    state: State,
    num_events: int,
    *,
    key: Array,
    waited: Float[Array, "B"] | None = None,
) -> SampledEvents:
    """Samples future events one after another, in one ``lax.scan`` of steps.

    Args:
        model: An :class:`EventModel`.
        outputs: Outputs of its step on ``x``, [B, ...].
        x: Observation of the last event, [B, W].
        state: State after the last event; it remains valid. Each row samples one future:
            ``inference.gather_rows`` repeats rows.
        num_events: Number of events N.
        key: Key of ``jax.random.key``: a single key, from which row i uses ``fold_in(key, i)``, or
            one key per row, [B]. Continuing needs another key, because the counter of samples
            restarts.
        waited: Log of the time since the last event, [B], in units of the scale; the first event is
            sampled conditional on that time. -inf and None mean no time.

    Returns:
        Gaps, event types, and the values to continue from.

    Raises:
        TypeError: If ``key`` is not a random key, or ``model`` is not an event model.
        ValueError: If the shape of ``key`` or ``waited`` does not match, or ``num_events`` is below
            1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.EventForecaster(3, features=16, num_layers=1, num_heads=2,
        ...                                rngs=nnx.Rngs(0))
        >>> x = jnp.array([[0.0, 0.0, 3.0], [0.0, 1.0, 1.0]])    # a begin, and an event
        >>> outputs, state = model.step(x, model.init_state(2))
        >>> out = inference.sample_events(model, outputs, x, state, 5, key=jax.random.key(0))
        >>> out.log_gaps.shape, out.event_types.shape, out.state.position.tolist()
        ((2, 5), (2, 5), [6, 6])
    """
    check_model(model)
    if not all(callable(getattr(model, name, None)) for name in ("next_event", "observation")):
        raise TypeError(
            "expected an event model with the methods next_event and observation, got "
            f"{type(model).__name__}; see models.EventForecaster."
        )
    check_integers(1, num_events=num_events)
    keys = row_keys(key, x.shape[0])
    if waited is None:
        waited = jnp.full(x.shape[:1], -jnp.inf, jnp.float32)
    elif jnp.shape(waited) != x.shape[:1]:
        raise ValueError(
            f"expected waited of shape {x.shape[:1]}, one number per row, got {jnp.shape(waited)}."
        )
    events: SampledEvents = _sample_events(
        model, outputs, x, state, keys, waited, num_events=num_events
    )
    return events


@compile_once("num_events")
def _sample_events(
    model: EventModel,
    outputs: Array,
    x: Array,
    state: State,
    keys: Array,
    waited: Array,
    *,
    num_events: int,
) -> SampledEvents:
    def body(
        carry: tuple[Array, Array, State, Array], number: Array
    ) -> tuple[tuple[Array, Array, State, Array], tuple[Array, Array]]:
        outputs, x, state, waited = carry
        following = model.next_event(outputs)
        gap_keys, type_keys = jax.vmap(
            lambda key: tuple(jax.random.split(jax.random.fold_in(key, number)))
        )(keys)
        dtype = following.gap.means.dtype
        level = jax.vmap(lambda key: jax.random.uniform(key, (), dtype, 1e-7, 1.0))(gap_keys)
        log_gap = following.gap.log_quantile(level, waited.astype(dtype))
        event_type = jax.vmap(jax.random.categorical)(type_keys, following.event_type_logits)
        event_type = event_type.astype(jnp.int32)
        x = model.observation(x, log_gap, event_type).astype(x.dtype)
        outputs, state = step(model, x, state)
        return (outputs, x, state, jnp.full_like(waited, -jnp.inf)), (log_gap, event_type)

    carry = (outputs, x, state, waited)
    (outputs, x, state, _), (gaps, types) = jax.lax.scan(body, carry, jnp.arange(num_events))
    return SampledEvents(gaps.T, types.T, outputs, x, state)
