"""Cycles of NT series: counted, walked, and as the paper has them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import Rule, count_cycles


def walked(rule):
    """Cycles by walking from every state, in plain Python."""
    seen, cycles = set(), {}
    for state in itertools.product(range(rule.base), repeat=rule.order):
        length = 0
        while state not in seen:
            seen.add(state)
            length += 1
            state = (*state[1:], int(rule.follow(state, 1)[0]))
        if length:
            cycles[length] = cycles.get(length, 0) + 1
    return cycles


TABLE = [
    (Rule(2, 1), {3: 1, 1: 1}),
    (Rule(2, 5), {63: 1, 1: 1}),
    (Rule(16, 2), {56: 64, 28: 16, 14: 4, 7: 1, 1: 1}),
    (Rule(16, 3), {120: 512, 60: 64, 30: 8, 15: 1, 1: 1}),
    (Rule(16, 2, "nt-s"), {32: 96, 16: 56, 8: 14, 4: 3, 2: 1, 1: 2}),
]


@pytest.mark.parametrize(("rule", "cycles"), TABLE)
def test_the_paper_s_cycles(rule, cycles):
    assert count_cycles(rule) == cycles
    assert list(count_cycles(rule)) == sorted(cycles, reverse=True)


def test_the_paper_s_mean_length_of_a_rare_event():
    assert sum(count_cycles(Rule(16, 2, "nt-r")).values()) == 40  # 4,096 / 40 = 102.4


def few_states(name, **options):
    sizes = [(n, d) for n in range(2, 33) for d in range(1, 11) if n ** (d + 1) <= 1100]
    return st.sampled_from(sizes).map(lambda size: Rule(*size, name, **options))


linear = few_states("nt") | few_states("nt-s")
rare = few_states("nt-r") | few_states("nt-r", condition="x1=x2").filter(lambda r: r.delay > 1)


@given(linear | rare)
def test_counted_are_those_that_are_walked(rule):
    cycles = count_cycles(rule)
    assert cycles == walked(rule)
    assert sum(length * count for length, count in cycles.items()) == rule.base**rule.order


@pytest.mark.slow
@pytest.mark.parametrize(("base", "delay"), [(16, 5), (2, 23), (30, 3), (997, 1)])
def test_every_state_of_a_large_space_lies_on_a_cycle(base, delay):
    cycles = count_cycles(Rule(base, delay))
    assert sum(length * count for length, count in cycles.items()) == base ** (delay + 1)
    assert cycles[1] == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(2, 2**32 - 2), r"at most 2\*\*24 states"),
        (Rule(17, 5), r"at most 2\*\*24 states, got 17\*\*6"),
        (Rule(16, 2, "nt-r", "x3=0"), "'x3=0'.* without x3"),
        (Rule(16, 2, "nt-r", "x1=x3"), "must be invertible"),
        (Rule(16, 2, "nt-r", "x2=x3"), "must be invertible"),
    ],
)
def test_refusals(rule, message):
    with pytest.raises(ValueError, match=message):
        count_cycles(rule)
