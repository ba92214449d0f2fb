"""Accuracy, earliness and calibration of classifiers over ten sets of the UEA and UCR archives.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.classification.uea_ucr

Official splits; a run's preprocessing for every classifier (each channel is standardized by the
training sequences, missing values are interpolated, shorter sequences are padded with zeros to the
longest); nothing is selected on test data. The baselines need the packages aeon, torch and tslearn;
aeon also contains seven of the data sets. The command computes what is missing and names what it
cannot compute. Each row holds its own commit, versions and date, so that environments may differ.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from scipy import stats

from experiments.classification import baseline_classifiers
from experiments.classification.archive_sets import DATA_SETS, LARGE, find_files, prepare
from experiments.experiment import Flags
from experiments.intervals import interval, mean_text, text
from experiments.measured import Measured, Rows, commit_date
from experiments.options import run_without_model, task_config
from experiments.statements import Judge, Statement
from experiments.tables.table import DATA_FOLDER, data_folder
from experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    NotMeasuredError,
    Rule,
    Verdict,
    Word,
    combine,
)
from flax_linattn import models, tasks, training
from flax_linattn.bench import Journal, provenance
from flax_linattn.bench.journal import write_json
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.classify import ClassifyTask

RIDGE, MINIROCKET, LSTM = "ridge", "MiniRocket", "LSTM"
TEASER, NON_MYOPIC = "TEASER", "non-myopic"
LINEAR, DEFAULT, ATTENTION = "ours, closed form", "ours, default", "ours, attention"
OURS = (LINEAR, DEFAULT, ATTENTION)
MECHANISM = "aaren"

STATED = "2026-11-29T11:45:00+00:00"
"""Before any row was stored; a trial had shown baselines on three of the ten sets."""
AS_ACCURATE = Rule(
    "A classifier is as accurate as MiniRocket over data sets if the mean difference of their test "
    "accuracies is not below minus one standard error of that mean: one mean over seeds per data "
    "set, each data set a cluster.",
    STATED,
)
AHEAD = Rule(
    "A classifier is ahead of the ridge on a data set if its test accuracy, the mean over seeds, "
    "is larger. Equal accuracies decide nothing.",
    STATED,
)
VERSIONS = ("jax", "flax", "numpy", "aeon", "torch", "tslearn")


@dataclass(frozen=True)
class Size:
    """What is run."""

    data_sets: tuple[str, ...] = DATA_SETS
    seeds: int = 3
    seeds_of_cheap: int = 5
    """Of MiniRocket and of the closed form."""
    seeds_of_large: int = 1
    time_limit: float = 120.0
    """Seconds of training of the LSTM and of ours, without validation and compilation."""


@dataclass(frozen=True)
class Method:
    """A classifier of the experiment.

    Attributes:
        classify: computes the test metrics: (files, seed, time limit) -> metrics.
        needs: packages that it needs.
        random: whether the seed matters.
        cheap: whether it runs with more seeds.
        data_sets: the data sets that it runs on.
        reason: why it does not run on the others.
    """

    classify: Callable[[Mapping[str, Any], int, float], dict[str, Any]]
    needs: tuple[str, ...] = ()
    random: bool = True
    cheap: bool = False
    data_sets: tuple[str, ...] = DATA_SETS
    reason: str = ""

    def seeds(self, size: Size, data_set: str) -> range:
        """The seeds on a data set."""
        if not self.random:
            return range(1)
        if data_set == LARGE:
            return range(size.seeds_of_large)
        return range(size.seeds_of_cheap if self.cheap else size.seeds)


def baseline(name: str, files: Mapping[str, Any], seed: int, time_limit: float) -> dict[str, Any]:
    """Test metrics of a published classifier."""
    return baseline_classifiers.CLASSIFIERS[name](prepare(files), seed)


def lstm(files: Mapping[str, Any], seed: int, time_limit: float) -> dict[str, Any]:
    """Test metrics of the LSTM."""
    from experiments.classification.lstm import train_lstm

    return train_lstm(files, seed, time_limit)


class TaskWithoutBaselines(ClassifyTask):
    """The task without the baselines of a report, which are rows of their own here."""

    def test_baselines(self, run: tasks.Run, batches: training.BatchSource) -> dict[str, Any]:
        return {}


def train(
    preset: str | None, files: Mapping[str, Any], seed: int, time_limit: float
) -> dict[str, Any]:
    """Trains a run by a preset, and tests it."""
    config = task_config(
        "classify", preset=preset, mechanism=MECHANISM, seed=seed, time_limit=time_limit, **files
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        session = training.Session(path, progress=False)
        values = tasks.train(TaskWithoutBaselines(), config, session)
        model = tasks.load_run(path).model
    weights = getattr(model, "weights", None)
    own = {} if weights is None else {"attention_weight": float(weights[-1, 1])}
    return {**select_values(values), **own}


def fit_closed_form(files: Mapping[str, Any], seed: int, time_limit: float) -> dict[str, Any]:
    """Fits MiniRocket features, linear maps and the decision rule, without attention."""
    config = task_config("classify", preset="minirocket", mechanism=MECHANISM, seed=seed, **files)
    run, test = run_without_model("classify", config)
    splits = run.task.batches(run.data, run.config, run.data_spec, 1)
    model = models.MiniRocketClassifier(
        len(run.data_spec.channels),
        len(run.data_spec.classes),
        run.data_spec.series_length,
        rngs=nnx.Rngs(seed),
    )
    run = run._replace(model=model)
    begin = time.perf_counter()
    run.task.calibrate(run, splits)
    seconds = time.perf_counter() - begin
    return {**select_values(run.task.test(run, test).values), "train_seconds": round(seconds, 1)}


def select_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a report that a row stores."""
    names = ("accuracy_by_fraction", "state_bytes", "train_seconds", "best_step", "stopped_early")
    prefixes = ("test_", "decision_")
    return {k: v for k, v in values.items() if k in names or k.startswith(prefixes)}


