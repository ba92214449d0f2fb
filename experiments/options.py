"""The options of trained runs: the one place that makes and reads a task's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from flax_linattn import tasks

Options = dict[str, Any]
"""Plain values by name, as config.json holds them."""

LOCAL = {"seed", "csv", "train_file", "test_file"}
"""What a row's key has, or what differs between machines."""


class Task(NamedTuple):
    """How a task is configured and trained."""

    Config: Any
    train: Callable[..., dict[str, Any]]


TASKS = {
    "classify": Task(tasks.ClassifyConfig, tasks.train_classifier),
    "forecast": Task(tasks.ForecastConfig, tasks.train_forecaster),
}


def configured(task: str, **options: Any) -> Any:
    """A task's configuration with some options, all others at their defaults."""
    return changed(TASKS[task].Config(), **options)


def changed(config: Any, **options: Any) -> Any:
    """A configuration with other options."""
    return type(config).from_json({**config.to_json(), **options})


def options_of(config: Any) -> Options:
    """What a run depends on, but for its seed and files."""
    values = json.loads(json.dumps(config.to_json()))
    return {name: value for name, value in values.items() if name not in LOCAL}


def defaults(task: str) -> Options:
    """Those of a task, as they are now."""
    return options_of(TASKS[task].Config())
