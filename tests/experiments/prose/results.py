"""Numbers in docs/results.md."""

import itertools
import statistics
from typing import Any

from experiments.classification import archive_methods, uea_ucr
from experiments.classification.mechanisms import LATENTS
from experiments.events import rules
from experiments.intervals import interval, over_sets, paired_differences
from experiments.recurrent import accuracy
from experiments.streaming.loop import flatness
from experiments.verdicts import HOLDS, OPEN
from tests.experiments.prose import Allowed, Sentence, stored
from tests.experiments.prose.time_series import lost

DECIDED = "forecasting", "aaren", "gated_linear"
"""The comparison with recurrent networks that is decided besides those of events."""


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
    """Of Japanese Vowels: how many, and what one of them is in percent."""
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
    """Mean accuracies of causal rows of the mechanisms' table, percent."""
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


def advantages(attention: str, family: str = "events") -> list[float]:
    """Advantages of attention over LSTM, GRU and gated linear attention, in the family's unit."""
    rows = stored(f"recurrent/accuracy-{family}.json")["rows"]
    numbers = []
    for model in accuracy.MODELS:
        decided = family == "events" or (family, attention, model) == DECIDED
        word = accuracy.judge_against(attention, model)(rows).word
        assert word == (HOLDS if decided else OPEN)
        over = over_sets(accuracy.advantages(rows, attention, model))
        assert over is not None
        numbers += [over.middle, over.half]
    return numbers


def advantages_of_aaren() -> list[Any]:
    """Over how many data sets, its advantages, none of which is decided, and the margin."""
    numbers = advantages("aaren")
    assert all(abs(m) < half for m, half in zip(numbers[::2], numbers[1::2], strict=True))
    rows = stored("recurrent/accuracy-events.json")["rows"]
    return [len(accuracy.data_sets(rows)), *numbers, rules.MARGIN]


def advantages_of_softmax() -> list[float]:
    """Its advantages, the last of which is negative on each set."""
    rows = stored("recurrent/accuracy-events.json")["rows"]
    lost = accuracy.advantages(rows, "softmax", "gated_linear").values()
    assert all(statistics.mean(each) < 0 for each in lost)
    return advantages("softmax")


def advantages_in_classification() -> list[float]:
    """Number of data sets, margin, and advantages in percent, none of which is decided."""
    rows = stored("recurrent/accuracy-classification.json")["rows"]
    best = {}
    for data in accuracy.data_sets(rows):
        means = {
            model: statistics.mean(accuracy.values(rows, data, model).values())
            for model in (*accuracy.ATTENTION, *accuracy.MODELS)
        }
        best[data] = [min(means, key=means.__getitem__), max(means, key=means.__getitem__)]
    own = "gated_linear"
    assert best["UWaveGestureLibrary"][1] == best["BasicMotions"][1] == own
    assert best["JapaneseVowels"][0] == own
    numbers = [x for name in ("aaren", "softmax") for x in advantages(name, "classification")]
    assert all(abs(m) < half for m, half in zip(numbers[::2], numbers[1::2], strict=True))
    return [len(best), accuracy.FAMILIES["classification"].margin, *numbers]


def advantages_in_forecasting() -> list[float]:
    """Number of series, advantages of Aaren in percent, margin, advantages of softmax."""
    rows = stored("recurrent/accuracy-forecasting.json")["rows"]
    for attention, model in itertools.product(accuracy.ATTENTION, accuracy.MODELS):
        by_set = accuracy.advantages(rows, attention, model)
        assert statistics.mean(by_set["ETTh1, 96"]) < 0 < statistics.mean(by_set["Exchange, 96"])
    of_aaren, of_softmax = (advantages(name, "forecasting") for name in ("aaren", "softmax"))
    margin = accuracy.FAMILIES["forecasting"].margin
    return [len(accuracy.data_sets(rows)), *of_aaren, margin, *of_softmax]


def archives(name: str, method: str) -> dict[str, dict[int, float]]:
    """A value of a classifier by data set of the archives and seed."""
    return uea_ucr.by_seed(stored("classification/uea_ucr.json")["rows"], name, method)


def means_of_archives() -> list[float]:
    """Number of data sets, and mean accuracies of the default, the closed form and MiniRocket."""
    methods = (archive_methods.DEFAULT, archive_methods.LINEAR, archive_methods.MINIROCKET)
    by_set = [
        {
            name: statistics.mean(each.values())
            for name, each in archives("test_accuracy", m).items()
        }
        for m in methods
    ]
    assert len({tuple(sorted(each)) for each in by_set}) == 1
    return [len(by_set[0]), *(100 * statistics.mean(each.values()) for each in by_set)]


def difference_from_minirocket() -> list[float]:
    """The interval of the default's and, equal to a tenth of a point, of the closed form's."""
    minirocket = archives("test_accuracy", archive_methods.MINIROCKET)
    intervals = []
    for method in (archive_methods.DEFAULT, archive_methods.LINEAR):
        own = archives("test_accuracy", method)
        over = interval(
            [
                100 * (statistics.mean(own[name].values()) - statistics.mean(other.values()))
                for name, other in minirocket.items()
            ]
        )
        assert over is not None
        intervals.append([round(over.middle, 1), round(over.half, 1)])
    assert intervals[0] == intervals[1]
    return intervals[0]


