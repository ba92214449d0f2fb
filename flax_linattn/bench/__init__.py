"""Speed and memory of the mechanisms as ratios to named peers, measured in one process.

The command ``flax-linattn bench`` runs the suite; the functions below measure anything else in
the same way: compiled programs in turns, medians with their spread, temporary memory as compiled,
compile time.
"""

from flax_linattn.bench.communication import communicated
from flax_linattn.bench.comparisons import Comparison, comparisons
from flax_linattn.bench.journal import Journal
from flax_linattn.bench.provenance import provenance
from flax_linattn.bench.ratios import BARS, Bar, Fall, Ratio, falls, ratios
from flax_linattn.bench.run import run_bench
from flax_linattn.bench.timing import (
    Prepared,
    compare,
    compile_program,
    forward_and_backward,
    normal,
    prepare,
    run_in_turns,
    spread,
)

__all__ = [
    "BARS",
    "Bar",
    "Comparison",
    "Fall",
    "Journal",
    "Prepared",
    "Ratio",
    "communicated",
    "compare",
    "comparisons",
    "compile_program",
    "falls",
    "forward_and_backward",
    "normal",
    "prepare",
    "provenance",
    "ratios",
    "run_bench",
    "run_in_turns",
    "spread",
]
