"""What a step does about a loss, a gradient or parameters that are not finite."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

GROWTH_STEPS = 2000
"""Steps without an overflow after which a loss scale is doubled."""

NO_BAD_STEP = -1


class LossScale(NamedTuple):
    """A factor of the loss that lifts small float16 gradients into their range.

    Attributes:
        value: float32 scalar, the factor.
        steps: int32 scalar, steps since it last changed.
    """

    value: jax.Array
    steps: jax.Array

    @classmethod
    def start(cls, value: float) -> LossScale:
        """The scale before the first step."""
        return cls(jnp.asarray(value, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, finite: jax.Array) -> LossScale:
        """Half of it after an overflow, but at least 1; twice of it after many good steps."""
        grows = finite & (self.steps + 1 >= GROWTH_STEPS)
        value = jnp.where(finite, jnp.where(grows, 2 * self.value, self.value), self.value / 2)
        steps = jnp.where(finite & ~grows, self.steps + 1, 0)
        return LossScale(jnp.maximum(value, 1), steps)


class Verdict(NamedTuple):
    """What becomes of a step; scalars.

    Attributes:
        good: bool, its update is made.
        counts: bool, the run goes on to the next step.
        skipped: int32, updates left out so far.
        first_bad_step: int32, the step that ends the run; -1 if none.
    """

    good: jax.Array
    counts: jax.Array
    skipped: jax.Array
    first_bad_step: jax.Array


def judge(
    max_skipped: int,
    finite: jax.Array,
    loss: jax.Array,
    step: jax.Array,
    skipped: jax.Array,
    first_bad_step: jax.Array,
    loss_scale: LossScale | None,
) -> Verdict:
    """Decides about a step.

    Args:
        max_skipped: Updates that may be left out before the run ends.
        finite: bool, whether loss, gradients and new parameters are finite.
        loss: The loss, not scaled.
        step: The step's number.
        skipped: Updates left out before.
        first_bad_step: The step that ended the run before, -1 if none.
        loss_scale: A scale above 1 may be what a finite loss's gradient overflows by: that update
            is left out, too, and a smaller scale is tried.
    """
    open_ = first_bad_step == NO_BAD_STEP
    overflow = jnp.zeros((), bool)
    if loss_scale is not None:
        overflow = ~finite & jnp.isfinite(loss) & (loss_scale.value > 1)
    left_out = ~finite & ~overflow & (skipped < max_skipped)
    ends = open_ & ~finite & ~overflow & ~left_out
    return Verdict(
        good=open_ & finite,
        counts=open_ & (finite | overflow | left_out),
        skipped=skipped + (open_ & left_out).astype(jnp.int32),
        first_bad_step=jnp.where(ends, step, first_bad_step),
    )
