"""The series of a forecasting run: read, split in time, and what is odd about them."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, itemize
from flax_linattn.data.errors import DataFormatError, UnknownChannelError
from flax_linattn.data.series import outliers
from flax_linattn.data.tables.cells import TIME, YEAR_COLUMN, split_cells
from flax_linattn.data.tables.time_index import follows, parse_frequency
from flax_linattn.tasks.forecast.options import MIN_CONTEXT, ForecastConfig, ForecastData
from flax_linattn.tasks.forecast.spec import PARTS, compute_checksum
from flax_linattn.tasks.options import TooFewRowsError
from flax_linattn.tasks.run import explain_missing_data
from flax_linattn.tasks.spec import Run

VALUE = "value"
"""The channel of series that a file names one by one."""
MAX_NAMES = 5
"""Series that a note or an error names."""
MAX_PLACES = 3
"""Places that a note names."""
MAX_ROWS_PER_WINDOW = 100
"""Rows per row of a window up to which an error names the number of rows that is enough."""
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


class SeriesPanel(NamedTuple):
    """The data of a run: one series, or several with the same channels."""

    name: str
    series: tuple[data.TimeSeries, ...]
    splits: tuple[data.Split, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_series(cls, series: data.TimeSeries, split: data.Split) -> SeriesPanel:
        """A panel of one series."""
        return cls(series.name, (series,), (split,))

    @property
    def split(self) -> data.Split:
        """The rows of each part, counted over all series."""
        counts = np.sum([[len(part) for part in split] for split in self.splits], axis=0)
        ends = itertools.pairwise(np.cumsum([0, *counts]).tolist())
        return data.Split(*(range(begin, end) for begin, end in ends))

    @property
    def about(self) -> str:
        """A few lines on series, rows, channels and times."""
        channels = self.series[0].channels
        lengths = [one.num_steps for one in self.series]
        rows = f"{lengths[0]} rows"
        if len(self.series) > 1:
            names = _named([one.name for one in self.series])
            rows = f"series {names} of {min(lengths)} to {max(lengths)} rows"
        more = f" and {len(channels) - 8} more" if len(channels) > 8 else ""
        lines = [f"{self.name}: {rows} of {', '.join(channels[:8])}{more}"]
        timed = [(one, times) for one in self.series if (times := one.row_times) is not None]
        if timed:
            first, last = min(t[0] for _, t in timed), max(t[-1] for _, t in timed)
            kind = "step" if timed[0][0].has_integer_times else "frequency"
            lines.append(f"from {first} to {last}, {kind} {timed[0][0].step}")
        parts = ", ".join(f"{name} {len(rows)}" for name, rows in self.split._asdict().items())
        return "\n".join([*lines, f"rows: {parts}"])

    @property
    def notes(self) -> list[str]:
        """The warnings, and what is odd in single series."""
        pairs = zip(self.series, self.splits, strict=True)
        found = [(one.name, notes_on(one, split.test.stop)) for one, split in pairs]
        return [*self.warnings, *name_notes(found)]


def load_panel(config: ForecastConfig) -> SeriesPanel:
    """The series of a run and their parts, without series that have no training values."""
    source = config.data
    data.chronological_split(10**15, source.split)  # refuses one that fits no series

    def make_split(series: data.TimeSeries) -> data.Split:
        return data.chronological_split(series.num_steps, source.split)

    panel = make_panel(read_series(source), source, make_split)
    if not source.is_panel:
        return panel
    return panel._replace(name="ETTh1" if source.csv is None else source.csv.name.split(".")[0])


def make_panel(
    series: Sequence[data.TimeSeries],
    source: ForecastData,
    make_split: Callable[[data.TimeSeries], data.Split],
) -> SeriesPanel:
    """Makes a panel of series and their splits, without series that have no training values."""
    kept, splits, short, empty = [], [], [], []
    for one in series:
        try:
            split = make_split(one)
        except OptionError:
            if not source.is_panel:
                raise
            short.append(one.name)
            continue
        if source.is_panel and np.isnan(one.values[: split.train.stop]).all(axis=0).any():
            empty.append(one.name)
            continue
        kept.append(one)
        splits.append(split)
    warnings = [
        f"series {what}, which are left out: {_named(names)}"
        for what, names in (
            (f"with fewer rows than split ({source.split}) needs", short),
            ("of which a channel has no value in the training rows", empty),
        )
        if names
    ]
    if not kept:
        remedy = "give more rows, or another split" if short else "give their values"
        raise OptionError(
            f"expected a series to train on, got {'; '.join(warnings)}; {remedy}.",
            *(["split"] if short else []),
        )
    needed = (source.context_length or MIN_CONTEXT) + source.horizon
    for which, part in enumerate(PARTS):
        rows = [
            _window_rows(split, which, source.context_length or MIN_CONTEXT) for split in splits
        ]
        few = [one.name for one, count in zip(kept, rows, strict=True) if count < needed]
        if len(few) == len(kept) and (which < 2 or any(split.test for split in splits)):
            _check_windows(kept, splits, source, which)
        elif few and source.is_panel and any(split[which] for split in splits):
            warnings.append(f"series too short for a {part} window of {needed} rows: {_named(few)}")
    return SeriesPanel(kept[0].name, tuple(kept), tuple(splits), tuple(warnings))


def _window_rows(split: data.Split, which: int, length: int) -> int:
    """The rows that windows of a part may lie in: its own, and the context of the first one."""
    return split[which].stop - max(split[which].start - length, 0)


def _check_windows(
    series: Sequence[data.TimeSeries],
    splits: Sequence[data.Split],
    source: ForecastData,
    which: int,
) -> None:
    """Refuses series none of which has a window of a part; one to be chosen may be of 1 row."""
    length, horizon = source.context_length or 1, source.horizon
    one, split = max(zip(series, splits, strict=True), key=lambda pair: pair[0].num_steps)
    rows = _window_rows(split, which, length)
    if rows >= length + horizon:
        return

    def fits(count: int) -> bool:
        try:
            parts = data.chronological_split(count, source.split)
        except OptionError:
            return False
        tested = range(3 if parts.test else 2)
        return all(_window_rows(parts, each, length) >= length + horizon for each in tested)

    most = range(MAX_ROWS_PER_WINDOW * (length + horizon))
    total = bisect.bisect_left(most, True, key=fits)
    enough = f" ({total} rows in all)" if total < len(most) else ""
    whose = f", whose longest series {one.name}" if source.csv and len(series) > 1 else ""
    missing = length + horizon - rows
    given = f"context_length={length} and " if source.context_length else ""
    lower = "horizon or context_length" if source.context_length else "horizon"
    raise TooFewRowsError(
        f"{source.csv or one.name}{whose} has {one.num_steps} rows, of which split={source.split} "
        f"makes {len(split[which])} {PARTS[which]} rows; expected at least "
        f"{len(split[which]) + missing} for {given}horizon={horizon}{enough}; "
        f"give more rows, a smaller {lower}, or another split.",
        *(("horizon", "context_length") if source.context_length else ("horizon",)),
        "split",
    )


def read_series(
    source: ForecastData, channels: Sequence[str] | None = None
) -> tuple[data.TimeSeries, ...]:
    """The series of a file, each with its own times and length.

    With ``id_column`` those of a long table; with ``global_model`` each channel of a table, or
    series of a ``.tsf`` file, whose only channel is ``value``; else one. Channels are all by
    default.
    """
    split_up = source.global_model and not source.id_column
    if split_up or channels is None:
        channels = split_cells(source.channels) if source.channels else None
    if source.csv is None and source.id_column:
        raise OptionError("id_column is of a table; give one.", "id_column", "csv")
    series: tuple[data.TimeSeries, ...]
    if source.csv is None:
        whole = data.etth1()
        series = (whole if channels is None else whole.select(channels),)
    elif split_up and _is_tsf(source.csv):
        known = {one.name: one for one in data.load_tsf(source.csv)}
        for name in channels or ():
            if name not in known:
                raise OptionError(
                    f"unknown series {name!r}; {source.csv} has {itemize([*known])}",
                    "channels",
                )
        series = tuple(known[name] for name in (known if channels is None else channels))
    else:
        series = _read_table(source, source.csv, channels)
    if source.csv is not None:
        for one in series:
            _check_float32(source.csv, one)
    series = tuple(with_frequency(one, source.freq) for one in series)
    if not split_up:
        return series
    return tuple(
        dataclasses.replace(one.select([name]), name=name, channels=(VALUE,))
        for one in series
        for name in one.channels
    )


def with_frequency(series: data.TimeSeries, freq: str) -> data.TimeSeries:
    """A series with the frequency that the options give, if they do."""
    if not freq:
        return series
    if series.times is None:
        raise OptionError(
            f"{series.name}: freq is of rows with times, got none; name their column, or leave "
            "freq out.",
            "freq",
            "time_column",
        )
    given = dataclasses.replace(series, freq=parse_frequency(freq))
    if series.num_steps > 1 and not follows(series.index, given.freq).any():
        raise OptionError(
            f"{series.name}: expected rows that follow each other by the frequency {freq}, got "
            f"none; the times suggest {series.freq}.",
            "freq",
        )
    return given


def _read_table(
    source: ForecastData, path: Path, channels: Sequence[str] | None
) -> tuple[data.TimeSeries, ...]:
    reading: dict[str, Any] = {
        "channels": channels,
        "header": {"auto": None, "yes": True, "no": False}[source.header],
        "times": source.times,
        "resample": source.resample,
        "dialect": source.dialect,
    }
    try:
        if source.id_column:
            return data.load_long(path, id_column=source.id_column, **reading)
        return (data.load_series(path, **reading),)
    except OptionError as error:
        error.values["header"] = "yes|no"  # as the option has it
        unknown = isinstance(error, UnknownChannelError)
        if _is_tsf(path) and error.options == ("channels",) and not unknown:
            error.options = ("channels", "global_model")  # of series that differ
        if not source.id_column or "id_column" not in error.options:
            raise
        # A cell that is no number: the advice to name the column of ids was followed.
        text, _, _ = str(error).partition(", or that the column names the series")
        raise DataFormatError(
            f"{text}. Strings as static covariates are read by estimators.Forecaster alone; here "
            "give a column of 0 and 1 for each string.",
            *(name for name in error.options if name != "id_column"),
        ) from None


def _check_float32(path: Path, series: data.TimeSeries) -> None:
    """Raises ``OptionError`` for values beyond the range of float32."""
    if (beyond := np.argwhere(np.abs(series.values) > _MAX_FLOAT32)).size:
        row, channel = beyond[0].tolist()
        raise OptionError(
            f"{path}, {series.place(row)}: expected values up to {_MAX_FLOAT32:.2g}, the largest "
            f"of float32, got {series.values[row, channel]:g} for channel "
            f"{series.channels[channel]!r}; leave the cell empty if it stands for a missing value, "
            "or choose other channels.",
            "channels",
        )


def read_run_series(run: Run, file: Path | None = None) -> tuple[data.TimeSeries, ...]:
    """The series of a run's own file, or of another one, with the run's channels."""
    series = _read(run, file)
    for one in series:
        run.data_spec.check_fits(one)
    return series


def _read(run: Run, file: Path | None) -> tuple[data.TimeSeries, ...]:
    source = (run.config if file is None else run.config.replace(csv=file)).data
    with explain_missing_data(file is None):
        series = read_series(source, run.data_spec.channels)
    series = tuple(map(run.data_spec.in_zone, series))
    if source.csv is None or source.is_panel:
        return series
    # For messages: which of many files of that name.
    return tuple(dataclasses.replace(one, name=str(source.csv)) for one in series)


def own_panel(run: Run) -> SeriesPanel:
    """The series that a run was trained and tested on, split as they were."""
    if run.data is not None:
        panel: SeriesPanel = run.data
        return panel
    problems = run.data_spec.each
    series = _read(run, None)
    if run.data_spec.members:
        by_name = {one.name: one for one in series}
        names = [data_spec.dataset for data_spec in problems]
        series = tuple(by_name[name] for name in names if name in by_name)
    same = len(series) == len(problems) and all(
        compute_checksum(one, own.parts.test.stop) == own.checksum
        for one, own in zip(series, problems, strict=True)
    )
    if not same:
        rows = sum(one.num_steps for one in series)
        name = run.data_spec.dataset if run.data_spec.members else series[0].name
        raise OptionError(
            f"the data of the run have changed since ({name}, {rows} rows); restore them, or give "
            "other data to test on.",
            "test_file",
        )
    return SeriesPanel(run.data_spec.dataset, series, tuple(own.parts for own in problems))


def _is_tsf(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").removesuffix(".xz").endswith(".tsf")


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({itemize(names, MAX_NAMES)})"


def name_notes(notes: Sequence[tuple[str, list[str]]]) -> list[str]:
    """The notes on each series, with its name where there are several series."""
    if len(notes) == 1:
        return notes[0][1]
    odd = [(name, lines) for name, lines in notes if lines]
    found = [f"{name}: {line}" for name, lines in odd[:MAX_NAMES] for line in lines]
    if len(odd) > MAX_NAMES:
        found.append(f"of {len(odd) - MAX_NAMES} further series there is something to note as well")
    return found


def row_notes(series: data.TimeSeries, first: int = 0) -> list[str]:
    """Notes on repeated times, gaps and missing values, from a first row on."""
    found = []
    if (rows := series.repeated[series.repeated > first]).size:
        found.append(f"rows of the time of the row before: {_counted(series, rows)}")
    if (rows := series.gaps[series.gaps > first]).size:
        step = f"step {series.step}" if series.freq is None else f"frequency {series.freq}"
        found.append(f"rows that do not follow by the {step}: {_counted(series, rows)}")
    if num_missing := int(np.isnan(series.values[first:]).sum()):
        what = "missing values, which take the last known one and are not tested on"
        found.append(f"{what}: {num_missing}")
    return found


def notes_on(series: data.TimeSeries, stop: int) -> list[str]:
    """Notes on times, on missing values and what may stand for them, and on outliers."""
    found = []
    if series.time_zone is not None:
        zone, first = series.time_zone, series.index[0]
        hint = ""
        if zone == "UTC":
            hint = "; for local time, set timezone to a zone such as Europe/Berlin"
        found.append(f"times and the calendar are in the time zone {zone}, the first {first}{hint}")
    found += row_notes(series)
    still = [
        name
        for name, values in zip(series.channels, series.values.T, strict=True)
        if np.nanmin(values) == np.nanmax(values)
    ]
    if still:
        what = f"channels that never change ({itemize(still)}), of no use as targets"
        found.append(f"{what}: {len(still)}")
    if timed := _time_like(series):
        found.append(
            f"channels that look like times ({itemize(timed)}), which are read as numbers: "
            f"{len(timed)}; give the name as time_column where the channel holds the times"
        )
    codes = outliers.find_codes(series.values[:stop])
    if codes:
        places = [
            f"{series.channels[code.channel]!r} {code.value:g} {len(code.rows)} times, first in "
            f"{series.place(int(code.rows[0]))}"
            for code in codes
        ]
        found.append(
            f"values that repeat, apart from all others: {len(codes)} "
            f"({itemize(places, MAX_PLACES)}); say so with missing_values where one stands for a "
            "missing value"
        )
        values = series.values.copy()
        for code in codes:
            values[code.rows, code.channel] = np.nan
        series = dataclasses.replace(series, values=values)
    if few := _nearly_still(series, stop):
        found.append(f"channels of one value but for a few rows ({itemize(few)}): {len(few)}")
    flat = outliers.find_outliers(series.values[:stop])
    flattened = {tuple(place) for place in flat.tolist()}
    far = [p for p in outliers.find_far(series.values[:stop]).tolist() if tuple(p) not in flattened]
    for what, cells in (
        ("so far out that they flatten all others of their channel", flat.tolist()),
        (f"more than {outliers.DEVIATIONS:g} deviations from the median of their channel", far),
    ):
        if cells:
            found.append(
                f"values {what}: {len(cells)} "
                f"({itemize(_places(series, cells), MAX_PLACES)}); leave the cell empty where "
                "one stands for a missing value"
            )
    return found


def _time_like(series: data.TimeSeries) -> list[str]:
    """Channels of a series without times that rise and are named so, or count in equal steps."""
    if series.step is not None:
        return []
    channels = []
    for name, values in zip(series.channels, series.values.T, strict=True):
        steps = np.diff(values)
        named = name.lower() in (*TIME, YEAR_COLUMN) and pd.Series(values).is_monotonic_increasing
        if named or (len(steps) > 1 and steps[0] > 0 and (steps == steps[0]).all()):
            channels.append(name)
    return channels


def _counted(series: data.TimeSeries, rows: NDArray[np.int64]) -> str:
    """How many rows, and where and when the first are."""
    index = series.index
    places = [
        f"{series.place(row)}, {index[row]} after {index[row - 1]}"
        for row in rows[:MAX_PLACES].tolist()
    ]
    places += ["..."] * (len(rows) > MAX_PLACES)
    return f"{len(rows)} ({'; '.join(places)}); they are taken in order"


def _nearly_still(series: data.TimeSeries, stop: int) -> list[str]:
    """Those of the rows before ``stop``, with the place of their first other value."""
    return [
        f"{series.channels[found.channel]!r} {found.value:g} but for {len(found.rows)}, the first "
        f"{series.values[found.rows[0], found.channel]:g}, {series.place(int(found.rows[0]))}"
        for found in outliers.find_still(series.values[:stop])
    ]


def _places(series: data.TimeSeries, cells: list[list[int]]) -> list[str]:
    """Values by their rows and channels."""
    return [
        f"{series.channels[channel]!r} {series.values[row, channel]:g}, {series.place(row)}"
        for row, channel in cells
    ]
