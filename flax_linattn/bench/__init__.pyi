from flax_linattn.bench.baselines import inputs
from flax_linattn.bench.comparison import (
    Comparison,
    against_baselines,
    comparisons,
    gated_comparisons,
)
from flax_linattn.bench.journal import Journal
from flax_linattn.bench.options import BenchOptions
from flax_linattn.bench.origin import provenance
from flax_linattn.bench.ratio import Ratio, ratios
from flax_linattn.bench.run import memory_limit, run_bench
from flax_linattn.bench.timing import (
    Prepared,
    communication_bytes,
    compare,
    compile_program,
    forward_and_backward,
    normal,
    observe_compilations,
    prepare,
    run_in_turns,
    spread,
)

__all__ = [
    "BenchOptions",
    "Comparison",
    "Journal",
    "Prepared",
    "Ratio",
    "against_baselines",
    "communication_bytes",
    "compare",
    "comparisons",
    "compile_program",
    "forward_and_backward",
    "gated_comparisons",
    "inputs",
    "memory_limit",
    "normal",
    "observe_compilations",
    "prepare",
    "provenance",
    "ratios",
    "run_bench",
    "run_in_turns",
    "spread",
]
