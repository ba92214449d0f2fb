"""What decides a claim: ratios, exponents, and what is missing."""

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("experiments", reason="the experiments are not part of the installed package")

from experiments import report
from experiments.claims import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Claim,
    NotMeasuredError,
    Verdict,
    at,
    claims_table,
    exponent,
    grows,
    more,
    more_bytes,
    same,
    span,
)
from experiments.efficiency import claims, elementwise_training
from experiments.efficiency.taylorshift_models import Classifier, Kind
from experiments.measured import Measured
from flax_linattn.bench import normal


def test_ratios_decide() -> None:
    assert (more([1.6, 2]), more([0.6, 0.5]), more([1.2]), more([2, 1.2])) == (
        *(HOLDS, FAILS, OPEN),
        OPEN,
    )
    assert (more_bytes([1.1]), more_bytes([1.04]), more_bytes([0.9])) == (HOLDS, FAILS, FAILS)
    assert (same([1.4, 0.7]), same([1.6]), same([1.02], 1.01)) == (HOLDS, FAILS, FAILS)
    assert (span([2.0, 1.0]), span([3.0])) == ("1 to 2", "3")


def test_exponents_are_those_of_long_sequences() -> None:
    square = [(n, 1e3 + n**2) for n in (64, 256, 1024, 4096)]
    assert exponent(square) == pytest.approx(2, abs=0.01)
    assert (grows(square, 2), grows(square, 1)) == (HOLDS, FAILS)
    assert grows([(n, n**1.5) for n in (1, 2, 4)], 1) == OPEN
    assert at([(1, 1.0), (4, 16.0)], 2) == pytest.approx(4)
    with pytest.raises(NotMeasuredError, match="around 9"):
        at(square, 9)


def test_what_is_missing_is_not_run() -> None:
    def judge(rows: object) -> Verdict:
        return Verdict(HOLDS, f"{exponent([]):.1f}")

    missing, left_out = Claim("A", "grows", judge), Claim("B", "is", why="for want of time")
    assert missing.verdict() == (NOT_RUN, "one length alone was measured")
    table = claims_table([missing, left_out], [])
    assert "| B: is | for want of time | **not run** |" in table and claims_table([], []) == ""


def test_softmax_in_blocks_decides_on_tokens_a_step() -> None:
    batches = {"EA-2": 4, "EA-6": 4, "SA": 1, "SA, in blocks": 4}
    rows = [
        {"what": "memory", "model": name, "length": 512, "batch": batch, "total_bytes": 1}
        for name, batch in batches.items()
    ]
    claim = next(c for c in elementwise_training.CLAIMS if "more tokens a step" in c.says)
    word, ours = claim.verdict(rows)
    assert word == FAILS
    assert ours == ("1 times as many as SA, in blocks; 4 times as many as SA (by that: holds)")


def test_all_claims_stand_on_one_page(tmp_path: Path) -> None:
    found = claims.stated(report.all_experiments())
    page = claims.render(report.all_experiments(), tmp_path)
    assert all(claim.says in page for claim, _, _ in found)
    places = [claims.paper(claim) for claim, _, _ in found]
    assert set(places) == {0, 1, 2} and places == sorted(places)


def test_a_claim_of_what_was_not_run_names_its_command(tmp_path: Path) -> None:
    made = next(e for e in report.all_experiments() if isinstance(e, Measured) and e.claims)
    moved = dataclasses.replace(made, module="experiments.nowhere.x")
    (_, verdict, by), *_ = claims.stated([moved])
    assert (verdict.word, by) == (
        NOT_RUN,
        "-",
    ) and "python -m experiments.nowhere.x" in verdict.ours


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


def test_a_formula_is_refuted_beyond_the_errors_of_sampling() -> None:
    from experiments.efficiency.taylorshift_sizes import FORMULAS, right

    def row(length: int, off: float, error: float) -> dict:
        size = FORMULAS["Y"](length, 8)
        return {"dim": 8, "length": length} | {
            "sizes": {"Y": size * (1 + off)}, "errors": {"Y": size * error}
        }  # fmt: skip

    judge = right("Y")
    assert judge([row(4096, 0.03, 1e-3)]).word == FAILS
    assert judge([row(64, 0.03, 1e-3), row(4096, 0.012, 4e-3)]).word == OPEN
    known, noisy = row(4096, 0.001, 1e-3), row(65536, 0.01, 0.05)
    assert judge([known, noisy]) == (HOLDS, "+0.1 ± 0.2 % (d = 8, N = 4,096)")
