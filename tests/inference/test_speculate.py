"""Speculative decoding: the tokens of ``generate``, whatever the draft model proposes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from tests.contract.tolerances import assert_close
from tests.inference.cases import STREAMING, TOKENS, Language, backbone, language
from tests.inference.test_generate import PROMPT, spread

FAST = ("aaren", "softmax", "gated_delta")
MECHANISMS = [
    pytest.param(*case.values, id=case.id, marks=() if case.id in FAST else pytest.mark.slow)
    for case in STREAMING
]


def near(model, mechanism, scale):
    """A copy whose head is changed by this much: a draft that is wrong now and then."""
    draft = Language(mechanism)
    nnx.update(draft, nnx.state(model))
    noise = jax.random.normal(jax.random.key(1), draft.head.kernel[...].shape)
    draft.head.kernel[...] = draft.head.kernel[...] + scale * noise
    return draft


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_and_states_are_those_of_generate(mechanism):
    """From a prompt with padding anywhere, each row accepting at its own pace."""
    model = language(mechanism)
    x, mask = spread(PROMPT)
    want = inference.generate(model, x, 9, mask)
    whole = jnp.concatenate([x, want.tokens[:, :-1]], axis=1)
    real = jnp.concatenate([mask, jnp.ones((4, 8), bool)], axis=1)
    accepted = {}
    for scale in (0.0, 0.7, 9.0):  # always right, sometimes, hardly ever
        draft = near(model, mechanism, scale)
        got = inference.speculate(model, draft, x, 9, mask, num_draft_tokens=3)
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_array_equal(got.lengths, want.lengths)
        assert_close(got.state, want.state, "float32")
        draft_state = inference.prefill(draft, whole, real, max_length=x.shape[1] + 9)[1]
        assert_close(got.draft_state, draft_state, "float32")
        accepted[scale] = got.num_accepted
        assert (got.num_accepted <= got.num_drafted).all()
        # 8 tokens after the first; a round of right drafts needs no second call.
        assert got.num_calls == 2 if scale == 0 else got.num_calls > 3
    assert accepted[0.0].tolist() == [6] * 4
    assert any(len(set(accepted[scale].tolist())) > 1 for scale in (0.7, 9.0))
    assert accepted[9.0].sum() < accepted[0.7].sum() < 24


def test_rows_stop_where_generate_stops():
    """In the middle of accepted drafts; the last row is padding alone."""
    model, mask = language(), jnp.ones((4, 4), bool).at[3].set(False)
    free = inference.generate(model, PROMPT, 12, mask).tokens
    stop = [int(free[0, 2]), int(free[1, 4])]
    for scale in (0.0, 0.7):
        draft = near(model, "aaren", scale)
        for max_new_tokens in (1, 12):
            options = {"stop": stop, "pad": -1}
            want = inference.generate(model, PROMPT, max_new_tokens, mask, **options)
            got = inference.speculate(
                model, draft, PROMPT, max_new_tokens, mask, num_draft_tokens=4, **options
            )
            np.testing.assert_array_equal(got.tokens, want.tokens)
            assert got.lengths.tolist() == want.lengths.tolist()
            assert_close(got.state, want.state, "float32")


def test_both_states_go_on():
    model, draft = language("softmax"), near(language("softmax"), "softmax", 0.7)
    want = inference.generate(model, PROMPT, 12).tokens
    first = inference.speculate(model, draft, PROMPT, 6, max_length=16)
    states = {"state": first.state, "draft_state": first.draft_state}
    rest = inference.speculate(model, draft, first.tokens[:, -1:], 6, **states)
    np.testing.assert_array_equal(jnp.concatenate([first.tokens, rest.tokens], 1), want)
    # A draft model that has not seen the beginning proposes worse tokens, and changes none.
    blind = inference.speculate(model, draft, first.tokens[:, -1:], 6, state=first.state)
    np.testing.assert_array_equal(blind.tokens, rest.tokens)


def test_the_draft_model_may_be_of_another_kind_and_run_out_of_room():
    model = language()
    draft = models.LanguageModel(
        TOKENS,
        features=4,
        num_layers=1,
        num_heads=1,
        mechanism="softmax",
        position="learned",
        max_length=7,
        rngs=nnx.Rngs(3),
    )
    got = inference.speculate(model, draft, PROMPT, 9, num_draft_tokens=2)
    np.testing.assert_array_equal(got.tokens, inference.generate(model, PROMPT, 9).tokens)


def test_a_model_without_room_is_refused():
    model, draft = language("softmax"), language()
    _, state = inference.prefill(model, PROMPT, max_length=8)
    # The last new token is not processed, nor are drafts beyond it.
    tokens = inference.speculate(model, draft, PROMPT[:, -1:], 4, state=state).tokens
    want = inference.generate(model, PROMPT[:, -1:], 4, state=state).tokens
    np.testing.assert_array_equal(tokens, want)
    # A parallel call still returns outputs where it fills the cache, so one more token is right.
    with pytest.raises(ValueError, match=r"row 0 are NaN after 5 new tokens; .* max_length"):
        inference.speculate(model, draft, PROMPT[:, -1:], 9, state=state)


def test_wrong_arguments_are_refused():
    model = language()
    with pytest.raises(ValueError, match="num_draft_tokens must be at least 1"):
        inference.speculate(model, model, PROMPT, 4, num_draft_tokens=0)
    with pytest.raises(ValueError, match=r"got \(11,\) from the model, and 12 from the draft"):
        inference.speculate(model, Language(tokens=TOKENS + 1), PROMPT, 4)
    with pytest.raises(TypeError, match="expected a model that streams"):
        inference.speculate(model, nnx.Linear(2, 3, rngs=nnx.Rngs(0)), PROMPT, 4)
    with pytest.raises(ValueError, match=r"expected observations \[B, 3\], got shape \(4,\)"):
        inference.speculate(model, backbone(), PROMPT, 4)
