"""``flax-linattn stream RUN``, and ``flax-linattn state FILE``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flax_linattn.checks import quote
from flax_linattn.cli import flags, name_flags
from flax_linattn.registry import get_task_options, list_tasks
from flax_linattn.tasks.config_file import read_task_options
from flax_linattn.tasks.options import BEFORE_OUTPUT


@dataclasses.dataclass(frozen=True)
class Files:
    """Input, state and output of a stream.

    Attributes:
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation.
        input: File to read; .gz and .xz are decompressed. Default: standard input.
        state: File to resume from if it exists, and to save the state to: as ``durability`` says,
            at the end, and on Ctrl-C or SIGTERM. "flax-linattn state FILE" shows its contents.
        skip_processed: Skip the input rows that the state already includes, for an input that
            starts at the beginning of the stream. Rows are compared by their times, or counted if
            they have no times.
        durability: When the state is saved to the disk: "before-output" (a row is saved before its
            line is printed, so that no answered row is ever lost), "after-output" (one answered
            row may be lost), or "every-N", such as "every-100" (N answered rows may be lost).
        figure: PNG file for a figure of the last outputs (needs matplotlib).
        accept_partial_line: Accept a last line without a newline. By default, an incomplete line is
            ignored with a note, because it may end in the middle of a number.
    """

    main_options: ClassVar[tuple[str, ...]] = ("input", "state", "figure")
    seed_index: int | None = None
    input: Path | None = None
    state: Path | None = None
    skip_processed: bool = False
    durability: str = BEFORE_OUTPUT
    figure: Path | None = None
    accept_partial_line: bool = False


PROG = "flax-linattn stream RUN"
ABOUT = (
    "Prints the predictions of a run after each observation, as CSV. Time and memory per "
    "observation are constant for mechanisms with a state of constant size."
)

MAX_VALUE_LENGTH = 100
"""Maximum number of characters of a value in a state file that are printed."""


def stream_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn stream`` and returns a function that streams."""
    if flags.asks_help(args, f"expected a run folder, got none; write {PROG} [OPTIONS]."):
        flags.parse(flags.groups(Files()), ["--help-all"], PROG, f"{ABOUT}\n\n{_about_tasks()}")
    task = read_task_options(Path(args[0]))
    values = flags.parse(
        [*flags.groups(Files()), *flags.groups(task.StreamOptions(), task.name)],
        args[1:],
        f"flax-linattn stream {args[0]}",
        f"{ABOUT}\n\n{_about(task.StreamOptions)}",
    )
    options: Any = flags.build(task.StreamOptions, values)
    files = flags.build(Files, values)

    def run() -> None:
        from flax_linattn.tasks import stream_run

        stream_run(args[0], options, **vars(files), say=_say)

    return run


def _say(text: str, *names: str) -> None:
    print(f"# {text}{name_flags(names)}", file=sys.stderr)


def _about(options: Any) -> str:
    """Describes the format of a task's observations, from the docstring of its options."""
    about = flags.docstring(options).partition("Attributes:")[0]
    return " ".join(" ".join(about.splitlines()[1:]).split())


def _about_tasks() -> str:
    """Lists the stream options of each task, a line for each task."""
    names = list_tasks()
    width = max(map(len, names))
    lines = ["Further options by the task of the run; 'stream RUN --help' explains them:"]
    for name in names:
        (group,) = flags.groups(get_task_options(name).StreamOptions())
        flag_names = ("--" + field.name.replace("_", "-") for field in group.fields)
        lines.append(f"  {name:<{width}}  {', '.join(flag_names) or 'none'}")
    return "\n".join(lines)


def show_state(file: Path, /) -> None:
    """Shows the contents of a state file: its run, its number of rows and its last time.

    The file is read and checked without loading the model.

    Args:
        file: File that a stream saved with --state.
    """
    from flax_linattn.inference.saved import FORMAT, describe_state

    state = describe_state(file)
    lines = {
        "file": f"{file}, {file.stat().st_size:,} bytes, format {FORMAT}",
        "arrays": f"{len(state.arrays)}, {state.num_bytes:,} bytes",
        **{_plain(name): _plain(value) for name, value in state.metadata.items()},
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")


def _plain(value: Any) -> str:
    """Formats a value for a terminal: escapes control characters, and truncates long values."""
    if isinstance(value, str) and value.isprintable() and len(value) < MAX_VALUE_LENGTH:
        return value
    return quote(value, MAX_VALUE_LENGTH)
