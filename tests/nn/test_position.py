"""Positions against a loop, sinusoids against float64, learned positions beyond their end."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import nn
from flax_linattn.ops.contract.masks import find_segments

LENGTH = 7


def rows(elements):
    return st.lists(elements, min_size=LENGTH, max_size=LENGTH)


def count(mask, ids, offset, carried):
    """The same by a loop over one row."""
    position, previous, positions = offset, carried, []
    for real, segment in zip(mask, ids, strict=True):
        if real:
            position = 0 if previous not in (None, segment) else position
            previous = segment
            positions.append(position)
            position += 1
        else:
            positions.append(max(position - 1, 0))
    return positions, position


@jax.jit
def positions_of_runs(mask, ids, offset, carried):
    return nn.token_positions(mask, find_segments(ids, mask, carried), offset)


@jax.jit
def positions_of_runs_from_the_first(mask, ids, offset):
    return nn.token_positions(mask, find_segments(ids, mask), offset)


@jax.jit
def positions_of_tokens(mask, offset):
    return nn.token_positions(mask, None, offset)


@given(rows(st.booleans()), rows(st.integers(0, 2)), st.integers(0, 9), st.integers(0, 2))
def test_positions_are_those_of_the_loop(mask, ids, offset, carried):
    def row(a):
        return np.array([a])

    args = row(mask), row(ids), row(offset)
    for got, want in (
        (positions_of_tokens(args[0], args[2]), count(mask, [0] * LENGTH, offset, 0)),
        (positions_of_runs_from_the_first(*args), count(mask, ids, offset, None)),
        (positions_of_runs(*args, row(carried)), count(mask, ids, offset, carried)),
    ):
        assert (got[0][0].tolist(), int(got[1][0])) == want


@partial(jax.jit, static_argnums=0)
def parts_from(split, mask, ids):
    """Two calls, the second of which goes on in the first one's segment, if it had any token."""
    runs = find_segments(ids[:, :split], mask[:, :split])
    first, offset = nn.token_positions(mask[:, :split], runs, jnp.array([0]))
    runs = find_segments(ids[:, split:], mask[:, split:], runs.last)
    second, _ = nn.token_positions(mask[:, split:], runs, offset)
    return jnp.concatenate([first, second], axis=1)


@given(rows(st.booleans()), rows(st.integers(0, 1)), st.integers(1, LENGTH - 1))
def test_positions_continue_across_a_split(mask, ids, split):
    """Two calls give the positions that one gives, at every real token."""
    got = parts_from(split, np.array([mask]), np.array([ids]))[0].tolist()
    want, _ = count(mask, ids, 0, None)
    assert [g for g, m in zip(got, mask, strict=True) if m] == [
        w for w, m in zip(want, mask, strict=True) if m
    ]


def formula(positions, features):
    """Vaswani et al., section 3.5, in float64."""
    pairs = np.arange(-(-features // 2))
    angle = np.asarray(positions, np.float64)[:, None] * 10_000.0 ** (-2.0 * pairs / features)
    waves = np.empty((len(positions), 2 * len(pairs)))
    waves[:, 0::2], waves[:, 1::2] = np.sin(angle), np.cos(angle)
    return waves[:, :features]


@pytest.mark.parametrize("features", [1, 2, 7, 64])
def test_sinusoid_is_the_formula(features):
    positions = np.arange(1000)
    got = nn.sinusoid(jnp.asarray(positions), features)
    assert got.shape == (1000, features)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, formula(positions, features), rtol=0, atol=2e-6)


def test_sinusoid_far_out():
    positions = np.array([99_999, 100_000])
    got = nn.SinusoidalPosition(64)(jnp.asarray(positions))
    np.testing.assert_allclose(got, formula(positions, 64), rtol=0, atol=1e-4)


def test_sinusoid_keeps_leading_axes():
    positions = jnp.arange(6).reshape(2, 3)
    got = nn.sinusoid(positions, 4)
    assert got.shape == (2, 3, 4)
    np.testing.assert_array_equal(got.reshape(6, 4), nn.sinusoid(jnp.arange(6), 4))


def test_learned_positions_are_rows_of_the_table():
    position = nn.LearnedPosition(5, 4, rngs=nnx.Rngs(0))
    table = position.table[...]
    assert table.shape == (5, 4)
    assert jnp.unique(table, axis=0).shape == (5, 4)
    got = position(jnp.array([[4, 0, 2]]))
    np.testing.assert_array_equal(got, table[jnp.array([[4, 0, 2]])])


def test_learned_positions_beyond_the_table_are_nan():
    """A wrong vector would pass unseen; NaN does not."""
    position = nn.LearnedPosition(5, 4, rngs=nnx.Rngs(0))
    got = np.asarray(position(jnp.array([4, 5, 100])))
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1:]).all()


