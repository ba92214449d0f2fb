"""What this library demands of itself on two CPU cores.

Float32, one sequence, 8 heads of 64 channels.
"""

from __future__ import annotations

from flax_linattn.bench import Bar
from flax_linattn.bench.comparisons import FORWARD, TRAINING

_SERIES = "elementwise_series, order 6, causal"
_SUMS = ("the paper's cumulative sums",)
_PRINTED = ("algorithm 1 as printed",)
BARS: tuple[Bar, ...] = (
    Bar("aaren", (16384,), FORWARD, "time", 2, ("associative_scan",)),
    Bar("aaren", (16384,), TRAINING, "time", 2, ("associative_scan",)),
    Bar("aaren", (16384,), TRAINING, "memory", 20, ("associative_scan",)),
    Bar(_SERIES, (4096,), FORWARD, "time", 15, _SUMS),
    Bar(_SERIES, (4096,), TRAINING, "time", 10, _SUMS),
    Bar(_SERIES, (4096,), TRAINING, "memory", 10, _SUMS),
    Bar(_SERIES, (4096,), TRAINING, "time", 20, ("softmax attention (XLA)",)),
    Bar("taylorshift", (8192,), FORWARD, "time", 4, _PRINTED),
    Bar("taylorshift", (8192,), FORWARD, "memory", 10, _PRINTED),
    *(
        Bar(
            f"taylorshift, auto, d = {dim}",
            tuple(2**n for n in range(7, 15)),
            FORWARD,
            "time",
            0.8,
            ("direct", "efficient"),
        )
        for dim in (16, 32, 64)
    ),
    Bar("expressive, causal", (4096,), FORWARD, "time", 2.5, ("its T x T weights",)),
    Bar("expressive, causal", (4096,), TRAINING, "time", 2.5, ("its T x T weights",)),
    Bar("expressive, causal", (4096,), TRAINING, "memory", 20, ("its T x T weights",)),
    Bar("expressive, causal", (16384,), FORWARD, "temporary_bytes", 64e6),
    *(
        Bar(name, (16384,), TRAINING, "compile_seconds", 3)
        for name in ("aaren", _SERIES, "taylorshift", "expressive, causal")
    ),
)
"""0.8 = ``auto`` takes at most 1.25 times as long as the better form."""
