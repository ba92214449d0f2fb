"""A trained forecaster over a stream: after each observation, the forecast of the next steps."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, inference, models
from flax_linattn.data.cells import join_cells
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.forecast_evaluate import ForecastRun, load_forecaster
from flax_linattn.tasks.forecast_figure import draw_windows
from flax_linattn.tasks.forecast_rows import Row, parse_rows
from flax_linattn.tasks.lines import open_lines
from flax_linattn.training.checkpoint import fingerprint
from flax_linattn.training.signals import BetweenBlocks

SAVE_EVERY = 1000
"""Observations after which the state of a stream is saved, beside at its end."""


class ForecastStream:
    """Forecasts as observations come, in constant time and memory for a state of constant size.

    A model has learned from windows of ``input_length`` observations, while a stream has no end. So
    two streams run side by side, each of which begins anew after ``context`` observations, half of
    that after the other: the longer one answers, whose forecast is that of the model on the last
    ``context / 2`` to ``context`` observations. With ``context=0`` one stream remembers all.

    A missing value repeats the channel's last one, or the training mean if there is none. A missing
    observation is not filled in: the next one counts as the next step, whatever its time.

    Args:
        run: the trained run.
        context: most observations that a forecast looks back on; default the run's input_length.

    Attributes:
        num_steps: observations so far.
        num_gaps: those, since this object was made, that did not come one of the run's steps
            after the last.

    Raises:
        ValueError: the run's model cannot stream, or the context is out of range.
    """

    def __init__(self, run: ForecastRun, *, context: int | None = None) -> None:
        if not isinstance(run.model, models.Forecaster) or not run.model.backbone.streams:
            raise ValueError(
                f"a run with --model {run.config.model} and mechanism {run.config.mechanism!r} "
                "cannot stream: it looks at whole windows. Train one with --model decoder and a "
                "mechanism with a state."
            )
        context = run.config.input_length if context is None else context
        if context < 0 or context == 1:
            raise ValueError(f"context must be 0, or 2 or more, got {context}.")
        if not context and not run.model.backbone.constant_memory:
            raise ValueError(
                f"{run.config.mechanism!r} keeps every observation; give a context to bound that."
            )
        self._run = run
        self._context = context
        self._last = np.asarray(run.problem.standardizer.mean, np.float64)
        self._time: datetime | None = None
        self.num_steps = 0
        self.num_gaps = 0
        rows = len(self._ages())
        self._stream = inference.Stream(run.model, batch_size=rows, max_length=context or None)

    @property
    def context(self) -> int:
        """Observations that the last forecast looked back on."""
        return max(self._ages()) if self.num_steps else 0

    def step(self, row: Row) -> NDArray[np.float64]:
        """Takes in an observation.

        Returns:
            The forecast, float64 [H, targets], in the units of the file.

        Raises:
            ValueError: the run needs times, and the row has none, or one that is not after the last
                one's; another number of values, or ones out of range.
        """
        problem = self._run.problem
        values = np.asarray(row.values, np.float64)
        if values.shape != self._last.shape or np.isinf(values).any():
            raise ValueError(
                f"expected {len(self._last)} finite or missing values "
                f"({', '.join(problem.channels)}), got {values.tolist()}."
            )
        if row.time is not None and self._time is not None and row.time <= self._time:
            raise ValueError(
                f"expected a time after {self._time}, that of the last observation, got "
                f"{row.time}; leave out what the stream has seen."
            )
        last = np.where(np.isnan(values), self._last, values)
        (scaled,) = problem.standardizer.apply([last[None]], problem.channels)
        marks = self._marks(row.time)
        self.num_gaps += self._is_gap(row.time)
        self._time = row.time if row.time is not None else self._time
        self._last = last
        x = np.concatenate([scaled[0], marks]).astype(np.float32)
        self.num_steps += 1
        ages = np.array(self._ages())
        forecasts = self._stream.step(np.broadcast_to(x, (len(ages), x.size)), reset=ages == 1)
        targets = list(problem.targets)
        forecast = np.asarray(forecasts[int(np.argmax(ages))], np.float64)
        return forecast * problem.standardizer.std[targets] + problem.standardizer.mean[targets]

    def save(self, path: Path) -> None:
        """Writes all that the stream has to remember."""
        time = None if self._time is None else self._time.isoformat()
        facts = {"last": self._last.tolist(), "num_steps": self.num_steps, "time": time}
        save_state(path, self._stream.state, facts | self._owner())

    def load(self, path: Path) -> None:
        """Goes on from what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is damaged, or of another run or context.
        """
        state, facts = load_state(path, self._stream.state)
        if any(facts.get(name) != value for name, value in self._owner().items()):
            raise ValueError(
                f"{path} is the state of a stream of another run, or with another --context; give "
                "those, or remove it to begin anew."
            )
        self._stream.state = state
        self._last = np.asarray(facts["last"], np.float64)
        time = facts.get("time")
        self._time = None if time is None else datetime.fromisoformat(time)
        self.num_steps = facts["num_steps"]

    def _is_gap(self, time: datetime | None) -> bool:
        step = self._run.problem.step_seconds
        if time is None or self._time is None or step is None:
            return False
        return not data.is_step((time - self._time).total_seconds(), step)

    def _owner(self) -> dict[str, Any]:
        return {"model": fingerprint(self._run.model), "context": self._context}

    def _ages(self) -> tuple[int, ...]:
        """Observations of each of the streams, this one counted."""
        if not self._context:
            return (self.num_steps,)
        count, half = self.num_steps - 1, self._context // 2
        second = (count - half) % self._context + 1 if count >= half else 1
        return count % self._context + 1, second

    def _marks(self, time: datetime | None) -> NDArray[np.float32]:
        problem = self._run.problem
        if not problem.marks:
            return np.zeros(0, np.float32)
        check_time(self._run, time)
        assert time is not None and problem.step_seconds is not None
        step = np.timedelta64(round(problem.step_seconds), "s")
        features, _ = data.calendar_features(np.array([time], "M8[s]"), step)
        return features[0]


def check_time(run: ForecastRun, time: datetime | None) -> None:
    """Checks that a row has a time where the run needs one.

    Raises:
        ValueError: it has none.
    """
    if run.problem.marks and time is None:
        raise ValueError(
            f"the run looks at the calendar ({', '.join(run.problem.marks)}): begin each line with "
            'the time, name its column time, or give JSON objects a "time".'
        )


def stream_forecaster(
    run: Path,
    input: Path | None = None,
    context: int | None = None,
    state: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Prints the forecast after each observation, as CSV; the options are ``stream_run``'s.

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files; a run that cannot stream; a state of another one; a bad line.
    """
    loaded = load_forecaster(run)
    stream = ForecastStream(loaded, context=context)
    if state is not None and state.is_dir():
        raise ValueError(f"{state} is a folder, expected a file; give another one with --state.")
    if state is not None and state.is_file():
        stream.load(state)
        print(f"# goes on after {stream.num_steps} observations", file=sys.stderr)
    with open_lines(input) as (lines, name):
        numeric = loaded.config.header == "yes"
        rows = parse_rows(lines, loaded.problem.channels, name, numeric_names=numeric)
        _print_forecasts(loaded, stream, rows, state, figure)


