"""The stream: one compiled step, constant state, rows that begin, fork and end independently."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import checkify

from flax_linattn import inference, models
from flax_linattn.checks import OptionError
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.inference.cases import (
    CHANNELS,
    STREAMING,
    TOKENS,
    backbone,
    classifier,
    make_classifier,
    take,
)
from tests.nn.cases import call, normal


@pytest.mark.parametrize("mechanism", STREAMING)
def test_stream_unroll_and_parallel_agree(mechanism):
    model = classifier(mechanism)
    x = normal(1, 2, 6, CHANNELS)
    mask = np.array([[True] * 6, [False, True, True, False, True, False]])
    parallel = call(model, x, mask=mask, every_step=True)
    unrolled = inference.unroll(model, x, mask)
    stream = inference.Stream(model, batch_size=2, max_length=6)
    streamed = np.stack([stream.step(x[:, t], mask[:, t]) for t in range(6)], axis=1)
    # At a masked position the stream repeats its last answer, as the parallel model does.
    np.testing.assert_allclose(streamed, parallel, atol=1e-5)
    np.testing.assert_allclose(unrolled, parallel, atol=1e-5)


def test_one_compilation_and_flat_state():
    stream = inference.Stream(classifier("aaren"))
    x = jnp.ones((1, 3))
    stream.step(x)
    size = inference.state_bytes(stream.state)
    for _ in range(300):
        stream.step(x)
    assert stream.num_compilations == 1
    assert inference.state_bytes(stream.state) == size
    assert stream.num_steps == 301


def test_a_stream_inside_jit_is_refused():
    """Also where the observation is a constant of the traced function."""
    stream = inference.Stream(classifier("aaren"))
    x = jnp.ones((1, 3))
    for traced in (stream.step, lambda x: stream.step(jnp.ones((1, 3)))):
        with pytest.raises(TypeError, match=r"keeps its state outside of jit.*inference\.unroll"):
            jax.jit(traced)(x)
    prompt, rows = x[None], jnp.array([True])
    for traced in (
        lambda x: stream.prefill(x),
        lambda x: stream.prefill(jnp.ones((1, 1, 3))),
        lambda x: stream.reset(),
        lambda x: stream.reset(rows),
        lambda x: stream.gather(jnp.array([0])),
    ):
        with pytest.raises(TypeError, match="outside of jit"):
            jax.jit(traced)(prompt)
    stream.step(x)
    assert stream.num_steps == 1


def test_weights_stay_as_they_were():
    model = make_classifier("aaren")
    x = normal(3, 1, CHANNELS)
    stream, later = inference.Stream(model), inference.Stream(model)
    first = stream.step(x)
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    assert_same_bits(later.step(x), first)


def test_observations_of_any_kind_give_the_same():
    x = normal(4, 1, CHANNELS)
    first, *others = (
        inference.Stream(classifier("aaren")).step(kind)
        for kind in (jnp.asarray(x), np.asarray(x), np.asarray(x).tolist())
    )
    for y in others:
        assert_same_bits(y, first)


def test_an_array_may_be_filled_anew_after_a_step():
    """The program may still run then; without a copy some of these outputs were NaN."""
    stream = inference.Stream(classifier("aaren"), batch_size=4096)
    x = np.ones((4096, CHANNELS), np.float32)
    outputs = []
    for _ in range(50):
        x[:] = 1
        outputs.append(stream.step(x))
        x[:] = np.nan
    assert np.isfinite(outputs).all()


def test_a_state_that_grows_is_refused():
    stream = inference.Stream(classifier("softmax"))
    with pytest.raises(ValueError, match="pass max_length"):
        stream.step(jnp.ones((1, 3)))


@pytest.mark.parametrize("graph_mode", [False, True], ids=["tree", "graph"])
def test_reset_forgets(graph_mode):
    with nnx.set_graph_mode(graph_mode):
        stream = inference.Stream(make_classifier("aaren"))
        x = normal(2, 1, CHANNELS)
        first = stream.step(x)
        stream.step(-x)
        stream.reset()
        np.testing.assert_array_equal(stream.step(x), first)


def test_a_model_that_looks_ahead_is_refused():
    model = models.SequenceClassifier(
        3,
        4,
        features=8,
        num_layers=1,
        num_heads=2,
        embedding_padding="circular",
        rngs=nnx.Rngs(0),
    )
    with pytest.raises(ValueError, match="has a non-causal embedding"):
        inference.Stream(model)


@pytest.mark.parametrize("mechanism", STREAMING)
def test_rows_begin_anew_and_fork_as_separate_streams(mechanism):
    """Rows: a; b, which begins anew after 2; c, which becomes a fork of a after 4."""
    model = classifier(mechanism)
    x = np.asarray(normal(1, 3, 7, CHANNELS))
    everywhere, nowhere = np.ones(3, bool), np.zeros(3, bool)
    streams = [inference.Stream(model, batch_size=3, max_length=7) for _ in range(3)]
    joint, by_step, fresh = streams
    for t in range(7):
        second = np.array([False, t == 2, False])
        if t == 2:
            joint.reset(second)
        if t == 4:
            joint.gather(jnp.array([0, 1, 0]))
        # All take a mask and a reset, hence one program: only then bits can be compared.
        y = joint.step(x[:, t], everywhere, reset=nowhere)
        y_by_step = by_step.step(x[:, t], everywhere, reset=second)
        assert_same_bits(y[:2], y_by_step[:2])
        # Row 1: what joined later. Row 2: row 0's observations, then its own.
        alone = np.stack([x[0, t], x[1, t], x[0 if t < 4 else 2, t]])
        y_alone = fresh.step(alone, np.array([True, t >= 2, True]), reset=nowhere)
        rows = slice(2 if t >= 2 else 1)
        assert_same_bits(y[rows], y_alone[rows])
        if t >= 4:
            assert_close(y[2], y_alone[2], "float32")
    assert_same_bits(take(joint.state, slice(2)), take(fresh.state, slice(2)))
    assert_same_bits(take(by_step.state, 1), take(fresh.state, 1))
    assert_close(joint.state, fresh.state, "float32")
    assert [stream.num_compilations for stream in streams] == [1, 1, 1]


@pytest.mark.parametrize("mechanism", STREAMING)
def test_prefill_takes_in_what_steps_would(mechanism):
    """Prompts of several lengths and paddings, in pieces by one program, while a row runs on."""
    model = backbone(mechanism)
    x = np.asarray(normal(2, 3, 9, CHANNELS))
    mask = np.array([[1] * 9, [0, 0, 1, 1, 0, 1, 0, 1, 1], [0] * 9], bool)
    stream = inference.Stream(model, batch_size=3, max_length=16)
    stepped = inference.Stream(model, batch_size=3, max_length=16)
    stream.step(x[:, 0])
    stepped.step(x[:, 0])
    before = take(stream.state, 2)
    y = stream.prefill(x, mask, chunk_size=4)
    for t in range(9):
        y_t = stepped.step(x[:, t], mask[:, t])
    assert_close(y[:2], y_t[:2], "float32")
    assert_same_bits(take(stream.state, 2), before)
    np.testing.assert_array_equal(y[2], 0)
    stream.prefill(x[:, :3], mask[:, :3], chunk_size=4)
    for t in range(3):
        stepped.step(x[:, t], mask[:, t])
    assert_close(stream.step(x[:, 4]), stepped.step(x[:, 4]), "float32")
    assert stream.num_compilations == 2  # a step and a piece
    assert stream.num_steps == stepped.num_steps == 14


@pytest.mark.parametrize("mechanism", STREAMING)
def test_every_call_reuses_the_memory_of_the_state(mechanism):
    stream = inference.Stream(classifier(mechanism), batch_size=2, max_length=8)
    x = jnp.ones((2, 2, CHANNELS))
    calls = (
        lambda: stream.step(x[:, 0]),
        lambda: stream.prefill(x, chunk_size=2),
        lambda: stream.reset(jnp.array([True, False])),
        lambda: stream.gather(jnp.array([1, 1])),
    )
    for reuse in calls:
        old = jax.tree.leaves(stream.state)
        reuse()
        assert all(leaf.is_deleted() for leaf in old)
    program = stream._step.lower(stream._variables, stream.state, x[:, 0], None, None).compile()
    # No leaf of the new state needs memory of its own.
    assert program.memory_analysis().alias_size_in_bytes == inference.state_bytes(stream.state)


@functools.cache
def programs():
    """A stream of three rows and its expectations, made once: Hypothesis calls many times."""
    model = classifier("taylorshift")
    stream = inference.Stream(model, batch_size=3)
    return stream, lambda x, mask: inference.unroll(model, x, mask)[:, -1]


MAX_LINES = 6
ROWS = st.lists(st.booleans(), min_size=3, max_size=3)
EVENTS = st.one_of(
    st.tuples(st.just("step"), ROWS, ROWS),
    st.tuples(st.just("reset"), ROWS),
    st.tuples(st.just("gather"), st.lists(st.integers(0, 2), min_size=3, max_size=3)),
)


@given(st.lists(EVENTS, min_size=1, max_size=MAX_LINES))
def test_rows_live_their_own_lives(events):
    """Any order of steps, resets and forks: each row answers for its own history alone."""
    stream, unroll = programs()
    stream.reset()
    histories = [[], [], []]
    tape = iter(np.asarray(normal(3, len(events), 3, CHANNELS)))
    for kind, *arguments in [*events, ("step", [True] * 3, [False] * 3)]:
        if kind == "gather":
            (indices,) = arguments
            stream.gather(jnp.array(indices))
            histories = [list(histories[i]) for i in indices]
            continue
        forget = arguments[-1]
        histories = [[] if f else h for h, f in zip(histories, forget, strict=True)]
        if kind == "reset":
            stream.reset(jnp.array(forget))
            continue
        x, real = next(tape, np.ones((3, CHANNELS), np.float32)), arguments[0]
        y = stream.step(x, np.array(real), reset=np.array(forget))
        for row in range(3):
            histories[row] += [x[row]] * real[row]
    padded = np.zeros((3, MAX_LINES + 1, CHANNELS), np.float32)
    mask = np.zeros((3, MAX_LINES + 1), bool)
    for row, history in enumerate(histories):
        padded[row, : len(history)], mask[row, : len(history)] = history, True
    assert_close(y, unroll(padded, mask), "float32")
    assert stream.num_compilations == 1


def test_wrong_rows_are_refused():
    stream = inference.Stream(backbone(), batch_size=2)
    x = jnp.ones((2, CHANNELS))
    with pytest.raises(TypeError, match="expected reset as boolean, got int32"):
        stream.reset(jnp.array([1, 0]))
    with pytest.raises(ValueError, match=r"expected mask of shape \[2\], got shape \(3,\)"):
        stream.step(x, jnp.array([True, False, True]))
    with pytest.raises(ValueError, match="rows, 0 to 1, got 2"):
        stream.gather(jnp.array([0, 2]))
    with pytest.raises(ValueError, match=r"indices of shape \[2\]"):
        stream.gather(jnp.array([0, 1, 1]))
    with pytest.raises(TypeError, match="integer dtype, got float32"):
        inference.gather_rows(stream.state, jnp.ones(2))
    with pytest.raises(ValueError, match=r"x as \[B, T, ...\]"):
        stream.prefill(x[:, :0])
    with pytest.raises(ValueError, match="different models or capacities"):
        softmax = backbone("softmax")
        rows = jnp.array([True, False])
        inference.reset_rows(softmax.init_state(2, 8), rows, softmax.init_state(2, 9))
    stream.step(x)  # nothing above has touched the stream
    assert stream.num_steps == 1


def test_a_saved_state_is_restored_more_than_once():
    stream = inference.Stream(classifier("aaren"))
    x = jnp.ones((1, CHANNELS))
    stream.step(x)
    saved = jax.tree.map(jnp.copy, stream.state)
    outputs = []
    for _ in range(2):
        stream.state = saved
        outputs.append(stream.step(x))
    np.testing.assert_array_equal(*outputs)
    reused = stream.state
    stream.step(x)
    with pytest.raises(ValueError, match="was reused by a later call; copy a state"):
        stream.state = reused
    with pytest.raises(ValueError, match="expected a state of the same model, batch size"):
        stream.state = jax.tree.map(lambda a: np.repeat(a, 2, axis=0), saved)
    for other in (np.array([[1] * 500, None], object), jnp.ones(500)):
        with pytest.raises(
            ValueError, match="expected a state of the same model, batch size"
        ) as caught:
            stream.state = other
        assert len(str(caught.value)) < 500  # never its values


def test_rows_that_are_not_there_under_jit():
    state = {"a": jnp.ones((2, 3))}
    taken = jax.jit(inference.gather_rows)(state, jnp.array([1, -1, 2]))
    assert np.isnan(taken["a"]).all(axis=1).tolist() == [False, True, True]


def test_a_state_has_one_axis_of_rows():
    with pytest.raises(ValueError, match="the same first axis, got shapes"):
        inference.gather_rows({"a": jnp.ones((2, 3)), "count": jnp.ones(())}, jnp.array([0]))


def refused(stream, x, message, **options):
    """What has no room is refused, and changes nothing."""
    before = jax.tree.map(np.asarray, stream.state)
    with pytest.raises(OptionError, match=message) as caught:
        stream.step(x, **options)
    assert caught.value.options == (("max_length",) if "cache" in str(caught.value) else ())
    assert_same_bits(stream.state, before)


def test_what_a_cache_has_no_room_for_is_refused():
    """Rows are counted one by one: with masks, resets, forks, prompts and states of before."""
    x, both = jnp.ones((2, CHANNELS)), np.ones(2, bool)
    full = r"row 1 has no capacity for observation 4, because its cache holds 3; make the stream"
    stream = inference.Stream(classifier("softmax"), batch_size=2, max_length=3)
    for t in range(3):
        stream.step(x, np.array([t > 0, True]))
    refused(stream, x, full)
    assert np.isfinite(stream.step(x, np.array([True, False]))).all()
    kept = jax.tree.map(jnp.copy, stream.state)
    assert np.isfinite(stream.step(x, reset=both)).all()
    stream.gather(jnp.array([1, 1]))
    stream.reset(np.array([True, False]))
    with pytest.raises(OptionError, match="row 1 has no capacity for observation 4"):
        stream.prefill(jnp.ones((2, 3, CHANNELS)))
    stream.prefill(jnp.ones((2, 2, CHANNELS)), chunk_size=2)
    stream.prefill(jnp.ones((2, 1, CHANNELS)), np.array([[True], [False]]), chunk_size=2)
    refused(stream, x, "row 0 has no capacity")
    stream.reset()
    stream.state = kept
    refused(stream, x, "row 0 has no capacity", mask=both)


@pytest.mark.parametrize("options", [{"pooling": "flatten"}, {"position": "learned"}])
def test_what_a_table_has_no_position_for_is_refused(options):
    stream = inference.Stream(make_classifier("aaren", max_length=2, **options))
    x = jnp.ones((1, CHANNELS))
    assert np.isfinite([stream.step(x), stream.step(x)]).all()
    refused(stream, x, "the model has positions for 2; make the model with a larger max_length")


def test_no_device_is_asked_about_rows_of_numpy():
    stream = inference.Stream(classifier("softmax"), batch_size=2, max_length=3)
    with jax.transfer_guard("disallow_explicit"):
        taken = stream._capacity.count_after(np.array([True, False]), reset=[False, True])
    assert taken.tolist() == [1, 0]


def test_a_state_of_constant_size_has_no_end():
    stream = inference.Stream(classifier("aaren"), max_length=2)
    for _ in range(4):
        assert np.isfinite(stream.step(jnp.ones((1, CHANNELS)))).all()


def test_full_caches_and_unknown_tokens_under_jit():
    """A caller reads which rows are full; checkify reports both."""
    model = models.LanguageModel(
        TOKENS, features=8, num_layers=2, num_heads=2, mechanism=("aaren", "softmax"),
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    graph, params = nnx.split(model)

    @functools.partial(checkify.checkify, errors=checkify.nan_checks)
    @jax.jit
    def step(params, x, state, mask):
        y, state = nnx.merge(graph, params).step(x, state, mask=mask)
        return y, state, inference.has_overflowed(state)

    state, x = model.init_state(2, 1), jnp.array([1, 2])
    for mask, full in ([True, True], [False, False]), ([True, False], [True, False]):
        error, (y, state, overflowed) = step(params, x, state, jnp.array(mask))
        assert overflowed.tolist() == jnp.isnan(y).any(axis=1).tolist() == full
        assert (error.get() is None) == (not any(full))
    assert "nan generated" in error.get()
    error, (y, _, _) = step(params, x + TOKENS, model.init_state(2, 1), jnp.array([True, True]))
    assert "nan generated" in error.get() and jnp.isnan(y).all()
