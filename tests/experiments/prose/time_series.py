"""Numbers in docs/time-series.md."""

import functools
import importlib
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from experiments import findings, report
from experiments.forecasting import contexts, defaults, statistical
from experiments.intervals import BETTER, WORSE, text
from experiments.tables.baselines import losses
from experiments.tables.cells import by_data_set, data_set, finished_runs, values
from experiments.tables.claims import Outcome
from experiments.tables.page import collect_baselines
from experiments.verdicts import HOLDS, OPEN, SMALLER
from tests.experiments.prose import Allowed, Sentence, spelled
from tests.experiments.prose import stored as read

AAREN, ELEMENTWISE = "forecasting.aaren", "forecasting.elementwise"


@functools.cache
def stored() -> Mapping[str, findings.StoredTable]:
    return {of.table.short_name: of for of in findings.stored(report.tables())}


def lost(name: str, column: str, baseline: str) -> list[str]:
    """In how many rows of a table a column loses to a baseline, and of how many."""
    of = stored()[name]
    metric = of.table.metrics[0]
    beside = collect_baselines(of.table, of.rows, metric)
    found = losses(column, baseline, of.rows, metric, of.store, beside, of.table.data_set)
    assert found is not None
    return found.cells()[0].split(" of ")


def outcome(name: str, column: str, other: str, metric: str) -> Outcome:
    return next(
        found
        for found in findings.outcomes(stored()[name])
        if (found.claim.column, found.claim.other) == (column, other)
        and found.claim.metric == metric
    )


def single_rows() -> Iterable[Any]:
    """Comparisons of Aaren and softmax attention, and those in which it is worse, and better."""
    own = [
        found
        for of in stored().values()
        for found in findings.outcomes(of)
        if (found.claim.column, found.claim.other) == ("aaren", "softmax")
    ]

    def listed(verdict: str) -> str:
        texts = [
            f"{row.row} ({found.metric.name.removesuffix(', %')} {text(row.difference, 1)} points)"
            if found.metric.larger_is_better
            else f"{row.row} ({found.metric.name} {text(row.percent, 1)} %)"
            for found in own
            for row in found.rows
            if verdict in row.verdicts
        ]
        return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))

    return sum(len(found.rows) for found in own), listed(WORSE), listed(BETTER)


def confirmed() -> Iterable[Any]:
    """Nothing that one model is better; what is not worse; and what is smaller than claimed."""
    found = {
        (of.table.short_name, one.claim.text, one.metric.name): one.word
        for of in stored().values()
        for one in findings.outcomes(of)
    }
    held = {key[:2] for key, word in found.items() if word == HOLDS}
    assert held == {(ELEMENTWISE, "EA-6 is at least as good as SA")}
    smaller = {key[:2] for key, word in found.items() if word == SMALLER}
    assert smaller == {(ELEMENTWISE, "SA is better than EA-2")}
    assert all(word in (HOLDS, SMALLER) or word.startswith(OPEN) for word in found.values())
    metrics = ("MAE", "RMSE")
    claimed = [outcome(ELEMENTWISE, "SA", "EA-2", metric) for metric in metrics]
    for one in claimed:
        assert one.over_data_sets is not None and one.claimed is not None
        yield from (one.over_data_sets.middle, one.over_data_sets.half, one.claimed)


def of_data_sets(found: Outcome) -> dict[str, float]:
    """The mean share of a data set's rows, in percent of the other column."""
    return by_data_set({row.row: row.percent.middle for row in found.rows})


def aaren_beside_softmax() -> Iterable[float]:
    shares = of_data_sets(outcome(AAREN, "aaren", "softmax", "MSE"))
    return (shares[name] for name in ("ETTh1", "ETTh2", "ETTm2", "Exchange", "ECL"))


def seeds_of_softmax() -> Iterable[float]:
    of = stored()[AAREN]
    ranges = (
        values(of.store, cells["softmax"], of.table.metrics[0]).values()
        for row, cells in of.rows.items()
        if data_set(row) == "ETTh1"
    )
    return [max(100 * (max(seeds) / min(seeds) - 1) for seeds in ranges)]


