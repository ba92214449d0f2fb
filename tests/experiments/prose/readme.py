"""Numbers in README.md."""

from collections.abc import Iterable

from experiments.intervals import spread
from experiments.tables.baselines import reports
from experiments.tables.cells import values
from tests.experiments.prose import Allowed, Sentence
from tests.experiments.prose.time_series import lost, stored

AAREN, FORECASTS = "classification.aaren", "forecasting.aaren"
VOWELS = "JapaneseVowels, selected on the TEST SET"
HONEST = "JapaneseVowels, honest"


def ours(name: str, row: str, column: str) -> Iterable[float]:
    of = stored()[name]
    cell, metric = of.rows[row][column], of.table.metrics[0]
    paper = cell.paper.get(metric.name, ())
    return (*paper, *spread(list(values(of.store, cell, metric).values())))


def beside(name: str, row: str, column: str) -> Iterable[float]:
    metric = stored()[name].table.metrics[0]
    of_row = reports(name, row)[column].values()
    return spread([metric.scale * report[f"test_{metric.key}"] for report in of_row])


SENTENCES = [
    Sentence(
        "A ridge beats the forecaster with Aaren in {} of {} rows, MiniRocket the classifier with "
        "Aaren in {} of {}, that with softmax in {} of {}",
        lambda: (
            *lost(FORECASTS, "aaren", "ridge"),
            *lost(AAREN, "aaren", "MiniRocket"),
            *lost(AAREN, "softmax", "MiniRocket"),
        ),
    ),
    Sentence(
        "Aaren, selected on the test set as in the paper | {:.2f} ± {:.2f} | {:.2f} ± {:.2f} |",
        lambda: ours(AAREN, VOWELS, "aaren"),
    ),
    Sentence(
        "| the same, softmax | {:.2f} ± {:.2f} | {:.2f} ± {:.2f} |",
        lambda: ours(AAREN, VOWELS, "softmax"),
    ),
    Sentence("its model streams | - | {:.2f} ± {:.2f} |", lambda: ours(AAREN, HONEST, "aaren")),
    Sentence(
        "a ridge on the flattened sequences | - | {:.2f} |", lambda: beside(AAREN, HONEST, "ridge")
    ),
    Sentence("MiniRocket | - | {:.2f} ± {:.2f} |", lambda: beside(AAREN, HONEST, "MiniRocket")),
    Sentence(
        "MSE, Aaren | {:.2f} ± {:.2f} | {:.3f} ± {:.3f} |",
        lambda: ours(FORECASTS, "ETTh1, 96", "aaren"),
    ),
    Sentence(
        "softmax | {:.2f} ± {:.2f} | {:.3f} ± {:.3f} |",
        lambda: ours(FORECASTS, "ETTh1, 96", "softmax"),
    ),
    Sentence(
        "Aaren's causal decoder, which streams | - | {:.3f} ± {:.3f} |",
        lambda: ours(FORECASTS, "ETTh1, 96", "aaren, streaming"),
    ),
    Sentence(
        "the last day again | - | {:.3f} |",
        lambda: beside(FORECASTS, "ETTh1, 96", "seasonal naive"),
    ),
    Sentence(
        "a ridge on the window | - | {:.3f} |", lambda: beside(FORECASTS, "ETTh1, 96", "ridge")
    ),
]
ALLOWED: list[Allowed] = []
