"""Learning rate schedules, by themselves and by options, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.training import (
    OptimizerOptions,
    linear_warmup,
    make_schedule,
    reciprocal_sqrt,
    warmup_cosine,
)

STEPS = (0, 1, 2, 9, 10, 11, 54, 99, 100, 101, 4000, 2**24, 2**31 - 1)


def cosine_in_numpy(step, peak, total, warmup, first, last):
    if step < warmup:
        return first + (peak - first) * step / warmup
    share = min(step - warmup, total - warmup) / (total - warmup)
    return last + (peak - last) * 0.5 * (1 + np.cos(np.pi * share))


@pytest.mark.parametrize(
    ("total", "warmup", "peak", "first", "last"),
    [
        (100, 10, 1e-3, 1e-6, 1e-5),
        (100, 0, 1e-3, 1e-6, 1e-5),
        (100, 99, 5e-5, 1e-6, 1e-5),
        (1, 0, 0.3, 0.0, 0.0),
        (60_000, 1000, 3e-3, 0.0, 0.01),  # ends above its highest
        (11, 1, 1.0, 2.0, 0.5),
    ],
)
def test_warmup_cosine(total, warmup, peak, first, last):
    rate = warmup_cosine(peak, total, warmup_steps=warmup, first=first, last=last)
    told = jax.jit(jax.vmap(rate))(jnp.asarray(STEPS, jnp.int32))
    assert told.dtype == jnp.float32
    expected = [cosine_in_numpy(step, peak, total, warmup, first, last) for step in STEPS]
    np.testing.assert_allclose(told, expected, rtol=2e-5, atol=1e-6 * peak)


@pytest.mark.parametrize("warmup", [1, 10, 1000, 8000])
def test_reciprocal_sqrt(warmup):
    """Long Range Arena's formula, a factor at a time as its code has it."""
    told = jax.jit(jax.vmap(reciprocal_sqrt(0.05, warmup)))(jnp.asarray(STEPS, jnp.int32))
    assert told.dtype == jnp.float32
    expected = []
    for step in STEPS:
        value = 0.05
        value *= min(1.0, step / warmup)
        value /= np.sqrt(max(step, warmup))
        expected.append(value)
    np.testing.assert_allclose(told, expected, rtol=1e-6)
    assert told[0] == 0


def test_rates_of_python_numbers_are_those_of_arrays():
    for rate in (warmup_cosine(1e-3, 20, warmup_steps=5), reciprocal_sqrt(0.1, 5)):
        compiled = jax.jit(rate)
        for step in (0, 3, 20):
            np.testing.assert_allclose(rate(step), compiled(jnp.int32(step)), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: warmup_cosine(0.1, 10, warmup_steps=10),
            "a warmup of 10 steps leaves none of the 10",
        ),
        (lambda: warmup_cosine(0.1, 0, warmup_steps=0), "total_steps must be at least 1, got 0"),
        (lambda: warmup_cosine(0.1, 9, warmup_steps=-1), "warmup_steps must be at least 0, got -1"),
        (lambda: warmup_cosine(0.0, 9, warmup_steps=1), "learning_rate must be positive"),
        (lambda: warmup_cosine(1.0, 9, warmup_steps=1, last=-1.0), "last must be at least 0"),
        (lambda: reciprocal_sqrt(0.1, 0), "warmup_steps must be at least 1, got 0"),
        (lambda: reciprocal_sqrt(-0.1, 1), "learning_rate must be positive"),
        (lambda: linear_warmup(-0.1, 1), "learning_rate must be positive"),
        (lambda: linear_warmup(0.1, -1), "warmup_steps must be at least 0, got -1"),
    ],
)
def test_schedules_refuse(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def rates(options, total_steps, steps_per_epoch=10):
    """The learning rate at every step, and beyond training."""
    rate = make_schedule(options, total_steps, steps_per_epoch)
    steps = jnp.arange(total_steps + 20)
    return jax.jit(jax.vmap(rate))(steps) if callable(rate) else jnp.full(len(steps), rate)


def warmed(step, warmup):
    return min(1.0, step / warmup) if warmup else 1.0


FORMULAS = {
    "constant": lambda step, warmup, total: warmed(step, warmup),
    "linear_warmup": lambda step, warmup, total: min(1.0, (step + 1) / max(warmup, 1)),
    "reciprocal_sqrt": lambda step, warmup, total: (
        warmed(step, warmup) / np.sqrt(max(step, warmup))
    ),
    "cosine": lambda step, warmup, total: cosine_in_numpy(step, 1, total, warmup, 2.5e-6, 0.01),
}


@pytest.mark.parametrize(("warmup", "steps"), [(0.2, 12), (12, 12), (0.0, 0)])
@pytest.mark.parametrize("schedule", FORMULAS)
def test_schedules_of_options(schedule, warmup, steps):
    """A warmup is a fraction of all steps, or a number of steps."""
    if schedule == "reciprocal_sqrt":  # which cannot begin without one
        warmup, steps = warmup or 0.2, steps or 12
    options = OptimizerOptions(learning_rate=0.4, schedule=schedule, warmup=warmup)
    assert options.warmup_steps(60) == steps
    found = rates(options, 60)
    assert found.dtype == jnp.float32
    expected = [0.4 * FORMULAS[schedule](step, steps, 60) for step in range(80)]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


def test_a_warm_up_that_is_not_given():
    """A twentieth of the steps before a cosine, else none."""
    for schedule, steps in (("cosine", 5), ("constant", 0), ("linear_warmup", 0), ("halving", 0)):
        assert OptimizerOptions(schedule=schedule).warmup_steps(100) == steps


def test_a_cosine_by_default_ends_at_a_hundredth():
    """The same for few and for many steps an epoch."""
    options = OptimizerOptions(learning_rate=0.8, schedule="cosine")
    for steps_per_epoch, last in ((8, 40), (40, 200), (3, 40)):
        rate = make_schedule(options, last, steps_per_epoch)
        found = [float(rate(step)) for step in (last // 20, (last + last // 20) // 2, last)]
        np.testing.assert_allclose(found, [0.8, 0.404, 0.008], rtol=0.1)
        assert found[0] == pytest.approx(0.8) and found[2] == pytest.approx(0.008)
    assert float(make_schedule(options, 5, 1)(0)) == pytest.approx(0.8)  # no step to rise in


def test_a_warm_up_leaves_steps_for_the_cosine():
    options = OptimizerOptions(schedule="cosine", warmup=10)
    with pytest.raises(OptionError, match="a warmup of 10 steps leaves none of the 10"):
        make_schedule(options, 10, 5)


def test_the_rate_halves_as_in_the_library():
    """Its first two epochs have the full rate; after the last one it stays."""
    found = rates(OptimizerOptions(learning_rate=0.8, schedule="halving"), 50)
    expected = np.repeat([0.8, 0.8, 0.4, 0.2, 0.1, 0.1, 0.1], 10)
    np.testing.assert_array_equal(found, np.float32(expected))


def test_the_rate_falls_after_each_fifth_epoch():
    found = rates(OptimizerOptions(learning_rate=0.8, schedule="steps"), 110)
    expected = np.repeat([0.8, 0.8 / 2**4, 0.8 / 2**9], [50, 50, 30])
    np.testing.assert_array_equal(found, np.float32(expected))


def test_the_rate_is_lowered_to_a_tenth():
    found = rates(OptimizerOptions(learning_rate=0.8, lower_at=3), 50)
    np.testing.assert_allclose(found, np.repeat([0.8, 0.08], [30, 40]), rtol=1e-6)
