"""Ratios of peers to ours, bars that they may have to pass, and the gate against stored ones.

Ratios hold across machines far better than times do, so they are what is kept and compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from flax_linattn.bench.comparisons import OURS
from flax_linattn.checks import OptionError

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
    result = []
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
            result.append(Ratio(comparison, length, which, peer, time, memory, floored))
    return result


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
    def at_least(self) -> bool:
        """Whether the limit is one from below."""
        return self.quantity in ("time", "memory")

    def measured(self, rows: Rows) -> list[float]:
        """What was measured: a number for each repeat, at the length and peer that are worst.

        Nothing where a peer was not run.
        """
        if not self.at_least:
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
        return value >= self.limit if self.at_least else value <= self.limit


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
        message = f"the factor by which a ratio may fall must exceed 1, got {factor}."
        raise OptionError(message, "factor")


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
        raise OptionError(
            "the new and the stored results have no comparison in common; measure the same ones, "
            "or compare with another file.",
            "only",
            "against",
        )
    fallen = []
    for new, old in shared:
        pairs = {"memory": (old.floored, new.floored)}
        if new.time and old.time:
            pairs["time"] = statistics.median(old.time), statistics.median(new.time)
        fallen += [
            Fall(new.key, quantity, was, is_)
            for quantity, (was, is_) in pairs.items()
            if is_ * factor < was
        ]
    return fallen
