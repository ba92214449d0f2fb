"""Streams observations through the model of a run, for every task."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError, format_count, quote
from flax_linattn.data.tables.cells import join_cells
from flax_linattn.storage import file_lock, remove_unfinished
from flax_linattn.tasks.figures import import_figure
from flax_linattn.tasks.lines import Rows, open_lines
from flax_linattn.tasks.options import AFTER_OUTPUT, BEFORE_OUTPUT, EVERY
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.training.signals import InterruptBetweenBlocks

MAX_ROWS_PER_SAVE = 1000
"""Rows that are saved together before their output, if they arrive faster than they are saved."""
MAX_DELAY = 0.5
"""Seconds that output waits for further rows to be saved with it."""

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
    durability: str = BEFORE_OUTPUT,
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
        state: File to resume from, if it exists, and to save the state to: as ``durability`` says,
            at the end, and on Ctrl-C or SIGTERM.
        skip_processed: Skip the rows that the state has processed, by their times if they have any,
            else by their number: for an input that starts from the first row of the stream.
        durability: When the state is saved to the disk. "before-output" saves a row before its
            output is printed, so that no printed row is ever lost; rows that arrive faster than
            they are saved share a save. "after-output" prints first: a kill or a power loss in
            between loses one printed row. "every-N", such as "every-100", saves after every N
            printed rows, and may lose N of them.
        figure: PNG file for a plot of the last outputs (needs matplotlib).
        accept_partial_line: Accept a last line without a newline. By default such a line is skipped
            with a note, because it may end in the middle of a number.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value.
        say: Function that prints notes. Default: to standard error.

    Raises:
        FileNotFoundError: If the run or the input is missing.
        ValueError: If files are damaged, the run cannot stream, the state belongs to another run,
            another process uses the state, or a line is invalid; the message gives its number.
    """
    input, state, figure = (None if p is None else Path(p) for p in (input, state, figure))
    rows_per_save = _rows_per_save(durability)
    if skip_processed and state is None:
        raise OptionError(
            "skip_processed=True needs a state file; pass state=....", "skip_processed", "state"
        )
    if durability != BEFORE_OUTPUT and state is None:
        raise OptionError(
            "durability=... needs a state file to save to; pass state=....", "durability", "state"
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
            if state.is_symlink():  # whose own name would lock, and replace, the link alone
                state = state.resolve()
            lock = state.with_name(f"{state.name}.lock")
            ends.enter_context(file_lock(lock, f"the state {state}"))
            remove_unfinished(state)
            if state.is_file():
                stream.load(state)
                _say_resumed(stream, skip_processed, say)
        own = stream.source()
        if own is None:
            rows = ends.enter_context(open_lines(input, exact=not stream.comments))
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
        output = _Output(stream, state, rows_per_save, say)
        _print_stream(stream, observations, rows, output, figure, say)


def _rows_per_save(durability: str) -> int | None:
    """Returns the number of printed rows per save; None if rows are saved before their output."""
    number = durability.removeprefix(EVERY)
    if durability in (BEFORE_OUTPUT, AFTER_OUTPUT):
        return None if durability == BEFORE_OUTPUT else 1
    if number == durability or not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise OptionError(
            f"expected durability {BEFORE_OUTPUT!r}, {AFTER_OUTPUT!r} or {EVERY + 'N'!r} with a "
            f"number of rows, such as {EVERY + '100'!r}, got {quote(durability)}.",
            "durability",
        )
    return int(number)


def _say_unfinished(rows: Rows, say: Say, text: str) -> None:
    length = format_count(len(text), "character")
    say(
        f"note: {rows.place}: skipped the last line ({length}), because it has no newline and may "
        "be incomplete; end it with a newline, or accept partial lines",
        "accept_partial_line",
    )


def _say_resumed(stream: Streaming, skip_processed: bool, say: Say) -> None:
    last = "" if stream.last_time is None else f", the last of {stream.last_time}"
    progress = f"state: {format_count(stream.num_rows, 'row')}{last}"
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
    say(f"skipped {format_count(number - len(first), 'row')}")
    yield from itertools.chain(first, rest)


def _print_stream(
    stream: Streaming,
    observations: Iterable[Any],
    rows: Rows,
    output: _Output,
    figure: Path | None,
    say: Say,
) -> None:
    with ExitStack() as ends:
        # These run at the end, also after Ctrl-C, in reverse order.
        if figure is not None:
            ends.callback(lambda: _plot(stream, figure, say) if output.has_header else None)
        ends.push(lambda kind, *_: output.close(kind))
        ends.callback(lambda: _say_end(stream, say))
        signals = ends.enter_context(InterruptBetweenBlocks())

        def flush() -> None:
            with signals.block():
                output.flush()

        rows.call_before_wait(flush)
        for observation in observations:
            with signals.block():
                with rows.located_errors():
                    cells = stream.cells(observation)
                output.add_row(cells)
        output.add_lines(stream.last_cells())
    if not output.has_header:
        missing = "new observations" if stream.num_rows else "observations; write one per line"
        say(f"the input has no {missing}")


class _Output:
    """Lines of a stream on standard output, and its state file, in the order of ``durability``.

    Args:
        stream: The stream.
        state: State file of the stream; None saves no state.
        rows_per_save: Number of printed rows after which the state is saved; None saves all rows
            that have arrived before it prints their lines.
        say: Function that prints notes.

    Attributes:
        has_header: Whether the header is written, which comes before the first line.
    """

    def __init__(
        self,
        stream: Streaming,
        state: Path | None,
        rows_per_save: int | None,
        say: Say,
    ) -> None:
        self._stream, self._state = stream, state
        self._rows_per_save, self._say = rows_per_save, say
        self._saves_first = state is not None and rows_per_save is None
        self.has_header = self._has_rows = False
        self._lines: list[str] = []
        self._num_unsaved, self._unsaved_since = 0, 0.0

    def add_lines(self, lines: Iterable[Sequence[Any]]) -> None:
        """Adds lines, which ``close`` prints if nothing does so before."""
        for cells in lines:
            if not self.has_header:
                self._lines.append(join_cells(self._stream.header))
                self.has_header = True
            self._lines.append(join_cells(cells))

    def add_row(self, cells: Sequence[Any] | None) -> None:
        """Adds the line of a row that the stream has processed; None = it has no line."""
        self.add_lines([] if cells is None else [cells])
        now = time.monotonic()
        if not self._num_unsaved:
            self._unsaved_since = now
        self._num_unsaved += 1
        self._has_rows = True
        if self._saves_first:
            # A source that waits calls `flush` before it does.
            waited = now - self._unsaved_since >= MAX_DELAY
            if waited or self._num_unsaved >= MAX_ROWS_PER_SAVE:
                self.flush()
        else:
            self._print()
            if self._state is not None and self._num_unsaved == self._rows_per_save:
                self._save()

    def flush(self) -> None:
        """Prints all lines, after their rows are saved."""
        if self._saves_first and self._num_unsaved:
            self._save()
        self._print()

    def close(self, error: type[BaseException] | None) -> None:
        """Saves the state, and prints the lines that are left, after an error of a row as well."""
        if self._state is not None and self._has_rows:
            try:
                self._save()
            except ValueError as not_saved:
                if error is None:
                    raise
                # The error of the stream follows.
                self._say(f"the state was not saved: {not_saved}")
                return
        self._print()
        if self._state is not None and self._has_rows:
            rows = format_count(self._stream.num_steps, "observation")
            self._say(f"saved after {rows}: {self._state}")

    def _save(self) -> None:
        assert self._state is not None
        self._stream.save(self._state)
        self._num_unsaved = 0

    def _print(self) -> None:
        if self._lines:
            print("\n".join(self._lines), flush=True)
            self._lines.clear()


def _say_end(stream: Streaming, say: Say) -> None:
    text = stream.end()
    if text is not None:
        say(text)


def _plot(stream: Streaming, figure: Path, say: Say) -> None:
    stream.plot(figure)
    say(f"figure: {figure}")
