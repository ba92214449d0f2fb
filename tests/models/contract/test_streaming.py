"""A head in parallel is the loop of its steps, in one part or several."""

import jax
import numpy as np
import pytest

from flax_linattn import inference
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.contract.heads import (
    EVERYWHERE,
    FIRST,
    HEADS,
    LENGTH,
    ROWS,
    STREAMING,
    heads,
    model_of,
    observations,
    run,
)
from tests.nn.cases import call, run_steps


def layout(tree):
    return jax.tree.map(lambda a: (a.shape, a.dtype), tree)


@STREAMING
def test_steps_give_the_outputs_and_the_state_of_a_call(name, mechanism):
    """From any step on, too; and a step leaves the state's shapes and dtypes as they are."""
    model, x = model_of(name, mechanism), observations(name)
    begin = model.init_state(ROWS)
    whole, end = run(name, model, x)
    streamed, after = run_steps(model, x, begin)
    assert_close(streamed, whole, "float32")
    assert_close(after, end, "float32")
    assert layout(after) == layout(end) == layout(begin)
    _, state = run(name, model, x, EVERYWHERE & (np.arange(LENGTH) < 3))
    streamed, _ = run_steps(model, x[:, 3:], state)
    assert_close(streamed, whole[:, 3:], "float32")


@STREAMING
def test_calls_go_on_where_another_stopped(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    whole, end = run(name, model, x)
    for split in (1, 5):
        first = EVERYWHERE & (np.arange(LENGTH) < split)
        head, state = run(name, model, x, first)
        tail, state = run(name, model, x, ~first, state)
        of_first = first.reshape(first.shape + (1,) * (head.ndim - 2))
        assert_close(np.where(of_first, head, tail), whole, "float32")
        assert_close(state, end, "float32")


@heads(lambda case: bool(case.every), fast="aaren")
def test_the_output_of_a_sequence_is_that_after_its_last_observation(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    every, _ = run(name, model, x)
    mask = EVERYWHERE & (np.arange(LENGTH) < np.array([[LENGTH], [5]]))
    last = call(model, x, mask=mask)
    assert_close(last, np.stack([every[0, -1], every[1, 4]]), "float32")


@heads(lambda case: case.streams, fast="aaren", slow_variants=True)
def test_streams_of_the_library(name, mechanism):
    """A prompt and steps, which compile once each; rows begin again by themselves."""
    model, x = model_of(name, mechanism), observations(name)
    whole, _ = run(name, model, x)
    stream = inference.Stream(model, batch_size=ROWS, max_length=LENGTH)
    y = np.asarray(stream.prefill(x[:, :3]))
    assert_close(y, whole[:, 2], "float32")
    again = np.array([False, True])
    y = [stream.step(np.stack([x[0, 3 + t], x[1, t]]), reset=again & (t == 0)) for t in range(2)]
    assert_close(np.stack(y), np.stack([whole[0, 3:5], whole[1, :2]], axis=1), "float32")
    assert stream.num_compilations == 2


@FIRST
def test_a_state_of_constant_size_does_not_grow(name, mechanism):
    model = model_of(name, mechanism)
    if HEADS[name].streams and getattr(model, "constant_memory", mechanism != "softmax"):
        assert_same_bits(*(model.init_state(ROWS, length) for length in (LENGTH, 10**9)))


@FIRST
def test_heads_that_do_not_stream_say_why(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    assert model.streams is HEADS[name].streams
    if not model.streams:
        for refused in (
            lambda: model.init_state(ROWS),
            lambda: model(x, return_state=True),
            lambda: model(x, every_step=True),
            lambda: model.step(x[:, 0], None),
        ):
            with pytest.raises(ValueError, match=r"cannot stream; make it with"):
                refused()
