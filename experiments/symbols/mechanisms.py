"""Every causal mechanism on the ladder: N16T2 where expressive attention and dot-product part.

    python -m experiments.symbols.mechanisms

One step further than the expressive-attention paper, which compares two. By the standard setting of
the search, which was fitted to those two.
"""

from __future__ import annotations

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.symbols.ladder import (
    DOT_PRODUCT,
    Place,
    Size,
    draw,
    measure,
    ours,
    row_of,
    share,
    table,
)
from experiments.symbols.rules import LEARNED, most
from experiments.verdicts import Verdict
from flax_linattn.tasks import get_task

QUADRATIC = "expressive_quadratic"
CONTEXTS = (24, 32)
EVERY = (DOT_PRODUCT, *get_task("symbols").mechanisms())


def keeps(rows: Rows) -> Verdict:
    row = row_of(rows, QUADRATIC, CONTEXTS[0])
    return Verdict(most(share(row), LEARNED), ours([row]))


EXPERIMENT = Measured(
    module="experiments.symbols.mechanisms",
    about="none of the papers; expressive attention, figure 3, for two of them",
    sizes={"": Size(tuple(Place("nt", 16, 2, context, EVERY, runs=8) for context in CONTEXTS))},
    measure=measure,
    table=table,
    draw=draw,
    statements=(
        Statement(
            "expressive attention",
            "its rational function is not needed: without it, in linear time, it reaches 100 % too",
            keeps,
        ),
    ),
    left_out={
        "": "for want of time: 8 of 16 runs, performer, rfa, and the context of 32 of which the sizes "
        "tell; other tasks, and settings of each one's own"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
