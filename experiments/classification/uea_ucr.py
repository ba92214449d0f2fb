"""Accuracy, earliness and calibration of classifiers over sets of the UEA and UCR archives.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.classification.uea_ucr

Official splits; a run's preprocessing for every classifier (each channel is standardized by the
training sequences, missing values are interpolated, shorter sequences are padded with zeros to the
longest); nothing is selected on test data. The baselines need the packages aeon, torch and tslearn;
aeon also contains seven of the data sets, and sktime one. The command computes what is missing and
names what it cannot compute. Each row holds its own commit, versions and date, so that environments
may differ.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.again import RepeatJournal
from experiments.classification.archive_methods import (
    AUGMENTATIONS,
    AUGMENTED,
    CHANGED_FOR,
    DEFAULT,
    EARLIER,
    METHODS,
    MINIROCKET,
    OURS,
    RIDGE,
    UNEQUAL_LENGTH,
    Size,
)
from experiments.classification.archive_sets import find_files
from experiments.classification.archive_tables import collect_values, differences, plot, table
from experiments.experiment import Flags, data_folder
from experiments.intervals import interval, over_sets, paired_differences, text
from experiments.measured import Measured, Rows, commit_date
from experiments.rules import above
from experiments.statements import Judge, Statement
from experiments.verdicts import FAILS, HOLDS, OPEN, NotMeasuredError, Rule, Verdict, Word, combine
from flax_linattn.bench import Journal, provenance
from flax_linattn.bench.journal import lock_results, write_json

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
MIN_GAIN = 0.5
"""Points of test accuracy that make an augmentation worth a command-line option."""
WORTH_AN_OPTION = Rule(
    "An augmentation is worth a command-line option if the 95 % confidence interval of its mean "
    f"gain in test accuracy over the default lies above {MIN_GAIN} points, and not if it lies "
    "below: paired by seed, one mean per data set, by Student's t over data sets. A trial had "
    "shown three data sets, with a mixup that lost series at the end of an epoch and crops that "
    "stayed short.",
    "2026-11-30T02:11:00+00:00",
)
VERSIONS = ("jax", "flax", "numpy", "aeon", "torch", "tslearn")


def measure(
    size: Size, journal: Journal, methods: str = "", data_sets: str = "", seeds: int | None = None
) -> dict[str, str]:
    """Asks the journal for every row that can be computed here.

    Args:
        size: what is run.
        journal: holds the rows.
        methods: only methods whose names contain this text.
        data_sets: only data sets whose names contain this text.
        seeds: the maximum number of seeds of a row.

    Returns:
        What was not computed, with the reason.
    """
    for row in (row for row in stored_rows(journal.path) if row["method"] in EARLIER):
        journal.row(
            {k: row[k] for k in ("data_set", "method", "seed")}, partial(keep, row, journal)
        )
    made = origin()
    files, missing = find_files(data_folder())
    missing = {name: missing[name] for name in size.data_sets if name in missing}
    for data_set in size.data_sets:
        for name, method in METHODS.items():
            if data_set not in files or data_set not in method.data_sets:
                continue
            if methods not in name or data_sets not in data_set:
                missing["others"] = "--methods or --data-sets excludes them"
                continue
            absent = [each for each in method.needs if importlib.util.find_spec(each) is None]
            if absent:
                missing[name] = f"{' and '.join(absent)} is not installed"
                continue
            for seed in method.seeds(size, data_set):
                if seeds is not None and seed >= seeds:
                    missing["other seeds"] = "--seeds excludes them"
                    continue
                key = {"data_set": data_set, "method": name, "seed": seed}
                job = partial(method.classify, files[data_set], seed, size.time_limit)
                journal.row(key, partial(timed, job, made))
    return missing


def keep(row: dict[str, Any], journal: Journal) -> dict[str, Any]:
    """The row of an earlier method, for a file with another head.

    Raises:
        ValueError: it is to be computed again, which only its own commit can.
    """
    if isinstance(journal, RepeatJournal):
        raise ValueError(
            f"--again does not compute {row['method']!r}, a method of earlier code: check out "
            f"commit {row['made']['commit']}, and run the experiment there."
        )
    return dict(row)


def stored_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if there is no file."""
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


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

    def flags(self) -> Flags:
        """The flags that restrict which rows are computed."""
        return {
            "--methods": {"default": "", "help": "only methods that contain this text"},
            "--data-sets": {"default": "", "help": "only data sets that contain this text"},
            "--seeds": {"type": int, "help": "maximum number of seeds of a row"},
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
        seeds: int | None = None,
        progress: bool = True,
    ) -> None:
        """Computes the rows that are missing, and reports what could not be computed."""
        stored = self.stored(scale, output)
        with lock_results(stored):
            if stored.is_file() and (results := json.loads(stored.read_text())).get("finished"):
                write_json(stored, results | {"finished": False})
        head = self.head(scale, self.command(scale))
        journal = Journal(stored, head, progress=progress)
        missing = measure(self.sizes[scale], journal, methods, data_sets, seeds)
        for name, reason in missing.items():
            print(f"not computed: {name}: {reason}", file=sys.stderr)
        if not missing:
            journal.finish()

    def render(self, scale: str, output: Path) -> str:
        """Writes page and figure; the head names the commits of the rows."""
        stored = self.stored(scale, output)
        with lock_results(stored):
            results = json.loads(stored.read_text())
            made = [row["made"] for row in results["rows"]]
            dates = sorted({each["commit_date"] for each in made if each["commit_date"]})
            results |= {
                "commit": ", ".join(dict.fromkeys(each["commit"] for each in made)),
                "commit_date": dates[0] if dates else None,
                "cores": min(each["cores"] for each in made),
            }
            write_json(
                stored, {k: results[k] for k in (*sorted(results.keys() - {"rows"}), "rows")}
            )
        return super().render(scale, output)


