"""TaylorShift of an order above 2, T-SM^(k) of the paper's section 3.1."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import models, ops
from flax_linattn.ops.engine.polynomials import homogeneous_polynomial
from flax_linattn.ops.mechanisms.taylorshift import taylorshift_crossover

FORMS = ops.TaylorShift.capabilities.forms


def qkv(length: int, dim: int, dtype: Any = np.float64, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed).normal(size=(3, 2, length, 2, dim))
    return [jnp.asarray(x, dtype) for x in draw]


def cosines(q: Any, k: Any) -> Any:
    q, k = (np.asarray(x) / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return np.einsum("bthk,bshk->bhts", q, k)


def averages(weight: Any, v: Any) -> Any:
    """For weights [B, H, T, S] of which rows need not sum to 1."""
    return np.einsum("bhts,bshv->bthv", weight / weight.sum(axis=-1, keepdims=True), v)


@pytest.mark.parametrize("order", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_forms_are_the_polynomial(order: int) -> None:
    mechanism = ops.get_mechanism("taylorshift", order=order, chunk_size=8)
    temperature = np.array([1.0, 5.0])
    with jax.enable_x64(True):
        q, k, v = qkv(20, 4)
        x = temperature[:, None, None] * cosines(q, k)
        weight = sum(x**n / math.factorial(n) for n in range(order + 1))
        want = math.sqrt(20 / 4) * averages(weight, v)
        for form in FORMS:
            y = mechanism.attend(q, k, v, form=form, temperature=jnp.asarray(temperature))
            np.testing.assert_allclose(y, want, atol=1e-13)


@settings(max_examples=50)
@given(
    order=st.integers(1, 8).map(lambda half: 2 * half),
    x=st.lists(st.floats(-20, 20), min_size=1, max_size=20),
)
def test_weights_are_positive(order: int, x: list[float]) -> None:
    """And grow with x down to where the polynomial of one order less is 0, -1 at the highest."""
    mechanism = ops.TaylorShift(order=order)
    weight = homogeneous_polynomial(mechanism.polynomial, np.array(sorted(x)), 1.0)
    assert (weight > 0).all()
    near = homogeneous_polynomial(
        mechanism.polynomial, np.array(sorted(e for e in x if e >= -1)), 1.0
    )
    assert (np.diff(near) >= -1e-12 * near[1:]).all()


def test_a_high_order_is_softmax() -> None:
    """Of the same scores; each order is nearer than the one before."""
    temperature, errors = 3.0, []
    with jax.enable_x64(True):
        q, k, v = qkv(12, 2)
        want = averages(np.exp(temperature * cosines(q, k)), v)
        for order in (2, 4, 6, 8, 30):
            mechanism = ops.get_mechanism("taylorshift", order=order, normalize_output=False)
            attend = partial(mechanism.attend, temperature=jnp.full(2, temperature))
            errors.append(np.abs(attend(q, k, v, form="direct") - want).max())
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-13


@pytest.mark.parametrize(
    ("order", "normalize"),
    [
        (6, False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((4, True), (4, False), (10, True))
        ),
    ],
)
def test_enormous_scores_are_finite_and_right(order: int, normalize: bool) -> None:
    """Scores of +-1e4 by the temperature or by queries and keys, and what float32 cannot hold.

    At order 10 keys beyond 2^7 and scores beyond 2^10 count as of that size: finite, no more.
    """
    mechanism = ops.get_mechanism("taylorshift", order=order, normalize=normalize, chunk_size=4)
    q, k, v = qkv(10, 3, np.float32)

    @partial(jax.jit, static_argnames="form")
    def run(*tokens: Any, form: str) -> Any:
        *tokens, temperature = tokens
        attend = partial(mechanism.attend, form=form, is_causal=True)
        y, pull = jax.vjp(lambda *t: attend(*t[:3], temperature=t[3]), *tokens, temperature)
        return y, pull(jnp.ones_like(y))

    for size, temperature in ((1.0, 1e4), (100.0, 1.0), (1e15, 1.0), (1e-15, 1.0), (1e30, 1e7)):
        tokens = size * q, size * k, v, jnp.full(2, temperature, jnp.float32)
        for form in ("direct", "efficient"):
            y, gradients = run(*tokens, form=form)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves((y, gradients))), size
            if order < 10 and abs(math.log10(size)) < 3:
                with jax.enable_x64(True):
                    wide = [jnp.asarray(np.asarray(x, np.float64)) for x in tokens]
                    want = mechanism.reference(*wide[:3], is_causal=True, temperature=wide[3])
                np.testing.assert_allclose(y, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, "order 3 is odd: its polynomial is negative .* take 2 or 4"),
        ({"order": 0}, "order must be at least 2, got 0"),
        (
            {"order": 4, "coefficients": (1.0, 1.0, 1.0)},
            "coefficients .* define a polynomial of order 2",
        ),
        ({"order": 4, "switch": "memory"}, "switch='memory' is the paper's count for order 2"),
        ({"max_features": 0}, "max_features must be at least 1, got 0"),
    ],
)
def test_bad_hyperparameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.get_mechanism("taylorshift", **options)


def test_heads_with_too_many_features_have_the_direct_form_alone() -> None:
    """A state of [2, 70, 4] float32 and its like are refused; what works without one does."""
    small = ops.get_mechanism("taylorshift", order=4, max_features=69)
    large = ops.get_mechanism("taylorshift", order=4, max_features=70)
    q, k, v = qkv(100, 4, np.float32)
    want = large.attend(q, k, v, is_causal=True, form="efficient")
    for form in ("auto", "direct", "parallel"):
        y = small.attend(q, k, v, is_causal=True, form=form)
        np.testing.assert_allclose(y, want, atol=1e-5)
    message = (
        r"order 4 makes 70 features of 4 channels.* at most 3 channels, order=2, form='direct'"
    )
    state = large.init_state(2, 2, 4, 4)
    for refused in (
        lambda: small.init_state(2, 2, 4, 4),
        lambda: small.attend(q, k, v, form="efficient"),
        lambda: small.attend(q, k, v, is_causal=True, form="recurrent"),
        lambda: small.attend(q, k, v, form="direct", return_state=True),
        lambda: small.attend(q, k, v, initial_state=state),
        lambda: small.step(q[:, 0], k[:, 0], v[:, 0], state),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    # "parallel" is what errors name to those who want tangents.
    _, tangent = jax.jvp(lambda v: small.attend(q, k, v, is_causal=True, form="parallel"), [v], [v])
    np.testing.assert_allclose(tangent, want, atol=1e-5)


def test_order_2_has_no_limit() -> None:
    mechanism = ops.get_mechanism("taylorshift", max_features=1)
    assert mechanism.init_state(1, 1, 4, 4).value.shape == (1, 1, 15, 4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_auto_switches_by_operations(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 features of 4 channels: by multiplications from N = 87.5 on, by time from 262.5 on."""
    assert taylorshift_crossover(4, order=4) == 88
    mechanism = ops.get_mechanism("taylorshift", order=4, chunk_size=8)
    taken = []
    direct = ops.TaylorShift._direct
    monkeypatch.setattr(ops.TaylorShift, "_direct", lambda *a: (taken.append(True), direct(*a))[1])
    last = 472 if is_causal else 262
    for length in (last, last + 1):
        taken.clear()
        x = jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32)
        jax.eval_shape(partial(mechanism.attend, is_causal=is_causal), x, x, x)
        assert bool(taken) is (length == last)


def test_a_model_of_too_large_heads_trains_and_does_not_stream() -> None:
    layers = models.Layers(8, num_layers=1, num_heads=2, mechanism="taylorshift:order=4")
    large = dataclasses.replace(layers, mechanism="taylorshift:order=4,max_features=69")
    x = jnp.ones((1, 3, 5))
    for each, streams in ((layers, True), (large, False)):
        model = models.Backbone(5, each, is_causal=True, rngs=nnx.Rngs(0))
        assert model.streams is streams and model(x).shape == (1, 3, 8)
    with pytest.raises(ValueError, match="order 4 makes 70 features"):
        model.init_state(1)
