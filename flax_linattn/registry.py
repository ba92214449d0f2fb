"""The tasks by name, loaded when they are used."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from flax_linattn.checks import check_choice

if TYPE_CHECKING:
    from flax_linattn.tasks.task import Task


class Entry(NamedTuple):
    """A task's class and its one-line description.

    Attributes:
        target: "module:class", imported when the task is used.
        about: One line on what it trains.
    """

    target: str
    about: str


TASKS: dict[str, Entry] = {
    "classify": Entry(
        "flax_linattn.tasks.classify.series.task:ClassifyTask",
        "train a time-series classifier (JapaneseVowels, or your own files)",
    ),
    "events": Entry(
        "flax_linattn.tasks.events.task:EventsTask",
        "train a model of events at irregular times (synthetic events, or your own file)",
    ),
    "forecast": Entry(
        "flax_linattn.tasks.forecast.task:ForecastTask",
        "train a forecaster (ETTh1, or your own CSV file)",
    ),
    "image": Entry(
        "flax_linattn.tasks.classify.images:ImageTask",
        "train an image classifier (synthetic images, or your own folder)",
    ),
    "offline-rl": Entry(
        "flax_linattn.tasks.offline_rl.task:OfflineRLTask",
        "train an agent by offline reinforcement learning (episodes of a pendulum, or your own)",
    ),
    "sequence": Entry(
        "flax_linattn.tasks.classify.tokens.task:SequenceTask",
        "train a classifier of long sequences (ListOps, bytes of text, pixels of images)",
    ),
    "synthetic": Entry(
        "flax_linattn.tasks.synthetic.task:SyntheticTask",
        "train on synthetic sequence tasks: next symbol, recall, copying",
    ),
    "text": Entry(
        "flax_linattn.tasks.text.task:TextTask",
        "train a language model on your own text (a file, a table, or a folder)",
    ),
}
"""The tasks by name; ``register_task`` adds a task of your own."""
ENTRY_POINTS = "flax_linattn.tasks"
"""The group of entry points by which other packages add tasks: ``name = "module:class"``."""


def list_tasks() -> tuple[str, ...]:
    """The names of all tasks, including tasks of other installed packages.

    Example:
        >>> "classify" in list_tasks()
        True
    """
    for point in _entry_points():
        if point.name not in TASKS:
            package = point.value if point.dist is None else point.dist.name
            register_task(point.name, point.value, f"of the package {package}")
    return tuple(TASKS)


@functools.cache  # reading what is installed takes ten milliseconds
def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINTS))


def get_task(name: str) -> Task[Any, Any, Any]:
    """Returns the task of a name.

    Raises:
        ValueError: If the name is unknown, or its class cannot be imported or has another name.

    Example:
        >>> get_task("forecast").Config.__name__
        'ForecastConfig'
    """
    check_choice(list_tasks(), task=name)
    target = TASKS[name].target
    module, _, attribute = target.partition(":")
    try:
        task: type[Task[Any, Any, Any]] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the task {name!r} cannot be loaded from {target}: {error}.") from error
    if task.name != name:
        raise ValueError(
            f"the class {target} must have the name {name!r}, got {task.name!r}; "
            "correct its attribute name."
        )
    return task()


def register_task(name: str, target: str, about: str = "train a task of your own") -> None:
    """Adds a task of your own to this process, for ``tasks.load_run`` and everything else.

    An installed package adds its tasks for the commands, too, by entry points of the group
    "flax_linattn.tasks".

    Args:
        name: Name of the task, which its class has as ``name``.
        target: "module:class", imported when the task is used.
        about: One line on what it trains.

    Raises:
        ValueError: If another task has that name, or the target is not "module:class".
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute.isidentifier():
        raise ValueError(f"expected the task as 'module:class', got {target!r}.")
    entry = Entry(target, about)
    if TASKS.setdefault(name, entry).target != target:
        raise ValueError(
            f"the task {name!r} already exists ({TASKS[name].target}); choose another name."
        )
