"""The command that feeds a run's model with a stream, whatever its task."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flax_linattn.tasks import classify_stream, forecast_evaluate, forecast_stream
from flax_linattn.tasks.lines import open_lines
from flax_linattn.tasks.runs import read_task
from flax_linattn.training.signals import BetweenBlocks

SAVE_EVERY = 1000
"""Observations after which the state of a stream is saved, beside at its end."""


def stream_run(
    run: Path,
    /,
    input: Path | None = None,
    sequence: int | None = None,
    max_length: int | None = None,
    context: int | None = None,
    state: Path | None = None,
    figure: Path | None = None,
) -> int:
    """Prints, after each observation, class probabilities or the forecast, as CSV.

    Time and memory an observation are constant for mechanisms with a state of constant size.

    Reads one observation a line from standard input or a file. For a classifier: numbers separated
    by commas or blanks, "?" for a missing value; a blank line begins a new sequence. For a
    forecaster: the channels separated by commas, after the time where the run has times, or a JSON
    object with "time" and the channels by name; a first line may name the columns.

    Args:
        run: the run folder.
        input: a file to read instead of standard input.
        sequence: classifiers: stream this sequence of the run's test data instead (from 0).
        max_length: classifiers: most observations of a sequence, for mechanisms with a cache.
        context: forecasters: most observations that a forecast looks back on, at least half as
            many; default the run's input length, 0 = all.
        state: forecasters: a file to go on from, if it is there, and to save to: every 1,000
            observations, at the end, and on Ctrl-C or SIGTERM.
        figure: draw the last 10,000 probabilities, or the last forecast, to this PNG file (needs
            matplotlib).

    Returns:
        The exit status.
    """
    if read_task(run) != "forecast":
        _refuse("forecasters", context=context, state=state)
        return classify_stream.stream_run(run, input, sequence, max_length, figure)
    _refuse("classifiers", sequence=sequence, max_length=max_length)
    loaded = forecast_evaluate.load_forecaster(run)
    stream = forecast_stream.ForecastStream(loaded, context=context)
    if state is not None and state.is_dir():
        raise ValueError(f"{state} is a folder, expected a file; give another one with --state.")
    if state is not None and state.is_file():
        stream.load(state)
        print(f"# goes on after {stream.num_steps} observations", file=sys.stderr)
    with open_lines(input) as (source, name):
        rows = forecast_stream.parse_rows(source, loaded.problem.channels, name)
        return _forecast(loaded, stream, rows, state, figure)


def _forecast(
    run: forecast_evaluate.ForecastRun,
    stream: forecast_stream.ForecastStream,
    rows: Iterable[forecast_stream.Row],
    state: Path | None,
    figure: Path | None,
) -> int:
    seen: deque[forecast_stream.Row] = deque(maxlen=2 * run.config.input_length)
    found = None
    try:
        with BetweenBlocks() as signals:
            for row in rows:
                with signals.block():
                    if found is None:
                        forecast_stream.check_time(run, row.time)
                        forecast_stream.print_header(run)
                    gaps = stream.num_gaps
                    found = stream.step(row)
                    if gaps == 0 and stream.num_gaps:
                        print(
                            f"# note: {row.time} is not {run.problem.step_seconds:g} s after the "
                            "last observation; it counts as the next step",
                            file=sys.stderr,
                        )
                    forecast_stream.print_forecast(stream.num_steps, row, found)
                    seen.append(row)
                    if state is not None and stream.num_steps % SAVE_EVERY == 0:
                        stream.save(state)
    finally:
        if stream.num_gaps > 1:
            print(f"# note: {stream.num_gaps} observations came so", file=sys.stderr)
        if state is not None and stream.num_steps:
            stream.save(state)
            print(f"# saved after {stream.num_steps} observations: {state}", file=sys.stderr)
        if figure is not None and found is not None:
            forecast_stream.draw_forecast(run, seen, found, figure)
    if found is None:
        print("# no observation came: give one a line", file=sys.stderr)
    return 0


def _refuse(owners: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is for {owners}, which this run is not; leave it out.")
