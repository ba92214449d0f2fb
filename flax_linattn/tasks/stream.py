"""Feeding a run's model with a stream, whatever its task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError
from flax_linattn.data.cells import join_cells
from flax_linattn.tasks.files import held, open_lines
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.task import Streaming
from flax_linattn.training.signals import BetweenBlocks

SAVE_EVERY = 1000
"""Observations after which the state of a stream is saved, beside at its end."""


def stream_run(
    run_dir: str | Path,
    options: Any = None,
    *,
    input: Path | None = None,
    state: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Prints what a run's model says after each observation, as CSV.

    Time and memory an observation are constant for mechanisms with a state of constant size.

    Args:
        run_dir: the run folder.
        options: the ``StreamOptions`` of the run's task; default theirs.
        input: a file to read instead of standard input (.gz and .xz too).
        state: a file to go on from, if it is there, and to save to: every 1,000 observations, at
            the end, and on Ctrl-C or SIGTERM.
        figure: draw what came last to this PNG file (needs matplotlib).

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files; a run that cannot stream; a state of another one; a bad line.
    """
    run = load_run(run_dir)
    options = run.task.StreamOptions() if options is None else options
    stream = run.task.stream(run, options)
    if state is not None and state.is_dir():
        raise OptionError(f"{state} is a folder, expected a file; give another one.", "state")
    with ExitStack() as ends:
        if state is not None:
            lock = state.with_name(f"{state.name}.lock")
            ends.enter_context(held(lock, f"the state {state}"))
        if state is not None and state.is_file():
            stream.load(state)
            print(f"# goes on after {stream.num_steps} observations", file=sys.stderr)
        observations = stream.source()
        if observations is None:
            observations = stream.parse(*ends.enter_context(open_lines(input)))
        elif input is not None:
            raise OptionError("the stream has observations of its own; leave input out.", "input")
        _print_stream(stream, observations, state, figure)


def _print_stream(
    stream: Streaming, observations: Iterator[Any], state: Path | None, figure: Path | None
) -> None:
    before = stream.num_steps
    any_yet = False
    try:
        with BetweenBlocks() as signals:
            for observation in observations:
                with signals.block():
                    cells = stream.cells(observation)
                    if cells is None:
                        continue
                    if not any_yet:
                        print(join_cells(stream.header), flush=True)
                        any_yet = True
                    print(join_cells(cells), flush=True)
                    if state is not None and stream.num_steps % SAVE_EVERY == 0:
                        stream.save(state)
    finally:  # a stream may well end by Ctrl-C
        if any_yet:
            if (last := stream.end()) is not None:
                print(f"# {last}", file=sys.stderr)
            if state is not None and stream.num_steps > before:
                stream.save(state)
                print(f"# saved after {stream.num_steps} observations: {state}", file=sys.stderr)
            if figure is not None:
                stream.draw(figure)
                print(f"# figure: {figure}", file=sys.stderr)
    if not any_yet:
        print("# no observation came: give one a line", file=sys.stderr)
