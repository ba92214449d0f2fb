"""Generation: the tokens of the parallel model, rows that do not know of each other, early stop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import inference
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.inference.cases import STREAMING, Language, backbone, check_one_program, language, take
from tests.nn.cases import LAYOUTS, call

PROMPT = jnp.array([[3, 1, 4, 1], [2, 7, 1, 8], [5, 5, 0, 9], [6, 2, 6, 0]])
KEY = jax.random.key(7)
graph_modes = pytest.mark.parametrize("graph_mode", [False, True], ids=["tree", "graph"])


def spread(prompt, filler=10):
    """Each row's four tokens at the real positions of a layout of its own."""
    x = np.full(LAYOUTS.shape, filler)
    x[LAYOUTS] = np.asarray(prompt).ravel()
    return jnp.asarray(x), jnp.asarray(LAYOUTS)


@pytest.mark.parametrize("mechanism", STREAMING)
def test_the_most_likely_tokens_are_the_parallel_models(mechanism):
    """From prompts with padding anywhere, taken in in pieces."""
    model = language(mechanism)
    x, mask = spread(PROMPT)
    got = inference.generate(model, x, 5, mask, chunk_size=4)
    # The whole, in parallel, says which token was most likely at each place.
    whole = jnp.concatenate([PROMPT, got.tokens], axis=1)
    want = np.argmax(call(model, whole), axis=-1)[:, 3:-1]
    np.testing.assert_array_equal(got.tokens, want)
    assert len(np.unique(got.tokens)) > 2  # a model that always says the same would show nothing
    assert got.lengths.tolist() == [5] * 4


def test_the_last_token_goes_on():
    model = language("softmax")
    whole = inference.generate(model, PROMPT, 4)
    first = inference.generate(model, PROMPT, 2, max_length=8)
    rest = inference.generate(model, first.tokens[:, -1:], 2, state=first.state)
    np.testing.assert_array_equal(
        jnp.concatenate([first.tokens, rest.tokens], axis=1), whole.tokens
    )


def test_what_a_row_draws_depends_on_no_other_row():
    model = language()
    keys = jax.random.split(KEY, 4)
    options = {"temperature": 1.5, "top_k": 6}
    together = inference.generate(model, PROMPT, 8, key=keys, **options)
    order = jnp.array([2, 0, 3, 1])
    moved = inference.generate(model, PROMPT[order], 8, key=keys[order], **options)
    np.testing.assert_array_equal(moved.tokens, together.tokens[order])
    for row in range(4):
        alone = slice(row, row + 1)
        single = inference.generate(model, PROMPT[alone], 8, key=keys[alone], **options)
        np.testing.assert_array_equal(single.tokens, together.tokens[alone])
    # With one key rows of the same prompt differ, and do not depend on how many there are.
    same = jnp.tile(PROMPT[:1], (4, 1))
    four = inference.generate(model, same, 8, key=KEY, **options)
    one = inference.generate(model, same[:1], 8, key=KEY, **options)
    np.testing.assert_array_equal(four.tokens[:1], one.tokens)
    assert len({tuple(row) for row in four.tokens.tolist()}) == 4


class Counting(Language):
    """Tells how many steps ran."""

    steps = 0

    @classmethod
    def count(cls):
        cls.steps += 1

    def step(self, x, state, *, mask=None):
        jax.debug.callback(self.count)
        return super().step(x, state, mask=mask)


def test_rows_stop_by_themselves_and_the_loop_with_the_last():
    """The last row is padding alone, and is not continued."""
    model = Counting()
    mask = jnp.ones((4, 4), bool).at[3].set(False)
    free = inference.generate(model, PROMPT, 12, mask, stop=[-1, -1])
    stop = [int(free.tokens[0, 2]), int(free.tokens[1, 4])]
    tokens = free.tokens.tolist()
    lengths = [next((i + 1 for i, t in enumerate(row) if t in stop), 12) for row in tokens[:3]]
    assert len(set(lengths)) > 1 and max(lengths) < 12  # else this shows little
    lengths.append(0)
    jax.effects_barrier()
    Counting.steps = 0
    got = inference.generate(model, PROMPT, 12, mask, stop=stop, pad=-1)
    jax.effects_barrier()
    assert Counting.steps == max(lengths) - 1
    assert got.lengths.tolist() == lengths
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(got.tokens[row, :length], free.tokens[row, :length])
        np.testing.assert_array_equal(got.tokens[row, length:], -1)
    # The state has taken in the prompt and all tokens but the last.
    taken = jnp.concatenate([PROMPT, free.tokens], axis=1)
    real = jnp.arange(16) < 4 + np.array(lengths)[:, None] - 1
    real = real.at[3].set(False)
    assert_close(got.state, inference.prefill(model, taken, real)[1], "float32")
    assert_same_bits(take(got.state, 3), take(model.init_state(4), 3))


