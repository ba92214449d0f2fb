"""Events of known processes: likelihood of a model compared with that of the process.

    python -m experiments.events.known_processes

None of the implemented papers measures this: their public code has no process with a known
likelihood. Each model is tested on new events of the process, and compared with the process itself.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from typing import Any

import numpy as np

from experiments.events.rules import near_true
from experiments.events.runs import QUANTILE_LEVELS, baselines, train_seeds
from experiments.intervals import mean_text
from experiments.measured import Measured, Rows
from experiments.options import task_config
from experiments.statements import Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn import tasks
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.events.data import PROCESSES

BASELINES = ("poisson", "renewal", "hawkes")


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    processes: tuple[str, ...] = ("poisson", "hawkes", "hawkes-marked")
    train: tuple[int, ...] = (20, 80, 320, 640)
    """Sequences, each of 100 units of time; a quarter as many to validate on."""
    test: int = 100
    mechanism: str = "aaren"
    seeds: int = 2
    epochs: int = 30
    patience: int = 30
    features: int = 32
    hidden_features: int = 64
    kernel_size: int = 8
    num_components: int = 16
    dropout_rate: float = 0.1
    learning_rate: float = 2e-3
    schedule: str = "cosine"
    batch_size: int = 16


def measure(size: Size, journal: Journal) -> None:
    for process in size.processes:
        for train in size.train:
            journal.row(
                {"process": process, "train": train}, partial(train_process, size, process, train)
            )


def train_process(size: Size, process: str, train: int) -> dict[str, Any]:
    """The runs of a process and a number of sequences, and the process on their test events."""
    validation = -(-train // 4)
    own = ("processes", "train", "test", "seeds")
    options = {name: value for name, value in vars(size).items() if name not in own}
    config = task_config(
        "events",
        process=process,
        num_sequences=train + validation + size.test,
        split=f"{train}/{validation}/{size.test}",
        runs=size.seeds,
        **options,
    )
    task = tasks.get_task("events")
    data = task.load(config)
    test = task.batches(data, config, task.describe(data, config), 1).test.events
    scores = PROCESSES[process].log_likelihood(test)
    baseline_values = baselines(config)
    return {
        "train_events": baseline_values["num_train_events"],
        "true_nll": -float(scores.total.sum()) / test.num_forecast,
        "baselines": {name: baseline_values[f"{name}_nll"] for name in BASELINES},
        "runs": train_seeds(config),
    }


def find_row(rows: Rows, process: str, train: int | None = None) -> dict[str, Any]:
    """The row of a process, with the most sequences unless a number is given.

    Raises:
        NotMeasuredError: it was not trained.
    """
    own = [row for row in rows if row["process"] == process and train in (None, row["train"])]
    if not own:
        raise NotMeasuredError(process)
    return max(own, key=lambda row: row["train"])


def mean_nll(row: dict[str, Any]) -> float:
    """The mean NLL an event over seeds."""
    return statistics.mean(run["nll"] for run in row["runs"])


def judge_process(process: str) -> Any:
    """The verdict on a process, with the most sequences."""

    def judge(rows: Rows) -> Verdict:
        row = find_row(rows, process)
        ours, true = mean_nll(row), row["true_nll"]
        gap = f"{ours:.4f} against {true:.4f} ({100 * (ours - true) / abs(true):+.1f} %), "
        return Verdict(near_true(ours, true), f"{gap}{row['train_events']:,} training events")

    return judge


def table(rows: Rows, size: Size) -> str:
    """One line per process and number of sequences."""
    lines = []
    for row in rows:
        values = [run["nll"] for run in row["runs"]]
        mean = statistics.mean(values)
        true = row["true_nll"]
        ks = statistics.mean(run["ks"] for run in row["runs"])
        lines.append(
            [
                row["process"],
                f"{row['train_events']:,}",
                f"{true:.4f}",
                mean_text(values, 4),
                f"{mean - true:+.4f}",
                f"{100 * (mean - true) / abs(true):+.1f}",
                *(f"{row['baselines'][name] - true:+.4f}" for name in BASELINES),
                f"{ks:.4f}",
            ]
        )
    header = [
        "process", "training events", "NLL of the process", f"`{size.mechanism}`", "gap", "%",
        *(f"{name}, gap" for name in BASELINES), "KS distance",
    ]  # fmt: skip
    note = (
        f"NLL per event of {size.test} test sequences, in nats per unit of time; mean "
        f"and standard deviation over {size.seeds} seeds. The gap is the difference from the "
        "process itself on the same events, for the fitted baselines too. The baseline of the "
        "right form almost recovers it."
    )
    return f"{markdown(header, lines)}\n\n{note}"


def plot(rows: Rows) -> Any:
    """Gaps against events, and quantiles of integrated intensities."""
    figure = import_figure()(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    expected = -np.log1p(-np.array(QUANTILE_LEVELS))
    for n, process in enumerate(dict.fromkeys(row["process"] for row in rows)):
        own = sorted(
            (row for row in rows if row["process"] == process), key=lambda row: row["train"]
        )
        gaps = [mean_nll(row) - row["true_nll"] for row in own]
        events = [row["train_events"] for row in own]
        left.plot(events, gaps, "o-", color=f"C{n}", label=process)
        right.plot(expected, own[-1]["runs"][0]["quantiles"], ".-", color=f"C{n}", label=process)
    left.set(xscale="log", yscale="log", xlabel="training events", ylabel="gap of NLL per event")
    left.xaxis.set_minor_formatter("")
    left.legend(frameon=False)
    right.plot([0, expected[-1]], [0, expected[-1]], color="0.6", linewidth=0.8, zorder=0)
    right.set(xlabel="exponential", ylabel="integrated intensity", title="quantiles of gaps")
    return figure


EXPERIMENT = Measured(
    module="experiments.events.known_processes",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=tuple(
        Statement("ours", f"the model recovers the process {process!r}", judge_process(process))
        for process in Size().processes
    ),
    left_out={"": "other mechanisms, which are compared in table2; more seeds, for lack of time"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
