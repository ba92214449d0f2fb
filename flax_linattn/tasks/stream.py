"""Feeding a run's model with a stream, whatever its task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError
from flax_linattn.data.cells import join_cells
from flax_linattn.tasks.figures import import_figure
from flax_linattn.tasks.files import held, open_lines
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.training.signals import BetweenBlocks

SAVE_EVERY = 1000
"""Observations after which the state of a stream is saved, beside at its end."""


def stream_run(
    run_dir: str | Path,
    options: Any = None,
    *,
    input: str | Path | None = None,
    state: str | Path | None = None,
    figure: str | Path | None = None,
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
    input, state, figure = (None if p is None else Path(p) for p in (input, state, figure))
    run = load_run(run_dir)
    options = run.task.StreamOptions() if options is None else options
    stream = run.task.stream(run, options)
    if figure is not None:
        import_figure()  # now, rather than after the stream
        if not stream.draws:
            raise OptionError("there is no figure of this stream; leave it out.", "figure")
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
    taken = printed = False
    with ExitStack() as ends:
        # At the end, which may well be Ctrl-C; the last of these comes first.
        if figure is not None:
            ends.callback(lambda: _draw(stream, figure) if printed else None)
        if state is not None:
            ends.callback(lambda: _save(stream, state) if taken else None)
        ends.callback(lambda: _say(stream.end()))
        signals = ends.enter_context(BetweenBlocks())
        for observation in observations:
            with signals.block():
                before = stream.num_steps
                cells = stream.cells(observation)
                taken = True
                if cells is None:
                    continue
                if not printed:
                    print(join_cells(stream.header), flush=True)
                    printed = True
                print(join_cells(cells), flush=True)
                if state is not None and stream.num_steps // SAVE_EVERY > before // SAVE_EVERY:
                    stream.save(state)
    if not printed:
        _say("no observation came: give one a line")


def _say(text: str | None) -> None:
    if text is not None:
        print(f"# {text}", file=sys.stderr)


def _save(stream: Streaming, state: Path) -> None:
    stream.save(state)
    _say(f"saved after {stream.num_steps} observations: {state}")


def _draw(stream: Streaming, figure: Path) -> None:
    stream.draw(figure)
    _say(f"figure: {figure}")
