"""Streams of a trained forecaster: the forecast of the next steps after each observation."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn import data, inference
from flax_linattn.checks import OptionError, format_count, itemize, quote
from flax_linattn.data.tables.time_index import continue_index, find_gaps, step_bounds
from flax_linattn.tasks.forecast.figures import plot_windows
from flax_linattn.tasks.forecast.panel import count_series
from flax_linattn.tasks.forecast.rows import Row, RowLines, check_time_kind
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, describe_channels

_CALENDAR = np.array(["0001-01-02", "9999-12-30"], "M8[us]")
"""First and last time of the calendar, with a margin of one day for the time zone."""
_NANOSECONDS = np.array(["1677-09-23", "2262-04-10"], "M8[us]")
"""First and last time that pandas can store in nanoseconds, with the same margin."""
_INTEGER = 1000
"""Code of an integer time in a stream's record, where nanoseconds are 0 to 999."""


class ForecastStream(Streaming):
    """Forecasts as observations come, in constant time and memory for a state of constant size.

    The model was trained on windows of ``context_length`` observations, but a stream has no end.
    Therefore two streams run in parallel. Each is reset after ``context`` observations, and the two
    resets are half a context apart. The forecast is that of the longer stream: the model on the
    last ``context / 2`` to ``context`` observations. With ``context=0``, one stream is never reset.

    A missing value repeats the channel's last value, or the training mean if there is none, with a
    missing-value flag if the model was trained with flags. After all channels, a row has the known
    future covariates of its H steps, step by step, as columns ``price+1``, ``price+2``, ...; a
    missing covariate repeats the last value, and lines with names may omit the covariates of a
    static channel. Gaps are not filled: an observation counts as the next step, whatever its time,
    even with the time of the previous one. After a restart, an observation with the last time may
    be the last one again; it is refused unless ``is_processed`` was called, which counts such rows.

    Args:
        run: The trained run.
        context: Maximum number of past observations of a forecast; default the run's
            ``context_length``.
        series: Name of the series, for a run on a panel; an unknown series is scaled by the median
            of the scales of the panel.

    Attributes:
        num_steps: Number of observations so far.
        num_gaps: Number of observations since this object was created that did not follow the
            previous one by the run's step.

    Raises:
        ValueError: If the run's model cannot stream, or the context is out of range.
    """

    record_attributes = ("_last_values", "_time_utc", "_at_last")

    def __init__(self, run: Run, *, context: int | None = None, series: str = "") -> None:
        run = _series_spec(run, series)
        data_spec, options = run.data_spec, run.config.data
        if not run.model.streams:
            raise OptionError(
                f"expected a run that can stream, got the model {run.config.model.model!r} with "
                f"mechanism {mechanism_name(run.config.layers)!r}, which needs whole windows; "
                "train a decoder whose mechanism has a state, or a patch model whose mechanism has "
                "a state of constant size.",
                "mechanism",
                model="decoder",
            )
        context = options.context_length if context is None else context
        if context < 0 or context == 1:
            raise OptionError(f"expected context as 0, or 2 or more, got {context}.", "context")
        if not context and not run.model.backbone.constant_memory:
            raise OptionError(
                "expected context above 0, got 0, but the cache of the mechanism "
                f"{mechanism_name(run.config.layers)!r} grows with every row; set context=....",
                "context",
            )
        self._context, self._data_spec, self._horizon = context, data_spec, options.horizon
        self._known = list(data_spec.known_future)
        self._series = series
        steps, names = range(1, options.horizon + 1), data_spec.target_names
        suffixes = ("", *(f"@{level:g}" for level in run.config.model.levels))
        header = [f"{name}+{h}{suffix}" for h in steps for name in names for suffix in suffixes]
        super().__init__(
            run,
            inference.Stream(run.model, batch_size=len(self._ages(0)), max_length=context or None),
            ["step", data_spec.time_name or "time", *header],
            context=context,
            **({"series": series} if series else {}),
        )
        self._last_values = np.asarray(data_spec.standardizer.mean, np.float64)
        self._time: pd.Timestamp | int | None = None
        self._at_last = 0  # number of rows with that time
        self._num_checked = 0  # how many of them is_processed was called for
        self._restored_time: pd.Timestamp | int | None = None
        self._recent: deque[Row] = deque(maxlen=2 * options.context_length)
        self._forecast: NDArray[np.float64] | None = None
        self.num_gaps = 0

    @property
    def context(self) -> int:
        """Number of observations that the last forecast was conditioned on."""
        return max(self._ages(self.num_steps))

    def step(self, row: Row) -> NDArray[np.float64]:
        """Returns the forecast after an observation.

        Returns:
            The forecast, float64 [H, targets], in the units of the file; for a run with quantiles
            [H, targets, 1 + Q], the mean and then the quantiles.

        Raises:
            ValueError: If the row lacks the time that the run needs, its time is before the last
                one (or equal to it, after a restart and with ``times="strict"``), the number of
                values differs, or a value is out of range.
        """
        data_spec, channels = self._data_spec, self._data_spec.channels
        values, count = np.asarray(row.values, np.float64), len(self._last_values)
        size = self._horizon * len(self._known)
        if size and values.ndim == 1 and len(values) != count + size:
            raise ValueError(
                f"expected {count} values of the current step and {size} known future covariates "
                f"({self._horizon} steps of {', '.join(channels[i] for i in self._known)}), got "
                f"{len(values)} values."
            )
        if values.shape != (count + size,) or np.isinf(values[:count]).any():
            raise ValueError(
                f"expected {count} finite or missing values ({', '.join(channels)}), got "
                f"{values.tolist()}."
            )
        values, ahead = np.split(values, [count])
        time = self._convert_time(row.time)
        self._check_time(time)
        missing = np.isnan(values)
        last = np.where(missing, self._last_values, values)
        (scaled,) = data_spec.standardizer.apply([last[None]], channels)
        features = self._time_features(time)
        now, later = self._circles(time)
        ahead = np.concatenate([self._known_ahead(last, ahead), later], axis=1)
        self.num_gaps += self._is_gap(time)
        if time is not None:
            self._at_last = self._at_last + 1 if time == self._time else 1
            self._time = time
        self._last_values = last
        flags = np.pad(missing, (0, len(now)))[: data_spec.num_flags]
        x = np.concatenate([scaled[0], now, flags, features, ahead.ravel()]).astype(np.float32)
        self.num_steps += 1
        ages = np.array(self._ages(self.num_steps))
        forecasts = self._stream.step(np.broadcast_to(x, (len(ages), x.size)), reset=ages == 1)
        forecast = np.asarray(forecasts[int(np.argmax(ages))], np.float64)
        if np.isnan(forecast).any():
            raise ValueError(
                f"the forecast after observation {self.num_steps} is NaN, because the model "
                "overflows or its parameters hold NaN; check the values of the stream, or train "
                "the run again."
            )
        return data_spec.in_units(forecast)

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        data_spec, options, hint = self._data_spec, self._run.config.data, ""
        names = {i: data_spec.channels[i] for i in self._known}
        ahead = {f"{names[i]}+{h}": i for h in range(1, self._horizon + 1) for i in self._known}
        if names:
            first = names[self._known[0]]
            hint = (
                f"A row of this stream also needs {itemize([*names.values()])} of the next "
                f"{self._horizon} rows, as {first}+1 to {first}+{self._horizon}; name these "
                "columns in the first line, or write each row as a JSON object."
            )
        last = None if self.from_start else self._time
        reader = RowLines(
            (*data_spec.channels, *ahead),
            optional={column for column, i in ahead.items() if i in data_spec.static},
            numeric_names=options.header == "yes",
            dialect=options.dialect,
            time_kind=data_spec.time_kind,
            hint=hint,
            after=last.to_pydatetime(warn=False) if isinstance(last, pd.Timestamp) else None,
            series=(self._run.config.data.id_column, self._series) if self._series else ("", ""),
        )
        return reader.parse(lines)

    def cells(self, observation: Row) -> Sequence[Any]:
        gaps = self.num_gaps
        self._forecast = self.step(observation)
        self._recent.append(observation)
        if gaps == 0 and self.num_gaps:
            freq, step = self._data_spec.freq, self._data_spec.integer_step
            kind = f"step {step}" if freq is None else f"frequency {freq}"
            print(
                f"# note: the time {self._time} breaks the {kind} of the run; the observation "
                "counts as the next step",
                file=sys.stderr,
            )
        time = "" if observation.time is None else str(self._time)
        return [self.num_steps, time, *self._forecast.ravel()]

    @property
    def without_restarts(self) -> str:
        return "context=0" if self._context else ""

    def interface(self) -> dict[str, Any] | None:
        """Describes channels, calendar and targets; None with known future covariates."""
        spec, scale = self._data_spec, self._data_spec.standardizer
        if spec.known_inputs:
            return None
        channels = describe_channels(spec.channels, scale)
        flags = {"kind": "flags", "count": spec.num_flags}
        times = {
            "kind": "calendar",
            "names": list(spec.time_features),
            "time_zone": spec.time_zone,
        }
        parts = [channels, *[flags] * bool(spec.num_flags), *[times] * bool(spec.time_features)]
        columns = self.header[2:]
        of_target = [i for _ in range(self._horizon) for i in spec.targets]
        per_target = len(columns) // len(of_target)
        outputs = {
            "kind": "targets",
            "columns": list(columns),
            "mean": [float(scale.mean[i]) for i in of_target for _ in range(per_target)],
            "std": [float(scale.std[i]) for i in of_target for _ in range(per_target)],
        }
        return {"inputs": parts, "outputs": outputs, "context": self._context}

    def end(self) -> str | None:
        notes = []
        if self.num_gaps > 1:
            notes.append(f"note: {self.num_gaps} observations broke the step of the run")
        length = self._run.config.data.context_length
        if 0 < self.num_steps < length:
            rows = format_count(self.num_steps, "observation")
            notes.append(
                f"note: the stream has {rows}, fewer than the {length} of the context "
                "length, so that its forecasts may be less accurate"
            )
        return "; ".join(notes) or None

    def plot(self, path: Path) -> None:
        assert self._forecast is not None  # a stream without any observation is not drawn
        observed = np.stack([row.values for row in self._recent])[:, list(self._data_spec.targets)]
        last = self._time
        title = "the last forecast" if last is None else f"after {last}"
        levels = self._run.config.model.levels
        window = (observed, None, self._forecast)
        plot_windows([window], self._data_spec.target_names, path, [title], levels)

    @property
    def _time_utc(self) -> tuple[NDArray[np.datetime64], int]:
        """The last time, in UTC if it has a zone, and its nanoseconds; NaT = none.

        An integer is stored in the bits of the time, with ``_INTEGER`` after it.
        """
        if self._time is None:
            return np.array("NaT", "M8[us]"), 0
        if isinstance(self._time, int):
            return np.array(self._time, np.int64).view("M8[us]"), _INTEGER
        return np.array(self._time.to_datetime64(), "M8[us]"), self._time.nanosecond

    @_time_utc.setter
    def _time_utc(self, value: tuple[NDArray[np.datetime64], int]) -> None:
        if value[1] == _INTEGER:
            self._time = int(value[0].view(np.int64))
            return
        time, zone = pd.Timestamp(value[0][()]), self._data_spec.time_zone
        if value[1]:
            time += pd.Timedelta(value[1], "ns")
        if zone is not None:
            time = time.tz_localize("UTC").tz_convert(zone)
        self._time = None if time is pd.NaT else time

    def is_possible(self, record: Record) -> bool:
        (time, nanoseconds), rows = record["_time_utc"], record["_at_last"]
        if np.isnat(time):
            return rows == 0 and not nanoseconds
        kind = self._data_spec.time_kind
        if nanoseconds == _INTEGER and kind in ("integer", None):
            return 0 < rows <= record["num_steps"]
        if kind == "integer":
            return False
        first, last = _NANOSECONDS if nanoseconds else _CALENDAR
        in_calendar = bool(first < time < last) and nanoseconds < 1000
        return in_calendar and 0 < rows <= record["num_steps"]

    def resume(self) -> None:
        self._restored_time, self._num_checked = self._time, 0

    def ages(self, record: Record) -> Sequence[int]:
        return self._ages(record["num_steps"])

    @property
    def last_time(self) -> pd.Timestamp | int | None:
        return self._time

    def is_processed(self, number: int, observation: Row) -> bool:
        if number == 1:
            self._num_checked = 0
        time = self._convert_time(observation.time)
        if time is None or self._time is None:
            return super().is_processed(number, observation)
        if time != self._time:
            return bool(time < self._time)
        self._num_checked += 1
        if self._num_checked > self._at_last:
            self._restored_time = None  # a new row with the last time, not the last row again
        return self._num_checked <= self._at_last

    def _check_time(self, time: Any) -> None:
        """Refuses times that the stream has processed, after a restart also the last one."""
        if time is None or self._time is None or time > self._time:
            return
        expected = f"expected a time after {self._time} (the last observation), got {time}"
        is_restored = self._restored_time is not None and self._time == self._restored_time
        if is_restored:
            raise OptionError(
                f"{expected}; the saved stream may have processed this row already. Remove the "
                "processed rows, or pass the whole input with skip_processed=True.",
                "skip_processed",
            )
        if time < self._time:
            raise ValueError(f"{expected}; sort the rows by time.")
        if self._run.config.data.times == "strict":
            raise ValueError(f"{expected}; remove the repeated row.")

    def _known_ahead(
        self, last: NDArray[np.float64], ahead: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Known future covariates [H, F], standardized; a missing value repeats the last one."""
        known = self._known
        if not known:
            return np.zeros((self._horizon, 0))
        steps = data.TimeSeries(
            "horizon",
            np.concatenate([last[known], ahead]).reshape(-1, len(known)),
            tuple(self._data_spec.channels[i] for i in known),
        )
        scale = self._data_spec.standardizer
        own = data.Standardizer(scale.mean[known], scale.std[known])
        (standardized,) = own.apply([steps.fill_forward().values[1:]], steps.channels)
        return standardized

    def _is_gap(self, time: Any) -> bool:
        freq, step = self._data_spec.freq, self._data_spec.integer_step
        if time is None or self._time is None or (freq is None and step is None):
            return False
        if isinstance(time, int):
            return bool(time - self._time != step)
        assert freq is not None
        passed = time - self._time
        if passed < pd.Timedelta(days=1) and {passed} == {*step_bounds(freq)}:
            return False  # the usual case, which needs no calendar
        return not passed or find_gaps(pd.DatetimeIndex([self._time, time]), freq).size > 0

    def _ages(self, num_steps: int) -> tuple[int, ...]:
        """Number of observations that each of the streams has received since its reset."""
        if not self._context:
            return (num_steps,)
        if not num_steps:
            return (0, 0)
        count, half = num_steps - 1, self._context // 2
        second = (count - half) % self._context + 1 if count >= half else 1
        return count % self._context + 1, second

    def _time_features(self, time: Any) -> NDArray[np.float32]:
        data_spec = self._data_spec
        if not data_spec.time_features:
            return np.zeros(0, np.float32)
        assert data_spec.freq is not None
        needed = self._needed(time, data_spec.time_features)
        return data.calendar_features(needed, data_spec.freq)[0][0]

    def _circles(self, time: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Circles of the calendar, now [2 N] and for the H rows of the horizon [H, 2 N]."""
        parts, freq = self._data_spec.calendar, self._data_spec.freq
        if not parts:
            return np.zeros(0, np.float32), np.zeros((self._horizon, 0), np.float32)
        now = self._needed(time, parts)
        times = now.append(continue_index(now, freq, self._horizon))
        circles = data.calendar_circles(times, parts)
        return circles[0], circles[1:]

    def _convert_time(self, time: datetime | int | None) -> Any:
        """An integer, or a ``pandas.Timestamp`` in the zone of the run; None if there is none."""
        if time is None:
            return None
        kind, last = self._data_spec.time_kind, self._time
        check_time_kind(time, kind, time)
        if kind is None and last is not None and isinstance(time, int) != isinstance(last, int):
            raise ValueError(
                f"expected a time of the same kind as the last one, {last}, got {time}; write all "
                "times as integers, or all as dates and times."
            )
        if isinstance(time, int):
            return time
        stamp = pd.Timestamp(time)
        if stamp.tz is None:
            return stamp
        return stamp.tz_convert(self._data_spec.time_zone if kind == "zoned" else None)

    def _needed(self, time: Any, parts: Sequence[str]) -> pd.DatetimeIndex:
        """The time as an index [1] to compute time features from; no time is refused."""
        if time is None:
            raise ValueError(
                f"expected a row with a time, from which the run computes {', '.join(parts)}, got "
                "none; begin each line with the time, name its column time, or write JSON objects "
                'with "time".'
            )
        return pd.DatetimeIndex([time])


def _series_spec(run: Run, name: str) -> Run:
    """The run with the data spec of a single series."""
    names = [info.name for info in run.data_spec.members]
    if bool(names) != bool(name):
        raise OptionError(
            f"expected the name of a series, since the run was trained on {count_series(names)}, "
            "got none; set series to one of them, or to the name of a new series."
            if names
            else "expected no name of a series, since the run was trained on one series, got "
            f"series={quote(name)}; remove series.",
            "series",
        )
    return run._replace(data_spec=run.data_spec.select_series(name))
