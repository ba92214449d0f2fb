"""Sixteen runs in one program against sixteen in a row.

    python -m experiments.symbols.vmapped

Not of the paper, which averages over 16 runs and does not say how long they take. Seconds an epoch
of one run by ``fit`` and of 16 by ``fit_many``, in turns, batches and checkpoints left out.
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
from flax_linattn.tasks.symbols import SymbolsConfig


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    contexts: tuple[int, ...] = (8, 16, 32, 64)
    runs: int = 16
    rounds: int = 5
    epochs: int = 40
    """Of a round; the first round compiles, and does not count."""


def measure(size: Size, journal: Journal) -> None:
    for context in size.contexts:
        journal.row({"context": context}, partial(time_both, size, context))


def time_both(size: Size, context: int) -> dict[str, Any]:
    task = get_task("symbols")
    configs = [
        SymbolsConfig.of(context=context, seed=seed, validation_series=1, test_series=1)
        for seed in range(size.runs)
    ]
    drawn = task.load(configs[0])
    problem = task.describe(drawn, configs[0])
    objective = task.objective(configs[0], problem, 1)
    splits = [task.batches(drawn, config, problem, 1) for config in configs]
    fit = training.FitConfig(
        epochs=size.epochs, validate_every=size.epochs, checkpoint_every_steps=size.epochs
    )

    def session(folder: str) -> training.Session:
        return training.Session(folder, progress=False)

    def one(folder: str) -> Any:
        model = task.model(configs[0], problem)
        return training.fit(model, objective, splits[0], config=fit, session=session(folder))

    def many(folder: str) -> Any:
        models = [task.model(config, problem) for config in configs]
        return training.fit_many(models, objective, splits, config=fit, session=session(folder))

    times: dict[str, list[float]] = {"one": [], "many": []}
    for _ in range(size.rounds + 1):
        for name, train in (("one", one), ("many", many)):
            times[name].append(_seconds(train) / size.epochs)
    return {name: spread(seconds[1:]) for name, seconds in times.items()}


def _seconds(train: Callable[[str], Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (line,) = train(folder).history
    return float(line["seconds"] - line["data_seconds"])


def table(rows: Rows, size: Size) -> str:
    """Milliseconds an epoch, and what a row of single runs would take."""
    lines = []
    for row in rows:
        one, many = (1000 * row[name]["median"] for name in ("one", "many"))
        lines.append(
            [
                str(row["context"]),
                number(one),
                number(many),
                f"{many / one:.1f}",
                f"{size.runs * one / many:.2f}",
            ]
        )
    header = [
        "context",
        "one run, ms an epoch",
        f"{size.runs} at once",
        "times one",
        f"{size.runs} in a row over at once",
    ]
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.symbols.vmapped",
    about="none of the papers measures it",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={"": "accelerators, where 16 small runs leave most of one idle: none was at hand"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
