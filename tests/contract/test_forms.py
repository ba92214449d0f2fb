"""Every form = the loop of ``step`` = the reference: outputs, final state, gradients.

A sequence comes after an earlier half. The loop takes both and is compared with the reference of
the whole; a causal form goes on from the loop's state, into whose leaves gradients go too; one that
is not causal takes both halves itself and is compared with the reference. What ``step`` cannot tell
of it, its final state, is that of the loop.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.contract.masks import NO_SEGMENT
from tests.contract import cases, equations, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Result, Weights
from tests.contract.representatives import CONTRACT
from tests.contract.tolerances import assert_close

LAYOUTS = [
    *((LENGTH, kind) for kind in ("mask+segments", "mask", "plain")),
    *((length, kind) for length in (1, 2) for kind in ("mask+segments", "plain")),
    *((63, kind) for kind in ("mask+segments", "mask", "segments", "plain")),
    *((100, kind) for kind in ("mask+segments", "mask")),
]


def with_layouts(mechanism_cases: list[Any]) -> list[Any]:
    return [
        pytest.param(*case.values, length, kind, id=f"{case.id}-{length}-{kind}")
        for case in mechanism_cases
        for length, kind in LAYOUTS
        if "segments" not in kind or case.values[0].capabilities.packed
    ]


class Half(NamedTuple):
    """Some tokens, which of them are real, and their segments.

    Attributes:
        tokens: of T positions.
        mask: bool [B, T], or None.
        ids: int32 [B, T], or None.
        real: bool [B, T].
        starts: bool [B, T], a segment begins that is not the one that came in.
        last: int32 [B], the segment in which the tokens end.
    """

    tokens: Tokens
    mask: Any
    ids: Any
    real: Any
    starts: Any
    last: Any


class Layout:
    """An earlier half and the sequence, ``length`` tokens each, one row without any."""

    def __init__(self, mechanism: ops.Mechanism, length: int, kind: str) -> None:
        self.mask = self.ids = None
        if "mask" in kind:
            before = cases.make_mask(length, seed=1)[[0, 5, 2, 3, 1, 5, 6, 4]]
            self.mask = np.concatenate([before, cases.make_mask(length)], axis=1)
            self.mask[2, length:] = False  # nothing real in the second half
        if "segments" in kind:
            self.ids = cases.make_ids(2 * length)
        self.shape = cases.BATCH, 2 * length
        self.real = np.ones(self.shape, bool) if self.mask is None else self.mask
        ids = np.zeros(self.shape, np.int32) if self.ids is None else self.ids
        segments = list(map(equations.segments, self.real, ids))
        self.starts = np.array([_starts(run) for run in segments])
        self.last = [_last(self.real[:, :n], ids[:, :n]) for n in (length, 2 * length)]
        self.tokens = cases.make_numbers(mechanism, 2 * length)
        self.spans = slice(0, length), slice(length, 2 * length)
        self.mechanism = mechanism

    def half(self, index: int) -> Half:
        span = self.spans[index]

        def cut(x: Any) -> Any:
            return None if x is None else x[:, span]

        tokens = cases.take(self.mechanism, self.tokens, span)
        return Half(
            tokens, cut(self.mask), cut(self.ids), cut(self.real), cut(self.starts),
            self.last[index],
        )  # fmt: skip

    def join(self, first: Tokens, second: Tokens) -> Tokens:
        """Gradients of both halves as those of the whole; what is shared is added."""
        shared = self.mechanism.capabilities.learned_query
        return Tokens(
            first.q + second.q if shared else np.concatenate([first.q, second.q], axis=1),
            np.concatenate([first.k, second.k], axis=1),
            np.concatenate([first.v, second.v], axis=1),
            jax.tree.map(np.add, first.parameters, second.parameters),
            jax.tree.map(lambda a, b: np.concatenate([a, b], 1), first.gates, second.gates),
        )


def _starts(run: list[int]) -> list[bool]:
    """Where a run of equal numbers begins, but for the first; padding, -1, begins none."""
    known, starts = 0, []
    for number in run:
        starts.append(number > known)
        known = max(known, number)
    return starts


def _last(real: Any, ids: Any) -> np.ndarray:
    """The id of the last real token of each row."""
    return np.array(
        [row[m][-1] if m.any() else NO_SEGMENT for row, m in zip(ids, real, strict=True)], np.int32
    )


@functools.cache
def layout(mechanism: ops.Mechanism, length: int, kind: str) -> Layout:
    return Layout(mechanism, length, kind)


def by_steps(mechanism: ops.Mechanism, half: Half, state: Any, weights: Weights) -> Result:
    return programs.loop(mechanism)(half.tokens, state, half.real, half.starts, weights)


@functools.cache
def by_two_loops(mechanism: ops.Mechanism, length: int, kind: str) -> Any:
    """The state between the halves, weights of 0, and (weights of both) -> results of both."""
    at = layout(mechanism, length, kind)
    first, second = at.half(0), at.half(1)
    empty = programs.begin(mechanism, packed=False, capacity=2 * length)
    none = programs.weigh(first.tokens.v, empty).silent
    before = by_steps(mechanism, first, empty, none)

    def run(y: Any, then: Weights) -> tuple[Any, Result, Tokens]:
        """Outputs of both, the second's result, and gradients into all tokens."""
        after = by_steps(mechanism, second, before.state, then)
        again = by_steps(mechanism, first, empty, Weights(y, after.before))
        both = np.concatenate([before.y, after.y], axis=1)
        return both, after, at.join(again.tokens, after.tokens)

    return before.state, none, run


