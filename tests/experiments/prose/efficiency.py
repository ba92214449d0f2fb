"""Numbers in docs/efficiency.md."""

from collections.abc import Iterable
from functools import partial

from tests.experiments.prose import Allowed, Sentence, stored


def steps_beside_cell() -> Iterable[float]:
    rows = stored("efficiency/stream_steps-cpu.json")["rows"]
    times = [r["milliseconds"] for r in rows if r["rows"] == 1 and r["mechanism"] != "softmax"]
    ratios = [each["Stream.step"]["median"] / each["GRU cell"]["median"] for each in times]
    return min(ratios), max(ratios)


TRANSFORMER = "PyTorch, transformer"


def beside(peer: str, mechanism: str) -> list[float]:
    """How many times as fast a step of our model is as a peer's, by length."""
    rows = stored("efficiency/whole_models-cpu.json")["rows"]
    times = {
        (r["length"], r["model"]): r["milliseconds"]["median"] for r in rows if "milliseconds" in r
    }
    lengths = sorted({length for length, _ in times})
    return [times[length, peer] / times[length, mechanism] for length in lengths]


def slowest_and_fastest(peer: str, mechanism: str) -> Iterable[float]:
    ratios = beside(peer, mechanism)
    return min(ratios), max(ratios)


SENTENCES: list[Sentence] = [
    Sentence(
        "Aaren is {:.1f}, {:.1f}, {:.1f} and {:.1f} times as fast as PyTorch's transformer",
        partial(beside, TRANSFORMER, "aaren"),
    ),
    Sentence(
        "with EA-series {:.1f}, {:.1f}, {:.1f} and {:.1f} times",
        partial(beside, TRANSFORMER, "elementwise_series"),
    ),
    Sentence(
        "Our softmax, {:.1f} to {:.1f} times,",
        partial(slowest_and_fastest, TRANSFORMER, "softmax"),
    ),
    Sentence(
        "Aaren is {:.1f} to {:.1f} times as fast as it",
        partial(slowest_and_fastest, "PyTorch, LSTM", "aaren"),
    ),
    Sentence(
        "A step of one row takes {:.1f} to {:.1f} times as long as the cell", steps_beside_cell
    ),
]
ALLOWED: list[Allowed] = [
    Allowed("(1.5, the noise of a shared machine)", "a flag's default"),
    Allowed(
        "at commit 009ec41 it was 3.2 to 4.3 times",
        "the same experiment with the library of then, whose table is not kept",
    ),
]
