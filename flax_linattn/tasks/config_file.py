"""config.json: the file of a run's task and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax_linattn.checks import quote
from flax_linattn.registry import get_task_options, list_tasks
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.options import Config, TaskOptions

CONFIG_FILE = "config.json"
FORMAT = 2
"""Format number of config.json and data_spec.json; a change that older files do not fit takes a new
number."""
MAX_ERROR_LENGTH = 1200
"""Maximum characters of an error inside another one; an error may list all options."""


def read_task_options(run_dir: Path) -> type[TaskOptions]:
    """Returns the options of the task of the run in a folder."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} is not a run folder: {CONFIG_FILE} is missing; check the path."
        )
    values = read_json(path)
    check_format(path, values)
    name = str(values.get("task"))
    if name not in list_tasks():
        raise ValueError(
            f"{run_dir} is a run of the unknown task {quote(name)}; expected one of "
            f"{', '.join(list_tasks())}."
        )
    return get_task_options(name)


def check_format(path: Path, values: dict[str, Any]) -> None:
    """Refuses a file of another format number, which it removes from the values."""
    number = values.pop("format", None)
    if number != FORMAT:
        raise ValueError(
            f"{path} has the format {quote(number)}, but this version reads format {FORMAT}; use "
            "the version that made the run."
        )


def read_config(run_dir: Path, task: TaskOptions | type[TaskOptions] | None = None) -> Config:
    """Reads the options of the run in a folder."""
    run_task = read_task_options(run_dir)
    if task is not None and run_task.name != task.name:
        raise ValueError(
            f"{run_dir} is a run of the task {run_task.name!r}, expected {task.name!r}."
        )
    values = read_json(run_dir / CONFIG_FILE)
    options = {name: value for name, value in values.items() if name not in ("task", "format")}
    try:
        return run_task.Config.from_json(options)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run_dir / CONFIG_FILE} does not fit this version: {quote(error, MAX_ERROR_LENGTH)}"
        ) from error


def write_config(run_dir: Path, task: TaskOptions | type[TaskOptions], config: Config) -> None:
    """Writes the options of a run to config.json."""
    values = {"format": FORMAT, "task": task.name, **config.to_json()}
    write_json(run_dir / CONFIG_FILE, values)