def verdict_on_minirocket() -> list[float]:
    """Number of data sets that decide, and the differences from MiniRocket over them."""
    rows = stored("classification/uea_ucr.json")["rows"]
    by_set = [uea_ucr.differences_from_minirocket(rows, method)
              for method in (archive_methods.DEFAULT, archive_methods.LINEAR)]  # fmt: skip
    number, also = map(len, by_set)
    assert number == also
    intervals = [interval([100 * each for each in of.values()]) for of in by_set]
    return [number, *(value for over in intervals if over for value in over[:2])]


def gains_of_attention() -> list[Any]:
    """Where the attention has a weight, and what it gains there over the closed form, by seed."""
    weights = archives("attention_weight", archive_methods.DEFAULT)
    used = {name: of for name, of in weights.items() if any(of.values())}
    accuracies = [
        archives("test_accuracy", method)
        for method in (archive_methods.DEFAULT, archive_methods.LINEAR)
    ]
    gains = {
        name: 100 * statistics.mean(paired_differences(*(each[name] for each in accuracies)))
        for name in weights
    }
    assert all(abs(gains[name]) < 1e-9 for name in weights.keys() - used.keys())
    names = ("JapaneseVowels", "SpokenArabicDigits", "UWaveGestureLibrary")
    assert used.keys() == set(names)
    uwave = [weight for weight in used[names[2]].values() if weight]
    unused = len(weights) - len(used)
    return [unused, len(weights), *(gains[n] for n in names[:2]), len(uwave), 3, gains[names[2]]]


def gains_of_augmentation() -> list[float]:
    """Number of data sets, and gains over the default, with the gain that an option would need."""
    rows = stored("classification/uea_ucr.json")["rows"]
    numbers: list[float] = []
    for method in archive_methods.AUGMENTATIONS:
        judged = uea_ucr.judge_augmentation(method)(rows)
        assert judged.word == OPEN
        over = over_sets(uea_ucr.gains(rows, method))
        assert over is not None
        numbers += [over.middle, over.half]
    return [len(archive_methods.AUGMENTED), *numbers, uea_ucr.MIN_GAIN]


def seconds_of_archives() -> list[float]:
    """Minimum and maximum of the mean CPU seconds of the closed form and of the default."""
    ends: list[float] = []
    for method in (archive_methods.LINEAR, archive_methods.DEFAULT):
        means = [statistics.mean(of.values()) for of in archives("cpu_seconds", method).values()]
        ends += [min(means), max(means)]
    return ends


SENTENCES: list[Sentence] = [
    Sentence(
        "Over {} data sets the mean accuracy of the default is {:.1f} %, that of the closed form "
        "{:.1f} % and that of MiniRocket {:.1f} %",
        means_of_archives,
    ),
    Sentence(
        "The difference from MiniRocket is {:+.1f} ± {:.1f} points for each (95 % confidence "
        "interval)",
        difference_from_minirocket,
    ),
    Sentence(
        "It rests on the other {}: {:+.2f} ± {:.2f} points for the default, {:+.2f} ± {:.2f} for "
        "the closed form",
        verdict_on_minirocket,
    ),
    Sentence(
        "On {} of {} data sets the default gives its attention no weight at the end of a series, "
        "with any seed, and its predictions are those of the closed form. With the same seeds, its "
        "accuracy is higher by {:.1f} points on Japanese Vowels and by {:.1f} on Spoken Arabic "
        "Digits (one seed). On UWaveGestureLibrary the attention has a weight with {} of {} seeds, "
        "which changes the mean by {:+.1f} points",
        gains_of_attention,
    ),
    Sentence(
        "Distorted series change the mean accuracy of the default over {} data sets by "
        "{:+.2f} ± {:.2f} points, mixup by {:+.2f} ± {:.2f}; an option would need {:g}",
        gains_of_augmentation,
    ),
    Sentence(
        "The closed form takes {:.0f} to {:.0f} CPU seconds, the default {:.0f} to {:.0f}",
        seconds_of_archives,
    ),
    Sentence(
        "Over {} data sets Aaren's advantage is {:+.3f} ± {:.3f} nats per event over the LSTM, "
        "{:+.3f} ± {:.3f} over the GRU and {:+.3f} ± {:.3f} over gated linear attention. It is at "
        "least as good as each of them within the margin of {:g}",
        advantages_of_aaren,
    ),
    Sentence(
        "over {} data sets, no model is significantly better than another, and no interval lies "
        "within the margin of {:g} %. Aaren's advantage is {:+.1f} ± {:.1f} % over the LSTM, "
        "{:+.1f} ± {:.1f} % over the GRU and {:+.1f} ± {:.1f} % over gated linear attention; that "
        "of softmax attention is {:+.1f} ± {:.1f} %, {:+.1f} ± {:.1f} % and {:+.1f} ± {:.1f} %.",
        advantages_in_classification,
    ),
    Sentence(
        "Over {} series, in percent of the MSE, Aaren's advantage is {:+.1f} ± {:.1f} % over the "
        "LSTM, {:+.1f} ± {:.1f} % over the GRU and {:+.1f} ± {:.1f} % over gated linear attention: "
        "at least as good as the last one within the margin of {:g} %. That of softmax attention "
        "is {:+.1f} ± {:.1f} %, {:+.1f} ± {:.1f} % and {:+.1f} ± {:.1f} %.",
        advantages_in_forecasting,
    ),
    Sentence(
        "Its advantage is {:+.3f} ± {:.3f} over the LSTM, {:+.3f} ± {:.3f} over the GRU and "
        "{:+.3f} ± {:.3f} over gated linear attention: worse, though within the margin",
        advantages_of_softmax,
    ),
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
