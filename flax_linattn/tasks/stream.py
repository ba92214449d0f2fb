"""Feeding a run's model with a stream, whatever its task."""

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
"""Rows after which the state of a stream is saved, beside at its end."""

Say = Callable[..., None]
"""Tells a person something: a text, and names of options that it is about."""


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
    """Prints what a run's model says after each observation, as CSV.

    Time and memory an observation are constant for mechanisms with a state of constant size.

    Args:
        run_dir: the run folder.
        options: the ``StreamOptions`` of the run's task; default theirs.
        input: a file to read instead of standard input (.gz and .xz too).
        state: a file to go on from, if it is there, and to save to: every ``save_every`` rows, at
            the end, and on Ctrl-C or SIGTERM.
        skip_processed: the input begins where the stream did: leave out the rows that the state has
            seen, by their times where they have any, else by their number.
        save_every: rows.
        figure: draw what came last to this PNG file (needs matplotlib).
        accept_partial_line: also take in a last line that has no newline at its end. By default it
            is left out with a note: it may be cut in the middle of a number.
        seed_index: index of the run in a folder of several seeds, from 0; default the run that
            validated best.
        say: what tells about the stream, beside its lines; default to stderr.

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files; a run that cannot stream; a state of another one, or one that
            another process works with; a bad line, which is named.
    """
    input, state, figure = (None if p is None else Path(p) for p in (input, state, figure))
    at_least(1, save_every=save_every)
    if skip_processed and state is None:
        raise OptionError(
            "skipping processed rows needs a state file; give one.", "skip_processed", "state"
        )
    if save_every != SAVE_EVERY and state is None:
        raise OptionError("save_every needs a state file to save; give one.", "save_every", "state")
    if figure is not None:
        import_figure()  # now, rather than after the stream
    run = load_run(run_dir, seed_index)
    if seed_index is None and run.seed_index is not None:
        runs = run.config.fit.runs
        say(f"run {run.seed_index} of {runs}, the best by validation", "seed_index")
    options = run.task.StreamOptions() if options is None else options
    stream = run.task.stream(run, options)
    stream.run_dir, stream.from_start = Path(run_dir), skip_processed
    if figure is not None and not stream.draws:
        raise OptionError("this stream has no figure; remove the option.", "figure")
    if state is not None and state.is_dir():
        raise OptionError(f"{state} is a folder, expected a file; give another one.", "state")
    with ExitStack() as ends:
        if state is not None:
            lock = state.with_name(f"{state.name}.lock")
            ends.enter_context(file_lock(lock, f"the state {state}"))
            remove_unfinished(state)
            if state.is_file():
                stream.load(state)
                _tell(stream, skip_processed, say)
        own = stream.source()
        if own is None:
            rows = ends.enter_context(open_lines(input))
            unfinished = None if accept_partial_line else partial(_say_unfinished, rows, say)
            observations = rows.parse(stream.parse, comments=stream.comments, unfinished=unfinished)
        elif input is not None:
            raise OptionError("the stream has observations of its own; leave input out.", "input")
        else:
            rows = Rows(own, "observation ")
            observations = iter(rows)
        if skip_processed:
            observations = _unseen(stream, observations, say)
        _print_stream(stream, observations, rows, state, save_every, figure, say)


def _say_unfinished(rows: Rows, say: Say, text: str) -> None:
    say(
        f"note: {rows.place}: left out the last line of {len(text):,} characters, which has no "
        "newline at its end and may be cut short; end it with a newline, or accept it",
        "accept_partial_line",
    )


def _tell(stream: Streaming, skip_processed: bool, say: Say) -> None:
    last = "" if stream.last_time is None else f", the last of {stream.last_time}"
    where = f"state: {stream.num_rows:,} rows{last}"
    if skip_processed:
        say(where)
    else:
        say(
            f"{where}; if the input starts from its first row again, skip the rows already read",
            "skip_processed",
        )


def _unseen(stream: Streaming, observations: Iterable[Any], say: Say) -> Iterator[Any]:
    """Those from the first on that the stream has not seen."""
    number = 0

    def seen(observation: Any) -> bool:
        nonlocal number
        number += 1
        return stream.is_processed(number, observation)

    rest = itertools.dropwhile(seen, observations)
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
        # At the end, which may well be Ctrl-C; the last of these comes first.
        if figure is not None:
            ends.callback(lambda: _draw(stream, figure, say) if printed else None)
        if state is not None:
            ends.push(lambda kind, *_: _save_last(stream, state, kind, say) if taken else None)
        ends.callback(lambda: _say_end(stream, say))
        signals = ends.enter_context(InterruptBetweenBlocks())
        for observation in observations:
            with signals.block():
                with rows.placed():
                    cells = stream.cells(observation)
                taken += 1
                if cells is not None:
                    printed = _print_line(stream, cells, printed)
                if state is not None and taken % save_every == 0:
                    stream.save(state)
        for cells in stream.last_cells():
            printed = _print_line(stream, cells, printed)
    if not printed:
        seen = stream.num_rows
        say("no new observation came" if seen else "no observation came: give one a line")


def _print_line(stream: Streaming, cells: Sequence[Any], printed: bool) -> bool:
    """Prints a line, and the header before the first."""
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
        say(f"not saved: {not_saved}")  # the error says what led to it
    else:
        say(f"saved after {stream.num_steps} observations: {state}")


def _draw(stream: Streaming, figure: Path, say: Say) -> None:
    stream.draw(figure)
    say(f"figure: {figure}")