def full_kind(mechanism: ops.Mechanism) -> str:
    return "mask+segments" if mechanism.capabilities.packed else "mask"


def fast(mechanism: ops.Mechanism, *rest: Any) -> bool:
    return cases.representative(mechanism) and rest[-2:] == (LENGTH, full_kind(mechanism))


def fast_form(mechanism: ops.Mechanism, is_causal: bool, form: str, *rest: Any) -> bool:
    """Further forms and a second direction are those of the families; both at once of two."""
    if not fast(mechanism, *rest):
        return False
    if cases.central(mechanism, is_causal, form):
        return True
    one = cases.central(mechanism, is_causal) or cases.central(mechanism, form)
    return cases.main(mechanism) and (one or cases.spec_of(mechanism) in CONTRACT)


STEPWISE = cases.offering(lambda can: can.recurrent and can.causal)


@pytest.mark.parametrize(
    ("mechanism", "length", "kind"), cases.slow_unless(fast, with_layouts(STEPWISE))
)
def test_the_loop_of_step_is_the_reference(
    mechanism: ops.Mechanism, length: int, kind: str
) -> None:
    at = layout(mechanism, length, kind)
    _, none, run = by_two_loops(mechanism, length, kind)
    weights = programs.weigh(np.empty((*at.shape, *at.tokens.v.shape[2:])), None)
    want = programs.reference(mechanism, True)(at.tokens, at.mask, at.ids, weights.y)
    first, second = (weights.y[:, span] for span in at.spans)
    y, _, gradient = run(first, none._replace(y=second))
    assert_close(y, want.y, np.float64, "y")
    programs.assert_gradients_close(gradient, want.tokens, np.float64, terms=at.real.size)


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form", "length", "kind"),
    cases.slow_unless(fast_form, with_layouts(cases.DIRECTIONS_FORMS)),
)
def test_forms_are_the_loop_of_step(
    mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str
) -> None:
    if is_causal:
        check_causal(mechanism, form, length, kind, np.float64)
    elif mechanism.capabilities.recurrent:
        check_both_halves(mechanism, form, length, kind)
    else:
        check_whole(mechanism, form, length, kind, np.float64)


