"""Speed and memory of the mechanisms as ratios to named peers, measured in one process.

``run_bench`` measures a suite, like the command ``flax-linattn bench``. The other functions measure
any programs in the same way: compiled, in turns, with medians, spread, memory and compile time.
"""

from flax_linattn.bench.baselines import inputs
from flax_linattn.bench.comparisons import (
    Comparison,
    against_baselines,
    comparisons,
    gated_comparisons,
)
from flax_linattn.bench.journal import Journal
from flax_linattn.bench.provenance import provenance
from flax_linattn.bench.ratios import Ratio, ratios
from flax_linattn.bench.run import BenchOptions, memory_limit, run_bench
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
