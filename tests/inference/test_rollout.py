"""Loops of steps in one program: over observations, over outputs fed back, over prompts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import inference
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.inference.cases import CHANNELS, STREAMING, backbone, classifier, language, take
from tests.nn.cases import normal, run_steps


def observe(y, x):
    """Some next observation, from the first features of an output."""
    return jnp.tanh(y[:, :CHANNELS]) - 0.5 * x


@pytest.mark.parametrize("mechanism", STREAMING)
def test_rollout_is_the_loop_of_steps(mechanism):
    model = backbone(mechanism)
    _, state = inference.prefill(model, normal(1, 2, 5, CHANNELS), max_length=16)
    x = normal(2, 2, CHANNELS)
    mask = np.array([True, False])
    got = inference.rollout(model, x, 6, feedback=observe, mask=mask, state=state)
    want_x, want_state, outputs = x, state, []
    for _ in range(6):
        y, want_state = run_steps(model, want_x[:, None], want_state, mask[:, None])
        outputs.append(y)
        want_x = observe(y[:, 0], want_x)
    assert_close(got.outputs, np.concatenate(outputs, axis=1), "float32")
    assert_close((got.x, got.state), (want_x, want_state), "float32")
    assert_same_bits(take(got.state, 1), take(state, 1))
    # In two parts it is the same; the state that came in is still there.
    first = inference.rollout(model, x, 3, feedback=observe, mask=mask, state=state)
    rest = inference.rollout(model, first.x, 3, feedback=observe, mask=mask, state=first.state)
    assert_close(jnp.concatenate([first.outputs, rest.outputs], 1), got.outputs, "float32")


@pytest.mark.slow
def test_rollout_has_the_gradients_of_the_loop():
    graph, params = nnx.split(backbone())
    x = normal(1, 1, CHANNELS)

    def rolled(params, x):
        model = nnx.merge(graph, params)
        return inference.rollout(model, x, 3, feedback=observe).outputs.sum()

    def looped(params, x):
        model, total = nnx.merge(graph, params), 0.0
        state = model.init_state(1)
        for _ in range(3):
            y, state = model.step(x, state)
            total += y.sum()
            x = observe(y, x)
        return total

    got, want = (jax.jit(jax.grad(loss, (0, 1)))(params, x) for loss in (rolled, looped))
    assert_close(got, want, "float32")


def test_what_is_fed_back_must_be_an_observation():
    model = backbone()
    state = model.init_state(2)
    with pytest.raises(ValueError, match=r"observation as float32 \(2, 3\), got .* \(2, 8\)"):
        inference.rollout(model, jnp.ones((2, CHANNELS)), 3, state=state)
    with pytest.raises(ValueError, match="num_steps must be at least 0"):
        inference.rollout(model, jnp.ones((2, CHANNELS)), -1, state=state)
    growing = backbone("softmax")
    with pytest.raises(ValueError, match="pass max_length"):
        inference.rollout(
            growing, jnp.ones((2, CHANNELS)), 3, feedback=observe, state=growing.init_state(2)
        )


@pytest.mark.parametrize("mechanism", STREAMING)
def test_unroll_begins_anew_where_told(mechanism):
    """Episodes of two rows, and a call that goes on from another in the middle of them."""
    model = classifier(mechanism)
    x = normal(1, 2, 6, CHANNELS)
    reset = np.zeros((2, 6), bool)
    reset[0, 4] = reset[1, 2] = reset[1, 5] = True
    first, state = inference.unroll(
        model, x[:, :3], reset=reset[:, :3], max_length=6, return_state=True
    )
    rest = inference.unroll(model, x[:, 3:], reset=reset[:, 3:], state=state, max_length=6)
    got = jnp.concatenate([first, rest], axis=1)
    for row, begin, end in ((0, 0, 4), (0, 4, 6), (1, 0, 2), (1, 2, 5), (1, 5, 6)):
        real = np.zeros((2, 6), bool)
        real[row, begin:end] = True
        want = inference.unroll(model, x, real)
        assert_close(got[row, begin:end], want[row, begin:end], "float32")


@pytest.mark.parametrize("mechanism", STREAMING)
def test_prefill_in_pieces_is_the_whole(mechanism):
    model = backbone(mechanism)
    x = normal(3, 3, 9, CHANNELS)
    mask = np.array([[1] * 6 + [0] * 3, [0] * 3 + [1] * 6, [1, 1, 0, 1, 0, 0, 1, 0, 1]], bool)
    x = jnp.where(mask[..., None], x, jnp.nan)
    whole, state = inference.prefill(model, x, mask, max_length=12)
    parts, parts_state = inference.prefill(model, x, mask, max_length=12, chunk_size=4)
    assert_close((parts, parts_state), (whole, state), "float32")
    want = inference.unroll(model, x, mask)
    last = [np.flatnonzero(row)[-1] for row in mask]
    assert_close(whole, np.asarray(want)[np.arange(3), last], "float32")


PIECES = (2, 3)


@functools.cache
def prefilled():
    model = classifier("aaren")
    return {
        size: jax.jit(lambda x, mask, size=size: inference.prefill(model, x, mask, chunk_size=size))
        for size in (None, *PIECES)
    }


@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=2, max_size=2),
    st.sampled_from(PIECES),
)
def test_prefill_with_any_padding_in_any_pieces(mask, chunk_size):
    x, mask, programs = normal(4, 2, 7, CHANNELS), jnp.array(mask), prefilled()
    assert_close(programs[chunk_size](x, mask), programs[None](x, mask), "float32")


def test_prefill_in_pieces_needs_the_memory_of_one():
    model = language()

    def temporary_bytes(length, chunk_size):
        run = jax.jit(lambda x: inference.prefill(model, x, chunk_size=chunk_size))
        return run.lower(jnp.ones((1, length), int)).compile().memory_analysis().temp_size_in_bytes

    short, long = (temporary_bytes(length, 32) for length in (128, 2048))
    assert long <= short + 16 * 2048 / 32  # a few numbers for each piece, not for each token
