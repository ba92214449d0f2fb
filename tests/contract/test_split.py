"""A sequence may be cut anywhere: attend + attend = attend, attend + steps = attend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH
from tests.contract.tolerances import assert_close

STEPWISE = cases.offering(lambda can: can.causal and can.recurrent)
CAPACITIES = [
    pytest.param(m, preallocated, id=f"{m.name}-{'preallocated' if preallocated else 'growing'}")
    for m in cases.ALL
    if m.capabilities.causal and m.capabilities.recurrent
    for preallocated in ([False] if m.capabilities.constant_memory else [False, True])
]


def fast_capacity(mechanism: ops.Mechanism, preallocated: bool) -> bool:
    """A cache that grows, one allocated before, one that forgets, and a state of constant size."""
    spec = cases.spec_of(mechanism)
    return (
        spec == "elementwise" if preallocated else spec in ("softmax", "softmax:window=3", "aaren")
    )


def fast_start(mechanism: ops.Mechanism) -> bool:
    """What grows, and a state of constant size; others step from a state in ``test_forms.py``."""
    return cases.spec_of(mechanism) in ("softmax", "elementwise", "aaren")


# Cuts are drawn as data, by masking what lies outside a piece, so that two programs do all of it;
# test_cut_in_shape cuts the arrays themselves.
CUT = st.integers(0, LENGTH)
ROWS = cases.BATCH


@pytest.mark.parametrize("mechanism", cases.slow_unless(cases.representative, STEPWISE))
@settings(max_examples=8)  # of 8 rows, each cut elsewhere
@given(data=st.data())
def test_two_attends_and_steps_are_one_attend(mechanism: ops.Mechanism, data: Any) -> None:
    """In each row at other places: outputs, state, and gradients back through the states."""
    flags = st.lists(st.booleans(), min_size=ROWS * LENGTH, max_size=ROWS * LENGTH)
    names = st.lists(st.integers(0, 2), min_size=ROWS * LENGTH, max_size=ROWS * LENGTH)
    cuts = data.draw(st.lists(st.tuples(CUT, CUT), min_size=ROWS, max_size=ROWS))
    mask = np.array(data.draw(flags)).reshape(ROWS, LENGTH)
    ids = np.array(data.draw(names)).reshape(ROWS, LENGTH)
    first, second = np.sort(cuts, axis=1).T[..., None]
    position, tokens = np.arange(LENGTH), cases.make_numbers(mechanism, LENGTH)
    spans = position < first, (first <= position) & (position < second), second <= position
    for row in range(ROWS):  # steps go on in the id that the state ended in
        real = ids[row, (mask & ~spans[2])[row]]
        ids[row, spans[2][row]] = real[-1] if len(real) else 0

    run, steps = programs.central(mechanism), programs.loop(mechanism)
    weights, never = run.weights(), np.zeros_like(mask)
    whole = run(tokens, mask, ids)

    one = run(tokens, mask & spans[0], ids, weights.silent)
    two = run(tokens, mask & spans[1], ids, weights.silent, one.state)
    inner = cases.unpacked(two.state)
    three = steps(tokens, inner, mask & spans[2], never, weights)
    # Back: the gradient into a piece's state is that of the piece before it.
    back = weights._replace(state=three.before)
    middle = run(tokens, mask & spans[1], ids, back, one.state)
    begin = run(tokens, mask & spans[0], ids, weights._replace(state=middle.before))
    assert_close(one.y + two.y + three.y, whole.y, np.float64, "y")
    assert_close(cases.meaning(three.state), cases.meaning(whole.state), np.float64, "state")
    pieces = jax.tree.map(lambda *g: sum(g), begin.tokens, middle.tokens, three.tokens)
    programs.assert_gradients_close(pieces, whole.tokens, np.float64)


def attend(
    mechanism: ops.Mechanism, tokens: Tokens, mask: Any, ids: Any, state: Any, **how: Any
) -> Any:
    how = {"is_causal": True, "mask": mask, "segment_ids": ids} | how
    return cases.attend(mechanism, tokens, state, **how)


def used(state: Any, length: int) -> list[Any]:
    """The meaning of a state, of a cache the first ``length`` slots."""
    inner = cases.unpacked(state)
    leaves = cases.meaning(inner)
    return [leaf[:, :, :length] for leaf in leaves] if isinstance(inner, ops.KVCache) else leaves


@pytest.mark.parametrize("cut", [3, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mechanism", "preallocated"), cases.slow_unless(fast_capacity, CAPACITIES)
)
def test_cut_in_shape(mechanism: ops.Mechanism, preallocated: bool, cut: int) -> None:
    """The arrays themselves cut; a step at a time from a growing cache too; float32."""
    length = 4
    mask = cases.make_mask(length)
    ids = cases.make_ids(length) if mechanism.capabilities.packed else None
    tokens = cases.make_tokens(mechanism, length, np.float32)

    def part(tokens: Tokens, state: Any, span: slice) -> Any:
        here = None if ids is None else jnp.asarray(ids[:, span])
        return attend(mechanism, cases.take(mechanism, tokens, span), mask[:, span], here, state)

    def begin() -> Any:
        return cases.make_state(mechanism, length if preallocated else None, np.float32)

    def whole(tokens: Tokens) -> Any:
        y, state = part(tokens, begin(), slice(0, length))
        return y, used(state, length)

    def in_two(tokens: Tokens) -> Any:
        before, state = part(tokens, begin(), slice(0, cut))
        after, state = part(tokens, state, slice(cut, length))
        return jnp.concatenate([before, after], axis=1), used(state, length)

    want, got = jax.jit(lambda t: [cases.with_gradients(f)(t) for f in (whole, in_two)])(tokens)
    assert_close(got[0], want[0], np.float32)
    programs.assert_gradients_close(got[1][0], want[1][0], np.float32)


@pytest.mark.parametrize(
    "mechanism",  # of the others, in ``test_forms.py``, which goes on from a state so
    cases.slow_unless(cases.main, cases.offering(lambda can: can.noncausal and can.recurrent)),
)
def test_noncausal_output_sees_the_state(mechanism: ops.Mechanism) -> None:
    length, cut = 7, 4
    tokens = cases.make_tokens(mechanism, length, np.float32)
    mask = cases.make_mask(length)
    start = cases.make_state(mechanism, None, np.float32)

    @jax.jit
    def both(tokens: Tokens) -> Any:
        def part(state: Any, span: slice) -> Any:
            here = cases.take(mechanism, tokens, span)
            return attend(mechanism, here, mask[:, span], None, state, is_causal=False)

        whole, _ = part(start, slice(0, length))
        _, state = part(start, slice(0, cut))
        return whole[:, cut:], part(state, slice(cut, length))[0]

    whole, last = both(tokens)
    assert_close(last, whole, np.float32)


@pytest.mark.parametrize("mechanism", cases.slow_unless(fast_start, STEPWISE))
def test_steps_from_nothing_without_max_length(mechanism: ops.Mechanism) -> None:
    """A growing cache takes steps as well, at a new shape each."""
    length = 3
    tokens = cases.make_tokens(mechanism, length, np.float32)
    mask = cases.make_mask(length)

    @jax.jit
    def both(tokens: Tokens) -> Any:
        state = cases.make_state(mechanism, None, np.float32)
        want, _ = attend(mechanism, tokens, mask, None, None)
        outputs = []
        for t in range(length):
            now = cases.take(mechanism, tokens, t)
            real = jnp.asarray(mask[:, t])
            y, state = mechanism.step(*now[:3], state, real, **now.own)
            outputs.append(y)
        return jnp.stack(outputs, axis=1), want

    got, want = both(tokens)
    assert_close(got, want, np.float32)
