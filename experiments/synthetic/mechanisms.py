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
TRAINED = (
    "softmax", "aaren", "elementwise", "elementwise_series", "taylorshift", "expressive",
    "expressive_quadratic", "linear", "aft_simple", "taylor_features",
)  # fmt: skip
LEFT_OUT = [name for name in mechanisms_by_direction(is_causal=True) if name not in TRAINED]


EXPERIMENT = Measured(
    module="experiments.synthetic.mechanisms",
    about="none of the papers; expressive attention, figure 3, for two of them",
    sizes={"": Size((Place("nt", 16, 2, CONTEXT, (DOT_PRODUCT, *TRAINED), runs=8),))},
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
        "": f"{', '.join(LEFT_OUT)}; 8 of 16 runs, other contexts and tasks, and separate "
        "settings for each mechanism"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
