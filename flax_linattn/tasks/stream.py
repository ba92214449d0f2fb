"""The command that feeds a run's model with a stream, whatever its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax_linattn.tasks import classify_stream, forecast_stream
from flax_linattn.tasks.runs import read_task


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
        input: a file to read instead of standard input (.gz and .xz too).
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
        classify_stream.stream_classifier(run, input, sequence, max_length, figure)
    else:
        _refuse("classifiers", sequence=sequence, max_length=max_length)
        forecast_stream.stream_forecaster(run, input, context, state, figure)
    return 0


def _refuse(owners: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is for {owners}, which this run is not; leave it out.")
