"""Numbers in docs/efficiency.md."""

from collections.abc import Iterable

from tests.experiments.prose import Allowed, Sentence, stored


def steps_beside_cell() -> Iterable[float]:
    rows = stored("efficiency/stream_steps-cpu.json")["rows"]
    times = [r["milliseconds"] for r in rows if r["rows"] == 1 and r["mechanism"] != "softmax"]
    ratios = [each["Stream.step"]["median"] / each["GRU cell"]["median"] for each in times]
    return min(ratios), max(ratios)


SENTENCES: list[Sentence] = [
    Sentence(
        "A step of one row takes {:.1f} to {:.1f} times as long as the cell", steps_beside_cell
    )
]
ALLOWED: list[Allowed] = [
    Allowed("(1.5, the noise of a shared machine)", "a flag's default"),
    Allowed(
        "at commit 009ec41 it was 3.2 to 4.3 times",
        "the same experiment with the library of then, whose table is not kept",
    ),
]
