"""Many runs on symbols at once, and what each came to."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from flax_linattn import training
from flax_linattn.tasks import get_task
from flax_linattn.tasks.symbols import SymbolsConfig


class Cell(NamedTuple):
    """What one of the runs has for itself."""

    learning_rate: float
    momentum: float
    seed: int


def train_cells(
    config: SymbolsConfig, cells: Sequence[Cell], alone: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains runs that differ in rate, momentum and seed, in one program.

    Args:
        config: what they share.
        cells: each of them; where the learning rate is lowered later, they have the config's.
        alone: rules of a mixture, by each of which the runs are validated and tested as well.

    Returns:
        "epochs", those of the validations; "runs", of each its cell, "accuracies" at these epochs,
        "failed" (the epoch in which it became NaN or infinite, or None), and of the parameters
        that validated best "best_epoch", "validation_accuracy", "test_accuracy" and
        "test_success". Of a run that failed before it was validated these are None. With
        ``alone`` also "alone": by rule, the "accuracies" and the "test_accuracy".
    """
    task = get_task("symbols")
    configs = [config.replace(seed=cell.seed) for cell in cells]
    drawn = task.load(config)
    problem = task.describe(drawn, config)
    models = [task.model(each, problem) for each in configs]
    splits = [task.batches(drawn, each, problem, 1) for each in configs]
    apart = {
        name: task.batches(task.load(each), each, problem, 1)
        for name in alone
        for each in [config.replace(rules=name)]
    }
    objective = task.objective(config, problem, 1)

    def accuracy(model: Any, source: training.BatchSource | None) -> float:
        assert source is not None
        return training.evaluate(model, objective.loss, source)["accuracy"]

    def validate(model: Any, step: int) -> dict[str, float]:
        return {f"{name}_alone": accuracy(model, own.validation) for name, own in apart.items()}

    fit = config.fit
    numbers = [_hyperparameters(config, cell) for cell in cells]
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = training.fit_many(
                models,
                dataclasses.replace(objective, validate=validate if apart else None),
                splits,
                config=training.FitConfig(
                    epochs=fit.epochs,
                    validate_every=fit.validate_every,
                    checkpoint_every_steps=fit.epochs,
                ),
                session=training.Session(folder, progress=False),
                hyperparameters=numbers,
            )
        except training.NonFiniteLossError as error:
            return _all_failed(cells, error.steps, apart)

    def curve(name: str, r: int) -> list[float | None]:
        values = [line["runs"][f"validation_{name}"][r] for line in result.history]
        return [None if value is None else round(value, 4) for value in values]

    rows = []
    for r, (cell, run) in enumerate(zip(cells, result.runs, strict=True)):
        tested: dict[str, float | None] = {"accuracy": None, "success": None}
        by_rule: dict[str, dict[str, Any]] = {
            name: {"accuracies": curve(f"{name}_alone", r), "test_accuracy": None} for name in apart
        }
        if run.best_step is not None:
            test = splits[r].test
            assert test is not None
            tested |= training.evaluate(models[r], objective.loss, test)
            for name, own in apart.items():
                by_rule[name]["test_accuracy"] = accuracy(models[r], own.test)
        rows.append(
            {
                **cell._asdict(),
                "failed": run.failed_step,
                "best_epoch": run.best_epoch,
                "validation_accuracy": run.best_value,
                "test_accuracy": tested["accuracy"],
                "test_success": tested["success"],
                "accuracies": curve("accuracy", r),
                **({"alone": by_rule} if apart else {}),
            }
        )
    return {"epochs": [line["epoch"] for line in result.history], "runs": rows}


def _all_failed(
    cells: Sequence[Cell], steps: Sequence[int], alone: Sequence[str]
) -> dict[str, Any]:
    """As ``train_cells``, of runs none of which was left to validate."""
    nothing = {
        "best_epoch": None,
        "validation_accuracy": None,
        "test_accuracy": None,
        "test_success": None,
        "accuracies": [],
    }
    by_rule = {name: {"accuracies": [], "test_accuracy": None} for name in alone}
    rows = [
        {**cell._asdict(), "failed": step, **nothing, **({"alone": by_rule} if alone else {})}
        for cell, step in zip(cells, steps, strict=True)
    ]
    return {"epochs": [], "runs": rows}


def _hyperparameters(config: SymbolsConfig, cell: Cell) -> dict[str, float]:
    """Those of the optimizer in which runs differ."""
    if config.fit.optimizer == "adam":
        return {"learning_rate": cell.learning_rate}
    if config.fit.lower_at:
        return {"momentum": cell.momentum}
    return {"learning_rate": cell.learning_rate, "momentum": cell.momentum}
