"""The tasks by name, loaded when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from flax_linattn.checks import choice

if TYPE_CHECKING:
    from flax_linattn.tasks.task import Task


class Entry(NamedTuple):
    """A task.

    Attributes:
        target: "module:class", imported when the task is used.
        about: what training it does, in a line.
    """

    target: str
    about: str


TASKS: dict[str, Entry] = {
    "classify": Entry(
        "flax_linattn.tasks.classify.task:ClassifyTask",
        "train a time-series classifier (JapaneseVowels, or your own files)",
    ),
    "forecast": Entry(
        "flax_linattn.tasks.forecast.task:ForecastTask",
        "train a forecaster (ETTh1, or your own CSV file)",
    ),
}
"""By name. A task of one's own is an entry here, or ``register_task``."""


def list_tasks() -> tuple[str, ...]:
    """The names that ``get_task`` takes.

    Example:
        >>> "classify" in list_tasks()
        True
    """
    return tuple(TASKS)


def get_task(name: str) -> Task[Any, Any, Any]:
    """A task by name.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> get_task("forecast").Config.__name__
        'ForecastConfig'
    """
    choice(TASKS, task=name)
    module, _, attribute = TASKS[name].target.partition(":")
    task: type[Task[Any, Any, Any]] = getattr(importlib.import_module(module), attribute)
    return task()


def register_task(name: str, target: str, about: str = "") -> None:
    """Adds a task of one's own, so that commands, ``tasks.load_run`` and the rest know it.

    Args:
        name: of the task.
        target: "module:class", imported when the task is used.
        about: what training it does, in a line.

    Raises:
        ValueError: another task has that name.
    """
    entry = Entry(target, about)
    if TASKS.get(name, entry) != entry:
        raise ValueError(f"there is a task {name!r} already, {TASKS[name].target}; choose another.")
    TASKS[name] = entry
