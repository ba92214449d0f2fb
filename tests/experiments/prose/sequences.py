"""Numbers in docs/sequences.md."""

import statistics
from collections.abc import Iterable

from experiments.sequences import data_sets, runs, table3, table8
from tests.experiments.prose import Allowed, Sentence, stored


def learned_by_rfa() -> Iterable[float]:
    """Accuracy of RFA and of a simple rule on lists, then on images, in percent."""
    rows = stored("sequences/table3.json")["rows"]
    for data, simple in ((table3.LISTOPS, "first_token"), (table3.IMAGES, "ridge")):
        yield statistics.mean(table3.accuracies(rows, data, "rfa").values())
        yield 100 * table3.simple_means(rows, data)[simple]


def beaten_by_minirocket() -> Iterable[float]:
    """Images, then the accuracy of MiniRocket and of the best model on both sets, in percent."""
    rows = stored("sequences/table3.json")["rows"]
    sets = (table3.PIXELS, table3.IMAGES)
    yield runs.FITTED
    for data in sets:
        assert table3.best_simple(rows, data)[0] == table3.MINIROCKET
        yield 100 * table3.simple_means(rows, data)[table3.MINIROCKET]
    for data in sets:
        yield max(
            statistics.mean(table3.accuracies(rows, data, mechanism).values())
            for mechanism in table3.mechanisms()
        )


def gains_of_convolutions() -> Iterable[float]:
    """TaylorShift's gains on lists, bytes and images, relative to the printed ones."""
    rows = stored("sequences/table8.json")["rows"]
    for data in (data_sets.LISTOPS, data_sets.IMDB, data_sets.IMAGES):
        conv, linear = data_sets.DATA_SETS[data].paper_conv
        yield statistics.mean(table8.gains(rows, data, "taylorshift")) / (conv - linear)


SENTENCES = (
    Sentence(
        "as in the paper, but only {:.2f}, {:.2f} and {:.2f} times as much", gains_of_convolutions
    ),
    Sentence(
        "It reads {:,} images as series of pixels and reaches {:.1f} % on CIFAR-10 pixels and "
        "{:.1f} % on Tiny-ImageNet. The best models reach {:.1f} % and {:.1f} %.",
        beaten_by_minirocket,
    ),
    Sentence(
        "RFA learns a little: {:.1f} % on ListOps (a rule that reads the first token: {:.1f} %) "
        "and {:.1f} % on Tiny-ImageNet (ridge: {:.1f} %)",
        learned_by_rfa,
    ),
)
ALLOWED = (
    Allowed("Table 3: accuracy by mechanism on four data sets", "the paper's number of the table"),
    Allowed("Table 4: effect of normalization on training", "the paper's number of the table"),
    Allowed("Figure 4: evaluation without", "the paper's number of the figure"),
    Allowed("Table 5: accuracy by number of heads", "the paper's number of the table"),
    Allowed("Figure 7: distribution of query-key products", "the paper's number of the figure"),
    Allowed("centered near 0, as in the paper", "a point, not a result"),
    Allowed("Table 8: convolutional vs. linear embedding", "the paper's number of the table"),
    Allowed("Figure 8: accuracy beyond the training lengths", "the paper's number of the figure"),
    Allowed("Longest sequence that trains in 4 GB", "what is asked"),
)
