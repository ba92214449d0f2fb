"""The default forecaster compared with its former default, ridges and the seasonal naive forecast.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.forecasting.defaults

Series, horizons, two seeds, rules and margins were stated before the runs. Each run is that of
``flax-linattn train forecast --quantiles 0.1,0.5,0.9`` with a split of 0.7/0.1/0.2, and everything
is selected on its validation rows. The former default has the same code with its former options: 96
rows of context, patches of 16, one ridge map for all channels, every training window, no time
limit, and quantiles without a correction. The method that chooses the weight of the attention
changed with the code, for both.

The rule for the weight was developed on ETTh1, Exchange, ECL and ETTm2 with seed 0, before these
runs. ETTh2 and the traffic speeds were not used.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.experiment import data_folder
from experiments.forecasting.data_sets import EMBEDDED, file_options, find
from experiments.intervals import mean_text, over_sets, text
from experiments.measured import Measured, Rows
from experiments.options import task_config
from experiments.rules import ONE_SOURCE, below, source
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Rule, Verdict
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

SERIES = ("ETTh1", "Exchange", "ETTh2", "ECL", "Traffic speed", "ETTm2")
HORIZONS = {"Traffic speed": 48}
HORIZON = 96
LAST_ROWS = {"ETTm2": 35_000}
"""Of a long series: the size for which the time limit is stated."""
OPTIONS: dict[str, dict[str, Any]] = {
    "ECL": {"channels": ""},
    "Traffic speed": {
        "channels": "773869,769953,760987,773953,717492,716571,767454,769867,764853,717463,717510,"
        "769372",
    },
}
FORMER = {
    "context_length": 96,
    "patch_length": 16,
    "stride": 1,
    "ridge_maps": "shared",
    "time_limit": 0.0,
    "conformal": False,
}
DEFAULTS = {"default": {}, "former default": FORMER}
SIMPLE = {
    "seasonal naive": ("default", "seasonal_naive"),
    "ridge, chosen": ("default", "ridge"),
    "ridge of 96 rows, chosen maps": ("former default", "ridge"),
}
"""Names of baselines in the report of a run: their maps are chosen, and of ``default`` the
context, too."""

STATED = "2026-11-26T19:20:00+00:00"
"""After runs in development (see above), and before the runs of this table."""
BETTER = Rule(
    "The default's errors are below another's if the 95 % confidence interval of the difference "
    "of mean squared errors, in percent of the other's, lies below 0, and not if it lies above: "
    "one mean over seeds per series, by Student's t over series.",
    STATED,
)
NOT_ABOVE = Rule(
    "The default's errors are at most another's if that interval lies below 1 %, and not if it "
    "lies above.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained: both defaults on each series, with each seed."""

    series: tuple[str, ...] = SERIES
    seeds: int = 2


def measure(size: Size, journal: Journal) -> None:
    for seed in range(size.seeds):
        for series in size.series:
            for model in DEFAULTS:
                key = {"series": series, "model": model, "seed": seed}
                if series == EMBEDDED or find(series, data_folder()):
                    journal.row(key, partial(train_run, key))


