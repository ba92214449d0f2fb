"""Tasks and mechanisms by name, loaded when they are used."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from flax_linattn.checks import check_choice

if TYPE_CHECKING:
    from flax_linattn.tasks.options import TaskOptions
    from flax_linattn.tasks.task import Task


class Entry(NamedTuple):
    """A task's class and its one-line description.

    Attributes:
        target: "module:class", imported when the task is used.
        about: One line on what it trains.
        options: "module:class" of its options, which commands import without the task. If None, the
            task class declares its options itself.
    """

    target: str
    about: str
    options: str | None = None


TASKS: dict[str, Entry] = {
    "classify": Entry(
        "flax_linattn.tasks.classify.series.task:ClassifyTask",
        "train a time-series classifier (JapaneseVowels, or your own files)",
        "flax_linattn.tasks.classify.series.options:ClassifyOptions",
    ),
    "events": Entry(
        "flax_linattn.tasks.events.task:EventsTask",
        "train a model of events at irregular times (synthetic events, or your own file)",
        "flax_linattn.tasks.events.options:EventsOptions",
    ),
    "forecast": Entry(
        "flax_linattn.tasks.forecast.task:ForecastTask",
        "train a forecaster (ETTh1, or your own CSV file)",
        "flax_linattn.tasks.forecast.options:ForecastOptions",
    ),
    "image": Entry(
        "flax_linattn.tasks.classify.images:ImageTask",
        "train an image classifier (synthetic images, or your own folder)",
        "flax_linattn.tasks.classify.image_options:ImageOptions",
    ),
    "offline-rl": Entry(
        "flax_linattn.tasks.offline_rl.task:OfflineRLTask",
        "train an agent by offline reinforcement learning (episodes of a pendulum, or your own)",
        "flax_linattn.tasks.offline_rl.options:OfflineRLOptions",
    ),
    "sequence": Entry(
        "flax_linattn.tasks.classify.tokens.task:SequenceTask",
        "train a classifier of long sequences (ListOps, bytes of text, pixels of images)",
        "flax_linattn.tasks.classify.tokens.options:SequenceOptions",
    ),
    "synthetic": Entry(
        "flax_linattn.tasks.synthetic.task:SyntheticTask",
        "train on synthetic sequence tasks: next symbol, recall, copying",
        "flax_linattn.tasks.synthetic.options:SyntheticOptions",
    ),
    "text": Entry(
        "flax_linattn.tasks.text.task:TextTask",
        "train a language model on your own text (a file, a table, or a folder)",
        "flax_linattn.tasks.text.options:TextOptions",
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
    task: type[Task[Any, Any, Any]] = _load(name, TASKS[name].target)
    return task()


def get_task_options(name: str) -> type[TaskOptions]:
    """Returns the options class of a task without importing its data and model modules.

    Raises:
        ValueError: As ``get_task``.

    Example:
        >>> get_task_options("forecast").default_preset
        'patch'
    """
    check_choice(list_tasks(), task=name)
    options: type[TaskOptions] = _load(name, TASKS[name].options or TASKS[name].target)
    return options


def _load(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        value: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the task {name!r} cannot be loaded from {target}: {error}.") from error
    if value.name != name:
        raise ValueError(
            f"the class {target} must have the name {name!r}, got {value.name!r}; "
            "correct its attribute name."
        )
    return value


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


class Directions(NamedTuple):
    """Whether a mechanism supports causal and non-causal attention."""

    causal: bool = True
    noncausal: bool = True


_BOTH, _CAUSAL, _NONCAUSAL = Directions(), Directions(noncausal=False), Directions(causal=False)
MECHANISMS: dict[str, Directions] = {
    "softmax": _BOTH,
    "aaren": _BOTH,
    "elementwise": _BOTH,
    "elementwise_series": _BOTH,
    "taylorshift": _BOTH,
    "expressive": _BOTH,
    "expressive_quadratic": _BOTH,
    "bidirectional_aaren": _NONCAUSAL,
    "forgetting_aaren": _BOTH,
    "forgetting": _CAUSAL,
    "gated_linear": _CAUSAL,
    "retention": _CAUSAL,
    "gated_delta": _CAUSAL,
    "rwkv": _CAUSAL,
    "linear": _BOTH,
    "aft": _BOTH,
    "aft_simple": _BOTH,
    "taylor_features": _BOTH,
    "performer": _BOTH,
    "rfa": _BOTH,
    "linformer": _NONCAUSAL,
    "nystrom": _NONCAUSAL,
    "reformer": _NONCAUSAL,
    "eva": _NONCAUSAL,
}
"""Directions of each mechanism by name, so that options are checked without importing JAX;
``ops.register_mechanism`` adds others."""


def check_mechanism(name: str) -> None:
    """Raises ValueError for a name without a mechanism, and suggests the closest name."""
    if name not in MECHANISMS:
        close = difflib.get_close_matches(name, MECHANISMS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"unknown mechanism {name!r}; choose one of: {', '.join(MECHANISMS)}.{hint} One of "
            "your own has to be registered first, by importing the module that does so."
        )
