"""Learning rate schedules: functions of the step, which counts from 0."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from flax_linattn.checks import OptionError, check_integers, check_positive
from flax_linattn.typing import Array


def warmup_cosine(
    learning_rate: float,
    total_steps: int,
    *,
    warmup_steps: int,
    first: float = 1e-6,
    last: float = 1e-5,
) -> optax.Schedule:
    """Linear warmup to the learning rate, then cosine decay.

    Steps count from 0: the rate is ``first`` at step 0, the learning rate at step ``warmup_steps``,
    and ``last`` from step ``total_steps`` on, the first one after training. By default timm's
    schedule differs in two ways: it changes once an epoch, and its cosine starts at step 0, so that
    the rate drops a little at the end of the warmup.

    Args:
        learning_rate: Peak learning rate.
        total_steps: Number of training steps, including the warmup.
        warmup_steps: Number of warmup steps, fewer than ``total_steps``; 0 starts with the peak.
        first: Learning rate at step 0 of a warmup.
        last: Learning rate at the end.

    Returns:
        A function from the step, int [], to the learning rate, float32 [].

    Raises:
        OptionError: If a number is out of range, or the warmup is as long as the training.

    Example:
        >>> rate = warmup_cosine(1e-3, 100, warmup_steps=10)
        >>> [f"{rate(step):.6f}" for step in (0, 10, 55, 100, 1000)]
        ['0.000001', '0.001000', '0.000505', '0.000010', '0.000010']
    """
    check_positive(learning_rate=learning_rate)
    check_integers(1, total_steps=total_steps)
    check_integers(0, warmup_steps=warmup_steps)
    for name, value in (("first", first), ("last", last)):
        if not value >= 0:
            raise OptionError(f"{name} must be at least 0, got {value}.", name)
    if warmup_steps >= total_steps:
        raise OptionError(
            f"a warmup of {warmup_steps:,} steps leaves none of the {total_steps:,} training steps "
            "for the cosine; train longer, or warm up for a tenth of the steps.",
            "warmup_steps",
            "total_steps",
        )
    schedule = optax.warmup_cosine_decay_schedule(
        first, learning_rate, warmup_steps, total_steps, end_value=last
    )

    def rate(step: Array | int) -> Array:
        return schedule(jnp.asarray(step, jnp.float32))  # strict promotion mixes no int32 in

    return rate


def reciprocal_sqrt(learning_rate: float, warmup_steps: int) -> optax.Schedule:
    """Linear warmup, then a learning rate that falls with the square root of the step.

    The rate is ``learning_rate * min(1, step / warmup) / sqrt(max(step, warmup))``, as in the
    public code of Long Range Arena (``create_learning_rate_scheduler``, "constant * linear_warmup *
    rsqrt_decay"). Steps count from 0, so the first update has rate 0 and changes nothing. The peak
    is ``learning_rate / sqrt(warmup_steps)``, at step ``warmup_steps``.

    Args:
        learning_rate: The factor, such as 0.05.
        warmup_steps: Number of warmup steps, at least 1, such as 1,000.

    Returns:
        A function from the step, int [], to the learning rate, float32 [].

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> rate = reciprocal_sqrt(0.05, 1000)
        >>> [f"{rate(step):.6f}" for step in (0, 500, 1000, 4000)]
        ['0.000000', '0.000791', '0.001581', '0.000791']
    """
    check_positive(learning_rate=learning_rate)
    check_integers(1, warmup_steps=warmup_steps)

    def rate(step: Array | int) -> Array:
        now = jnp.asarray(step, jnp.float32)
        up = jnp.minimum(1.0, now / warmup_steps)
        return learning_rate * up / jnp.sqrt(jnp.maximum(now, warmup_steps))

    return rate


def linear_warmup(learning_rate: float, warmup_steps: int) -> optax.Schedule:
    """Linear warmup whose first step already has a positive learning rate.

    The rate is ``learning_rate * min(1, (step + 1) / warmup_steps)``, as in the decision
    transformer's public code: the first of ten warmup steps has a tenth of the learning rate.
    ``optax.linear_schedule`` starts at 0, so that its first update changes nothing.

    Args:
        learning_rate: Learning rate from step ``warmup_steps - 1`` on.
        warmup_steps: Number of warmup steps; 0 starts with the learning rate.

    Returns:
        A function from the step, int [], to the learning rate, float32 [].

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> rate = linear_warmup(0.1, 4)
        >>> [f"{rate(jnp.int32(step)):.3f}" for step in (0, 1, 3, 100)]
        ['0.025', '0.050', '0.100', '0.100']
    """
    check_positive(learning_rate=learning_rate)
    check_integers(0, warmup_steps=warmup_steps)

    def rate(step: Array) -> Array:
        return learning_rate * jnp.minimum((step + 1) / max(warmup_steps, 1), 1.0)

    return rate


def step_decay(learning_rate: float, decay_step: int) -> optax.Schedule:
    """A constant learning rate that is divided by 10 at step ``decay_step``."""

    def rate(step: Array) -> Array:
        return jnp.where(step < decay_step, learning_rate, 0.1 * learning_rate)

    return rate


def halving(learning_rate: float, steps_per_epoch: int, epochs: int) -> optax.Schedule:
    """Time-Series-Library's ``type1``: constant for two epochs, then halved after each epoch.

    The rate of the last epoch holds after it.
    """
    max_halvings = max(epochs - 2, 0)

    def rate(step: Array) -> Array:
        halvings = jnp.clip(step // steps_per_epoch - 1, 0, max_halvings)
        return jnp.ldexp(jnp.asarray(learning_rate, jnp.float32), -halvings)

    return rate


def five_epoch_decay(learning_rate: float, steps_per_epoch: int, epochs: int) -> optax.Schedule:
    """After each fifth epoch e the rate becomes ``learning_rate * 0.5**(e - 1)``.

    That is how Time-Series-Library's classification trained until the end of 2024.
    """
    changes = range(5, epochs + 1, 5)
    return optax.join_schedules(
        [
            optax.constant_schedule(learning_rate),
            *(optax.constant_schedule(learning_rate * 0.5 ** (epoch - 1)) for epoch in changes),
        ],
        [epoch * steps_per_epoch for epoch in changes],
    )
