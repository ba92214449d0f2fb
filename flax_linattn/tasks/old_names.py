"""Names that ``flax_linattn.tasks`` had before 2026-11-23: they work until 0.3, and warn."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from flax_linattn import training
from flax_linattn.registry import get_task
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.task import Run
from flax_linattn.tasks.train import train

TASK_OF = {
    "classify": ("Classify", "classifier"),
    "forecast": ("Forecast", "forecaster"),
}
"""How the names of each task began and ended."""


def old_name(name: str) -> Any:
    """What an old name stands for.

    Raises:
        AttributeError: there was no such name.
    """
    if name in ("ForecastStream", "Row"):
        module = importlib.import_module("flax_linattn.tasks.forecast")
        return _warned(name, f"forecast.{name}", getattr(module, name))
    for task, (begin, end) in TASK_OF.items():
        current = {
            f"train_{end}": (f'train("{task}", ...)', partial(_train, task)),
            f"load_{end}": ("load_run", load_run),
            f"build_{end}": (f'get_task("{task}").model', get_task(task).model),
            f"{begin}Run": ("Run", Run),
            f"{begin}Config": (f"{task}.{begin}Config.of", partial(_config, task)),
            f"{begin}Problem": (f"{task}.{begin}Problem", get_task(task).Problem),
        }
        if name in current:
            return _warned(name, *current[name])
    raise AttributeError(f"module 'flax_linattn.tasks' has no attribute {name!r}")


def _warned(name: str, new: str, value: Any) -> Any:
    warnings.warn(
        f"tasks.{name} is tasks.{new} since 2026-11-23; the old name goes with 0.3.",
        DeprecationWarning,
        stacklevel=3,
    )
    return value


def _train(task: str, config: Config, run_dir: Path, **session: Any) -> dict[str, Any]:
    return train(task, config, training.Session(run_dir, **session))


def _config(task: str, **options: Any) -> Config:
    """Of options by their names alone, those of then among them."""
    of_task = get_task(task)
    return of_task.Config.of(**of_task.upgrade(options))