def of_the_papers_width() -> Iterable[Any]:
    """MSE and MAE of both models, the paper's, that of small ones; epochs; runs; the ridge."""
    table = stored()[AAREN].table
    store, small = table.store("paper"), table.store("cpu")
    cells = {c.column: c for c in table.cells(None) if c.row == "ETTh1, 96"}
    own = [cells["softmax"], cells["aaren"]]
    runs = [run["report"] for cell in own for run in store.of(cell.row, cell.column).values()]
    assert all(run["ridge_mse"] < run["test_mse"] for run in runs)
    for metric in table.metrics:
        for cell in own:
            ours = list(values(store, cell, metric).values())
            yield from (statistics.mean(ours), statistics.stdev(ours), *cell.paper[metric.name])
            yield statistics.mean(values(small, cell, metric).values())
    best = [run["best_epoch"] for run in runs]
    yield from map(spelled, (min(best), max(best), len(runs)))
    yield runs[0]["ridge_mse"]


def streaming_beside_aaren() -> Iterable[float]:
    shares = of_data_sets(outcome(AAREN, "aaren, streaming", "aaren", "MSE"))
    assert max(shares.values()) < 0 and max(shares, key=shares.__getitem__) == "ETTm2"
    assert min(shares, key=shares.__getitem__) == "Exchange"
    return -max(shares.values()), -min(shares.values()), *seconds_beside_aaren()


def seconds_beside_aaren() -> tuple[float, float]:
    of = stored()[AAREN]

    def median(row: str, column: str) -> float | None:
        seconds = [run.get("core_seconds") for run in finished_runs(of.store, of.rows[row][column])]
        return statistics.median(seconds) if seconds else None

    pairs = [(median(row, "aaren, streaming"), median(row, "aaren")) for row in of.rows]
    shares = [a / b for a, b in pairs if a and b]
    assert len(shares) == 20
    return min(shares), max(shares)


def published_behind(metric: int, series: str = "") -> Iterable[float]:
    """By how much EA-2 is behind SA in the paper: the least and the most, in percent."""
    paper = importlib.import_module("experiments.forecasting.elementwise").PAPER
    shares = [
        100 * (numbers["EA-2"][metric] / numbers["SA"][metric] - 1)
        for name, horizons in paper.items()
        for numbers in horizons.values()
        if numbers and series in name
    ]
    return min(shares), max(shares)


def levels_on_etth2() -> Iterable[float]:
    def ours(scale: str) -> list[float]:
        table = stored()[ELEMENTWISE].table
        store = table.store(scale)
        cells = [c for c in table.cells(None) if c.row == "ETTh2, 6" and c.column != "EA"]
        means = (values(store, cell, table.metrics[0]).values() for cell in cells)
        return [statistics.mean(of_cell) for of_cell in means if of_cell]

    paper, cpu = ours("paper"), ours("cpu")
    return min(paper), max(paper), min(cpu), max(cpu)


def patch_over_all() -> Iterable[float]:
    rows = read("forecasting/patch.json")["rows"]
    cells = [(r["series"], r["horizon"]) for r in rows if r["model"] == "aaren" and "mse" in r]

    def mean(model: str, key: str) -> float:
        own = [r for r in rows if r["model"] == model and key in r and "trial" not in r]
        return statistics.mean(r[key] for r in own if (r["series"], r["horizon"]) in cells)

    errors = [mean(model, "mse") for model in ("aaren", "PatchTST")]
    errors += [mean("simple methods", "ridge_mse"), mean("DLinear", "mse")]
    return *errors, mean("aaren", "seconds"), mean("PatchTST", "seconds")


def mixed_channels() -> Iterable[float]:
    """On the traffic, and what mixing costs."""
    rows = read("forecasting/mixing.json")["rows"]
    own = {mixing: [r for r in rows if r["mixing"] == mixing] for mixing in ("", "softmax")}

    def growth(name: str) -> float:
        middle = {mixing: statistics.median(r[name] for r in own[mixing]) for mixing in own}
        return 100 * (middle["softmax"] / middle[""] - 1)

    before = [r for r in read("forecasting/patch.json")["rows"] if "trial" not in r]
    before = [r for r in before if (r["series"], r["horizon"]) == ("Traffic speed", 96)]
    naive = next(r["seasonal_naive_mse"] for r in before if "seasonal_naive_mse" in r)
    dlinear = statistics.mean(r["mse"] for r in before if r["model"] == "DLinear")
    traffic = [
        statistics.mean(r["mse"] for r in own[mixing] if r["series"] == "Traffic speed")
        for mixing in own
    ]
    costs = [growth(name) for name in ("parameters", "seconds", "microseconds")]
    return *costs, *traffic, naive, dlinear


def ridge_from(context: int) -> Iterable[float]:
    """By how much the ridge's errors 96 rows ahead change with a longer context, in percent."""
    rows = read("forecasting/contexts.json")["rows"]
    found = contexts.compare(rows, "ridge", context, 96)
    return [share for name in contexts.patch.SERIES for share in found[name]]


