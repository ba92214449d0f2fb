"""Ratios of peers to ours, and the gate that compares them with stored ratios.

Ratios hold across machines far better than times do.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from flax_linattn.bench.comparison import OURS
from flax_linattn.checks import OptionError

Rows = list[dict[str, Any]]
"""Rows of a journal: comparison, length, pass, repeat, results."""

MEMORY_FLOOR = 1e6
"""Bytes of temporary memory below which the gate does not distinguish programs."""


class Ratio(NamedTuple):
    """Ratios of a peer's time and memory to ours.

    Attributes:
        comparison: Name of the comparison.
        length: Sequence length T.
        which: Name of the pass.
        peer: Name of the peer.
        time: Median time of the peer divided by ours, for each repeat; empty if not run.
        memory: Temporary bytes of the peer divided by ours.
        floored: The same, with ours at least ``MEMORY_FLOOR``.
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
        """Comparison, length, pass and peer."""
        return self[:4]


def ratios(rows: Rows) -> list[Ratio]:
    """The ratios of all comparisons in the rows of a ``ratios.json``, in their order."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["comparison"], row["length"], row["pass"])
        groups.setdefault(key, []).append(row["results"])
    result = []
    for key, repeats in groups.items():
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
            memory, floored = (theirs / max(minimum, ours) for minimum in (1, MEMORY_FLOOR))
            result.append(Ratio(*key, peer, time, memory, floored))
    return result


class Regression(NamedTuple):
    """A ratio that fell by more than the allowed factor: its key, quantity, old and new value."""

    key: tuple[str, int, str, str]
    quantity: str
    before: float
    now: float


def find_regressions(
    now: Iterable[Ratio], before: Iterable[Ratio], factor: float
) -> list[Regression]:
    """Finds ratios that fell by more than a factor; raises OptionError if none is in common."""
    stored = {ratio.key: ratio for ratio in before}
    shared = [(ratio, stored[ratio.key]) for ratio in now if ratio.key in stored]
    if not shared:
        raise OptionError(
            "the new and the stored results have no comparison in common; measure the same "
            "comparisons, or pass another file.",
            "only",
            "against",
        )
    regressions = []
    for new, old in shared:
        pairs = {"memory": (old.floored, new.floored)}
        if new.time and old.time:
            pairs["time"] = statistics.median(old.time), statistics.median(new.time)
        regressions += [
            Regression(new.key, quantity, was, is_)
            for quantity, (was, is_) in pairs.items()
            if is_ * factor < was
        ]
    return regressions
