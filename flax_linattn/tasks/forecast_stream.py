"""A trained forecaster over a stream: after each observation, the forecast of the next steps."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, inference, models
from flax_linattn.data.table import MISSING, TIME, is_number, parse_time, split_cells
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.forecast_evaluate import ForecastRun
from flax_linattn.tasks.forecast_figure import draw_windows
from flax_linattn.training.checkpoint import fingerprint


class Row(NamedTuple):
    """An observation.

    Attributes:
        time: when; None if the stream does not say.
        values: float64 [channels], NaN = missing.
    """

    time: datetime | None
    values: NDArray[np.float64]


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
        if not context and not run.model.backbone.mechanism.capabilities.constant_memory:
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
                one's; another number of values, or infinite ones.
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
        marks = self._marks(row.time)
        self.num_gaps += self._is_gap(row.time)
        self._time = row.time if row.time is not None else self._time
        self._last = np.where(np.isnan(values), self._last, values)
        scaled = (self._last - problem.standardizer.mean) / problem.standardizer.std
        x = np.concatenate([scaled, marks]).astype(np.float32)
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


def parse_rows(
    lines: Iterable[str], channels: tuple[str, ...], name: str = "standard input"
) -> Iterator[Row]:
    """Reads one observation a line: a JSON object, or cells separated by commas.

    A JSON object has the channels by name, and perhaps "time" (or "date", "datetime", "timestamp").
    Cells are the channels in the run's order, after the time if there is one; a first line that
    names them may order them otherwise, and have further ones. Blank lines are left out; an empty
    cell, "?", "NaN" or null is a missing value.

    Args:
        lines: the text.
        channels: the channels to find.
        name: of the source, for messages.

    Raises:
        ValueError: a line that holds something else; the message names it.

    Example:
        >>> [row.values.tolist() for row in parse_rows(["b,a,c", "1,2,3", '{"a": 4, "b": null}'],
        ...                                            ("a", "b"))]
        [[2.0, 1.0], [4.0, nan]]
    """
    columns: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        place = f"{name}:{number}"
        if text.startswith("{"):
            yield _from_json(text, channels, place)
            continue
        cells = split_cells(text)
        words = not any(map(_is_value, cells)) and parse_time(cells[0]) is None
        if columns is None and (words or set(channels) <= set(cells)):
            columns = cells
            for channel in channels:
                if channel not in columns:
                    raise ValueError(
                        f"{place}: expected the names of the channels {', '.join(channels)}, got "
                        f"{', '.join(columns)}, none {channel!r}; leave out the line, or name all."
                    )
            continue
        yield _from_cells(cells, channels, columns, place)


def _from_json(text: str, channels: tuple[str, ...], place: str) -> Row:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not valid JSON ({error.msg}): {text[:60]!r}.") from None
    for channel in channels:
        if channel not in found:
            raise ValueError(
                f"{place}: expected the channels {', '.join(channels)}, got {', '.join(found)}, "
                f"none {channel!r}; write null for a missing value."
            )
    time = next((value for name, value in found.items() if name.lower() in TIME), None)
    cells = ["" if found[channel] is None else str(found[channel]) for channel in channels]
    values = _numbers(cells, channels, place, missing="write null")
    return Row(None if time is None else _time(str(time), place), values)


def _from_cells(
    cells: list[str], channels: tuple[str, ...], columns: list[str] | None, place: str
) -> Row:
    if columns is not None:
        if len(cells) != len(columns):
            raise ValueError(
                f"{place}: expected {len(columns)} cells, as in the first line, got {len(cells)}."
            )
        times = [i for i, name in enumerate(columns) if name not in channels]
        timed = next((i for i in times if columns[i].lower() in TIME), None)
        if timed is None and columns[0] not in channels and not _is_value(cells[0]):
            timed = 0
        of_channels = [cells[columns.index(channel)] for channel in channels]
        cells = of_channels if timed is None else [cells[timed], *of_channels]
    timed = not _is_value(cells[0]) and parse_time(cells[0]) is not None
    if len(cells) not in (len(channels) + timed, len(channels) + 1):
        names, count = ", ".join(channels), len(channels)
        expected = (
            f"{count + 1} cells (time, {names})"
            if timed
            else f"{count} cells ({names}), or {count + 1} with the time first"
        )
        raise ValueError(f"{place}: expected {expected}, got {len(cells)}.")
    timed = len(cells) > len(channels)
    values = _numbers(cells[timed:], channels, place, missing="leave the cell empty")
    return Row(_time(cells[0], place) if timed else None, values)


def _numbers(
    cells: Sequence[str], channels: Sequence[str], place: str, *, missing: str
) -> NDArray[np.float64]:
    for channel, cell in zip(channels, cells, strict=True):
        if not _is_value(cell):
            raise ValueError(
                f"{place}: expected a finite number for {channel}, got {cell!r}; {missing} if the "
                "value is missing."
            )
    return np.array([math.nan if cell.lower() in MISSING else float(cell) for cell in cells])


def _is_value(text: str) -> bool:
    return text.lower() in MISSING or is_number(text)


def _time(text: str, place: str) -> datetime:
    time = parse_time(text)
    if time is None:
        raise ValueError(f"{place}: expected a time such as 2016-07-01 00:00:00, got {text!r}.")
    return time


def print_header(run: ForecastRun) -> None:
    """The names of the columns: each target one to H steps ahead."""
    names = [
        f"{name}+{h}" for h in range(1, run.config.horizon + 1) for name in run.problem.target_names
    ]
    print(",".join(["step", "time", *names]), flush=True)


def print_forecast(step: int, row: Row, forecast: NDArray[np.float64]) -> None:
    """A line of forecasts, in the order of ``print_header``."""
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