def ours_from(context: int) -> Iterable[float]:
    """How errors of ours 96 rows ahead change with a longer context, and lie beside the ridge's.

    In percent, of the series; beside the ridge from as many rows the most of them. Then the errors
    on ECL of the ridge from so many rows, and of ours from 96.
    """
    rows = read("forecasting/contexts.json")["rows"]
    found = contexts.compare(rows, "aaren", context, 96)
    ours, ridge = (contexts.errors(rows, model, context) for model in contexts.MODELS[::-1])
    beside = [abs(ours[name][96][0] / ridge[name][96][0] - 1) for name in found]
    changes = (statistics.mean(found[s]) for s in ("ETTh1", "ETTh2", "ETTm2", "Exchange"))
    ours_from_96 = statistics.mean(contexts.errors(rows, "aaren", 96)["ECL"][96].values())
    return *changes, 100 * max(beside), *ridge["ECL"][96].values(), ours_from_96


def beside_autoets() -> Iterable[float]:
    """How far ridge and seasonal naive forecast are ahead of AutoETS from 96 rows, in percent."""
    rows = read("forecasting/statistical.json")["rows"]
    theirs = statistical.errors(rows, statistical.ETS, 96)
    for model in ("ridge", "seasonal_naive"):
        own = statistical.errors(rows, model, 96)
        yield statistics.mean(100 * (1 - own[s]["mse"] / theirs[s]["mse"]) for s in theirs)


def ridge_beside_mstl() -> Iterable[float]:
    """The least and the most by which the ridge is ahead of MSTL from 512 rows, in percent."""
    rows = read("forecasting/statistical.json")["rows"]
    theirs = statistical.errors(rows, statistical.MSTL, statistical.LONG)
    own = statistical.errors(rows, "ridge", statistical.LONG)
    ahead = [100 * (1 - own[name]["mse"] / theirs[name]["mse"]) for name in theirs]
    return min(ahead), max(ahead)


def of_defaults(other: str, metric: str) -> dict[str, float]:
    """By series, how much larger the default's numbers are than another's, in percent."""
    found = defaults.differences(read("forecasting/defaults.json")["rows"], other, metric)
    return {series: statistics.mean(each) for series, each in found.items()}


def errors_of_defaults() -> Iterable[Any]:
    """Series; how far the default's errors are below the former's; how far from the ridge's."""
    found = of_defaults("former default", "mse")
    assert max(found.values()) < 0
    ridge = of_defaults("ridge, chosen", "mse")
    yield spelled(len(found))
    yield from (-max(found.values()), -min(found.values()), max(map(abs, ridge.values())))


def crps_of_defaults() -> Iterable[Any]:
    """Series where the default's CRPS is lower, the same to a percent, and higher: Exchange."""
    found = of_defaults("former default", "crps")
    worse = [series for series, change in found.items() if change > 1]
    assert worse == ["Exchange"]
    better = sum(change < -1 for change in found.values())
    return spelled(better), spelled(len(found) - better - 1), found["Exchange"]


def range_of_defaults(model: str, name: str, factor: float = 1) -> tuple[float, float]:
    """The smallest and the largest value of the runs of a model."""
    rows = read("forecasting/defaults.json")["rows"]
    found = [factor * row[name] for row in rows if row["model"] == model]
    return min(found), max(found)