def hugging_face(rope_type, d, base, factor, context=None, slow=1.0, fast=None, scale=None):
    """Frequencies and magnitude as ``modeling_rope_utils`` of transformers defines them."""
    frequency = [base ** (-2.0 * i / d) for i in range(d // 2)]
    if rope_type == "linear":
        return [f / factor for f in frequency], 1.0
    if rope_type == "ntk":
        return [(base * factor ** (d / (d - 2))) ** (-2.0 * i / d) for i in range(d // 2)], 1.0
    if rope_type == "llama3":

        def llama(f):
            wavelength = 2 * np.pi / f
            if wavelength < context / fast:
                return f
            if wavelength > context / slow:
                return f / factor
            smooth = (context / wavelength - slow) / (fast - slow)
            return (1 - smooth) * f / factor + smooth * f

        return [llama(f) for f in frequency], 1.0

    def pair(turns):
        return d * np.log(context / (turns * 2 * np.pi)) / (2 * np.log(base))

    low, high = max(np.floor(pair(fast)), 0), min(np.ceil(pair(slow)), d - 1)
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(d // 2)]
    scaled = [f / factor * r + f * (1 - r) for f, r in zip(frequency, ramp, strict=True)]
    return scaled, 0.1 * np.log(factor) + 1.0 if scale is None else scale


CONTEXT = "original_max_position_embeddings"
SCALINGS = {
    "linear": ({}, {}),
    "ntk": ({}, {}),
    "yarn": ({CONTEXT: 4096}, {"context": 4096, "fast": 32.0}),
    "yarn-beta": (
        {CONTEXT: 2048, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.75},
        {"context": 2048, "slow": 2.0, "fast": 16.0, "scale": 0.75},
    ),
    "llama3": (
        {CONTEXT: 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"context": 8192, "fast": 4.0},
    ),
}


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_is_the_formula_of_hugging_face(name, fraction):
    """x cos + rotate_half(x) sin of the first channels, in float64; the others stay."""
    options, formula = SCALINGS[name]
    kind, base, factor, channels = name.partition("-")[0], 500_000.0, 8.0, 64
    d = int(channels * fraction)
    frequency, magnitude = hugging_face(kind, d, base, factor, **formula)
    rotate = nn.RotaryPosition(base, fraction, nn.RotaryScaling(kind, factor, **options))
    positions = np.array([0, 1, 17, 5000, 60_000])
    x = np.random.default_rng(0).normal(size=(5, 2, channels))
    angle = np.concatenate([positions[:, None, None] * np.array(frequency)] * 2, axis=-1)
    turned = x[..., :d]
    half = np.concatenate([-turned[..., d // 2 :], turned[..., : d // 2]], axis=-1)
    want = np.concatenate(
        [magnitude * (turned * np.cos(angle) + half * np.sin(angle)), x[..., d:]], axis=-1
    )
    got = rotate(jnp.asarray(x, jnp.float32), jnp.asarray(positions))
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-4)
    plain = nn.RotaryPosition(base, fraction)(jnp.asarray(x, jnp.float32), jnp.asarray(positions))
    assert np.abs(plain - want).max() > 0.1
    assert rotate(jnp.asarray(x, jnp.bfloat16), jnp.asarray(positions)).dtype == jnp.bfloat16