def _print_forecasts(
    run: ForecastRun,
    stream: ForecastStream,
    rows: Iterable[Row],
    state: Path | None,
    figure: Path | None,
) -> None:
    seen: deque[Row] = deque(maxlen=2 * run.config.input_length)
    found = None
    try:
        with BetweenBlocks() as signals:
            for row in rows:
                with signals.block():
                    if found is None:
                        check_time(run, row.time)
                        _print_header(run)
                    gaps = stream.num_gaps
                    found = stream.step(row)
                    if gaps == 0 and stream.num_gaps:
                        print(
                            f"# note: {row.time} is not {run.problem.step_seconds:g} s after the "
                            "last observation; it counts as the next step",
                            file=sys.stderr,
                        )
                    _print_forecast(stream.num_steps, row, found)
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
            draw_forecast(run, seen, found, figure)
    if found is None:
        print("# no observation came: give one a line", file=sys.stderr)


def _print_header(run: ForecastRun) -> None:
    """The names of the columns: each target one to H steps ahead."""
    names = [
        f"{name}+{h}" for h in range(1, run.config.horizon + 1) for name in run.problem.target_names
    ]
    print(join_cells(["step", "time", *names]), flush=True)


def _print_forecast(step: int, row: Row, forecast: NDArray[np.float64]) -> None:
    """A line of forecasts, in the order of ``_print_header``."""
    time = "" if row.time is None else str(row.time)
    numbers = (f"{value:.6g}" for value in forecast.ravel())
    print(",".join([str(step), time, *numbers]), flush=True)


def draw_forecast(
    run: ForecastRun, seen: Sequence[Row], forecast: NDArray[np.float64], path: Path
) -> None:
    """Draws the last observations and the forecast from them to a PNG file.

    Args:
        run: the run.
        seen: the observations, oldest first.
        forecast: of the targets, [H, targets].
        path: the file.

    Raises:
        ValueError: matplotlib is not installed.
    """
    observed = np.stack([row.values for row in seen])[:, list(run.problem.targets)]
    title = "the last forecast" if seen[-1].time is None else f"after {seen[-1].time}"
    draw_windows([(observed, None, forecast)], run.problem.target_names, path, [title])
    print(f"# figure: {path}", file=sys.stderr)
