"""``flax-linattn tune TASK``."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from flax_linattn.checks import OptionError, check_choice, quote
from flax_linattn.cli import flags
from flax_linattn.cli.train import (
    Devices,
    Output,
    apply_preset,
    choose_preset,
    join_processes,
    make_session,
    parse_training,
)
from flax_linattn.registry import get_task, get_task_options, list_tasks
from flax_linattn.tasks.options import Config, flat_hints

if TYPE_CHECKING:
    from flax_linattn.tasks import Range
    from flax_linattn.training import Session, Tracker

MAX_ROWS = 10
"""Maximum number of trials that are printed, the best trials first."""


@dataclasses.dataclass(frozen=True)
class StudyOptions:
    """Values to search, and the folder of the study.

    Attributes:
        search: Values to search as NAME=VALUES, a range (num_layers=1..4), a range on a logarithmic
            scale (learning_rate=1e-4..1e-2:log), or choices (mechanism=aaren,gated_delta).
        trials: Number of trials of the study, including earlier commands.
        study: Folder of the study, which continues if it exists. Default: a folder in runs, named
            after the data and the options.
        prune: Stop trials whose validation is worse than the median of the earlier trials.
        preset: Preset whose options become the defaults; the presets are listed above.
    """

    main_options: ClassVar[tuple[str, ...]] = ("preset", "search", "trials", "study")
    search: tuple[str, ...] = ()
    trials: int = 20
    study: Path | None = None
    prune: bool = True
    preset: str | None = None


def tune_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn tune`` and returns a function that searches."""
    names = ", ".join(list_tasks())
    if flags.asks_help(args, f"expected a task, one of {names}; write flax-linattn tune TASK."):
        about = f"Searches for the options of a task by training trials. Tasks: {names}."
        flags.parse(flags.groups(StudyOptions()), args, "flax-linattn tune TASK", about)
    name, *args = args
    task = get_task_options(name)
    start, others = flags.parse_known(StudyOptions(), args)
    start = dataclasses.replace(start, preset=choose_preset(task, start.preset, others))
    config = apply_preset(task, task.Config.of(), start.preset)
    own = flags.groups(start, "Study", "Options to search.")
    values = parse_training(f"tune {name}", task, config, own, args)
    with flags.only(values):
        config = task.Config.of(**{name: values[name] for name in config.flat()})
        study = flags.build(StudyOptions, values)
    devices, output = flags.build(Devices, values), flags.build(Output, values)

    def run() -> None:
        with flags.only(values):
            _tune(name, config, study, devices, output)

    return run


def _tune(name: str, config: Config, study: StudyOptions, devices: Devices, output: Output) -> None:
    from flax_linattn.tasks import tune
    from flax_linattn.training import Interrupted

    folder = study.study or Path("runs") / f"tune-{config.name}"
    join_processes(devices)

    def new_session(run_dir: Path, *, resume: bool, trackers: Sequence[Tracker]) -> Session:
        session = make_session(run_dir, resume, devices, output)
        return dataclasses.replace(session, trackers=(*session.trackers, *trackers))

    hints = flat_hints(type(config))
    search = dict(_read_values(text, hints) for text in study.search)
    try:
        rows = tune(
            get_task(name),
            config,
            search,
            folder,
            num_trials=study.trials,
            prune=study.prune,
            new_session=new_session,
        )
    except Interrupted:
        print("run the same command again to continue.", file=sys.stderr)
        raise
    _print_rows(rows)


def _read_values(text: str, hints: dict[str, Any]) -> tuple[str, Range | list[Any]]:
    """Parses the name and the values of an option to search, such as "num_layers=1..4"."""
    from flax_linattn.tasks import Range

    name, equals, values = text.partition("=")
    name = name.replace("-", "_")
    if not equals or not values:
        raise OptionError(
            "expected NAME=VALUES to search, such as learning_rate=1e-4..1e-2:log, got "
            f"{quote(text)}.",
            "search",
        )
    check_choice(hints, option=name)
    if match := re.fullmatch(r"(.+)\.\.(.+?)(:log)?", values):
        low, high = (_read_value(word, name, hints[name]) for word in match.group(1, 2))
        if not all(type(number) in (int, float) for number in (low, high)):
            raise OptionError(f"{name} is not a number; list its values.", "search")
        return name, Range(low, high, log=match[3] is not None)
    return name, [_read_value(word, name, hints[name]) for word in values.split(",")]


def _read_value(word: str, name: str, hint: Any) -> Any:
    """Parses a value of an option; for an option that takes a list, each choice is one element."""
    kinds = get_args(hint) or (hint,)
    if word == "None" and type(None) in kinds:
        return None
    if bool in kinds and word in ("True", "False"):
        return word == "True"
    for kind in (int, float):
        if kind in kinds:
            with contextlib.suppress(ValueError):
                return kind(word)
    if {int, float, bool}.isdisjoint(kinds):
        return word
    raise OptionError(f"expected a value of {name}, got {quote(word)}.", "search")


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from flax_linattn.bench.report import markdown
    from flax_linattn.tasks.study import format_value

    names = [*rows[0]["options"]]
    lines = [
        [
            str(row["trial"]),
            f"{row['value']:.6g}",
            *map(format_value, row["options"].values()),
        ]
        for row in rows[:MAX_ROWS]
    ]
    print(markdown(["trial", "validation", *names], lines))
    print(
        f"best: {rows[0]['run']}; test it by: flax-linattn evaluate {shlex.quote(rows[0]['run'])}"
    )
