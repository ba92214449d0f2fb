"""Numbers in docs/concepts/choose-a-mechanism.md."""

import statistics
from collections.abc import Iterable
from functools import partial

from experiments.synthetic.recall import accuracies
from tests.experiments.prose import Sentence, stored

ACCURACIES = {"elementwise_series": "elementwise_series:order=6"}
MECHANISMS = (
    "softmax",
    "aaren",
    "forgetting_aaren",
    "rwkv",
    "elementwise_series",
    "linear",
    "retention",
    "gated_linear",
    "gated_delta",
    "expressive_quadratic",
    "taylorshift",
    "taylor_features",
)


def accuracy(mechanism: str) -> str:
    """Mean test accuracy of causal models on Japanese Vowels, percent."""
    row = ACCURACIES.get(mechanism, mechanism)
    runs = stored("classification/mechanisms-cpu.json")["runs"]
    found = [
        run["report"]["test_accuracy"]
        for run in runs
        if (run["row"], run["column"]) == (row, "causal")
    ]
    return f"{100 * sum(found) / len(found):.1f}"


def recall(mechanism: str) -> str:
    """Recall of four pairs at equal width, or "-" where it was not measured."""
    found = [
        statistics.mean(accuracies(row).values())
        for row in stored("synthetic/recall.json")["rows"]
        if (row["rules"], row.get("pairs"), row["mechanism"], row["equal"])
        == ("recall", 4, mechanism, "width")
    ]
    return f"{found[0]:.2f}" if found else "-"


def rate(mechanism: str) -> str:
    """Steps a second of one stream, from Python."""
    held = {"softmax": 1000}.get(mechanism, 0)
    (row,) = (
        row
        for row in stored("efficiency/stream_steps-cpu.json")["rows"]
        if (row["mechanism"], row["held"], row["rows"]) == (mechanism, held, 1)
    )
    return f"{1e3 / row['milliseconds']['Stream.step']['median']:,.0f}"


def numbers(mechanism: str) -> Iterable[str]:
    return rate(mechanism), recall(mechanism), accuracy(mechanism)


SENTENCES = [
    Sentence(
        f"[`{mechanism}`](../mechanisms/{mechanism}.md) | {{}} | {{}} | {{}} |",
        partial(numbers, mechanism),
    )
    for mechanism in MECHANISMS
]
