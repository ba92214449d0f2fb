"""Requirements on the speed and memory of this library on two CPU cores.

Float32, one sequence, 8 heads of 64 channels.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Literal, NamedTuple

from flax_linattn.bench.comparison import FORWARD, OURS, TRAINING
from flax_linattn.bench.ratio import Rows, ratios
from flax_linattn.bench.report import interval, markdown, number


class Bar(NamedTuple):
    """What is demanded of a measurement.

    Attributes:
        comparison: its name.
        lengths: T; the worst of them counts.
        which: the pass.
        quantity: "time" and "memory" are ratios of the peers to ours, at least the limit;
            "temporary_bytes" and "compile_seconds" are ours, at most the limit.
        limit: the bar.
        peers: the worst of them counts.
    """

    comparison: str
    lengths: tuple[int, ...]
    which: str
    quantity: Literal["time", "memory", "temporary_bytes", "compile_seconds"]
    limit: float
    peers: tuple[str, ...] = ()

    @property
    def is_lower_limit(self) -> bool:
        """Whether the limit is a lower limit."""
        return self.quantity in ("time", "memory")

    def measured(self, rows: Rows) -> list[float]:
        """What was measured: a number for each repeat, at the length and peer that are worst.

        Nothing where a peer was not run.
        """
        if not self.is_lower_limit:
            values = [
                row["results"][OURS][self.quantity]
                for row in rows
                if (row["comparison"], row["pass"]) == (self.comparison, self.which)
                and row["length"] in self.lengths
                and self.quantity in row["results"][OURS]
            ]
            return values[:1] if self.quantity == "temporary_bytes" else values
        chosen = [
            ratio
            for ratio in ratios(rows)
            if (ratio.comparison, ratio.which) == (self.comparison, self.which)
            and ratio.length in self.lengths
            and ratio.peer in self.peers
        ]
        if self.quantity == "memory":
            return [min(ratio.memory for ratio in chosen)] if chosen else []
        if not chosen or not all(ratio.time for ratio in chosen):
            return []
        return list(min((ratio.time for ratio in chosen), key=statistics.median))

    def met(self, values: list[float]) -> bool:
        """Whether the median of what was measured passes."""
        value = statistics.median(values)
        return value >= self.limit if self.is_lower_limit else value <= self.limit


def bars_table(rows: Rows, bars: Iterable[Bar]) -> str:
    """A Markdown table of the bars that were measured, met or missed; "" if none was measured."""
    heads = ["ours", "T", "pass", "what", "required", "measured", ""]
    lines = []
    for bar in bars:
        if not any(r["comparison"] == bar.comparison and r["length"] in bar.lengths for r in rows):
            continue
        values = bar.measured(rows)
        what = {
            "time": f"times faster than {' and '.join(bar.peers)}",
            "memory": f"times less temporary memory than {' and '.join(bar.peers)}",
            "temporary_bytes": "temporary memory, MB",
            "compile_seconds": "compile time, s",
        }[bar.quantity]
        verdict = "met" if values and bar.met(values) else "**missed**"
        verdict = verdict if values else "not run"
        scale = 1e-6 if bar.quantity == "temporary_bytes" else 1
        span = f"{bar.lengths[0]:,}"
        if len(bar.lengths) > 1:
            span, what = f"{span} to {bar.lengths[-1]:,}", f"{what}, at the worst T"
        lines.append(
            [
                bar.comparison,
                span,
                bar.which,
                what,
                f"{'>=' if bar.is_lower_limit else '<='} {number(scale * bar.limit)}",
                interval([scale * value for value in values]),
                verdict,
            ]
        )
    return markdown(heads, lines) if lines else ""


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
