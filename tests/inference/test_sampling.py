"""The choice of tokens: every option against a float64 reference in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flax_linattn.inference.sampling import (
    choose,
    filter_logits,
    make_sampling,
    penalize,
    row_keys,
)
from tests.inference.cases import TOKENS
from tests.nn.cases import normal

KEY = jax.random.key(7)
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
draw = jax.jit(choose)
MARGIN = 1e-4
"""What is closer to a limit than this may fall on either side of it in float32."""


def rows(batch=1, key=KEY, **options):
    return make_sampling(batch, key=key, **options)


@jax.jit
def warp(logits, sampling, seen):
    return filter_logits(penalize(logits, sampling, seen), sampling)


def reference(logits, seen, temperature, top_k, top_p, min_p, repetition_penalty):
    """Probabilities of one row's tokens, and the least distance of a token from a limit."""
    scores = np.array(logits, np.float64)
    for token in np.flatnonzero(seen):
        scores[token] *= 1 / repetition_penalty if scores[token] > 0 else repetition_penalty
    scores /= temperature
    order = sorted(range(len(scores)), key=lambda token: -scores[token])
    gaps = np.diff(-scores[order])
    margins = [gap for gap in gaps if gap > 1e-12]
    kept = order[:top_k]
    weights = np.exp(scores - scores.max())
    probabilities = weights / weights[kept].sum()
    nucleus, mass = [], 0.0
    for token in kept:
        if mass < top_p or top_p == 1:
            nucleus.append(token)
        margins += [abs(mass - top_p)] if mass > 0 and top_p < 1 else []
        mass += probabilities[token]
    relative = weights / weights.max()
    margins += [abs(relative[token] - min_p) for token in nucleus[1:] if min_p > 0]
    result = np.zeros(len(scores))
    for token in nucleus:
        if relative[token] >= min_p:
            result[token] = weights[token]
    return result / result.sum(), min(margins, default=1.0)


logits_of_rows = st.lists(st.integers(-20, 20), min_size=TOKENS, max_size=TOKENS).map(
    lambda row: np.array(row, np.float32) / 4
)
positive = st.integers(1, 12).map(lambda n: n / 4)


@given(
    logits=logits_of_rows,
    seen=st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS).map(np.array),
    temperature=positive,
    top_k=st.sampled_from([None, 1, 4]),
    top_p=st.integers(1, 16).map(lambda n: n / 16),
    min_p=st.integers(0, 16).map(lambda n: n / 16),
    repetition_penalty=positive,
)
def test_probabilities_are_the_references(logits, seen, **options):
    want, margin = reference(logits, seen, **options)
    assume(margin > MARGIN)
    got = np.asarray(warp(logits[None], rows(**options), seen[None]))[0]
    np.testing.assert_array_equal(got > -np.inf, want > 0)
    np.testing.assert_allclose(jax.nn.softmax(got), want, atol=1e-6)


@given(
    logits=logits_of_rows,
    seed=st.integers(0, 99),
    top_k=st.sampled_from([None, 4]),
    top_p=st.integers(1, 16).map(lambda n: n / 16),
    min_p=st.integers(0, 16).map(lambda n: n / 16),
)
def test_filters_change_only_the_tokens_that_they_exclude(logits, seed, top_k, top_p, min_p):
    """A key gives each token the same noise, so a sample that the filters keep is the same."""
    logits, seen = logits[None], np.zeros((1, TOKENS), bool)
    key, zero = jax.random.key(seed), jnp.zeros((), int)
    free = draw(logits, zero, rows(key=key, temperature=1.5), seen)
    sampling = rows(key=key, **NEUTRAL | {"temperature": 1.5, "top_p": top_p, "min_p": min_p})
    kept = np.isfinite(warp(logits, sampling, seen))[0]
    got = draw(logits, zero, sampling, seen)
    assert kept[got[0]] and kept[np.argmax(logits)]
    if kept[free[0]]:
        assert got[0] == free[0]
    cold = rows(key=key, temperature=0.0, top_k=top_k, top_p=top_p, min_p=min_p)
    assert draw(logits, zero, cold)[0] == np.argmax(logits)


@given(logits=logits_of_rows, seen=st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS))
def test_neutral_options_are_none(logits, seen):
    got = warp(logits[None], rows(**NEUTRAL, top_k=TOKENS), np.array(seen)[None])
    np.testing.assert_array_equal(got, logits[None])