SENTENCES = [
    Sentence(
        "In {} comparisons of single rows over seeds, Aaren is worse than softmax attention on {}, "
        "and better on {}",
        single_rows,
    ),
    Sentence(
        "SA's MAE minus EA-2's is {:+.1f} ± {:.1f} % of EA-2's, and for RMSE {:+.1f} ± {:.1f} %. "
        "The smallest improvements in the paper are {:.1f} % and {:.1f} %",
        lambda: [list(confirmed())[i] for i in (0, 1, 3, 4, 2, 5)],
    ),
    Sentence(
        "**Errors are lower on each of {} series**, by {:.0f} to {:.0f} %. Most of the gain is "
        "the context length, which the ridge selects: the default is within {:.1f} % of the ridge "
        "with that context",
        errors_of_defaults,
    ),
    Sentence(
        "**CRPS** is lower on {} of them, within 1 % on {}, and {:.0f} % higher on Exchange",
        crps_of_defaults,
    ),
    Sentence(
        "**Coverage** of 80 % intervals is {:.0f} to {:.0f} %",
        lambda: range_of_defaults("default", "test_coverage_80", 100),
    ),
    Sentence(
        "**Time**: {:.0f} to {:.0f} s of processor time, where the former default took {:.0f} to "
        "{:.0f} s",
        lambda: (
            *range_of_defaults("default", "cpu_seconds"),
            *range_of_defaults("former default", "cpu_seconds"),
        ),
    ),
    Sentence(
        "From 512 rows instead of 96 its error 96 rows ahead changes by {:+.0f} % (ETTh1), "
        "{:+.0f} % (ETTh2), {:+.0f} % (ETTm2), {:+.1f} % (Exchange), {:+.0f} % (ECL) and {:+.0f} % "
        "(traffic speed)",
        lambda: ridge_from(512),
    ),
    Sentence(
        "from 512 rows changes by {:+.1f} % (ETTh1), {:+.1f} % (ETTh2), {:+.1f} % (ETTm2) and "
        "{:+.1f} % (Exchange). It is within {:.1f} % of the ridge's with the same context, so "
        "attention adds little there. Its lead over the ridge on ECL exists only for short "
        "contexts: with 512 rows the ridge has {:.3f}, ours with 96 rows {:.3f}",
        lambda: ours_from(512),
    ),
    Sentence(
        "from 96 rows the ridge's error is {:.0f} % below its own, and that of the seasonal naive "
        "forecast {:.0f} %",
        beside_autoets,
    ),
    Sentence(
        "the ridge's error is {:.0f} to {:.0f} % below that of MSTL with AutoETS",
        ridge_beside_mstl,
    ),
    Sentence(
        "it adds {:.0f} % of parameters and {:.0f} % of training time, and streams with the "
        "same state, {:.0f} % slower (medians). - **It pays where channels drive each other**: at "
        "the traffic sensors of one city the mean squared error falls from {:.3f} to {:.3f}, below "
        "the seasonal naive's {:.3f} and DLinear's {:.3f}",
        mixed_channels,
    ),
    Sentence(
        "its mean squared error is {:.3f}, that of PatchTST {:.3f}, of the ridge {:.3f} and of "
        "DLinear {:.3f}; it trained for {:.0f} s where PatchTST took {:.0f} s",
        patch_over_all,
    ),
    Sentence(
        "by {:+.1f} % (ETTh1), {:+.1f} % (ETTh2), {:+.1f} % (ETTm2), {:+.1f} % (Exchange) and "
        "{:+.1f} % (ECL)",
        aaren_beside_softmax,
    ),
    Sentence(
        "softmax attention has an MSE of {:.3f} ± {:.3f} (the paper {} ± {}, our smaller models "
        "{:.3f}), Aaren {:.3f} ± {:.3f} (the paper {} ± {}, ours {:.3f}). The MAE is {:.3f} ± "
        "{:.3f} (the paper {:.2f} ± {}, ours {:.3f}) and {:.3f} ± {:.3f} (the paper {} ± {}, ours "
        "{:.3f}). The validation error is lowest after epochs {} to {}, and higher thereafter: the "
        "models overfit. The ridge is better than each of the {} runs (MSE {:.3f})",
        of_the_papers_width,
    ),
    Sentence("changes the MSE of softmax attention by up to {:.0f} %", seeds_of_softmax),
    Sentence(
        "by {:.1f} % (ETTm2) to {:.1f} % (Exchange), in {:.2f} to {:.2f} of its training time",
        streaming_beside_aaren,
    ),
    Sentence(
        "A ridge on the window beats Aaren's forecaster in {} of {} rows, MiniRocket its "
        "classifier in {} of {}",
        lambda: (
            *lost(AAREN, "aaren", "ridge"),
            *lost("classification.aaren", "aaren", "MiniRocket"),
        ),
    ),
    Sentence(
        "behind by {:.0f} to {:.0f} % by RMSE (in the ETT rows alone by {:.0f} to {:.0f} %) and by "
        "{:.0f} to {:.0f} % by MAE",
        lambda: (*published_behind(1), *published_behind(1, "ETT"), *published_behind(0)),
    ),
    Sentence(
        "no row differs by more than {:.1f} % by RMSE",
        lambda: [
            max(abs(r.percent.middle) for r in outcome(ELEMENTWISE, "SA", "EA-2", "RMSE").rows)
        ],
    ),
    Sentence(
        "an MAE of {:.2f} to {:.2f} on ETTh2, our smaller models {:.2f} to {:.2f}", levels_on_etth2
    ),
]
ALLOWED = [
    Allowed("about one in twenty 95 % intervals", "a level of confidence"),
    Allowed("split 0.7/0.1/0.2", "a setting of the experiment"),
    Allowed("the paper 1.24 (SA and EA-6) and 1.43 (EA-2)", "element-wise attention, table 4"),
]
