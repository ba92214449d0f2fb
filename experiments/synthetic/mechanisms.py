"""Ten causal mechanisms on N16T2, which distinguishes expressive from dot-product attention.

    python -m experiments.synthetic.mechanisms

The expressive-attention paper compares only these two. All mechanisms use the standard setting of
the search, which was fitted to the two.
"""

from __future__ import annotations

from experiments.measured import Measured
from experiments.statements import Statement
from experiments.synthetic.learning_curves import (
    DOT_PRODUCT,
    Place,
    Size,
    judge_learned,
    measure,
    plot,
    table,
)
from flax_linattn.tasks.options import mechanisms_by_direction

QUADRATIC = "expressive_quadratic"
CONTEXT = 24
SLOW = ("aft", "performer", "rfa")
"""Ten times as slow in training as the others here."""
EVERY = tuple(name for name in mechanisms_by_direction(is_causal=True) if name not in SLOW)


EXPERIMENT = Measured(
    module="experiments.synthetic.mechanisms",
    about="none of the papers; expressive attention, figure 3, for two of them",
    sizes={"": Size((Place("nt", 16, 2, CONTEXT, (DOT_PRODUCT, *EVERY), runs=8),))},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            "expressive attention, background",
            "expressive attention without its rational function reaches 100 % too, in linear time",
            judge_learned(QUADRATIC, CONTEXT),
        ),
    ),
    left_out={
        "": "aft, performer, rfa, rwkv, retention, gated_linear, gated_delta, forgetting and "
        "forgetting_aaren; 8 of 16 runs, other contexts and tasks, and settings of each "
        "one's own"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
