"""A mixture of N16T2 and N16T2-S: two rules without a sign of which one applies.

    python -m experiments.synthetic.figure6

Expressive-attention paper, figure 6, whose context length the available text lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, wilcoxon

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.synthetic.learning_curves import (
    DOT_PRODUCT,
    EXPRESSIVE,
    Place,
    Size,
    measure,
    plot,
    results_text,
    success_rate,
    table,
)
from experiments.synthetic.rules import LEARNED, STATED, about, majority
from experiments.verdicts import FAILS, HOLDS, OPEN, Rule, Verdict, Word, combine, rows_with
from flax_linattn.bench.report import markdown

CONTEXT = 32
LOWER_AT, EPOCHS = 2500, 3500
MIXTURE, EASIER = Place("nt+nt-s", 16, 2, CONTEXT), Place("nt-s", 16, 2, CONTEXT)
HALF = 0.5
"""Of the guesses right: above chance, and above what the mixture's plateau is said to be."""

ORDER = Rule(
    f"A rule is learned in the epoch in which it first validates at {HALF:g}; one comes first "
    "where it does in more runs than not, by a two-sided sign test at 5 %.",
    STATED,
)
RISE = Rule(
    "Accuracy rises after a change where its mean over the last 500 epochs is above that over the "
    "500 before the change, by a two-sided rank test of the runs (Wilcoxon) at 5 %.",
    STATED,
)
NEARLY_RIGHT = 0.99
ABOVE = Rule(
    f"An accuracy stays above {NEARLY_RIGHT:g} if the median of the runs does.",
    "2026-11-30T08:28:00+00:00",
)
BY_THE_CHANGE = Rule(
    "The change is the reason only if, by the same test, that rise is larger than the one over "
    "equally many epochs before the change; otherwise the claim is not decided.",
    "2026-11-30T08:28:00+00:00",
)


def find_mixture(rows: Rows, mechanism: str) -> dict[str, Any]:
    """The runs of an attention on the mixture."""
    wanted = f"{mechanism} on the mixture"
    return rows_with(rows, wanted, mechanism=mechanism, rules=MIXTURE.rules)[0]


def rule_accuracies(row: Mapping[str, Any], rule: str) -> list[float]:
    """Test accuracies of the runs on one of the two rules."""
    return [run["alone"][rule]["test_accuracy"] or 0.0 for run in row["runs"]]


def plateau(rows: Rows) -> Verdict:
    median = float(np.median(rule_accuracies(find_mixture(rows, DOT_PRODUCT), "nt")))
    return Verdict(about(median, 0.34), f"median {median:.3f}")


def both_solve_easier(rows: Rows) -> Verdict:
    """Whether both attentions stay above 99 % on N16T2-S in the mixture."""
    rows_of_mixture = [find_mixture(rows, name) for name in (EXPRESSIVE, DOT_PRODUCT)]
    medians = [float(np.median(rule_accuracies(row, "nt-s"))) for row in rows_of_mixture]
    words = [Word(HOLDS if median >= NEARLY_RIGHT else FAILS, ABOVE) for median in medians]
    return Verdict(combine(words), "medians {:.3f} and {:.3f}".format(*medians))


def solves_both(rows: Rows) -> Verdict:
    row = find_mixture(rows, EXPRESSIVE)
    medians = [float(np.median(rule_accuracies(row, rule))) for rule in ("nt", "nt-s")]
    words = [about(median, 0.99) for median in medians]
    word = HOLDS if all(word == HOLDS for word in words) else FAILS
    return Verdict(Word(word, *words[0].rules), f"medians {medians[0]:.3f}, {medians[1]:.3f}")


def solves_easier_alone(rows: Rows) -> Verdict:
    """Whether most runs of both attentions reach 100 % of N16T2-S without N16T2."""
    alone = rows_with(rows, f"{EASIER.rules} alone", rules=EASIER.rules)
    judged = [majority(success_rate(row), LEARNED) for row in alone]
    return Verdict(combine(judged), results_text(alone))


def in_order(rows: Rows) -> Verdict:
    row = find_mixture(rows, EXPRESSIVE)

    def first(run: Mapping[str, Any], rule: str) -> float:
        values = zip(row["epochs"], run["alone"][rule]["accuracies"], strict=True)
        return next((epoch for epoch, value in values if (value or 0) >= HALF), np.inf)

    pairs = [(first(run, "nt-s"), first(run, "nt")) for run in row["runs"]]
    easier, harder = sum(a < b for a, b in pairs), sum(b < a for a, b in pairs)
    counts_text = f"NT-S first in {easier} runs, NT in {harder}"
    if not easier + harder or binomtest(easier, easier + harder).pvalue > 0.05:
        return Verdict(Word(OPEN, ORDER), counts_text)
    return Verdict(Word(HOLDS if easier > harder else FAILS, ORDER), counts_text)


def rises(rows: Rows) -> Verdict:
    row = find_mixture(rows, EXPRESSIVE)
    epochs = np.array(row["epochs"])
    curves = np.array([run["alone"]["nt"]["accuracies"] for run in row["runs"]], float)
    ends = (2 * LOWER_AT - EPOCHS, LOWER_AT, EPOCHS)
    means = [curves[:, (epochs > end - 500) & (epochs <= end)].mean(axis=1) for end in ends]
    earlier, change = np.diff([m[np.isfinite(means).all(axis=0)] for m in means], axis=0)
    ours = (
        f"median {100 * np.median(change):+.2f} points (p = {_rank_test(change):.2g}); over as "
        f"many epochs before the change, {100 * np.median(earlier):+.2f}"
    )
    if _rank_test(change) > 0.05:
        return Verdict(Word(OPEN, RISE), ours)
    if np.median(change) < 0:
        return Verdict(Word(FAILS, RISE), ours)
    is_larger = _rank_test(change - earlier) <= 0.05 and np.median(change - earlier) > 0
    return Verdict(Word(HOLDS if is_larger else OPEN, RISE, BY_THE_CHANGE), ours)


def _rank_test(differences: NDArray) -> float:
    """The p-value of Wilcoxon's test; 1 where all are 0."""
    return float(wilcoxon(differences).pvalue) if np.any(differences != 0) else 1.0


def tables(rows: Rows, size: Size) -> str:
    """That of every figure, and the accuracies by rule."""
    lines = [
        [
            f"`{row['mechanism']}`",
            *(f"{np.median(rule_accuracies(row, r)):.3f}" for r in ("nt", "nt-s")),
        ]
        for row in rows_with(rows, rules=MIXTURE.rules)
    ]
    apart = markdown(["attention", "N16T2, median", "N16T2-S, median"], lines)
    return f"{table(rows, size)}\n\n{apart}"


WHERE = "expressive attention, figure 6"

EXPERIMENT = Measured(
    module="experiments.synthetic.figure6",
    about=WHERE,
    sizes={"": Size((MIXTURE, EASIER), epochs=EPOCHS, lower_at=LOWER_AT)},
    measure=measure,
    table=tables,
    plot=plot,
    statements=(
        Statement(WHERE, "dot-product attention reaches 0.34 on N16T2 in the mixture", plateau),
        Statement(WHERE, "expressive attention solves both to about 99 %", solves_both),
        Statement(WHERE, "both attentions solve N16T2-S alone", solves_easier_alone),
        Statement(
            WHERE, "both attentions stay above 99 % on N16T2-S in the mixture", both_solve_easier
        ),
        Statement(WHERE, "the easier rule, N16T2-S, is learned first", in_order),
        Statement(WHERE, "N16T2 rises after the rate is lowered at epoch 2,500", rises),
    ),
    left_out={"": "other context lengths"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
