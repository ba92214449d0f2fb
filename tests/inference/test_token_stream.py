"""Tokens one at a time: those of ``generate``, the state after each, and prompts read once."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from tests.contract.tolerances import assert_close
from tests.inference.cases import STREAMING, TOKENS, Language, check_one_program, language
from tests.inference.test_generate import KEY, PROMPT, graph_modes

SAMPLED = {"key": KEY, "temperature": 1.5, "top_k": 9, "top_p": 0.95, "min_p": 0.01}


@pytest.mark.parametrize("mechanism", STREAMING)
def test_tokens_and_states_are_those_of_generate(mechanism):
    """Rows end at different tokens, and the last row is padding alone."""
    model, mask = language(mechanism), jnp.ones((4, 4), bool).at[3].set(False)
    options = {**SAMPLED, "repetition_penalty": 1.2, "pad": -1, "mask": mask}
    free = inference.generate(model, PROMPT, 8, **options).tokens
    options["stop"] = [int(free[0, 2]), int(free[1, 5])]
    want = inference.generate(model, PROMPT, 8, **options)
    stream = inference.generate_tokens(model, PROMPT, 8, **options)
    assert stream.lengths.tolist() == [0] * 4
    assert stream.is_running.tolist() == [True, True, True, False]
    tokens = np.stack(list(stream), axis=1)
    assert tokens.shape[1] == max(want.lengths)
    np.testing.assert_array_equal(tokens, want.tokens[:, : tokens.shape[1]])
    assert stream.lengths.tolist() == want.lengths.tolist()
    assert_close(stream.state, want.state, "float32")
    assert next(stream, None) is None


def test_a_stream_is_endless_and_its_state_goes_on():
    model = language()
    stream = inference.generate_tokens(model, PROMPT)
    want = inference.generate(model, PROMPT, 40)
    tokens = np.stack(list(itertools.islice(stream, 30)), axis=1)
    np.testing.assert_array_equal(tokens, want.tokens[:, :30])
    assert stream.state.position.tolist() == [4 + 29] * 4
    rest = inference.generate(model, tokens[:, -1:], 10, state=stream.state)
    np.testing.assert_array_equal(rest.tokens, want.tokens[:, 30:])
    np.testing.assert_array_equal(next(stream), want.tokens[:, 30])


def test_a_cache_has_an_end():
    model = language("softmax")
    with pytest.raises(ValueError, match="pass max_length"):
        inference.generate_tokens(model, PROMPT)
    stream = inference.generate_tokens(model, PROMPT, max_length=6)
    assert len(list(itertools.islice(stream, 3))) == 3
    with pytest.raises(ValueError, match=r"row 0 are NaN after 3 new tokens"):
        next(stream)
    assert list(stream) == []


@graph_modes
def test_one_program_for_all_streams(graph_mode):
    def generate(*args, **options):
        return list(inference.generate_tokens(*args, **options))

    check_one_program(generate, PROMPT, graph_mode)


class Learned(Language):
    """A model whose initial state is one of its parameters."""

    def __init__(self):
        super().__init__()
        self.start = nnx.Param(jnp.ones((1, 2)))

    def init_state(self, batch_size, max_length=None):
        state = super().init_state(batch_size, max_length)
        return state, jnp.broadcast_to(self.start[...], (batch_size, 2))

    def __call__(self, x, *, mask=None, state=None, return_state=False):
        y, after = super().__call__(x, mask=mask, state=state[0], return_state=True)
        return (y, (after, state[1])) if return_state else y

    def step(self, x, state, *, mask=None):
        y, after = super().step(x, state[0], mask=mask)
        return y, (after, state[1])


def test_a_stream_overwrites_neither_parameters_nor_the_callers_state():
    model = Learned()
    _, state = inference.prefill(model, PROMPT[:1])
    want = inference.generate(model, PROMPT[:1], 5, state=state).tokens[0].tolist()
    for _ in range(2):
        fresh = list(inference.generate_tokens(model, PROMPT[:1], 5))
        again = list(inference.generate_tokens(model, PROMPT[:1], 5, state=state))
        assert len(fresh) == 5
        assert np.concatenate(again).tolist() == want
    np.testing.assert_array_equal(model.start[...], 1)


def test_wrong_arguments_are_refused_before_the_first_token():
    model = language()
    with pytest.raises(TypeError, match="unexpected keyword argument 'topk'"):
        inference.generate_tokens(model, PROMPT, topk=3)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        inference.generate_tokens(model, PROMPT, 0)
    with pytest.raises(ValueError, match="need a key"):
        inference.generate_tokens(model, PROMPT, 3, top_p=0.5)
    with pytest.raises(ValueError, match="with at least top_k=99 tokens"):
        inference.generate_tokens(model, PROMPT, 3, key=KEY, top_k=99)


@pytest.mark.parametrize("mechanism", ["aaren", "softmax", "gated_delta"])
def test_a_saved_state_of_a_prompt_serves_many_continuations(mechanism, tmp_path):
    """A prefix cache: the common beginning is processed once, saved, loaded, and continued."""
    model = models.LanguageModel(
        TOKENS, features=8, num_layers=2, num_heads=2, mechanism=mechanism, rngs=nnx.Rngs(0)
    )
    prefix, questions = PROMPT[:1], jnp.array([[7, 2], [0, 10], [3, 3]])
    _, state = inference.prefill(model, prefix, max_length=12)
    inference.save_state(tmp_path / "prefix.npz", state, {})
    loaded, _ = inference.load_state(tmp_path / "prefix.npz", model.init_state(1, 12))
    rows = inference.gather_rows(loaded, jnp.zeros(3, int))
    got = inference.generate(model, questions, 6, state=rows, key=KEY, top_p=0.9)
    whole = jnp.concatenate([jnp.tile(prefix, (3, 1)), questions], axis=1)
    want = inference.generate(model, whole, 6, key=KEY, top_p=0.9)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert_close(got.state, want.state, "float32")
