"""Packed sequences = the same sequences one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LENGTHS = (4, 1, 2)  # two chunks
PACKED = cases.offering(lambda can: can.packed, cases.DIRECTIONS_FORMS)


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form"), cases.slow_unless(cases.central, PACKED)
)
def test_packed_is_separate(mechanism: ops.Mechanism, is_causal: bool, form: str) -> None:
    """Values, gradients, and the state, which is that of the last sequence."""
    ends = np.cumsum(LENGTHS)
    spans = [slice(e - n, e) for e, n in zip(ends, LENGTHS, strict=True)]
    # The first and the last sequence share an id: only a change of id separates.
    ids = jnp.asarray(np.repeat([4, 9, 4], LENGTHS)[None].repeat(2, axis=0))
    tokens = cases.make_tokens(mechanism, int(ends[-1]), np.float32, batch=2)

    def attend(tokens: Tokens, form: str, ids: Any = None) -> Any:
        how = {"is_causal": is_causal, "segment_ids": ids, "form": form}
        y, state = cases.attend(mechanism, tokens, **how)
        inner = cases.unpacked(state)
        leaves = cases.meaning(inner)
        if isinstance(inner, ops.KVCache):
            leaves = [leaf[:, : LENGTHS[-1]] for leaf in leaves]
        return y, leaves

    def separate(tokens: Tokens) -> Any:
        simplest = "recurrent"
        parts = [attend(cases.take(mechanism, tokens, span), simplest) for span in spans]
        return jnp.concatenate([y for y, _ in parts], axis=1), parts[-1][1]

    got, want = jax.jit(
        lambda t: [cases.with_gradients(f)(t) for f in (lambda t: attend(t, form, ids), separate)]
    )(tokens)
    assert_close(got, want, np.float32)


QUICK = cases.slow_unless(cases.quick, cases.offering(lambda can: can.packed, cases.FORMS))


@pytest.mark.parametrize(("mechanism", "form"), QUICK)
def test_packed_state_carries_its_id(mechanism: ops.Mechanism, form: str) -> None:
    """The next call goes on where the id is the same and starts afresh where it is not."""
    is_causal = mechanism.capabilities.causal
    tokens = cases.make_tokens(mechanism, 6, np.float32, batch=3)
    ids = jnp.array([[1, 1, 2, 2, 2, 2], [1, 1, 2, 3, 3, 3], [5, 5, 5, 5, 5, 6]])

    @jax.jit
    def run(tokens: Tokens) -> Any:
        def attend(span: slice, ids: Any, state: Any = None) -> Any:
            part = cases.take(mechanism, tokens, span)
            how = {"is_causal": is_causal, "segment_ids": ids, "form": form}
            return cases.attend(mechanism, part, state, **how)

        whole, _ = attend(slice(0, 6), ids)
        _, state = attend(slice(0, 3), ids[:, :3])
        y, last = attend(slice(3, 6), ids[:, 3:], state)
        _, kept = attend(slice(3, 6), None, state)
        return y, whole[:, 3:], state.segment_id, last.segment_id, kept.segment_id

    got, want, before, after, kept = run(tokens)
    assert_close(got, want, np.float32)
    assert (before.tolist(), after.tolist()) == ([2, 2, 5], [2, 3, 6])
    assert kept.tolist() == [2, 2, 5]


@pytest.mark.parametrize(("mechanism", "form"), QUICK)
def test_a_span_of_padding_does_not_decide_the_segment(mechanism: ops.Mechanism, form: str) -> None:
    """A plain state goes on into the first run, even if a call of mere padding comes between."""
    tokens = cases.make_tokens(mechanism, 8, np.float32, batch=1)
    mask = jnp.array([[False, False, True, True]])
    ids = jnp.array([[0, 0, 1, 1]])

    def attend(begin: int, end: int, state: Any = None, **how: Any) -> Any:
        part = cases.take(mechanism, tokens, slice(begin, end))
        how = {"is_causal": mechanism.capabilities.causal, "form": form} | how
        return cases.attend(mechanism, part, state, **how)

    _, before = attend(0, 4)
    whole, _ = attend(4, 8, before, mask=mask, segment_ids=ids)
    _, between = attend(4, 6, before, mask=mask[:, :2], segment_ids=ids[:, :2])
    rest, _ = attend(6, 8, between, mask=mask[:, 2:], segment_ids=ids[:, 2:])
    assert_close(rest, whole[:, 2:], np.float32)
    _, none = attend(4, 4, before, segment_ids=ids[:, :0])
    assert isinstance(none, ops.PackedState)