_EXPENSIVE = f"more than 10 minutes of a core on {LARGE}"
_NOT_LARGE = tuple(name for name in DATA_SETS if name != LARGE)
METHODS = {
    RIDGE: Method(partial(baseline, RIDGE), random=False),
    "1-NN Euclidean": Method(partial(baseline, "1-NN Euclidean"), random=False),
    "1-NN DTW": Method(
        partial(baseline, "1-NN DTW"), ("aeon",), False, False, _NOT_LARGE, _EXPENSIVE
    ),
    MINIROCKET: Method(partial(baseline, MINIROCKET), ("aeon",), cheap=True),
    "Hydra+MultiRocket": Method(partial(baseline, "Hydra+MultiRocket"), ("aeon", "torch")),
    LSTM: Method(lstm),
    LINEAR: Method(fit_closed_form, cheap=True),
    DEFAULT: Method(partial(train, "minirocket")),
    ATTENTION: Method(partial(train, None)),
    TEASER: Method(partial(baseline, TEASER), ("aeon",), data_sets=_NOT_LARGE, reason=_EXPENSIVE),
    NON_MYOPIC: Method(
        partial(baseline, NON_MYOPIC),
        ("tslearn",),
        data_sets=("GunPoint", "ItalyPowerDemand"),
        reason="it fits a classifier at every step, which suits short univariate series, and needs "
        "two sequences per cluster in half of the training sequences, which ArrowHead lacks",
    ),
}
CLASSIFIERS = tuple(name for name in METHODS if name not in (TEASER, NON_MYOPIC))


