"""Options of trained runs: the only module that creates and reads the configuration of a task."""

from __future__ import annotations

import json
from typing import Any

from flax_linattn.tasks import Run, get_task

Options = dict[str, Any]
"""Plain values by name, as config.json holds them."""

LOCAL = {"seed", "runs", "csv", "train_file", "test_file"}
"""What a row's key has, or what differs between machines."""


def task_config(task: str, *, preset: str | None = None, **options: Any) -> Any:
    """A task's configuration with some options, all others at their defaults.

    Args:
        task: its name.
        preset: a published protocol, whose options are the defaults.
        **options: by their names.
    """
    config = get_task(task).Config.of()
    if preset is not None:
        config = get_task(task).presets[preset](config)
    return config.replace(**options)


def run_without_model(task: str, config: Any) -> tuple[Run, Any]:
    """A run of a configuration before any training, and its batches of test data."""
    of_task, config = get_task(task), config.resolve()
    data = of_task.load(config)
    data_spec = of_task.describe(data, config)
    run = Run(of_task, config, data_spec, None, data)
    return run, of_task.batches(data, config, data_spec, 1).test


def run_options(config: Any) -> Options:
    """What a run depends on, but for its seed and files."""
    values = json.loads(json.dumps(config.to_json()))
    return {name: value for name, value in values.items() if name not in LOCAL}


def defaults(task: str) -> Options:
    """The current defaults of a task's options."""
    return run_options(get_task(task).Config.of())
