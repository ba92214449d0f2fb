"""Streams observations through the model of a run, for every task."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError, at_least
from flax_linattn.data.tables.cells import join_cells
from flax_linattn.storage import file_lock, remove_unfinished
from flax_linattn.tasks.figures import import_figure
from flax_linattn.tasks.lines import Rows, open_lines
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.training.signals import InterruptBetweenBlocks

SAVE_EVERY = 1000
"""Number of rows after which the state of a stream is saved; also at its end."""

Say = Callable[..., None]
"""Function that prints a note for the user: a text, and the names of options it concerns."""


def say(text: str, *options: str) -> None:
    """Prints a note on stderr; see ``Say``."""
    print(f"# {text}", file=sys.stderr)


def stream_run(
    run_dir: str | Path,
    options: Any = None,
    *,
    input: str | Path | None = None,
    state: str | Path | None = None,
    skip_processed: bool = False,
    save_every: int = SAVE_EVERY,
    figure: str | Path | None = None,
    accept_partial_line: bool = False,
    seed_index: int | None = None,
    say: Say = say,
) -> None:
    """Prints the output of a run's model after each observation, as CSV.

    Time and memory per observation are constant for mechanisms with a state of constant size.

    Args:
        run_dir: Run folder.
        options: ``StreamOptions`` of the run's task. Default: its default options.
        input: File to read instead of standard input (.gz and .xz too).
        state: File to resume from, if it exists, and to save the state to: every ``save_every``
            rows, at the end, and on Ctrl-C or SIGTERM.
        skip_processed: Skip the rows that the state has processed, by their times if they have any,
            else by their number: for an input that starts from the first row of the stream.
        save_every: Number of rows between saves of the state.
        figure: PNG file for a plot of the last outputs (needs matplotlib).
        accept_partial_line: Accept a last line without a newline. By default such a line is skipped
            with a note, because it may end in the middle of a number.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value.
        say: Function that prints notes. Default: to standard error.

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files; a run that cannot stream; a state of another one, or one that
            another process works with; a bad line, which is named.
    """
    input, state, figure = (None if p is None else Path(p) for p in (input, state, figure))
    at_least(1, save_every=save_every)
    if skip_processed and state is None:
        raise OptionError(
            "skip_processed=True needs a state file; pass state=....", "skip_processed", "state"
        )
    if save_every != SAVE_EVERY and state is None:
        raise OptionError(
            "save_every=... needs a state file to save to; pass state=....", "save_every", "state"
        )
    if figure is not None:
        import_figure()  # now, rather than after the stream
    run = load_run(run_dir, seed_index)
    if seed_index is None and run.seed_index is not None:
        runs = run.config.fit.runs
        say(f"run {run.seed_index} of {runs}, which has the best validation value", "seed_index")
    options = run.task.StreamOptions() if options is None else options
    stream = run.task.stream(run, options)
    stream.run_dir, stream.from_start = Path(run_dir), skip_processed
    if figure is not None and not stream.has_figure:
        raise OptionError(
            f"a stream of the task {run.task.name!r} has no figure; remove figure=....", "figure"
        )
    if state is not None and state.is_dir():
        raise OptionError(
            f"state must be a file, got the folder {state}; choose another name.", "state"
        )
    with ExitStack() as ends:
        if state is not None:
            lock = state.with_name(f"{state.name}.lock")
            ends.enter_context(file_lock(lock, f"the state {state}"))
            remove_unfinished(state)
            if state.is_file():
                stream.load(state)
                _say_resumed(stream, skip_processed, say)
        own = stream.source()
        if own is None:
            rows = ends.enter_context(open_lines(input))
            unfinished = None if accept_partial_line else partial(_say_unfinished, rows, say)
            observations = rows.parse(stream.parse, comments=stream.comments, unfinished=unfinished)
        elif input is not None:
            raise OptionError(
                "the stream has its own observations and reads no input; remove input=....", "input"
            )
        else:
            rows = Rows(own, "observation ")
            observations = iter(rows)
        if skip_processed:
            observations = _skip_processed(stream, observations, say)
        _print_stream(stream, observations, rows, state, save_every, figure, say)


def _say_unfinished(rows: Rows, say: Say, text: str) -> None:
    say(
        f"note: {rows.place}: skipped the last line ({len(text):,} characters), because it has no "
        "newline and may be incomplete; end it with a newline, or accept partial lines",
        "accept_partial_line",
    )


def _say_resumed(stream: Streaming, skip_processed: bool, say: Say) -> None:
    last = "" if stream.last_time is None else f", the last of {stream.last_time}"
    progress = f"state: {stream.num_rows:,} rows{last}"
    if skip_processed:
        say(progress)
    else:
        say(
            f"{progress}; if the input starts from its first row again, skip the processed rows",
            "skip_processed",
        )


def _skip_processed(stream: Streaming, observations: Iterable[Any], say: Say) -> Iterator[Any]:
    """Yields observations from the first one on that the stream has not processed."""
    number = 0

    def is_processed(observation: Any) -> bool:
        nonlocal number
        number += 1
        return stream.is_processed(number, observation)

    rest = itertools.dropwhile(is_processed, observations)
    first = list(itertools.islice(rest, 1))
    say(f"skipped {number - len(first):,} rows")
    yield from itertools.chain(first, rest)


def _print_stream(
    stream: Streaming,
    observations: Iterable[Any],
    rows: Rows,
    state: Path | None,
    save_every: int,
    figure: Path | None,
    say: Say,
) -> None:
    taken, printed = 0, False
    with ExitStack() as ends:
        # These run at the end, also after Ctrl-C, in reverse order.
        if figure is not None:
            ends.callback(lambda: _plot(stream, figure, say) if printed else None)
        if state is not None:
            ends.push(lambda kind, *_: _save_last(stream, state, kind, say) if taken else None)
        ends.callback(lambda: _say_end(stream, say))
        signals = ends.enter_context(InterruptBetweenBlocks())
        for observation in observations:
            with signals.block():
                with rows.located_errors():
                    cells = stream.cells(observation)
                taken += 1
                if cells is not None:
                    printed = _print_line(stream, cells, printed)
                if state is not None and taken % save_every == 0:
                    stream.save(state)
        for cells in stream.last_cells():
            printed = _print_line(stream, cells, printed)
    if not printed:
        missing = "new observations" if stream.num_rows else "observations; write one per line"
        say(f"the input has no {missing}")


def _print_line(stream: Streaming, cells: Sequence[Any], printed: bool) -> bool:
    """Prints a line of output, and the header before the first line."""
    if not printed:
        print(join_cells(stream.header), flush=True)
    print(join_cells(cells), flush=True)
    return True


def _say_end(stream: Streaming, say: Say) -> None:
    text = stream.end()
    if text is not None:
        say(text)


def _save_last(stream: Streaming, state: Path, error: type[BaseException] | None, say: Say) -> None:
    try:
        stream.save(state)
    except ValueError as not_saved:
        if error is None:
            raise
        say(f"the state was not saved: {not_saved}")  # the error of the stream follows
    else:
        say(f"saved after {stream.num_steps} observations: {state}")


def _plot(stream: Streaming, figure: Path, say: Say) -> None:
    stream.plot(figure)
    say(f"figure: {figure}")
