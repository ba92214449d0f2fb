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


def of_test_sequences() -> tuple[int, float]:
    """Of Japanese Vowels: how many, and what one of them is in per cent."""
    (number,) = {
        run["report"]["num_test"]
        for run in stored("classification/aaren-paper.json")["runs"]
        if run["row"].startswith("JapaneseVowels")
    }
    return number, 100 / number


SENTENCES: list[Sentence] = [
    Sentence("{} test sequences, so one of them is {:.2f} %", of_test_sequences),
    Sentence(
        "A token costs the same after 1,000 tokens and after {}, within a factor of {:.2f} "
        "(Aaren, whose state hardly fills a microsecond) and {:.2f} (EA-series)",
        flat,
    ),
]
ALLOWED: list[Allowed] = []
