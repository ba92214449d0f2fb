"""LSTM, GRU and a state-space model in the models of the accuracy tables, in place of attention.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.recurrent.accuracy --scale events

Each model differs from that of the table only in the layer that mixes tokens: width, depth,
feed-forward layers, norms, initial values of all other layers, data, batches, seeds and training
are the same. The state-space model is the mechanism ``gated_linear``; Mamba-2's is its special case
with one decay for all key channels of a head. Softmax attention and Aaren are read from the stored
results of the tables; models that a table lacks are trained here.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax

from experiments import margins
from experiments.classification import aaren as classification
from experiments.classification.data_sets import ACCURACY, PROTOCOLS, file_options
from experiments.efficiency.programs import num_parameters
from experiments.events import rules, table2
from experiments.events.table2 import data_sets
from experiments.experiment import data_folder
from experiments.forecasting import aaren as forecasting
from experiments.intervals import judge, mean_text, over_sets, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.options import run_without_model, task_config
from experiments.recurrent.layer import CELLS, recurrent_task
from experiments.rules import above
from experiments.statements import Statement
from experiments.tables import Metric, Table
from experiments.verdicts import NotMeasuredError, Rule, Verdict, rows_with
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

ATTENTION = ("softmax", "aaren")
MODELS = (*CELLS, "gated_linear")
PROTOCOL = "on the TEST SET, constant rate"
"""Protocol of the table of classification: the cheapest one whose seeds share training data."""

NOT_WORSE = Rule(
    "A model is at least as good as another if the 95 % confidence interval of its advantage lies "
    f"above -{rules.MARGIN:g} nats per event (events), -{100 * margins.ACCURACY.fraction:g} % of "
    f"the other model's accuracy (classification) or -{100 * margins.ERROR.fraction:g} % of its "
    "MSE (forecasting), and it is worse if the interval lies below: paired by seed, one mean per "
    "data set, by Student's t over data sets. It is *better* or *worse* without a margin if the "
    "interval excludes 0.",
    "2026-11-29T21:45:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Family:
    """A table of the Aaren paper whose runs are compared.

    Attributes:
        task: Name of the task of its models.
        metric: Metric by which they are compared.
        margin: Margin within which a model is at least as good, in percent if ``in_percent``.
        config: Function of a data set that returns the options of its runs; None if its files are
            not available.
        stored: Function of a data set and a mechanism that returns the stored metric by seed; empty
            if there is none.
        in_percent: Whether differences are in percent of the other model's mean.
    """

    task: str
    metric: Metric
    margin: float
    config: Callable[[str], Any]
    stored: Callable[[str, str], dict[int, float]]
    in_percent: bool = True


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained at one scale.

    Attributes:
        family: Name of one of ``FAMILIES``.
        data: Names of its data sets.
        models: Models in place of attention.
        trained: Data sets on which the family's table has no runs with attention.
        seeds: Number of seeds of each model.
    """

    family: str
    data: tuple[str, ...]
    models: tuple[str, ...] = MODELS
    trained: tuple[str, ...] = ()
    seeds: int = 3


def table_values(
    table: Table, scale: str, row: str, mechanism: str, metric: Metric
) -> dict[int, float]:
    """A metric of a table's stored runs, by seed."""
    runs = table.store(scale).of(row, mechanism).items()
    return {seed: metric.scale * run["report"][f"test_{metric.key}"] for seed, run in runs}


def events_nll(data: str, mechanism: str) -> dict[int, float]:
    """The stored NLL of the table of events, by seed."""
    rows = json.loads(table2.EXPERIMENT.stored("").read_text())["rows"]
    return {run["seed"]: run["nll"] for run in table2.find_row(rows, data, mechanism)["runs"]}


def classifier_config(data: str) -> Any:
    """Options of the table of classification."""
    files = file_options(data, data_folder())
    how = PROTOCOLS[PROTOCOL]
    return None if files is None else task_config("classify", causal=True, **how, **files)


