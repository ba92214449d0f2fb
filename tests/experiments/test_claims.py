"""What decides a paper's statement: ratios, exponents, bounds, and what is missing."""

import dataclasses
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments import claims, report, rules, statements
from experiments.efficiency import (
    aaren_scan,
    aaren_stream,
    complexities,
    counts,
    elementwise_inference,
    elementwise_training,
    taylorshift_crossover,
    taylorshift_lengths,
    taylorshift_transformer,
)
from experiments.efficiency.taylorshift_models import Classifier, Kind
from experiments.measured import Measured, commit_date
from experiments.rules import (
    BYTES,
    COUNTS,
    GROWTH,
    TIMES,
    Range,
    at,
    exponent,
    exponential_excess,
    grows,
    grows_less,
    more,
    more_bytes,
    more_counts,
    no_more,
    no_more_bytes,
    same,
    span,
    within,
)
from experiments.statements import Statement, statements_table
from experiments.tables import Table
from experiments.unmeasured import CHECKED, NOT_MEASURED
from experiments.verdicts import (
    CASES,
    CLAIMED_SIZE,
    FAILS,
    HOLDS,
    IN_PART,
    NOT_RUN,
    ONE_SEED,
    OPEN,
    SEEDS,
    SMALLER,
    TOO_FEW,
    NotMeasuredError,
    Rule,
    Verdict,
    Word,
    against_size,
    combine,
    get_rules,
    one_seed,
)
from flax_linattn.bench import normal
from tests.experiments.prose import find_statement

OLD, NEW = ({"date": date} for date in ("2026-11-21", "2026-12-01"))


def took(milliseconds: float, least: float = 0.0, most: float = 0.0) -> dict[str, float]:
    spread = {"median": milliseconds, "min": least or milliseconds}
    return spread | {"max": most or milliseconds}