def train_run(key: dict[str, Any]) -> dict[str, Any]:
    """Trains a run; its errors, scores, choices and times."""
    series = key["series"]
    with tempfile.TemporaryDirectory() as folder:
        data_options: dict[str, Any] = {**(file_options(series, data_folder()) or {})}
        data_options |= {"split": "0.7/0.1/0.2", **OPTIONS.get(series, {})}
        if series in LAST_ROWS:
            table = pd.read_csv(data_options["csv"]).iloc[-LAST_ROWS[series] :]
            data_options["csv"] = Path(folder) / "last_rows.csv"
            table.to_csv(data_options["csv"], index=False)
        data_options.pop("stride", None)
        horizon = HORIZONS.get(series, HORIZON)
        options = {**data_options, **DEFAULTS[key["model"]], "seed": key["seed"]}
        config = task_config(
            "forecast", preset="patch", horizon=horizon, quantiles="0.1,0.5,0.9", **options
        )
        begin, cpu = time.perf_counter(), time.process_time()
        session = training.Session(
            Path(folder) / "run", progress=False, parallel=training.Parallel("none")
        )
        values = tasks.train("forecast", config, session)
        run = tasks.load_run(Path(folder) / "run")
        config_used = run.config
    names = ("mse", "mae", "crps", "coverage_80")
    methods = ("test", "seasonal_naive", "ridge")
    return {
        **{f"{method}_{name}": values[f"{method}_{name}"] for method in methods for name in names},
        "validation_mse": values["validation_mse"],
        "attention_weight": values["attention_share"],
        "ridge_maps": values["ridge_maps"],
        "context": config_used.data.context_length,
        "stride": config_used.data.stride,
        "train_seconds": values["train_seconds"],
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def numbers(rows: Rows, name: str, metric: str) -> dict[str, list[float]]:
    """Numbers of each seed by series; of a baseline, which has no seed, one.

    Raises:
        NotMeasuredError: there is none.
    """
    model, method = SIMPLE.get(name, (name, "test"))
    by_series: dict[str, list[float]] = {}
    for row in rows:
        if row["model"] == model and (name in DEFAULTS or row["seed"] == 0):
            by_series.setdefault(row["series"], []).append(row[f"{method}_{metric}"])
    if not by_series:
        raise NotMeasuredError(name)
    return by_series


def differences(rows: Rows, other: str, metric: str) -> dict[str, list[float]]:
    """How much larger the default's numbers are, in percent of another's, by series."""
    ours, theirs = numbers(rows, "default", metric), numbers(rows, other, metric)
    return {
        series: [100 * (one / statistics.mean(theirs[series]) - 1) for one in each]
        for series, each in ours.items()
        if series in theirs
    }


def judge_default(other: str, metric: str, rule: Rule, margin: float) -> Judge:
    """The verdict on the default, against another forecast."""

    def judge(rows: Rows) -> Verdict:
        by_series = differences(rows, other, metric)
        over = over_sets(by_series, source)
        each = ", ".join(f"{name} {statistics.mean(own):+.1f}" for name, own in by_series.items())
        word = below(over, margin, rule, over="series").under(ONE_SOURCE)
        return Verdict(word, f"{text(over, 1)} %: {each}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """Errors and scores of each forecast; then what was chosen, and what it cost."""
    names = ["seasonal naive", "ridge of 96 rows, chosen maps", "ridge, chosen", *DEFAULTS]
    parts = []
    for metric, title in (
        ("mse", "mean squared error"),
        ("crps", "CRPS"),
        ("coverage_80", "coverage of 80 % intervals"),
    ):
        lines = [
            [
                series,
                *(mean_text(numbers(rows, name, metric).get(series, []), 3) for name in names),
            ]
            for series in size.series
        ]
        parts.append(markdown([title, *names], lines))
    lines = [
        [
            f"{row['series']}, {row['model']}, seed {row['seed']}",
            *(str(row[name]) for name in ("context", "ridge_maps", "stride")),
            f"{row['attention_weight']:.2f}",
            *(f"{row[name]:.0f}" for name in ("train_seconds", "seconds", "cpu_seconds")),
        ]
        for row in rows
    ]
    titles = [
        "context",
        "ridge maps",
        "stride",
        "weight of the attention",
        "training, s",
    ]
    parts.append(markdown(["run", *titles, "total, s", "CPU, s"], lines))
    return "\n\n".join(parts)


EXPERIMENT = Measured(
    module="experiments.forecasting.defaults",
    needs_data=True,
    about="not of a paper: the default forecaster, its former default, ridges, seasonal naive",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        *(
            Statement("ours", f"the default's {title} are below the {title} of {other}", judge)
            for metric, title in (("mse", "errors"), ("crps", "CRPS"))
            for other in ("former default", "ridge of 96 rows, chosen maps", "seasonal naive")
            for judge in [judge_default(other, metric, BETTER, 0)]
        ),
        Statement(
            "ours",
            "the default's errors are at most the errors of the ridge of the chosen context "
            "and maps",
            judge_default("ridge, chosen", "mse", NOT_ABOVE, 1),
        ),
    ),
    left_out={
        "": "weather (10-minute rows, 21 channels), ETTm1, and the whole electricity and traffic "
        "sets, which are not available; other horizons, and a former default of the former code"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
