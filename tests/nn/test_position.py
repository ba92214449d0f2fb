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
