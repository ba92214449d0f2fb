"""N2T5 with two series only: how long the accuracy of each attention stays at chance.

    python -m experiments.synthetic.figure4

Expressive-attention paper, figure 4: with two symbols and an embedding of two, the model is as
small as possible. The available text lacks the context lengths. Ours are a quarter and a half of
the longer cycle, 63 symbols; the verdict uses the smaller one.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import mannwhitneyu

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.synthetic.learning_curves import (
    DOT_PRODUCT,
    EXPRESSIVE,
    Place,
    Size,
    find_row,
    first_epochs,
    measure,
    plot,
    results_text,
    success_rate,
    table,
)
from experiments.synthetic.rules import LEARNED, STATED, majority
from experiments.verdicts import FAILS, HOLDS, OPEN, Rule, Verdict, Word, combine

CONTEXT = 16

LEFT = 0.75
"""Half way from chance to certainty."""

SOONER = Rule(
    f"A run has left chance in the epoch in which it first validates at {LEFT:g}; one attention "
    "leaves it sooner where a two-sided rank test (Mann and Whitney) of its runs against the "
    "other's says so at 5 %.",
    STATED,
)


def sooner(rows: Rows) -> Verdict:
    exits = [
        first_epochs(find_row(rows, name, CONTEXT), LEFT) for name in (EXPRESSIVE, DOT_PRODUCT)
    ]
    test = mannwhitneyu(*exits)
    first = test.statistic < len(exits[0]) * len(exits[1]) / 2  # of the ranks: some never leave
    word = OPEN if test.pvalue > 0.05 else HOLDS if first else FAILS
    left = [int(np.sum(np.isfinite(epochs))) for epochs in exits]
    counts = [f"{n} of {len(own)} runs" for n, own in zip(left, exits, strict=True)]
    ours = f"{counts[0]} left chance, {counts[1]} of dot-product attention did"
    return Verdict(Word(word, SOONER), f"{ours} (p = {test.pvalue:.2g})")


def both_learn(rows: Rows) -> Verdict:
    both = [find_row(rows, name, CONTEXT) for name in (EXPRESSIVE, DOT_PRODUCT)]
    return Verdict(
        combine(majority(success_rate(row), LEARNED) for row in both), results_text(both)
    )


WHERE = "expressive attention, figure 4"

EXPERIMENT = Measured(
    module="experiments.synthetic.figure4",
    about="expressive attention, figure 4",
    sizes={
        "": Size(
            tuple(Place("nt", 2, 5, context) for context in (CONTEXT, 32)), epochs=5000, every=200
        )
    },
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(WHERE, "expressive attention leaves chance sooner on N2T5", sooner),
        Statement(WHERE, "both attentions reach 100 % on N2T5 in the end", both_learn),
    ),
    left_out={"": "other contexts"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
