"""N16T5, whose 16.8 million states nothing can learn by heart.

    python -m experiments.symbols.figure5

Expressive-attention paper, figure 5. Its context lengths are lost. Modulo 2, 4, 8 and 16 a series
comes again after 63, 126, 252 and 504 symbols; ours is the context from which on it is known modulo
4, and fewer runs of it, for want of time.
"""

from __future__ import annotations

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.symbols.ladder import (
    DOT_PRODUCT,
    EXPRESSIVE,
    Place,
    Size,
    draw,
    measure,
    median,
    ours,
    row_of,
    share,
    table,
)
from experiments.symbols.rules import LEARNED, about, most, opposite
from experiments.verdicts import Verdict

CONTEXT = 128


def trapped(rows: Rows) -> Verdict:
    row = row_of(rows, DOT_PRODUCT, CONTEXT)
    return Verdict(opposite(most(share(row), LEARNED)), ours([row]))


def plateau(rows: Rows) -> Verdict:
    row = row_of(rows, DOT_PRODUCT, CONTEXT)
    return Verdict(about(median(row), 0.2), f"median {median(row):.3f}")


def escapes(rows: Rows) -> Verdict:
    row = row_of(rows, EXPRESSIVE, CONTEXT)
    return Verdict(most(share(row), LEARNED), ours([row]))


WHERE = "expressive attention, figure 5"

EXPERIMENT = Measured(
    module="experiments.symbols.figure5",
    about=WHERE,
    sizes={"": Size((Place("nt", 16, 5, CONTEXT, runs=8),))},
    measure=measure,
    table=table,
    draw=draw,
    statements=(
        Statement(WHERE, "dot-product attention does not learn N16T5", trapped),
        Statement(WHERE, "it stays at about 0.2", plateau),
        Statement(WHERE, "expressive attention reaches 100 %", escapes),
        Statement(
            WHERE,
            "at the largest context both become unstable",
            why="longer contexts than 128 take too long here",
        ),
    ),
    left_out={"": "8 of 16 runs, and longer contexts, for want of time"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
