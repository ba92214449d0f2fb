"""Sampling of future events by the recurrent step of an event model."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from flax_linattn.checks import at_least
from flax_linattn.inference.compiled import compiled, step
from flax_linattn.inference.generate import row_keys
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.models.event_forecaster import NextEvent
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, State


class EventModel(StreamingModel, Protocol):
    """A streaming model of events, such as ``models.EventForecaster``."""

    def next_event(self, outputs: Array) -> NextEvent:
        """What outputs say of the next event."""
        ...

    def observation(self, before: Array, log_gap: Array, mark: Array) -> Array:
        """The observation of an event that follows another."""
        ...


@register_state
class SampledEvents(NamedTuple):
    """Events that ``sample_events`` sampled, and the state to continue from.

    Attributes:
        log_gaps: [B, N], logs of the times from one event to the next, in units of the model's
            scale; the first since the event that was taken in last.
        marks: int32 [B, N].
        outputs: After the last event, [B, ...].
        x: Its observation, [B, W].
        state: After it.
    """

    log_gaps: Float[Array, "B N"]
    marks: Int[Array, "B N"]
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
        model: A model of events.
        outputs: [B, ...], of its step on ``x``.
        x: [B, W], the observation of the last event.
        state: After it; it stays usable. A row a future: ``inference.gather_rows`` makes many of
            one.
        num_events: N.
        key: Of ``jax.random.key``: one, from which row i has ``fold_in(key, i)``, or [B], each
            row's own. To go on with what came out takes another one, since draws are numbered anew.
        waited: [B], log of the time that has passed since the last event, in units of the scale:
            the first event is drawn from what comes later. -inf = none, as None.

    Returns:
        Gaps, marks, and what is needed to go on.

    Raises:
        TypeError: No random key, or no model of events.
        ValueError: Neither one key nor one a row, ``num_events`` below 1, or ``waited`` of another
            shape.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.EventForecaster(3, features=16, num_layers=1, num_heads=2,
        ...                                rngs=nnx.Rngs(0))
        >>> x = jnp.array([[0.0, 0.0, 3.0], [0.0, 1.0, 1.0]])    # a begin, and an event
        >>> outputs, state = model.step(x, model.init_state(2))
        >>> drawn = inference.sample_events(model, outputs, x, state, 5, key=jax.random.key(0))
        >>> drawn.log_gaps.shape, drawn.marks.shape, drawn.state.position.tolist()
        ((2, 5), (2, 5), [6, 6])
    """
    check_model(model)
    if not all(callable(getattr(model, name, None)) for name in ("next_event", "observation")):
        raise TypeError(
            f"expected a model of events, with next_event and observation, and "
            f"{type(model).__name__} is none; see models.EventForecaster."
        )
    at_least(1, num_events=num_events)
    keys = row_keys(key, x.shape[0])
    if waited is None:
        waited = jnp.full(x.shape[:1], -jnp.inf, jnp.float32)
    elif jnp.shape(waited) != x.shape[:1]:
        raise ValueError(
            f"expected waited as one number a row, {x.shape[:1]}, got shape {jnp.shape(waited)}."
        )
    drawn: SampledEvents = _sample_events(
        model, outputs, x, state, keys, waited, num_events=num_events
    )
    return drawn


@compiled("num_events")
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
        of_time, of_mark = jax.vmap(
            lambda key: tuple(jax.random.split(jax.random.fold_in(key, number)))
        )(keys)
        dtype = following.gap.means.dtype
        share = jax.vmap(lambda key: jax.random.uniform(key, (), dtype, 1e-7, 1.0))(of_time)
        log_gap = following.gap.log_quantile(share, waited.astype(dtype))
        logits = following.event_type_logits
        mark = jax.vmap(jax.random.categorical)(of_mark, logits).astype(jnp.int32)
        x = model.observation(x, log_gap, mark).astype(x.dtype)
        outputs, state = step(model, x, state)
        return (outputs, x, state, jnp.full_like(waited, -jnp.inf)), (log_gap, mark)

    carry = (outputs, x, state, waited)
    (outputs, x, state, _), (log_gaps, marks) = jax.lax.scan(body, carry, jnp.arange(num_events))
    return SampledEvents(log_gaps.T, marks.T, outputs, x, state)
