"""Numbers in docs/results.md."""

from typing import Any

from experiments.classification.mechanisms import LATENTS
from experiments.intervals import over_sets
from experiments.recurrent import accuracy
from experiments.streaming.loop import flatness
from tests.experiments.prose import Allowed, Sentence, stored
from tests.experiments.prose.time_series import lost


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


def directions() -> list[str]:
    """In how many rows of the mechanisms' table each direction loses to a baseline."""
    columns, names = ("causal", "not causal"), ("ridge", "MiniRocket")
    pairs = [(column, name) for name in names for column in columns]
    return [x for pair in pairs for x in lost("classification.mechanisms", *pair)]


def causal(*rows: str) -> list[float]:
    """Mean accuracies of causal rows of the mechanisms' table, per cent."""
    runs = stored("classification/mechanisms-cpu.json")["runs"]
    found = {
        row: [
            run["report"]["test_accuracy"]
            for run in runs
            if (run["row"], run["column"]) == (row, "causal")
        ]
        for row in rows
    }
    return [100 * sum(each) / len(each) for each in found.values()]


def latents() -> list[float]:
    """Of many latents and of few, and of the same mechanism and softmax on every step."""
    few, many = LATENTS["aaren"]
    names = (f"aaren, {many} latents", f"aaren, {few} latents", "aaren", "softmax")
    of_many, of_few, *rest = causal(*names)
    return [many, of_many, few, of_few, *rest]


def recurrent() -> list[Any]:
    """Advantages of attention in nats per event, and over how many data sets."""
    rows = stored("recurrent/accuracy-events.json")["rows"]
    numbers: list[Any] = [len(accuracy.data_sets(rows))]
    for attention in ("aaren", "softmax"):
        for model in accuracy.MODELS:
            over = over_sets(accuracy.advantages(rows, attention, model))
            assert over is not None
            numbers += [over.middle, over.half]
    return numbers


SENTENCES: list[Sentence] = [
    Sentence(
        "{} latents that read by Aaren reach {:.1f} % and {} of them {:.1f} %, Aaren on every step "
        "{:.1f} % and causal softmax {:.1f} %",
        latents,
    ),
    Sentence(
        "causal, {} of {} lose to a ridge on the flattened series, not causal {} of {}; to "
        "MiniRocket {} of {} and {} of {}",
        directions,
    ),
    Sentence("{} test sequences, so one of them is {:.2f} %", of_test_sequences),
    Sentence(
        "From 1,000 to {} tokens the slowest loop takes {:.2f} (Aaren) and {:.2f} (EA-series) "
        "times as long per token as the fastest",
        flat,
    ),
]
ALLOWED: list[Allowed] = []
