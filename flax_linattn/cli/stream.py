"""``flax-linattn stream RUN``, and ``flax-linattn state FILE``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from flax_linattn.checks import quote
from flax_linattn.cli import flags, name_flags
from flax_linattn.inference.saved import FORMAT, describe_state
from flax_linattn.registry import get_task, list_tasks
from flax_linattn.tasks.run import read_task
from flax_linattn.tasks.stream import SAVE_EVERY, stream_run

O = TypeVar("O")  # noqa: E741


@dataclasses.dataclass(frozen=True)
class Files:
    """Whose stream it is, what it reads and writes.

    Attributes:
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation.
        input: File to read instead of standard input; .gz and .xz are decompressed.
        state: File to resume from, if it exists, and to save the state to: every --save-every rows,
            at the end, and on Ctrl-C or SIGTERM. "flax-linattn state FILE" shows its contents.
        skip_processed: Skip the input rows that the state already includes, for an input that
            starts at the beginning of the stream. Rows are compared by their times, or counted if
            they have no times.
        save_every: Number of rows after which the state is saved.
        figure: PNG file for a figure of the last outputs (needs matplotlib).
        accept_partial_line: Accept a last line without a newline. By default such a line is
            ignored, since it may end in the middle of a number.
    """

    seed_index: int | None = None
    input: Path | None = None
    state: Path | None = None
    skip_processed: bool = False
    save_every: int = SAVE_EVERY
    figure: Path | None = None
    accept_partial_line: bool = False


@dataclasses.dataclass(frozen=True)
class _Options(Generic[O]):
    files: Files
    stream: O


PROG = "flax-linattn stream RUN"
ABOUT = (
    "Prints the predictions of a run after each observation, as CSV. Time and memory per "
    "observation are constant for mechanisms with a state of constant size."
)

MOST = 100
"""Characters of a fact of a state file."""


def stream_command(args: Sequence[str]) -> int:
    """Streams a run."""
    if not args or args[0].startswith("-"):
        if "-h" in args or "--help" in args:
            _print_help()
            return 0
        raise ValueError(f"The run folder is missing; write {PROG} [OPTIONS].")
    options: Any = read_task(Path(args[0])).StreamOptions
    values: Any = tyro.cli(
        _Options[options],
        args=args[1:],
        default=_Options(Files(), options()),
        prog=f"flax-linattn stream {args[0]}",
        description=f"{ABOUT} {_about(options)}",
        config=flags.MARKERS,
        registry=flags.registry(),
    )
    stream_run(args[0], options(**values["stream"]), **values["files"], say=_say)
    return 0


def _say(text: str, *names: str) -> None:
    print(f"# {text}{name_flags(names)}", file=sys.stderr)


def _about(options: Any) -> str:
    """What a task's options say of its observations, without what they say of each option."""
    about: str = (options.__doc__ or "").partition("Attributes:")[0]
    return " ".join(" ".join(about.splitlines()[1:]).split())


def _print_help() -> None:
    print(f"usage: {PROG} [OPTIONS]\n\n{ABOUT}\n")
    for name in list_tasks():
        names = [field.name for field in dataclasses.fields(get_task(name).StreamOptions)]
        of_task = ", ".join("--" + option.replace("_", "-") for option in names)
        print(f"a run of {name} also takes {of_task or 'no other options'}")
    files = ", ".join("--" + field.name.replace("_", "-") for field in dataclasses.fields(Files))
    print(
        f"every run takes {files}; 'flax-linattn stream RUN --help' explains the options of a run."
    )


def show_state(file: Path, /) -> None:
    """Shows the contents of a state file: its run, its number of rows and its last time.

    The file is read and checked without loading the model.

    Args:
        file: File that a stream saved with --state.
    """
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
    """Formats metadata for a terminal: long or unprintable values are quoted."""
    if isinstance(value, str) and value.isprintable() and len(value) < MOST:
        return value
    return quote(value, MOST)