def forecaster_config(data: str) -> Any:
    """Options of the table of forecasting, at its size cpu."""
    cells = forecasting.cells(data_folder())
    config = next(c.config for c in cells if (c.row, c.column) == (data, "softmax"))
    return config and config.replace(**forecasting.EXPERIMENT.options("cpu"))


NLL = Metric("nll", "NLL per event")
MSE = forecasting.EXPERIMENT.metrics[0]
FAMILIES = {
    "events": Family(
        "events",
        NLL,
        rules.MARGIN,
        lambda data: table2.run_config(data, table2.Size()),
        events_nll,
        in_percent=False,
    ),
    "classification": Family(
        "classify",
        ACCURACY,
        100 * margins.ACCURACY.fraction,
        classifier_config,
        lambda data, mechanism: table_values(
            classification.EXPERIMENT, "paper", f"{data}, {PROTOCOL}", mechanism, ACCURACY
        ),
    ),
    "forecasting": Family(
        "forecast",
        MSE,
        100 * margins.ERROR.fraction,
        forecaster_config,
        lambda data, mechanism: table_values(forecasting.EXPERIMENT, "cpu", data, mechanism, MSE),
    ),
}
"""Families by name; each name is a scale of this experiment."""


def measure(size: Size, journal: Journal) -> None:
    family = FAMILIES[size.family]
    for data in size.data:
        config = family.config(data)
        if config is None:
            continue
        for model in (*ATTENTION, *size.models):
            is_trained = model in size.models or data in size.trained
            journal.row(
                {"family": size.family, "data": data, "model": model},
                lambda config=config, model=model, is_trained=is_trained: train_model(
                    family, config.replace(runs=size.seeds), model, is_trained
                ),
            )


def train_model(family: Family, config: Any, model: str, is_trained: bool) -> dict[str, Any]:
    """The number of parameters of a model and, if it is trained, the runs of all seeds."""
    mechanism = "softmax" if model in CELLS else model  # replaced, but attends to an encoder
    config = config.replace(mechanism=mechanism)
    task = recurrent_task(family.task, model) if model in CELLS else tasks.get_task(family.task)
    spec = run_without_model(family.task, config)[0].data_spec
    row: dict[str, Any] = {"parameters": num_parameters(task.model(config.resolve(), spec))}
    if not is_trained:
        return row
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        session = training.Session(folder, progress=False, parallel=training.Parallel("none"))
        report = tasks.train(task, config, session)
    jax.clear_caches()
    key = f"test_{family.metric.key}"
    runs = [
        {"seed": run["seed"], family.metric.key: run[key], "best_epoch": run["best_epoch"]}
        for run in report["runs"]
    ]
    return {**row, "core_seconds": round(time.process_time() - begin, 1), "runs": runs}


def find_row(rows: Rows, data: str, model: str) -> dict[str, Any]:
    """The row of a model on a data set.

    Raises:
        NotMeasuredError: there is none.
    """
    return rows_with(rows, f"{model} on {data}", data=data, model=model)[0]


def values(rows: Rows, data: str, model: str) -> dict[int, float]:
    """The metric of a model by seed: of its row's runs, or else of the table's stored runs."""
    row = find_row(rows, data, model)
    family = FAMILIES[row["family"]]
    if "runs" not in row:
        return family.stored(data, model)
    metric = family.metric
    return {run["seed"]: metric.scale * run[metric.key] for run in row["runs"]}


def advantages(rows: Rows, ours: str, other: str) -> dict[str, list[float]]:
    """How much better a model is than another one, by data set, for each seed.

    In percent of the other model's mean, or in nats.
    """
    family = FAMILIES[rows[0]["family"]]
    sign = 1 if family.metric.larger_is_better else -1
    result = {}
    for data in data_sets(rows):
        both = [values(rows, data, model) for model in (ours, other)]
        unit = 100 / abs(statistics.mean(both[1].values())) if family.in_percent else 1
        result[data] = [sign * unit * difference for difference in paired_differences(*both)]
    return result