@graph_modes
def test_one_program_for_new_weights_keys_and_temperatures(graph_mode):
    check_one_program(inference.generate, PROMPT, graph_mode)


@pytest.mark.parametrize("mechanism", ["aaren", "softmax"])
def test_tokens_of_the_prompt_and_new_ones_are_penalized(mechanism):
    """Padding is not of the prompt, whatever token it holds."""
    model, penalty = language(mechanism), np.array([1.0, 1.3, 2.0, 5.0])
    x, mask = spread(PROMPT)
    got = inference.generate(model, x, 6, mask, repetition_penalty=penalty)
    row = np.asarray(PROMPT)
    for _ in range(6):
        padded = np.pad(row, ((0, 0), (0, 10 - row.shape[1])))
        logits = np.asarray(call(model, jnp.asarray(padded)))[:, row.shape[1] - 1].astype(float)
        for logit, seen, factor in zip(logits, row, penalty, strict=True):
            for token in set(seen.tolist()):
                logit[token] = logit[token] / factor if logit[token] > 0 else logit[token] * factor
        row = np.concatenate([row, logits.argmax(axis=1)[:, None]], axis=1)
    np.testing.assert_array_equal(got.tokens, row[:, 4:])
    free = inference.generate(model, x, 6, mask).tokens
    np.testing.assert_array_equal(got.tokens[0], free[0])
    assert (got.tokens != free).any()


def test_a_model_without_room_is_refused():
    model = language("softmax")
    _, state = inference.prefill(model, PROMPT, max_length=6)
    with pytest.raises(ValueError, match=r"row 0 are NaN after 2 new tokens; .* max_length"):
        inference.generate(model, PROMPT[:, -1:], 5, state=state)
    ended = jax.jit(lambda state: inference.generate(model, PROMPT[:, -1:], 5, state=state))(state)
    assert ended.lengths.tolist() == [2] * 4
    assert inference.has_overflowed(ended.state).all()
    assert not inference.has_overflowed(state).any()


def test_wrong_arguments_are_refused():
    model = language()
    with pytest.raises(TypeError, match=r"prompt as integers \[B, T\], got float32"):
        inference.generate(model, jnp.ones((2, 3)), 4)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        inference.generate(model, PROMPT, 0)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        inference.generate(model, PROMPT, 4, key=KEY, top_k=0)
    with pytest.raises(ValueError, match="with at least top_k=99 tokens"):
        inference.generate(model, PROMPT, 4, key=KEY, top_k=99)
    with pytest.raises(ValueError, match="temperature must be at least 0"):
        inference.generate(model, PROMPT, 4, key=KEY, temperature=-1.0)
    with pytest.raises(ValueError, match=r"a number or one number per row, \(4,\)"):
        inference.generate(model, PROMPT, 4, key=KEY, temperature=jnp.ones(3))
    with pytest.raises(TypeError, match=r"expected a key of jax.random.key\(seed\), got uint32"):
        inference.generate(model, PROMPT, 4, key=jax.random.key_data(KEY))
    with pytest.raises(
        ValueError, match=r"a single key or one key per row, \(4,\), got shape \(3,\)"
    ):
        inference.generate(model, PROMPT, 4, key=jax.random.split(KEY, 3))
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        inference.generate(model, PROMPT, 4, chunk_size=0)
    with pytest.raises(ValueError, match="pass max_length"):
        growing = language("softmax")
        inference.generate(growing, PROMPT, 4, state=growing.init_state(4))
    for wrong in ({"stop": 3.0}, {"pad": 1.5}, {"key": KEY, "top_k": 2.0}):
        with pytest.raises(TypeError, match=r"must be an integer|as token ids \(integers\)"):
            inference.generate(model, PROMPT, 4, **wrong)
    message = r"^expected stop as token ids \(integers\), got float32 \[999\]\.$"
    with pytest.raises(TypeError, match=message):
        inference.generate(model, PROMPT, 4, stop=jnp.ones(999))
    with pytest.raises(ValueError, match=r"expected observations \[B, 3\], got shape \(4,\)"):
        inference.generate(backbone(), PROMPT, 4)


def test_prompts_of_a_narrow_dtype():
    """Tokens may exceed what the prompt's dtype holds."""
    model = Language(tokens=400)
    want = inference.generate(model, PROMPT, 6).tokens
    got = inference.generate(model, PROMPT.astype(jnp.uint8), 6).tokens
    np.testing.assert_array_equal(got, want)
    assert got.max() > 255


def test_drawing_needs_a_key_and_a_prompt_its_room():
    model = language()
    for options in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        with pytest.raises(ValueError, match="need a key"):
            inference.generate(model, PROMPT, 2, **options)
    with pytest.raises(ValueError, match="max_length must be at least 4, the observations, got 2"):
        inference.generate(model, PROMPT, 1, max_length=2)
