"""N16T5, whose 16.8 million states no model can memorize.

    python -m experiments.synthetic.figure5

Expressive-attention paper, figure 5, whose context lengths the available text lacks. Modulo 2, 4, 8
and 16 a series repeats after 63, 126, 252 and 504 symbols. Our context is the shortest one that
determines the next symbol modulo 4.
"""

from __future__ import annotations

from experiments.measured import Measured
from experiments.statements import Statement
from experiments.synthetic.learning_curves import (
    DOT_PRODUCT,
    EXPRESSIVE,
    Place,
    Size,
    judge_learned,
    judge_median,
    judge_not_learned,
    measure,
    plot,
    table,
)

CONTEXT = 128


WHERE = "expressive attention, figure 5"

EXPERIMENT = Measured(
    module="experiments.synthetic.figure5",
    about=WHERE,
    sizes={"": Size((Place("nt", 16, 5, CONTEXT),), epochs=10_000)},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            WHERE,
            "dot-product attention does not learn N16T5",
            judge_not_learned(DOT_PRODUCT, CONTEXT),
        ),
        Statement(
            WHERE,
            "dot-product attention stays at about 0.2 on N16T5",
            judge_median(DOT_PRODUCT, CONTEXT, 0.2),
        ),
        Statement(
            WHERE, "expressive attention reaches 100 % on N16T5", judge_learned(EXPRESSIVE, CONTEXT)
        ),
        Statement(
            WHERE,
            "both attentions become unstable at the largest context",
            why="longer contexts than 128 take too long here",
        ),
    ),
    left_out={"": "longer contexts, for lack of time"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