def judge_against(ours: str, other: str, *, is_better: bool = False) -> Callable[[Rows], Verdict]:
    """The verdict on "attention is at least as good as another model", or better."""

    def verdict(rows: Rows) -> Verdict:
        if not rows:
            raise NotMeasuredError("nothing was trained")
        family = FAMILIES[rows[0]["family"]]
        by_set = advantages(rows, ours, other)
        over = over_sets(by_set)
        digits, unit = (1, "%") if family.in_percent else (3, "nats")
        each = ", ".join(f"{data} {statistics.mean(of):+.{digits}f}" for data, of in by_set.items())
        said = "" if over is None else ", ".join(judge(over, family.margin, larger_is_better=True))
        mean = f"{text(over, digits)} {unit} over {len(by_set)} sets ({said}): " if said else ""
        word = above(over, 0 if is_better else -family.margin, NOT_WORSE, over="data sets")
        return Verdict(word, f"{mean}{each}" + f" {unit}" * (not mean))

    return verdict


def table(rows: Rows, size: Size) -> str:
    """Results, then parameters and seconds, with one line per data set."""
    family = FAMILIES[size.family]
    models = [*ATTENTION, *size.models]
    results, parameters, seconds = [], [], []
    for data in data_sets(rows):
        own = {model: find_row(rows, data, model) for model in models}
        results.append([data, *(
            mean_text(list(values(rows, data, model).values()), family.metric.digits)
            for model in models
        )])  # fmt: skip
        parameters.append([data, *(f"{own[model]['parameters']:,}" for model in models)])
        seconds.append([data, *(
            f"{own[model]['core_seconds']:.0f}" if "runs" in own[model] else "-"
            for model in models
        )])  # fmt: skip
    note = (
        f"Mean and standard deviation over {size.seeds} seeds. An advantage is positive where "
        "attention is better. Each layer is as wide as the model, so an LSTM has twice the weights "
        "of an attention layer and a GRU one and a half times as many."
    )
    return "\n\n".join(
        [
            markdown([family.metric.name, *models], results),
            note,
            markdown(["parameters", *models], parameters),
            markdown(["CPU seconds, all seeds", *models], seconds),
        ]
    )


LEFT_OUT = (
    "{}. A cell runs token by token; padding does not change its state. Packed sequences do not "
    "occur. The cells have Flax's initial values. Every option, such as the learning rate, is that "
    "of the table, which was chosen for attention. Other parts of Mamba-2 are missing: its step "
    "size, gate and norm"
)

EXPERIMENT = Measured(
    module="experiments.recurrent.accuracy",
    needs_data=True,
    about="not measured in any of the papers, which compare accuracy with attention only",
    extras="",
    sizes={
        "events": Size("events", tuple(table2.DATA_SETS)),
        "classification": Size(
            "classification",
            ("JapaneseVowels", "UWaveGestureLibrary", "BasicMotions"),
            trained=("BasicMotions",),
        ),
        "forecasting": Size("forecasting", ("ETTh1, 96", "Exchange, 96", "ETTm2, 96")),
    },
    smaller_scales=("events", "forecasting"),
    measure=measure,
    table=table,
    statements=(
        *(
            Statement(
                "ours",
                f"{attention} is at least as good as {model}",
                judge_against(attention, model),
            )
            for attention in ATTENTION
            for model in MODELS
        ),
        Statement(
            "Element-wise attention, introduction",
            "linear state-space models are inferior to attention: softmax attention is better than "
            "gated linear attention",
            judge_against("softmax", "gated_linear", is_better=True),
            stated="2026-11-30T08:28:00+00:00",
        ),
    ),
    left_out={
        "events": LEFT_OUT.format("As in the table, a convolution over 4 events comes first"),
        "classification": LEFT_OUT.format(
            f"All protocols of the table but one ({PROTOCOL}), and Spoken Arabic Digits, for lack "
            "of time"
        ),
        "forecasting": LEFT_OUT.format(
            "Horizons above 96, ETTh2 and ECL, for lack of time; decoders attend to the encoder by "
            "softmax attention in all models"
        ),
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
