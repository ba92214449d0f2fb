"""Numbers in docs/results.md."""

from collections.abc import Iterator
from typing import Any

from experiments.streaming.loop import flatness
from tests.experiments.prose import Allowed, Sentence, power, stored


def errors(dtype: str) -> Iterator[dict[str, Any]]:
    """Cases of a dtype, each with its row."""
    for row in stored("accuracy/errors.json")["rows"]:
        for case in row["cases"]:
            if case["dtype"] == dtype:
                yield {**row, **case}


def largest(dtype: str, what: str) -> dict[str, Any]:
    return max(errors(dtype), key=lambda case: case[what])


def gradients() -> list[Any]:
    single, double = largest("float32", "gradient"), largest("float64", "gradient")
    return [
        *(single["mechanism"], f"{single['length']:,}", power(single["gradient"])),
        *(double["mechanism"], power(double["gradient"])),
    ]


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
        "in float32 all outputs are right to {}.",
        lambda: [power(largest("float32", "output")["output"])],
    ),
    Sentence(
        "The largest float32 gradient error is that of `{}` ({} tokens: {}), the largest in "
        "float64 that of `{}` ({}).",
        gradients,
    ),
    Sentence(
        "A token costs the same after 1,000 tokens and after {}, within a factor of {:.2f} "
        "(Aaren, whose state hardly fills a microsecond) and {:.2f} (EA-series)",
        flat,
    ),
]
ALLOWED: list[Allowed] = []