def test_each_row_has_its_own_options():
    logits, seen = normal(2, 6, TOKENS), np.asarray(normal(3, 6, TOKENS) > 0)
    options = {
        "temperature": np.array([0.3, 1.0, 2.0, 0.5, 1.0, 1.5]),
        "top_p": np.array([0.3, 0.5, 0.7, 0.9, 0.95, 1.0]),
        "min_p": np.array([0.0, 0.3, 0.1, 0.02, 0.05, 0.5]),
        "repetition_penalty": np.array([0.5, 1.0, 1.2, 1.5, 2.0, 3.0]),
    }
    got = jax.nn.softmax(warp(logits, rows(6, **options, top_k=7), seen))
    for row in range(6):
        own = {name: values[row] for name, values in options.items()}
        want, _ = reference(logits[row], seen[row], top_k=7, **own)
        np.testing.assert_allclose(got[row], want, atol=1e-6)


def test_infinite_and_equal_logits():
    inf, seen = np.inf, np.zeros((1, 4), bool)
    for logits, options, want in [
        ([0, inf, 1, inf], {"top_p": 0.5, "min_p": 0.0}, [1]),
        ([0, inf, 1, inf], {"min_p": 0.0}, [1, 3]),
        ([-inf, 1, -inf, 1], {"top_p": 1.0, "min_p": 0.5}, [1, 3]),
        ([1, 1, 1, 1], {"top_p": 0.5}, [0, 1]),
        ([1, 1, 1, 1], {"top_k": 3}, [0, 1, 2]),
        ([3, 1, 2, 1], {"top_p": 1e-6, "min_p": 1.0}, [0]),
    ]:
        got = warp(jnp.array([logits], jnp.float32), rows(**options), seen)
        assert np.flatnonzero(got[0] > -inf).tolist() == want, (logits, options)


def test_narrow_logits_are_penalized_in_float32():
    """In bfloat16 the penalized logit would be 3.0 again."""
    logits, seen = jnp.full((1, 2), 3.0, jnp.bfloat16), jnp.array([[True, False]])
    sampling = rows(key=None, repetition_penalty=1.001)
    assert draw(logits, jnp.zeros((), int), sampling, seen).tolist() == [1]


def test_draws_follow_the_distribution():
    logits = normal(1, 1, TOKENS)

    def shares(batch=4000, **options):
        tokens = draw(jnp.tile(logits, (batch, 1)), jnp.zeros((), int), rows(batch, **options))
        return np.bincount(tokens, minlength=TOKENS) / batch

    warm = np.asarray(jax.nn.softmax(logits[0] / 1.5))
    # 3.8 standard deviations or more
    np.testing.assert_allclose(shares(temperature=1.5), warm, atol=0.03)
    few = np.where(warm >= np.sort(warm)[-3], warm, 0)
    np.testing.assert_allclose(shares(temperature=1.5, top_k=3), few / few.sum(), atol=0.03)
    likely = np.eye(TOKENS)[np.argmax(logits)]
    np.testing.assert_array_equal(shares(temperature=0.0), likely)
    np.testing.assert_array_equal(shares(temperature=9.0, top_k=1), likely)


def test_each_row_has_its_own_temperature_and_each_token_its_own_draw():
    logits = jnp.tile(normal(1, 1, TOKENS), (64, 1))
    sampling = rows(64, temperature=jnp.where(jnp.arange(64) < 32, 0.0, 1.0))
    tokens = [draw(logits, jnp.asarray(t), sampling) for t in range(2)]
    np.testing.assert_array_equal(tokens[0][:32], jnp.argmax(logits[:32], axis=1))
    assert len(np.unique(tokens[0][32:])) > 1
    assert (tokens[0] != tokens[1]).any()


def test_wrong_options_are_refused():
    for options, match in [
        ({"temperature": -1.0}, r"temperature must be at least 0, got -1\.0"),
        ({"temperature": np.ones(3)}, r"temperature as a number or one number per row, \(1,\)"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, r"top_p must be greater than 0 and at most 1, got 0\.0"),
        ({"top_p": 1.5}, "top_p must be greater than 0 and at most 1"),
        ({"min_p": -0.1}, "min_p must be at least 0 and at most 1"),
        ({"min_p": np.nan}, "min_p must be at least 0 and at most 1, got nan"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be greater than 0, got 0\.0"),
    ]:
        with pytest.raises(ValueError, match=match):
            rows(**options)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        with pytest.raises(ValueError, match=f"{name}.* need a key"):
            rows(key=None, **{name: 1})
    assert rows(key=None, repetition_penalty=1.2).keys is None
    assert row_keys(KEY, 3).shape == (3,)
