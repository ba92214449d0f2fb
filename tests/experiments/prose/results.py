"""Numbers in docs/results.md."""

from typing import Any

from experiments.streaming.loop import flatness
from tests.experiments.prose import Allowed, Sentence, stored


def flat() -> list[Any]:
    """The least flat loops of Aaren and of EA-series, and the longest."""
    loops = {
        row["mechanism"]: row["lengths"]
        for row in stored("streaming/loop.json")["rows"]
        if row["what"] == "loop"
    }
    aaren, *series = (flatness(lengths, "us") for lengths in loops.values())
    return [f"{loops['aaren'][-1]['tokens']:,}", aaren, max(series)]


SENTENCES: list[Sentence] = [
    Sentence(
        "A token costs the same after 1,000 tokens and after {}, within a factor of {:.2f} "
        "(Aaren, whose state hardly fills a microsecond) and {:.2f} (EA-series)",
        flat,
    ),
]
ALLOWED: list[Allowed] = []
