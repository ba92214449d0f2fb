"""A sequence may be cut anywhere: attend + attend = attend, attend + steps = attend."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LENGTH = 12
CAPACITIES = [
    pytest.param(m, preallocated, id=f"{m.name}-{'preallocated' if preallocated else 'growing'}")
    for m in cases.ALL
    if m.capabilities.causal and m.capabilities.recurrent
    for preallocated in ([False] if m.capabilities.constant_memory else [False, True])
]


def fast_capacity(mechanism: ops.Mechanism, preallocated: bool) -> bool:
    return cases.own(mechanism) or preallocated or mechanism.capabilities.constant_memory


# Cuts are drawn as data, by masking what lies outside a piece, so that each pair of functions
# is compiled once; test_cut_in_shape cuts the arrays themselves.
MASKS = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)
IDS = st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)
CUTS = st.integers(0, LENGTH)


def attend(
    mechanism: ops.Mechanism, tokens: Tokens, mask: Any, ids: Any, state: Any, **how: Any
) -> Any:
    how = {"is_causal": True, "mask": mask, "segment_ids": ids} | how
    return cases.attend(mechanism, tokens, state, **how)


@functools.cache
def comparison(mechanism: ops.Mechanism, preallocated: bool, form: str) -> Any:
    """(tokens, mask, ids, cuts) -> whole and in pieces, with gradients."""

    def start(tokens: Tokens) -> Any:
        length = 4 * LENGTH if preallocated else None
        return cases.make_state(mechanism, length, tokens.k.dtype, batch=1)

    def whole(tokens: Tokens, mask: Any, ids: Any, first: Any, second: Any) -> Any:
        y, state = attend(mechanism, tokens, mask, ids, start(tokens), form=form)
        return y, used(state, LENGTH)

    def pieces(tokens: Tokens, mask: Any, ids: Any, first: Any, second: Any) -> Any:
        position = jnp.arange(LENGTH)
        state, total = start(tokens), 0.0
        for inside in (position < first, (first <= position) & (position < second)):
            y, state = attend(mechanism, tokens, mask & inside, ids, state, form=form)
            total = total + y
        rest = mask & (second <= position)
        y, state = cases.step_loop(mechanism, tokens, preallocate(state), rest)
        return total + y, used(state, LENGTH)

    def preallocate(state: Any) -> Any:
        inner = cases.unpacked(state)
        if isinstance(inner, ops.KVCache) and inner.growable:  # scan keeps shapes
            room = ((0, 0), (0, LENGTH), (0, 0), (0, 0))
            return ops.KVCache(
                jnp.pad(inner.key, room), jnp.pad(inner.value, room), inner.length, False
            )
        return inner

    @jax.jit
    def compare(tokens: Tokens, *where: Any) -> Any:
        return [cases.with_gradients(lambda t, f=f: f(t, *where))(tokens) for f in (whole, pieces)]

    return compare


def used(state: Any, length: int) -> list[Any]:
    """The meaning of a state, of a cache the first ``length`` slots."""
    inner = cases.unpacked(state)
    leaves = cases.meaning(inner)
    return [leaf[:, :length] for leaf in leaves] if isinstance(inner, ops.KVCache) else leaves


@pytest.mark.parametrize("form", ["recurrent", pytest.param("parallel", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mechanism", "preallocated"), cases.slow_unless(fast_capacity, CAPACITIES)
)
@given(mask=MASKS, ids=IDS, cuts=st.tuples(CUTS, CUTS))
def test_two_attends_and_steps_are_one_attend(
    mechanism: ops.Mechanism,
    preallocated: bool,
    form: str,
    mask: list[bool],
    ids: list[int],
    cuts: tuple[int, int],
) -> None:
    first, second = sorted(cuts)
    # Steps go on in the id that the state ended in.
    real = [i for i, m in zip(ids[:second], mask[:second], strict=True) if m]
    ids = ids[:second] + [real[-1]] * (LENGTH - second) if real else [0] * LENGTH
    packed = mechanism.capabilities.packed
    with jax.enable_x64(True):
        tokens = cases.make_tokens(mechanism, LENGTH, np.float64, batch=1)
        whole, pieces = comparison(mechanism, preallocated, form)(
            tokens,
            np.array([mask]),
            np.array([ids], np.int32) if packed else None,
            first,
            second,
        )
    assert_close(pieces, whole, np.float64)


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
    assert_close(got, want, np.float32)


@pytest.mark.parametrize("mechanism", cases.offering(lambda can: can.noncausal and can.recurrent))
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


@pytest.mark.parametrize("mechanism", cases.offering(lambda can: can.causal and can.recurrent))
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
            y, state = mechanism.step(*now[:3], state, real, **tokens.parameters)
            outputs.append(y)
        return jnp.stack(outputs, axis=1), want

    got, want = both(tokens)
    assert_close(got, want, np.float32)