def check_causal(mechanism: ops.Mechanism, form: str, length: int, kind: str, dtype: Any) -> None:
    """The second half, from the loop's state after the first, in the precision of ``dtype``."""
    first, second = (layout(mechanism, length, kind).half(i) for i in (0, 1))
    narrow = cases.rounded(second.tokens, dtype)
    exact = second._replace(tokens=cases.rounded(narrow, np.float64))
    with jax.enable_x64(dtype == np.float64):
        like = cases.float_leaves(cases.make_state(mechanism, 1, dtype))
    state, _, _ = by_two_loops(mechanism, length, kind)
    leaves = zip(cases.float_leaves(state), like, strict=True)
    state = cases.with_floats(state, [leaf.astype(of.dtype) for leaf, of in leaves])
    wide = [leaf.astype(np.float64) for leaf in cases.float_leaves(state)]
    wide = cases.with_floats(state, wide)

    weights = programs.weigh(np.empty((*second.real.shape, *narrow.v.shape[2:]), dtype), state)
    want = by_steps(mechanism, exact, wide, cases.rounded(weights, np.float64))
    start = state if second.ids is None else ops.PackedState(state, first.last)
    run = programs.attend(mechanism, True, form)
    got = run(narrow, start, second.mask, second.ids, weights)

    assert got.y.dtype == dtype
    assert [leaf.dtype for leaf in cases.float_leaves(got.state)] == [leaf.dtype for leaf in like]
    # Into the state of no tokens there is no gradient: nobody can change it.
    came = first.real.any(axis=1)
    got, want = (r._replace(before=[leaf[came] for leaf in r.before]) for r in (got, want))
    programs.assert_results_close(got, want, dtype, terms=second.real.size)


def check_both_halves(mechanism: ops.Mechanism, form: str, length: int, kind: str) -> None:
    """Not causal: the second half sees the first's state; gradients go back through it."""
    at = layout(mechanism, length, kind)
    first, second = at.half(0), at.half(1)
    start = programs.begin(mechanism, packed=at.ids is not None, capacity=2 * length)
    _, none, loops = by_two_loops(mechanism, length, kind)
    y = np.zeros((*at.shape, *at.tokens.v.shape[2:]))
    weights = programs.weigh(y[:, :length], start)
    y[:, at.spans[1]] = weights.y
    whole = programs.reference(mechanism, False)(at.tokens, at.mask, at.ids, y)
    # The final state counts as the loop's does: gradients of a sum are sums.
    steps = loops(none.y, none._replace(state=weights.state))
    want = jax.tree.map(np.add, whole.tokens, steps[2])

    run = programs.attend(mechanism, False, form)
    before = run(first.tokens, start, first.mask, first.ids, none)
    after = run(second.tokens, before.state, second.mask, second.ids, weights)
    back = none._replace(state=after.before)
    again = run(first.tokens, start, first.mask, first.ids, back)
    got = at.join(again.tokens, after.tokens)
    assert_close(after.y, whole.y[:, at.spans[1]], np.float64, "y")
    assert_close(cases.meaning(after.state), cases.meaning(steps[1].state), np.float64, "state")
    programs.assert_gradients_close(got, want, np.float64, terms=at.real.size)


def check_whole(mechanism: ops.Mechanism, form: str, length: int, kind: str, dtype: Any) -> None:
    """Without states: one half by itself."""
    half = layout(mechanism, length, kind).half(1)
    narrow = cases.rounded(half.tokens, dtype)
    exact = cases.rounded(narrow, np.float64)
    weights = programs.weigh(np.empty((*half.real.shape, *narrow.v.shape[2:]), dtype), None)
    of_y = weights.y.astype(np.float64)
    want = programs.reference(mechanism, False)(exact, half.mask, half.ids, of_y)
    got = programs.attend(mechanism, False, form)(narrow, None, half.mask, half.ids, weights)
    assert got.y.dtype == dtype
    assert_close(got.y, want.y, dtype, "y")
    programs.assert_gradients_close(got.tokens, want.tokens, dtype, terms=half.real.size)
