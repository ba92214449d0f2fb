"""Sixteen runs in one program compared with sixteen runs one after another.

    python -m experiments.synthetic.vmapped

Not from the paper, which averages over 16 runs without stating their time. Seconds per epoch of one
run and of 16 runs at once by ``training.fit``, as one group and in the default groups, in turns,
without the time for batches and checkpoints.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.measured import Measured, Rows
from flax_linattn import training
from flax_linattn.bench import Journal, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks import get_task
from flax_linattn.tasks.synthetic import SyntheticConfig


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the timing at one scale."""

    contexts: tuple[int, ...] = (8, 16, 32, 64)
    runs: int = 16
    rounds: int = 5
    epochs: int = 40
    """Of a round; the first round compiles, and does not count."""


def measure(size: Size, journal: Journal) -> None:
    for context in size.contexts:
        journal.row({"context": context}, partial(time_all, size, context))


def time_all(size: Size, context: int) -> dict[str, Any]:
    task = get_task("synthetic")
    configs = [
        SyntheticConfig.of(context=context, seed=seed, validation_series=1, test_series=1)
        for seed in range(size.runs)
    ]
    series = task.load(configs[0])
    data_spec = task.describe(series, configs[0])
    objective = task.objective(configs[0], data_spec, 1)
    splits = [task.batches(series, config, data_spec, 1) for config in configs]
    fit = training.FitConfig(
        epochs=size.epochs, validate_every=size.epochs, checkpoint_every_steps=size.epochs
    )

    def session(folder: str, at_once: int | None = None) -> training.Session:
        parallel = training.Parallel("none", runs_at_once=at_once)
        return training.Session(folder, progress=False, parallel=parallel)

    def one(folder: str) -> Any:
        model = task.model(configs[0], data_spec)
        return training.fit(model, objective, splits[0], config=fit, session=session(folder))

    def many(at_once: int | None, folder: str) -> Any:
        models = [task.model(config, data_spec) for config in configs]
        return training.fit(models, objective, splits, config=fit, session=session(folder, at_once))

    ways: dict[str, Callable[[str], Any]] = {
        "one": one,
        "many": partial(many, size.runs),
        "groups": partial(many, None),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(size.rounds + 1):
        for name, train in ways.items():
            times[name].append(_seconds(train) / size.epochs)
    return {name: spread(seconds[1:]) for name, seconds in times.items()}


def _seconds(train: Callable[[str], Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (line,) = train(folder).history
    return float(line["seconds"] - line["data_seconds"])


WAYS = {"many": "at once", "groups": "in groups"}
"""Of 16 runs: in one group, and in the default groups, which rows before 2026-11-24 lack."""


def table(rows: Rows, size: Size) -> str:
    """Milliseconds an epoch, times one run, and what a row of single runs would take."""
    ways = {name: text for name, text in WAYS.items() if all(name in row for row in rows)}
    lines = []
    for row in rows:
        one = 1000 * row["one"]["median"]
        cells = [str(row["context"]), number(one)]
        for name in ways:
            many = 1000 * row[name]["median"]
            cells += [number(many), f"{many / one:.1f}", f"{size.runs * one / many:.2f}"]
        lines.append(cells)
    header = ["context", "one run, ms an epoch"]
    for text in ways.values():
        header += [f"{size.runs} {text}", "relative to one run", f"{size.runs} sequential / {text}"]
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.synthetic.vmapped",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={"": "accelerators, where 16 small runs leave most of one idle: none was available"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