def measure(size: Size, journal: Journal, methods: str = "", data_sets: str = "") -> dict[str, str]:
    """Asks the journal for every row that can be computed here.

    Args:
        size: what is run.
        journal: holds the rows.
        methods: only methods whose names contain this text.
        data_sets: only data sets whose names contain this text.

    Returns:
        What was not computed, with the reason.
    """
    made = origin()
    found, missing = find_files(data_folder())
    missing = {name: missing[name] for name in size.data_sets if name in missing}
    for data_set in size.data_sets:
        for name, method in METHODS.items():
            if data_set not in found or data_set not in method.data_sets:
                continue
            if methods not in name or data_sets not in data_set:
                missing["others"] = "--methods or --data-sets excludes them"
                continue
            absent = [each for each in method.needs if importlib.util.find_spec(each) is None]
            if absent:
                missing[name] = f"{' and '.join(absent)} is not installed"
                continue
            for seed in method.seeds(size, data_set):
                key = {"data_set": data_set, "method": name, "seed": seed}
                job = partial(method.classify, found[data_set], seed, size.time_limit)
                journal.row(key, partial(timed, job, made))
    return missing


def timed(job: Callable[[], dict[str, Any]], made: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a job, its seconds by the clock and of the processor, and its origin."""
    begin, cpu = time.perf_counter(), time.process_time()
    values = job()
    seconds = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
    return {**values, **{k: round(v, 2) for k, v in seconds.items()}, "made": made}


def origin() -> dict[str, Any]:
    """Commit and versions of the code that is loaded, for each row."""
    made = provenance("")
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    names = ("commit", "cores", "date")
    return {k: made[k] for k in names} | {"commit_date": commit_date()} | versions


@dataclass(frozen=True, kw_only=True)
class ArchiveExperiment(Measured):
    """An experiment whose rows have origins of their own, and are continued when some are added."""

    def command(self, scale: str) -> str:
        return f"{DATA_FOLDER}=FOLDER {super().command(scale)}"

    def flags(self) -> Flags:
        """Which rows to compute."""
        return {
            "--methods": {"default": "", "help": "only methods that contain this text"},
            "--data-sets": {"default": "", "help": "only data sets that contain this text"},
        }

    def head(self, scale: str, command: str) -> dict[str, Any]:
        """Without the commit: rows of several commits may stand in one file."""
        head = super().head(scale, command)
        return {k: v for k, v in head.items() if k not in ("commit", "commit_date", "cores")}

    def collect(
        self,
        scale: str,
        output: Path,
        *,
        methods: str = "",
        data_sets: str = "",
        progress: bool = True,
    ) -> None:
        """Computes the rows that are missing, and reports what could not be computed."""
        stored = self.stored(scale, output)
        if stored.is_file():
            write_json(stored, json.loads(stored.read_text()) | {"finished": False})
        head = self.head(scale, self.command(scale))
        journal = Journal(stored, head, progress=progress)
        missing = measure(self.sizes[scale], journal, methods, data_sets)
        for name, reason in missing.items():
            print(f"not computed: {name}: {reason}", file=sys.stderr)
        if not missing:
            journal.finish()

    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure; the head names the commits of the rows."""
        stored = self.stored(scale, output)
        results = json.loads(stored.read_text())
        made = [row["made"] for row in results["rows"]]
        dates = sorted({each["commit_date"] for each in made if each["commit_date"]})
        results |= {
            "commit": ", ".join(dict.fromkeys(each["commit"] for each in made)),
            "commit_date": dates[0] if dates else None,
            "cores": min(each["cores"] for each in made),
        }
        write_json(stored, {k: results[k] for k in (*sorted(results.keys() - {"rows"}), "rows")})
        return super().render(scale, output)


Numbers = dict[str, dict[str, list[float]]]
"""Values of seeds, by method and data set."""


def collect_values(rows: Rows, name: str, methods: Sequence[str] = CLASSIFIERS) -> Numbers:
    """The values of a metric."""
    numbers: Numbers = {}
    for row in rows:
        if row["method"] in methods and row.get(name) is not None:
            of_method = numbers.setdefault(row["method"], {})
            of_method.setdefault(row["data_set"], []).append(row[name])
    return {method: numbers[method] for method in methods if method in numbers}


def differences(numbers: Numbers, method: str, other: str) -> dict[str, float]:
    """Mean of a method minus mean of another, by data set.

    Raises:
        NotMeasuredError: if no data set has both.
    """
    ours, theirs = numbers.get(method, {}), numbers.get(other, {})
    both = {
        name: statistics.mean(ours[name]) - statistics.mean(theirs[name])
        for name in DATA_SETS
        if name in ours and name in theirs
    }
    if not both:
        raise NotMeasuredError(f"{method} and {other}")
    return both


def judge_accuracy(by_set: Mapping[str, float]) -> Word:
    """The word on a classifier, by its differences from MiniRocket."""
    if len(by_set) < 2:
        return Word(OPEN, AS_ACCURATE)
    mean = statistics.mean(by_set.values())
    error = statistics.stdev(by_set.values()) / math.sqrt(len(by_set))
    return Word(HOLDS if mean >= -error else FAILS, AS_ACCURATE)


def as_accurate(method: str) -> Judge:
    """The verdict on a method, against MiniRocket over data sets."""

    def judge(rows: Rows) -> Verdict:
        by_set = differences(collect_values(rows, "test_accuracy"), method, MINIROCKET)
        percents = {name: 100 * value for name, value in by_set.items()}
        error = statistics.stdev(percents.values()) / math.sqrt(len(percents))
        each = ", ".join(f"{name} {value:+.1f}" for name, value in percents.items())
        lost = sum(value < 0 for value in percents.values())
        ours = f"{statistics.mean(percents.values()):+.2f} points, standard error {error:.2f}, "
        ours += f"95 % interval {text(interval([*percents.values()]), 2)} over {len(percents)} "
        ours += f"data sets; {lost} lost: {each}"
        return Verdict(judge_accuracy(by_set), ours)

    return judge


def ahead_of_ridge(method: str) -> Judge:
    """The verdict on a method, against the ridge on each data set."""

    def judge(rows: Rows) -> Verdict:
        by_set = differences(collect_values(rows, "test_accuracy"), method, RIDGE)
        words = [
            Word(HOLDS if value > 0 else FAILS if value < 0 else OPEN, AHEAD)
            for value in by_set.values()
        ]
        each = ", ".join(f"{name} {100 * value:+.1f}" for name, value in by_set.items())
        return Verdict(combine(words), f"points: {each}")

    return judge


def accuracy_table(rows: Rows) -> str:
    """Accuracy of each method by data set, with means, ranks and differences to MiniRocket."""
    numbers = collect_values(rows, "test_accuracy")
    names = [name for name in DATA_SETS if any(name in each for each in numbers.values())]
    complete = [name for name in names if all(name in each for each in numbers.values())]
    lines = [
        [name, *(mean_text(_percents(each.get(name, [])), 1) for each in numbers.values())]
        for name in names
    ]
    if complete:
        means = np.array(
            [[statistics.mean(each[name]) for name in complete] for each in numbers.values()]
        )
        ranks = stats.rankdata(-np.round(means, 9), axis=0).mean(axis=1)
        lines += [
            [f"mean of {len(complete)} sets", *(f"{100 * m:.1f}" for m in means.mean(axis=1))],
            ["mean rank", *(f"{rank:.1f}" for rank in ranks)],
        ]
    compared, counts = [], []
    for method in numbers:
        try:
            by_set = [*differences(numbers, method, MINIROCKET).values()]
        except NotMeasuredError:
            by_set = []
        if method == MINIROCKET or not by_set:
            compared.append("-")
            counts.append("-")
            continue
        over = interval(_percents(by_set))
        compared.append(f"{text(over, 1)} ({len(by_set)})")
        signs = [(-1 if d < -1e-9 else 1 if d > 1e-9 else 0) for d in by_set]
        counts.append(" / ".join(str(signs.count(sign)) for sign in (1, 0, -1)))
    lines += [
        ["minus MiniRocket, 95 % (sets)", *compared],
        ["won / equal / lost against MiniRocket", *counts],
    ]
    return markdown(["accuracy, %", *numbers], lines)


def early_table(rows: Rows) -> str:
    """Accuracy, earliness and harmonic mean of decision rules, by data set."""
    methods = [
        name
        for name in (DEFAULT, LINEAR, TEASER, NON_MYOPIC)
        if any(row["method"] == name and "decision_accuracy" in row for row in rows)
    ]
    if not methods:
        return ""
    kinds = ("accuracy", "earliness", "harmonic_mean")
    by_kind = {kind: collect_values(rows, f"decision_{kind}", methods) for kind in kinds}

    def cell(method: str, name: str) -> str:
        found = [_percents(by_kind[kind][method].get(name, [])) for kind in kinds]
        return " / ".join(f"{statistics.mean(each):.1f}" for each in found) if found[0] else "-"

    lines = [
        [name, *(cell(method, name) for method in methods)]
        for name in DATA_SETS
        if any(name in by_kind["accuracy"][method] for method in methods)
    ]
    harmonic = by_kind["harmonic_mean"]
    compared = []
    for method in methods:
        try:
            by_set = [*differences(harmonic, method, TEASER).values()]
        except NotMeasuredError:
            by_set = []
        is_compared = by_set and method != TEASER
        over = interval(_percents(by_set)) if is_compared else None
        compared.append(f"{text(over, 1)} ({len(by_set)})" if is_compared else "-")
    lines.append(["harmonic mean minus TEASER, 95 % (sets)", *compared])
    return markdown(["accuracy / earliness / harmonic mean, %", *methods], lines)


def calibration_table(rows: Rows) -> str:
    """Cross-entropy and calibration error of classifiers with probabilities."""
    losses = collect_values(rows, "test_loss")
    errors = collect_values(rows, "test_calibration_error")
    if not losses:
        return ""

    def cell(method: str, name: str) -> str:
        loss, error = (numbers.get(method, {}).get(name, []) for numbers in (losses, errors))
        return f"{mean_text(loss, 3)}; {mean_text(_percents(error), 1)}"

    lines = [
        [name, *(cell(method, name) for method in losses)]
        for name in DATA_SETS
        if any(name in each for each in losses.values())
    ]
    return markdown(["cross-entropy; calibration error, %", *losses], lines)


def cost_table(rows: Rows) -> str:
    """Processor seconds of fitting and testing; state and weight of ours."""
    seconds = collect_values(rows, "cpu_seconds", tuple(METHODS))
    state = collect_values(rows, "state_bytes")
    weight = collect_values(rows, "attention_weight")
    header = ["seconds of a core", *seconds]
    header += [f"state, kB: {name.removeprefix('ours, ')}" for name in state]
    header += ["weight of the attention"]
    lines = []
    for name in DATA_SETS:
        line = [name]
        for each in seconds.values():
            line.append(f"{statistics.mean(each[name]):.0f}" if name in each else "-")
        for each in state.values():
            line.append(f"{statistics.mean(each[name]) / 1000:.0f}" if name in each else "-")
        line.append(mean_text(weight.get(DEFAULT, {}).get(name, []), 2))
        if set(line[1:]) != {"-"}:
            lines.append(line)
    return markdown(header, lines)


def table(rows: Rows, size: Size) -> str:
    """Tables of accuracy, early decisions, calibration and costs."""
    not_run = "; ".join(
        f"{name} on {_left_out(method)}: {method.reason}"
        for name, method in METHODS.items()
        if method.reason
    )
    return "\n\n".join(
        filter(
            None,
            [
                accuracy_table(rows),
                "Test accuracy: mean and standard deviation over seeds "
                f"({size.seeds}; {size.seeds_of_cheap} of {MINIROCKET} and of the closed form, 1 "
                f"where nothing is random, {size.seeds_of_large} on {LARGE}). Means and ranks "
                "are over the data sets that every method has. The interval is over data sets, by "
                "Student's t.",
                early_table(rows),
                "Decisions before the end of a series: earliness is the mean fraction of a series "
                "before the decision, without padding, and the harmonic mean is of accuracy and "
                f"1 - earliness. TEASER: {baseline_classifiers.NUM_PREFIXES} prefix lengths, "
                f"MiniRocket with {baseline_classifiers.TEASER_KERNELS:,} kernels and logistic "
                "regression.",
                calibration_table(rows),
                "The expected calibration error has 15 bins. The ridge classifiers of aeon give no "
                "probabilities.",
                cost_table(rows),
                "Seconds of a core for fitting and testing, with compilation, on a machine that "
                "other programs shared. The time limit of the LSTM and of ours is by the clock.",
                f"Not run: {not_run}.",
            ],
        )
    )


def plot(rows: Rows) -> Any:
    """Accuracy against the fraction of the series, one panel per data set."""
    figure = import_figure()(figsize=(15, 6.5), layout="constrained")
    grid = figure.subplots(2, 5, sharex=True)
    colors = {DEFAULT: "C0", LINEAR: "C2", ATTENTION: "C1", LSTM: "C7"}
    markers = {DEFAULT: "D", TEASER: "s", NON_MYOPIC: "^"}
    for axes, name in zip(grid.flat, DATA_SETS, strict=True):
        own = [row for row in rows if row["data_set"] == name]
        for method, color in colors.items():
            curves = [row["accuracy_by_fraction"] for row in own
                      if row["method"] == method and "accuracy_by_fraction" in row]  # fmt: skip
            if curves:
                fractions = [100 * point["fraction"] for point in curves[0]]
                means = np.mean([[100 * p["accuracy"] for p in curve] for curve in curves], axis=0)
                axes.plot(fractions, means, "o-", color=color, markersize=3, label=method)
        for method, marker in markers.items():
            points = [row for row in own
                      if row["method"] == method and "decision_accuracy" in row]  # fmt: skip
            if points:
                place = [100 * statistics.mean(row[f"decision_{kind}"] for row in points)
                         for kind in ("earliness", "accuracy")]  # fmt: skip
                color = colors.get(method, "black")
                axes.plot(*place, marker, color=color, markersize=8, markeredgecolor="black",
                          linestyle="none", label=f"{method}: decision")  # fmt: skip
        whole = collect_values(own, "test_accuracy").get(MINIROCKET, {}).get(name)
        if whole:
            axes.axhline(100 * statistics.mean(whole), color="black", linewidth=0.8,
                         linestyle=":", label=f"{MINIROCKET}, whole series")  # fmt: skip
        axes.set_title(name, fontsize=10)
    for axes in grid[1]:
        axes.set_xlabel("observations, % of the series")
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy, %")
    labels = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _percents(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def _left_out(method: Method) -> str:
    others = [name for name in DATA_SETS if name not in method.data_sets]
    return others[0] if len(others) == 1 else f"{len(others)} data sets"


STATEMENTS = tuple(
    Statement("ours", f"{name.removeprefix('ours, ')}: {says}", judge(name))
    for name in OURS
    for says, judge in (
        ("as accurate as MiniRocket", as_accurate),
        ("ahead of the ridge on each data set", ahead_of_ridge),
    )
)

EXPERIMENT = ArchiveExperiment(
    module="experiments.classification.uea_ucr",
    about="not of a paper; data sets of the UEA and UCR archives with their official splits",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "": "the other data sets of the archives, whose files are not available; early classifiers "
        "besides TEASER and the non-myopic one, for lack of time"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
