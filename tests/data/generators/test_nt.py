"""NT series against their equations in plain Python; their cycles as the paper has them."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data import NextSymbol, Rule, count_cycles, parse_rules

HOLDS = {
    "x1=0": lambda back: back[1] == 0,
    "x2=1": lambda back: back[2] == 1,
    "x1=x2": lambda back: back[1] == back[2],
}


def continued(rule, state, length):
    """The symbols after a state, one by one."""
    series = list(state)
    for _ in range(length):
        back = [None, *series[::-1]]  # back[k] is x(t-k)
        pair = back[1] + back[1 + rule.delay]
        total = sum(back[1 : rule.delay + 2])
        rare = rule.name == "nt-s" or (rule.name == "nt-r" and HOLDS[rule.condition](back))
        series.append((total if rare else pair) % rule.base)
    return series[len(state) :]


rules = st.builds(
    Rule,
    st.integers(2, 20),
    st.integers(1, 6),
    st.sampled_from(["nt", "nt-s", "nt-r"]),
    st.sampled_from(sorted(HOLDS)),
)


@given(rules, st.integers(0, 12), st.integers(0, 3), st.integers(0, 9))
def test_series_follow_the_equations(rule, length, rows, seed):
    states = np.random.default_rng(seed).integers(rule.base, size=(rows, 2, rule.order))
    series = rule.follow(states, length)
    assert (series.shape, series.dtype) == ((rows, 2, length), np.int32)
    for at in np.ndindex(rows, 2):
        assert series[at].tolist() == continued(rule, states[at].tolist(), length)


def test_what_conditions_cost():
    """At N = 16 and a delay of 2, from all states: how often each holds in the long run."""
    states = np.array(list(itertools.product(range(16), repeat=3)))
    nt, nt_s = Rule(16, 2).follow(states, 1), Rule(16, 2, "nt-s").follow(states, 1)

    def share(condition):
        rule = Rule(16, 2, "nt-r", condition)
        late = np.concatenate([states, rule.follow(states, 600)], axis=1)[:, -303:]
        windows = np.lib.stride_tricks.sliding_window_view(late, 3, axis=1)
        lag = int(condition[1])
        other = int(condition[4]) if condition[3] == "x" else None
        right = windows[..., -other] if other else int(condition[3:])
        return float(np.mean(windows[..., -lag] == right))

    for condition in ("x1=0", "x1=5", "x2=3", "x1=x2"):
        assert share(condition) == 1 / 16
    for condition, found in (("x3=0", 0.065), ("x1=x3", 0.1215), ("x2=x3", 0.071)):
        assert share(condition) == pytest.approx(found, abs=5e-4)
    np.testing.assert_array_equal(Rule(16, 2, "nt-r", "x2=0").follow(states, 1), nt)
    rare = Rule(16, 2, "nt-r").follow(states, 1)
    np.testing.assert_array_equal(rare, np.where(states[:, -1:] == 0, nt_s, nt))


@given(st.text("x=0123 9", max_size=8), st.integers(1, 4))
@example("x1=x1", 1)
@example("x10=0", 2)
def test_any_condition_is_read_or_refused(text, delay):
    try:
        rule = Rule(4, delay, "nt-r", text)
    except OptionError as error:
        assert error.options == ("condition",)
        assert "\n" not in str(error)
    else:
        assert rule.follow([1] * rule.order, 3).shape == (3,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule(1, 2), "base must be at least 2, got 1"),
        (lambda: Rule(16, 0), "delay must be at least 1, got 0"),
        (lambda: Rule(16, 2, "nts"), "name must be one of nt, nt-s, nt-r, got 'nts'; did you mean"),
        (lambda: Rule(16, 2, "nt-r", "x=0"), 'such as "x1=0" or "x1=x2", .* got \'x=0\''),
        (lambda: Rule(16, 2, "nt-r", "x4=0"), "must be on x1 to x3, .* got 'x4=0'"),
        (lambda: Rule(16, 2, "nt-r", "x1=x4"), "must be on x1 to x3, .* got 'x1=x4'"),
        (lambda: Rule(16, 2, "nt-r", "x2=x2"), "two different symbols, got 'x2=x2'"),
        (lambda: Rule(16, 2, "nt-r", "x1=16"), "a symbol from 0 to 15, got 'x1=16'"),
        (lambda: parse_rules("", 16, 2), "rules must be one of nt, nt-s, nt-r, got ''"),
        (lambda: parse_rules("nt+nt-q", 16, 2), "rules must be one of .* got 'nt-q'"),
        (lambda: parse_rules("nt+nt", 16, 2), "must be different ones, got 'nt' twice"),
        (
            lambda: NextSymbol(parse_rules("nt", 16, 2), 2),
            "context of 2 cannot hold the state, 3 sym",
        ),
        (lambda: NextSymbol((), 2), "of one base, got none"),
        (lambda: NextSymbol((Rule(2, 1), Rule(16, 1)), 2), "of one base, got bases 2, 16"),
        (lambda: Rule(4, 2).follow([[1, 2]], 1), r"state int \[..., 3\].* got int64 \[1, 2\]"),
        (lambda: Rule(4, 1).follow([1.0, 2.0], 1), "got float64"),
        (lambda: Rule(4, 1).follow([1, 4], 1), "symbols from 0 to 3, got 1 to 4"),
        (lambda: Rule(4, 1).follow([1, 3], -1), "length must be at least 0"),
        (
            lambda: NextSymbol((Rule(4, 1),), 3).sample(np.random.default_rng(0), 0),
            "rows must be at least 1, got 0",
        ),
    ],
)
def test_refusals_are_one_clear_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_a_condition_is_of_nt_r_alone():
    assert [rule.name for rule in parse_rules("nt+nt-s", 4, 1, condition="nonsense")] == [
        "nt",
        "nt-s",
    ]
    assert parse_rules("nt-r", 4, 2, "x2=3") == (Rule(4, 2, "nt-r", "x2=3"),)


@given(rules, st.integers(0, 5), st.integers(1, 9), st.integers(0, 9))
def test_rows_are_the_windows_of_one_series(rule, extra, rows, seed):
    task = NextSymbol((rule,), rule.order + extra)
    batch = task.sample(np.random.default_rng(seed), rows)
    tokens, target = batch["tokens"], batch["target"]
    assert (tokens.shape, tokens.dtype) == ((rows, task.context), np.int32)
    assert (target.shape, target.dtype) == ((rows,), np.int32)
    series = [*tokens[0].tolist(), *target.tolist()]
    for row in range(rows):
        assert tokens[row].tolist() == series[row : row + task.context]
    assert series[rule.order :] == continued(rule, series[: rule.order], extra + rows)
    assert (task.num_tokens, task.chance) == (rule.base, 1 / rule.base)


def test_half_the_series_of_a_mixture_follow_each_rule():
    """Delays may differ, and the first state is uniform."""
    rules = Rule(16, 2), Rule(16, 4, "nt-s")
    series = NextSymbol(rules, 5).sample_series(np.random.default_rng(0), 4000, 12)
    assert (series.shape, series.dtype) == ((4000, 12), np.int32)
    follows = np.array(
        [
            (rule.follow(series[:, : rule.order], 12 - rule.order) == series[:, rule.order :]).all(
                axis=1
            )
            for rule in rules
        ]
    )
    assert follows.any(axis=0).all()
    assert abs(follows[0].mean() - 0.5) < 0.03
    for symbol in range(3):
        counts = np.bincount(series[:, symbol], minlength=16)
        assert abs(counts - 250).max() < 70  # 4.6 standard deviations


def test_series_may_be_shorter_than_a_state():
    series = NextSymbol(parse_rules("nt", 16, 5), 6).sample_series(np.random.default_rng(0), 2, 3)
    assert series.shape == (2, 3)


# -- cycles --------------------------------------------------------------------------------


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
def test_cycles_that_are_not_counted(rule, message):
    with pytest.raises(ValueError, match=message):
        count_cycles(rule)
