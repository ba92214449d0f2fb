"""Ratios of peers to ours, the bars they are to pass, and the gate against stored ones.

Ratios hold across machines far better than times do, so they are what is kept and compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from flax_linattn.bench.comparisons import FORWARD, OURS, TRAINING

Rows = list[dict[str, Any]]
"""Of a journal: comparison, length, pass, repeat, results."""

MEMORY_FLOOR = 1e6
"""Bytes below which the gate does not tell temporary memory apart."""


class Ratio(NamedTuple):
    """A peer against ours.

    Attributes:
        comparison: its name.
        length: T.
        which: the pass.
        peer: the peer's name.
        time: the peer's median time over ours, a number for each repeat; empty if not run.
        memory: the peer's temporary bytes over ours.
        floored: the same, with ours at least ``MEMORY_FLOOR``.
    """

    comparison: str
    length: int
    which: str
    peer: str
    time: tuple[float, ...]
    memory: float
    floored: float

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What tells it from the others."""
        return self[:4]


def ratios(rows: Rows) -> list[Ratio]:
    """The ratios of all comparisons in rows, in their order.

    Args:
        rows: of ``run_bench``'s ratios.json.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["comparison"], row["length"], row["pass"]), []).append(
            row["results"]
        )
    found = []
    for (comparison, length, which), repeats in groups.items():
        for peer in repeats[0]:
            sizes = [repeats[0][name].get("temporary_bytes") for name in (OURS, peer)]
            if peer == OURS or None in sizes:  # does not compile here
                continue
            ours, theirs = sizes
            time = tuple(
                r[peer]["milliseconds"]["median"] / r[OURS]["milliseconds"]["median"]
                for r in repeats
                if "milliseconds" in r[peer] and "milliseconds" in r[OURS]
            )
            memory, floored = (theirs / max(least, ours) for least in (1, MEMORY_FLOOR))
            found.append(Ratio(comparison, length, which, peer, time, memory, floored))
    return found


class Bar(NamedTuple):
    """What this library demands of itself on two CPU cores.

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
    def at_least(self) -> bool:
        """Whether the limit is one from below."""
        return self.quantity in ("time", "memory")

    def measured(self, rows: Rows) -> list[float]:
        """What was measured: a number for each repeat, at the length and peer that are worst.

        Nothing where a peer was not run.
        """
        if not self.at_least:
            found = [
                row["results"][OURS][self.quantity]
                for row in rows
                if (row["comparison"], row["pass"]) == (self.comparison, self.which)
                and row["length"] in self.lengths
                and self.quantity in row["results"][OURS]
            ]
            return found[:1] if self.quantity == "temporary_bytes" else found
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
        return value >= self.limit if self.at_least else value <= self.limit


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
"""What is demanded on two CPU cores, float32, one sequence, 8 heads of 64 channels. 0.8 = ``auto``
takes at most 1.25 times as long as the better form."""


class Fall(NamedTuple):
    """A ratio that fell by more than the allowed factor.

    Attributes:
        key: of the ratio.
        quantity: "time" or "memory".
        before: the stored ratio.
        now: the new one.
    """

    key: tuple[str, int, str, str]
    quantity: str
    before: float
    now: float


def check_factor(factor: float) -> None:
    """Refuses a factor that no fall can exceed.

    Raises:
        ValueError: a factor of at most 1.
    """
    if factor <= 1:
        raise ValueError(f"the factor by which a ratio may fall must exceed 1, got {factor}.")


def falls(now: Iterable[Ratio], before: Iterable[Ratio], factor: float) -> list[Fall]:
    """The ratios that fell by more than a factor.

    Args:
        now: the new ratios.
        before: the stored ones.
        factor: above 1; timings of the same program differ by up to 1.5 on a shared machine.

    Raises:
        ValueError: a factor of at most 1, or no ratio in common.
    """
    check_factor(factor)
    stored = {ratio.key: ratio for ratio in before}
    shared = [(ratio, stored[ratio.key]) for ratio in now if ratio.key in stored]
    if not shared:
        raise ValueError(
            "the new and the stored results have no comparison in common; measure with the "
            "same --only, or compare with another file."
        )
    found = []
    for new, old in shared:
        pairs = {"memory": (old.floored, new.floored)}
        if new.time and old.time:
            pairs["time"] = statistics.median(old.time), statistics.median(new.time)
        found += [
            Fall(new.key, quantity, was, is_)
            for quantity, (was, is_) in pairs.items()
            if is_ * factor < was
        ]
    return found