@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.05, 1.2, 1.49, 1.6])
def test_no_more_is_the_contrary_of_more(ratio: float) -> None:
    """Doubt speaks for neither: what one leaves undecided the other does, too."""
    assert no_more([ratio]) == {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[more([ratio])]
    assert (no_more_bytes([ratio]) == HOLDS) == (more_bytes([ratio]) == FAILS)


def test_ratios_decide() -> None:
    assert [more([r]) for r in (1.6, 1.2, 1.1, 0.5)] == [HOLDS, OPEN, FAILS, FAILS]
    assert [same([r]) for r in (1.05, 0.95, 1.3, 1.6, 0.6)] == [HOLDS, HOLDS, OPEN, FAILS, FAILS]
    assert [more_bytes([r]) for r in (1.1, 1.04, 0.9)] == [HOLDS, FAILS, FAILS]
    assert [more_counts([r]) for r in (1.2, 1.09, math.inf)] == [HOLDS, FAILS, HOLDS]
    assert (span([2.0, Range(1.0, 0.5, 9.0)]), span([3.0])) == ("1 to 2", "3")


def test_the_spread_of_what_was_measured_counts() -> None:
    slow, fast = Range.of(took(3, 2, 4)), Range.of(took(1.8, 1, 2.5))
    assert slow.over(fast) == pytest.approx((3 / 1.8, 2 / 2.5, 4))
    assert more([3 / 1.8]) == HOLDS and more([slow.over(fast)]) == OPEN
    assert no_more([1.0]) == HOLDS and no_more([Range(1.0, 0.6, 1.6)]) == OPEN


def test_a_counterexample_leaves_a_part() -> None:
    assert (
        combine([HOLDS, FAILS]) == combine([OPEN, IN_PART]) == combine([HOLDS, IN_PART]) == IN_PART
    )
    assert combine([TOO_FEW]) == combine([ONE_SEED]) == combine([SMALLER, HOLDS]) == OPEN
    assert combine([SMALLER, SMALLER]) == SMALLER and combine([SMALLER, FAILS]) == FAILS
    assert combine([HOLDS, OPEN]) == OPEN and combine([FAILS, OPEN]) == FAILS
    assert combine([HOLDS, HOLDS]) == HOLDS
    with pytest.raises(NotMeasuredError):
        combine([])


def test_a_claimed_size_gives_a_third_outcome() -> None:
    """Only to what is undecided, and only where the whole interval is below what is claimed."""
    found = [against_size(Word(OPEN), 0.7, claimed) for claimed in (4.0, 0.7, 0.5, -1.0, None)]
    assert found == [SMALLER, OPEN, OPEN, OPEN, OPEN]
    assert get_rules(found[0]) == (CLAIMED_SIZE,) and get_rules(found[1]) == ()
    assert (
        against_size(Word(HOLDS), 0.7, 4.0) == HOLDS and against_size(Word(FAILS), -1, 4) == FAILS
    )


def test_one_seed_is_no_answer() -> None:
    word = one_seed(Word(HOLDS, TIMES))
    assert word == ONE_SEED and get_rules(word) == (TIMES, SEEDS)


def test_exponents_are_those_of_long_sequences() -> None:
    square = [(n, 1e3 + n**2) for n in (64, 256, 1024, 4096)]
    assert exponent(square) == pytest.approx(2, abs=0.01)
    assert (grows(square, 2), grows(square, 1)) == (HOLDS, FAILS)
    assert grows([(n, n**1.5) for n in (1, 2, 4)], 1) == OPEN
    assert (grows_less(0.5, [1, 2]), grows_less(0.9, [1]), grows_less(2, [1])) == (
        *(HOLDS, OPEN),
        FAILS,
    )
    assert exponential_excess([(n, 2.0**n) for n in (1, 2, 4)]) == pytest.approx(1)
    assert exponential_excess([(n, n**2) for n in (1, 2, 4)]) == pytest.approx(4)
    assert at([(1, 1.0), (4, 16.0)], 2) == pytest.approx(4)
    with pytest.raises(NotMeasuredError, match="around 9"):
        at(square, 9)


def test_memory_and_times_have_one_reach() -> None:
    """A term that does not grow is not left out by looking at the last doubling alone."""
    rows = [
        {"what": "memory", "model": name, "length": n, "batch": 1, "total_bytes": y}
        for name in ("SA", "SA, in blocks")
        for n, y in ((1024, 0.598), (2048, 1.73), (4096, 6.24))
    ]
    quadratic = find_statement(elementwise_training.EXPERIMENT, "memory grows quadratically")
    verdict = quadratic.verdict(rows)
    assert "SA grows as L^1.69" in verdict.ours and verdict.word == OPEN


def test_a_bound_decides_where_it_suffices() -> None:
    above = Range(10, 10, math.inf)
    assert [within(above, a, b) for a, b in ((5, 9), (5, 20), (5, math.inf))] == [
        *(FAILS, OPEN),
        HOLDS,
    ]


def test_what_is_missing_is_not_run() -> None:
    def judge(rows: object) -> Verdict:
        return Verdict(HOLDS, f"{exponent([]):.1f}")

    missing, left_out = Statement("A", "grows", judge), Statement("B", "is", why="for want of time")
    assert missing.verdict() == (NOT_RUN, "only one length was measured")
    table, *_ = statements_table([missing, left_out], [], NEW)
    assert "| B: is | for want of time | **not run** |" in table
    assert statements_table([], [], NEW) == []


def test_a_page_has_the_rules_that_it_uses() -> None:
    one = Statement("A", "more", lambda rows: Verdict(more([2]), "2"))
    exact = Statement("A", "so many", lambda rows: Verdict(HOLDS, "3"))
    _, text, *later = statements_table([one, exact], [], NEW)
    assert TIMES.text in text and BYTES.text not in text and CASES.text not in text
    assert "".join(statements_table([exact], [], OLD)).count("ule") == 0 and not later
    assert get_rules(combine([more([2]), more_bytes([2])])) == (TIMES, BYTES, CASES)


def test_rows_older_than_a_rule_are_marked() -> None:
    one = Statement("A", "more", lambda rows: Verdict(more([2]), "2"))
    assert f"*Stated {TIMES.stated[:10]}, after these rows" in statements_table([one], [], OLD)[-1]
    assert not any("after these rows" in part for part in statements_table([one], [], NEW))
    late = dataclasses.replace(one, stated="2026-11-25T00:00:00+00:00")
    marks = [
        "judged this way since" in statements_table([late], [], head)[0] for head in (OLD, NEW)
    ]
    assert marks == [True, False]
    # A day alone begins at midnight; the code's own time is told where it is known.
    day = {"date": rules.STATED[:10]}
    assert statements.early([TIMES], day)
    later = day | {"commit_date": f"{day['date']}T23:59:00+00:00"}
    assert not statements.early([TIMES], later)
    assert statements.early([TIMES], later | {"first_measured": day["date"]})
    assert (commit_date() or "2026-").startswith("20")


def test_every_rule_says_when_it_was_stated() -> None:
    modules = (rules, taylorshift_crossover, taylorshift_lengths)
    found = [v for module in modules for v in vars(module).values() if isinstance(v, Rule)]
    assert {TIMES, BYTES, COUNTS, GROWTH} <= {*found} and all(rule.stated for rule in found)


def test_softmax_in_blocks_decides_comparisons_alone() -> None:
    """What the paper says of SA is judged by the paper's SA."""
    batches = {"EA-2": (4, 2), "EA-6": (4, 2), "SA": (1, 0), "SA, in blocks": (4, 2)}
    rows = [
        {"what": "memory", "model": name, "length": 512 * 2**i, "batch": n, "total_bytes": 1}
        for name, of_name in batches.items()
        for i, n in enumerate(of_name)
    ]
    more_tokens = find_statement(elementwise_training.EXPERIMENT, "more tokens per step")
    word, ours = more_tokens.verdict(rows)
    assert word == FAILS
    assert ours == (
        "1 times as many as SA, in blocks; 4 times as many as SA, which does not fit at L = 1,024 "
        "(this alone: holds)"
    )
    decrease = find_statement(elementwise_training.EXPERIMENT, "tokens per step decrease")
    word, ours = decrease.verdict(rows)
    assert word == HOLDS and ours.endswith("shorter L (this alone: does not hold)")


def test_memory_is_never_a_tie() -> None:
    """A fifth more bytes are more, wherever memory is judged beside time."""
    mark = {"tokens": 64, "seconds": 1.0, "state_bytes": 10, "milliseconds": took(1)}
    slow = mark | {"seconds": 2.0, "state_bytes": 12, "total_bytes": 12}
    rows = [{"what": "streams", "streams": {"aaren": [mark], "softmax": [slow]}}]
    less = find_statement(aaren_stream.EXPERIMENT, "less time and memory")
    assert less.verdict(rows).word == HOLDS
    fast = mark | {"total_bytes": 10}
    rows = [{"batch": 1, "streams": {"EA-2": [fast], "EA-6": [fast], "SA": [slow]}}]
    assert find_statement(elementwise_inference.EXPERIMENT, "much more").verdict(rows).word == HOLDS
    results = {
        name: {"milliseconds": took(1), "total_bytes": 12 if "direct" in name else 10}
        for name in taylorshift_transformer.FIGURE_3
    }
    rows = [{"length": 256, "results": results}]
    found = find_statement(taylorshift_transformer.EXPERIMENT, "short sequences").verdict(rows)
    assert found.word == IN_PART


def test_latency_is_not_exponential_because_it_grows() -> None:
    marks = [
        {"tokens": n, "seconds": n**2 / 64, "milliseconds": took(n), "total_bytes": 1}
        for n in (64, 128, 256)
    ]
    rows = [{"batch": 1, "streams": {"SA": marks}}]
    experiment = elementwise_inference.EXPERIMENT
    assert find_statement(experiment, "faster than linearly").verdict(rows).word == HOLDS
    assert find_statement(experiment, "exponentially").verdict(rows).word == FAILS


def lengths_row(length: int, direct: float, efficient: float) -> dict:
    """Of both forms as printed and ours, at d = 128."""
    results = {
        name: {"milliseconds": took(y), "total_bytes": y}
        for name, y in zip(
            list(taylorshift_lengths.PROGRAMS)[:4], (direct, efficient) * 2, strict=True
        )
    }
    return {"dim": 128, "length": length, "results": results}


def test_a_crossing_beyond_the_lengths_is_not_dropped() -> None:
    """N0 + 18 d lies beyond 16,384 for d = 128: a crossing above that refutes nothing."""
    rows = [lengths_row(n, n**2, 20_000 * n) for n in (8192, 16384)]
    experiment = taylorshift_lengths.EXPERIMENT
    time = find_statement(experiment, "18 d").verdict(rows)
    assert time.word == OPEN and "above 16,384" in time.ours and "d = 128" in time.ours
    memory = find_statement(experiment, "0.6 %").verdict(rows)
    assert memory.word == FAILS and "above 16,384" in memory.ours  # N1 is 8,446
    assert find_statement(experiment, "saves memory").verdict(rows).word == OPEN


def test_a_crossing_beyond_the_lengths_counts_at_n0() -> None:
    results = {name: {"milliseconds": took(y)} for name, y in (("direct", 1.0), ("efficient", 2.0))}
    rows = [{"dim": 4, "causal": False, "length": n, "results": results} for n in (64, 128)]
    judged = taylorshift_crossover.STATEMENTS[0].verdict(rows)
    assert judged.word == FAILS and "above 128" in judged.ours  # N0 is below 30


def test_all_statements_stand_on_one_page(tmp_path: Path) -> None:
    found = claims.judge_statements(report.all_experiments())
    page = claims.render(report.all_experiments(), tmp_path / "claims.md")
    assert all(one.statement.says in page for one in found)
    places = [claims.location(one.statement) for one in found]
    assert {place[0] for place in places} == {0, 1, 2, 3} and places == sorted(places)
    lines = page.splitlines()
    for one in found:
        assert any(one.statement.says in line and one.measured in line for line in lines)
        assert (one.by == "-") == (one.measured == "-")
    reasons = [f", *{reason}" for reason in ("before the rules", "judged so since", "fitted")]
    marked = [line for line in lines if any(reason in line for reason in reasons)]
    assert len(marked) == sum(bool(one.untested) for one in found)
    smaller = sum(", *smaller models*" in line for line in lines)
    assert smaller == sum(one.is_smaller for one in found) > 0


def test_sizes_for_cpus_are_smaller_models() -> None:
    tables = [one for one in report.all_experiments() if isinstance(one, Table)]
    assert all("cpu" in one.smaller_scales for one in tables if "cpu" in one.sizes)
    assert all(set(one.smaller_scales) <= set(one.sizes) for one in report.all_experiments())
    measured = {one.short_name for one in report.all_experiments()
                if isinstance(one, Measured) and one.smaller_scales}  # fmt: skip
    sequences = ("figure4", "figure7", "figure8", "table3", "table4", "table5", "table8")
    assert measured == {"events.table2", "offline_rl.table1", "recurrent.accuracy"} | {
        f"sequences.{name}" for name in sequences
    }


def test_every_table_and_figure_has_a_claim() -> None:
    found = claims.judge_statements(report.all_experiments())
    for i, (tables, figures) in enumerate([(5, 5), (4, 5), (8, 9), (0, 7)]):
        own = [o.statement for o in found if claims.paper_index(o.statement) == i]
        text = "; ".join(statement.where.lower() for statement in own)
        for kind, last in (("table", tables), ("figure", figures)):
            numbers = re.findall(kind + r"s? (\d+)(?:(?:,| and| to) (\d+))?", text)
            missing = {*range(1, last + 1)} - {int(n) for pair in numbers for n in pair if n}
            assert missing <= ({6} if (i, kind) == (2, "table") else set()), kind  # settings
    left_out = [s.says for s in NOT_MEASURED if re.match("Aaren, tables? [2-5]", s.where)]
    count = 38 - len(re.split(", | and ", ", ".join(left_out)))
    assert any(s.why.startswith(f"{count} of the 38") for s in NOT_MEASURED)


def test_named_tests_exist() -> None:
    for statement in CHECKED:
        for file, name in re.findall(r"`tests/([\w/.]+)::(\w+)`", statement.verdict().ours):
            assert f"def {name}(" in Path(__file__).parents[1].joinpath(file).read_text()


def test_a_statement_of_what_was_not_run_names_its_command() -> None:
    made = (e for e in report.all_experiments() if isinstance(e, Measured))
    moved = dataclasses.replace(
        next(e for e in made if claims.paper_statements(e)), module="experiments.nowhere.x"
    )
    found = claims.judge_statements([moved])
    not_run = [one for one in found if "python -m experiments.nowhere.x" in one.verdict.ours]
    assert len(not_run) == len(claims.paper_statements(moved))
    not_run.append(claims._judged_over(Statement("A", "more", results=("nowhere/x",))))
    assert {(one.verdict.word, one.by, one.measured) for one in not_run} == {(NOT_RUN, "-", "-")}


def test_depth_is_the_longest_chain() -> None:
    """A loop counts each pass, a sum the logarithm of what it sums, two branches the longer one."""

    def program(x: jax.Array) -> jax.Array:
        loop = jax.lax.scan(lambda carry, _: (carry * 2 + 1, None), x, None, length=10)[0]
        return loop + jnp.sum(jnp.exp(x))

    jaxpr = jax.make_jaxpr(program)(jnp.ones(8)).jaxpr
    assert (counts.depth(jaxpr), counts.work(jaxpr)) == (21, 10 * 2 * 8 + 3 * 8)
    assert counts.work(jax.make_jaxpr(jnp.dot)(jnp.ones((3, 4)), jnp.ones((4, 5))).jaxpr) == 120
    merge = aaren_scan.Merges()
    assert max(aaren_scan.hillis_steele(merge, 8)) == 3 and merge.pairs == 7 + 6 + 4
    assert max(aaren_scan.ladner_fischer(aaren_scan.Merges(), 8)) == 4


def test_counts_are_judged_by_their_powers() -> None:
    """Polynomials of dot products have two readings; order 4 has no verdict."""
    for power, word in ((2, IN_PART), (3, IN_PART), (2.5, OPEN), (4, FAILS)):
        rows = [
            {"what": complexities.TRAINING, "mechanism": complexities.TAYLOR, "varies": "dim",
             "order": order, "dim": dim, "operations": dim ** (power if order == 2 else 9.0)}
            for order in (4, 2) for dim in (64, 128, 256)
        ]  # fmt: skip
        assert complexities.judge_products(rows).word == word
    judge = complexities.costs(complexities.TRAINING, complexities.TAYLOR, dim=9)
    assert judge(rows[:3]) == (HOLDS, "counted: D^9.00")
    for bent, word in ((0, HOLDS), (1, FAILS)):
        rows = [
            {"what": what, "program": aaren_scan.FISCHER, "length": 2**log, "block": 2**log,
             "steps": 2 * log - 2 + bent, "pairs": 2 ** ((1 + bent) * log),
             "total_bytes": 2 ** (log * (1 - bent)), "temporary_bytes": 1}
            for what in (aaren_scan.DEPTH, aaren_scan.BLOCK) for log in (6, 7, 8)
        ]  # fmt: skip
        rows += [{**row, "what": aaren_scan.WHOLE, "block": 64} for row in rows]
        assert find_statement(aaren_scan.EXPERIMENT, "Ladner").verdict(rows).word == word
        assert find_statement(aaren_scan.EXPERIMENT, "in blocks of b").verdict(rows).word == word


def test_a_paper_has_one_form_of_its_classifier() -> None:
    """The CLS token has no position and alone is read, so the order of tokens counts."""
    model = Classifier("taylorshift-pixel", Kind("softmax", 4), in_features=3, length=5)
    (x,) = normal((2, 5, 3))
    assert model(x).shape == (2, 10)
    assert model.embedding.bias is not None and model.blocks[0].norm == "pre"
    assert not (model(x) == model(x[:, ::-1])).all()


def test_the_recipe_of_table_1_is_the_authors() -> None:
    """At N = 4,096 it gives the printed sizes, that of Y_denom to the last digit shown."""
    from experiments.efficiency import taylorshift_sizes as sizes

    rows = json.loads(sizes.EXPERIMENT.stored("cpu").read_text())["rows"]
    for row in (row for row in rows if row["length"] == 4096):
        assert abs(sizes.error(row, "Y_denom")) < 0.05
        assert all(abs(sizes.error(row, name)) < 8 for name in list(sizes.FORMULAS)[1:])


def test_a_formula_is_judged_at_the_longest_sequence() -> None:
    """Whatever shorter ones would decide."""
    from experiments.efficiency.taylorshift_sizes import FORMULAS, judge_formula

    def row(length: int, off: float, error: float, dim: int = 8) -> dict:
        size = FORMULAS["Y"](length, dim)
        return {"dim": dim, "length": length} | {
            "sizes": {"Y": size * (1 + off)}, "errors": {"Y": size * error}
        }  # fmt: skip

    judge = judge_formula("Y")
    assert judge([row(4096, 0.03, 1e-3)]).word == FAILS
    assert judge([row(4096, 0.03, 1e-3), row(65536, 0.012, 4e-3)]).word == OPEN
    assert judge([row(4096, 0.001, 1e-3), row(65536, 0.01, 0.05)]).word == OPEN
    assert judge([row(65536, 0.001, 1e-3), row(65536, 0.03, 1e-3, dim=16)]).word == IN_PART
    with pytest.raises(NotMeasuredError, match="4,096"):
        judge([row(64, 0.03, 1e-3)])
    # An error that falls as 1/N refutes no formula for large N.
    falling = judge([row(16384, 0.12, 1e-4), row(65536, 0.031, 1e-4)])
    assert falling.word == OPEN and "falls as N^-0.98: 1 % at about N = 203,000" in falling.ours
    assert judge([row(16384, 0.033, 1e-3), row(65536, 0.031, 1e-3)]).word == FAILS


def test_a_word_keeps_its_rules() -> None:
    word = Word(HOLDS, TIMES).under(BYTES, TIMES)
    assert word == HOLDS and get_rules(word) == (TIMES, BYTES) and get_rules(HOLDS) == ()