def judge_accuracy(by_set: Mapping[str, float]) -> Word:
    """The word on a classifier, by its differences from MiniRocket."""
    if len(by_set) < 2:
        return Word(OPEN, AS_ACCURATE)
    mean, error = statistics.mean(by_set.values()), standard_error([*by_set.values()])
    return Word(HOLDS if mean >= -error else FAILS, AS_ACCURATE)


def standard_error(numbers: Sequence[float]) -> float:
    """Standard error of a mean; NaN of a single number."""
    if len(numbers) < 2:
        return math.nan
    return statistics.stdev(numbers) / math.sqrt(len(numbers))


def differences_from_minirocket(rows: Rows, method: str) -> dict[str, float]:
    """A method's accuracy minus MiniRocket's on each data set that tests it.

    Those whose test accuracy was a reason to change today's classifiers are no test of them.
    """
    by_set = differences(collect_values(rows, "test_accuracy"), method, MINIROCKET)
    known = () if method in EARLIER else CHANGED_FOR
    return {name: difference for name, difference in by_set.items() if name not in known}


def judge_against_minirocket(method: str) -> Judge:
    """The verdict on a method, against MiniRocket over data sets."""

    def judge(rows: Rows) -> Verdict:
        by_set = differences_from_minirocket(rows, method)
        if not by_set:
            raise NotMeasuredError(f"{method} on other data sets than {', '.join(CHANGED_FOR)}")
        percents = {name: 100 * value for name, value in by_set.items()}
        each = ", ".join(f"{name} {value:+.1f}" for name, value in percents.items())
        lost = sum(value < -1e-9 for value in percents.values())
        ours = f"{statistics.mean(percents.values()):+.2f} points, standard error "
        ours += f"{standard_error([*percents.values()]):.2f}, "
        ours += f"95 % interval {text(interval([*percents.values()]), 2)} over {len(percents)} "
        ours += f"data sets; {lost} lost: {each}"
        equal_length = [value for name, value in percents.items() if name not in UNEQUAL_LENGTH]
        if len(equal_length) > 1:
            ours += f". Equal-length data sets: {text(interval(equal_length), 2)} points, 95 % "
            ours += f"interval over {len(equal_length)}"
        return Verdict(judge_accuracy(by_set), ours)

    return judge


def judge_against_ridge(method: str) -> Judge:
    """The verdict on a method, against the ridge on each data set."""

    def judge(rows: Rows) -> Verdict:
        by_set = differences(collect_values(rows, "test_accuracy"), method, RIDGE)
        words = [
            Word(HOLDS if value > 1e-9 else FAILS if value < -1e-9 else OPEN, AHEAD)
            for value in by_set.values()
        ]
        each = ", ".join(f"{name} {100 * value:+.1f}" for name, value in by_set.items())
        return Verdict(combine(words), f"points: {each}")

    return judge


def by_seed(rows: Rows, name: str, method: str) -> dict[str, dict[int, float]]:
    """A value of a method, by data set and seed."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["method"] == method and name in row:
            values.setdefault(row["data_set"], {})[row["seed"]] = row[name]
    return values


def gains(rows: Rows, method: str) -> dict[str, list[float]]:
    """Gains of an augmentation over the default, in points, by data set for each seed of both."""
    both = [by_seed(rows, "test_accuracy", each) for each in (method, DEFAULT)]
    by_set = {name: paired_differences(*(of.get(name, {}) for of in both)) for name in AUGMENTED}
    return {name: [100 * gain for gain in own] for name, own in by_set.items() if own}


def judge_augmentation(method: str) -> Judge:
    """The verdict on an augmentation, compared with the default without augmentation."""

    def judge(rows: Rows) -> Verdict:
        if not (by_set := gains(rows, method)):
            raise NotMeasuredError(f"{method} with the seeds of {DEFAULT}")
        over = over_sets(by_set)
        each = ", ".join(f"{name} {statistics.mean(of):+.1f}" for name, of in by_set.items())
        ours = f"gain over the default {text(over, 2)} points over {len(by_set)} data sets: {each}"
        return Verdict(above(over, MIN_GAIN, WORTH_AN_OPTION, over="data sets"), ours)

    return judge


STATEMENTS = tuple(
    Statement("ours", f"{name.removeprefix('ours, ')}: {says}", judge(name))
    for name in OURS
    for says, judge in (
        ("as accurate as MiniRocket", judge_against_minirocket),
        ("ahead of the ridge on each data set", judge_against_ridge),
    )
) + tuple(
    Statement(
        "ours",
        f"{name.removeprefix('ours, ')}: worth a command-line option",
        judge_augmentation(name),
    )
    for name in AUGMENTATIONS
)

EXPERIMENT = ArchiveExperiment(
    module="experiments.classification.uea_ucr",
    needs_data=True,
    extras="plots,baselines",
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
