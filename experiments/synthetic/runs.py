"""Several synthetic-task runs trained at once, and the results of each."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flax_linattn import training
from flax_linattn.tasks import get_task
from flax_linattn.tasks.synthetic import SyntheticConfig


class Cell(NamedTuple):
    """What one of the runs has for itself."""

    learning_rate: float
    momentum: float
    seed: int


class Runs(NamedTuple):
    """Runs of one configuration: freshly made, or with the parameters that validated best."""

    models: Sequence[Any]
    splits: Sequence[training.Splits]
    apart: Mapping[str, training.Splits]
    """Batches of each rule of a mixture alone."""
    objective: training.Objective

    def test(self, run: int) -> dict[str, float]:
        """Metrics on the run's own test series."""
        return self._evaluate(run, self.splits[run].test)

    def test_accuracy_alone(self, run: int, rule: str) -> float:
        """On one rule of a mixture."""
        return self._evaluate(run, self.apart[rule].test)["accuracy"]

    def _evaluate(self, run: int, source: training.BatchSource | None) -> dict[str, float]:
        assert source is not None
        return training.evaluate(self.models[run], self.objective.loss, source)


def make_runs(config: SyntheticConfig, cells: Sequence[Cell], alone: Sequence[str] = ()) -> Runs:
    """Runs that differ in rate, momentum and seed, not trained yet.

    Args:
        config: what they share.
        cells: each of them; where the learning rate is lowered later, they have the config's.
        alone: rules of a mixture, by each of which the runs are validated as well.
    """
    task = get_task("synthetic")
    configs = [config.replace(seed=cell.seed) for cell in cells]
    series = task.load(config)
    data_spec = task.describe(series, config)
    models = [task.model(each, data_spec) for each in configs]
    splits = [task.batches(series, each, data_spec, 1) for each in configs]
    apart = {
        name: task.batches(task.load(each), each, data_spec, 1)
        for name in alone
        for each in [config.replace(rules=name)]
    }
    objective = task.objective(config, data_spec, 1)

    def validate(model: Any, step: int) -> dict[str, float]:
        return {
            f"{name}_alone": training.evaluate(model, objective.loss, own.validation)["accuracy"]
            for name, own in apart.items()
            if own.validation is not None
        }

    objective = dataclasses.replace(objective, validate=validate if apart else None)
    return Runs(models, splits, apart, objective)


def train_runs(runs: Runs, config: SyntheticConfig, cells: Sequence[Cell]) -> training.FitResult:
    """Trains them in one program, and leaves their best parameters in them.

    Raises:
        NonFiniteLossError: all became NaN or infinite before they were validated.
    """
    fit = config.fit
    with tempfile.TemporaryDirectory() as folder:
        return training.fit(
            runs.models,
            runs.objective,
            runs.splits,
            config=training.FitConfig(
                epochs=fit.epochs,
                validate_every=fit.validate_every,
                checkpoint_every_steps=fit.epochs,
            ),
            session=training.Session(folder, progress=False),
            hyperparameters=[_hyperparameters(config, cell) for cell in cells],
        )


def train_cells(
    config: SyntheticConfig, cells: Sequence[Cell], alone: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains runs, and says what they came to.

    Returns:
        "epochs" of the validations; "runs", of each its cell, "accuracies" at these epochs,
        "failed" (the step in which it became NaN or infinite, or None), and of the parameters
        that validated best "best_epoch", "validation_accuracy", "test_accuracy" and
        "test_success". Of a run that failed before it was validated these are None. With
        ``alone`` also "alone": by rule, the "accuracies" and the "test_accuracy".
    """
    runs = make_runs(config, cells, alone)
    try:
        result = train_runs(runs, config, cells)
    except training.NonFiniteLossError as error:
        return _all_failed(cells, error.steps, alone)
    history = result.history

    def curve(name: str, r: int) -> list[float | None]:
        values = [line["runs"][f"validation_{name}"][r] for line in history]
        return [None if value is None else round(value, 4) for value in values]

    rows = []
    for r, (cell, run) in enumerate(zip(cells, result.runs, strict=True)):
        tested: dict[str, float | None] = {"accuracy": None, "success": None}
        by_rule: dict[str, dict[str, Any]] = {
            name: {"accuracies": curve(f"{name}_alone", r), "test_accuracy": None} for name in alone
        }
        if run.best_step is not None:
            tested |= runs.test(r)
            for name in alone:
                by_rule[name]["test_accuracy"] = runs.test_accuracy_alone(r, name)
        rows.append(
            {
                **cell._asdict(),
                "failed": run.failed_step,
                "best_epoch": run.best_epoch,
                "validation_accuracy": run.best_value,
                "test_accuracy": tested["accuracy"],
                "test_success": tested["success"],
                "accuracies": curve("accuracy", r),
                **({"alone": by_rule} if alone else {}),
            }
        )
    return {"epochs": [line["epoch"] for line in history], "runs": rows}


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


def _hyperparameters(config: SyntheticConfig, cell: Cell) -> dict[str, float]:
    """Hyperparameters of the optimizer in which runs differ."""
    if config.fit.optimizer.optimizer == "adam":
        return {"learning_rate": cell.learning_rate}
    if config.fit.optimizer.lower_at:
        return {"momentum": cell.momentum}
    return {"learning_rate": cell.learning_rate, "momentum": cell.momentum}
