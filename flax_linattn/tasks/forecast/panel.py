"""The series of a forecasting run: reading, splits in time, and notes on unusual data."""

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
from flax_linattn.checks import OptionError, format_count, itemize
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
"""Channel of a series that is a column of a table, or comes from a .tsf file."""
MAX_NAMES = 5
"""Maximum number of series that a note or an error names."""
MAX_PLACES = 3
"""Maximum number of rows that a note names."""
MAX_ROWS_PER_WINDOW = 100
"""An error names a sufficient number of rows up to this multiple of a window's rows."""
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
        low, high = min(lengths), max(lengths)
        rows = f"{'' if low == high else f'{low:,} to '}{format_count(high, 'row')}"
        if len(self.series) > 1:
            rows = f"{count_series([one.name for one in self.series])}, {rows} each"
        lines = [f"{self.name}: {rows}, channels {itemize(channels, 8)}"]
        timed = [(one, times) for one in self.series if (times := one.row_times) is not None]
        if timed:
            first, last = min(t[0] for _, t in timed), max(t[-1] for _, t in timed)
            kind = "step" if timed[0][0].has_integer_times else "frequency"
            lines.append(f"from {first} to {last}, {kind} {timed[0][0].step}")
        parts = ", ".join(f"{name} {len(rows)}" for name, rows in self.split._asdict().items())
        return "\n".join([*lines, f"rows: {parts}"])

    @property
    def notes(self) -> list[str]:
        """The warnings, and notes on unusual times and values of each series."""
        pairs = zip(self.series, self.splits, strict=True)
        by_series = [(one.name, notes_on(one, split.test.stop)) for one, split in pairs]
        return [*self.warnings, *name_notes(by_series)]


def load_panel(config: ForecastConfig) -> SeriesPanel:
    """Reads the series of a run and splits them; series without training values are excluded."""
    source = config.data
    data.chronological_split(10**15, source.split)  # refuses a split that fits no series at all

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
    """Makes a panel of series and their splits; series without training values are excluded."""
    usable, splits, short, empty = [], [], [], []
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
        usable.append(one)
        splits.append(split)
    warnings = [
        f"excluded {count_series(names)} {why}"
        for why, names in (
            (f"with fewer rows than split={source.split!r} needs", short),
            ("with a channel that has no value in the training rows", empty),
        )
        if names
    ]
    if not usable:
        remedy = "add rows, or choose another split" if short else "add the missing values"
        raise OptionError(
            f"expected at least one series to train on, but {' and '.join(warnings)}; {remedy}.",
            *(["split"] if short else []),
        )
    needed = (source.context_length or MIN_CONTEXT) + source.horizon
    for which, part in enumerate(PARTS):
        rows = [
            _window_rows(split, which, source.context_length or MIN_CONTEXT) for split in splits
        ]
        few = [one.name for one, count in zip(usable, rows, strict=True) if count < needed]
        if len(few) == len(usable) and (which < 2 or any(split.test for split in splits)):
            _check_windows(usable, splits, source, which)
        elif few and source.is_panel and any(split[which] for split in splits):
            warnings.append(f"{count_series(few)} too short for a {part} window of {needed} rows")
    return SeriesPanel(usable[0].name, tuple(usable), tuple(splits), tuple(warnings))


def _window_rows(split: data.Split, which: int, length: int) -> int:
    """The number of rows for windows of a part: its own, and the context of its first row."""
    return split[which].stop - max(split[which].start - length, 0)


def _check_windows(
    series: Sequence[data.TimeSeries],
    splits: Sequence[data.Split],
    source: ForecastData,
    which: int,
) -> None:
    """Refuses a panel without any window of a part; an automatic context may have one row."""
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

    counts = range(MAX_ROWS_PER_WINDOW * (length + horizon))
    total = bisect.bisect_left(counts, True, key=fits)
    enough = f" ({total} rows in all)" if total < len(counts) else ""
    whose = f"the longest series of {source.csv}, " if source.csv and len(series) > 1 else ""
    name = one.name if whose else source.csv or one.name
    missing = length + horizon - rows
    given = f"context_length={length} and " if source.context_length else ""
    lower = "horizon or context_length" if source.context_length else "horizon"
    raise TooFewRowsError(
        f"{whose}{name}: expected at least {len(split[which]) + missing} {PARTS[which]} rows for "
        f"{given}horizon={horizon}{enough}, got {len(split[which])} by split={source.split!r} of "
        f"{format_count(one.num_steps, 'row')}; add rows, lower {lower}, or choose another split.",
        *(("horizon", "context_length") if source.context_length else ("horizon",)),
        "split",
    )


def read_series(
    source: ForecastData, channels: Sequence[str] | None = None
) -> tuple[data.TimeSeries, ...]:
    """Reads the series of a file, each with its own times and length.

    A long table has a series for each id in ``id_column``. With ``global_model``, each column of a
    table and each series of a ``.tsf`` file is a series whose only channel is ``value``. Any other
    file is one series. ``channels`` defaults to all channels.
    """
    split_up = source.global_model and not source.id_column
    if split_up or channels is None:
        channels = split_cells(source.channels) if source.channels else None
    if source.csv is None and source.id_column:
        raise OptionError(
            f"id_column={source.id_column!r} needs a table, and the embedded ETTh1 has no such "
            "column; set csv=..., or remove id_column.",
            "id_column",
            "csv",
        )
    series: tuple[data.TimeSeries, ...]
    if source.csv is None:
        whole = data.etth1()
        series = (whole if channels is None else whole.select(channels),)
    elif split_up and _is_tsf(source.csv):
        known = {one.name: one for one in data.load_tsf(source.csv)}
        for name in channels or ():
            if name not in known:
                raise OptionError(
                    f"{source.csv}: unknown series {name!r}; choose among {itemize([*known])}.",
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
    """A series with the frequency ``freq``, or unchanged if ``freq`` is empty."""
    if not freq:
        return series
    if series.times is None:
        raise OptionError(
            f"{series.name}: freq={freq!r} needs rows with times, got rows without times; name the "
            "column of times with time_column=..., or remove freq.",
            "freq",
            "time_column",
        )
    given = dataclasses.replace(series, freq=parse_frequency(freq))
    if series.num_steps > 1 and not follows(series.index, given.freq).any():
        raise OptionError(
            f"{series.name}: expected rows at the frequency {freq}, got no two consecutive rows "
            f"at it; set freq={series.freq!r}, which the times suggest, or remove freq.",
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
        if "time_column" in error.options:  # a cell that is no time
            error.options = tuple(name for name in error.options if name != "id_column")
            raise
        # A cell that is no number, in a table whose column of ids is already named.
        text, _, _ = str(error).partition(", or that the column names the series")
        raise DataFormatError(
            f"{text}. Only estimators.Forecaster reads strings as static covariates; for the "
            "command line, replace the column by one column of 0 and 1 for each string.",
            *(name for name in error.options if name != "id_column"),
        ) from None


def _check_float32(path: Path, series: data.TimeSeries) -> None:
    """Raises ``OptionError`` for values beyond the range of float32."""
    if (beyond := np.argwhere(np.abs(series.values) > _MAX_FLOAT32)).size:
        row, channel = beyond[0].tolist()
        raise OptionError(
            f"{path}, {series.place(row)}: expected values up to {_MAX_FLOAT32:.2g} (the maximum "
            f"of float32), got {series.values[row, channel]:g} in channel "
            f"{series.channels[channel]!r}; leave the cell empty if it is a missing value, or "
            "choose other channels.",
            "channels",
        )


def read_run_series(run: Run, file: Path | None = None) -> tuple[data.TimeSeries, ...]:
    """Reads the channels of a run from its own file, or from another one."""
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
    # Messages name the path, since files in many folders may have the same name.
    return tuple(dataclasses.replace(one, name=str(source.csv)) for one in series)


def own_panel(run: Run) -> SeriesPanel:
    """The series that a run was trained and tested on, split as they were."""
    if run.data is not None:
        panel: SeriesPanel = run.data
        return panel
    data_specs = run.data_spec.each
    series = _read(run, None)
    if run.data_spec.members:
        by_name = {one.name: one for one in series}
        names = [data_spec.dataset for data_spec in data_specs]
        series = tuple(by_name[name] for name in names if name in by_name)
    same = len(series) == len(data_specs) and all(
        compute_checksum(one, own.parts.test.stop) == own.checksum
        for one, own in zip(series, data_specs, strict=True)
    )
    if not same:
        rows = sum(one.num_steps for one in series)
        name = run.data_spec.dataset if run.data_spec.members else series[0].name
        raise OptionError(
            f"the data of the run ({name}, now {rows} rows) have changed since training; restore "
            "the file, or pass other data to test on.",
            "test_file",
        )
    return SeriesPanel(run.data_spec.dataset, series, tuple(own.parts for own in data_specs))


def _is_tsf(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").removesuffix(".xz").endswith(".tsf")


def count_series(names: Sequence[str]) -> str:
    """The number of series and the first names.

    Example:
        >>> count_series(["a", "b"])
        '2 series (a, b)'
    """
    return f"{len(names)} series ({itemize(names, MAX_NAMES)})"


def name_notes(notes: Sequence[tuple[str, list[str]]]) -> list[str]:
    """The notes on each series; if there are several series, each note begins with the name."""
    if len(notes) == 1:
        return notes[0][1]
    noted = [(name, lines) for name, lines in notes if lines]
    named = [f"{name}: {line}" for name, lines in noted[:MAX_NAMES] for line in lines]
    if len(noted) > MAX_NAMES:
        named.append(f"{len(noted) - MAX_NAMES} more series have similar notes, which are omitted")
    return named


def row_notes(series: data.TimeSeries, first: int = 0) -> list[str]:
    """Notes on repeated times, gaps and missing values, from a first row on."""
    notes = []
    if (rows := series.repeated[series.repeated > first]).size:
        notes.append(f"rows with the same time as the row before: {_list_rows(series, rows)}")
    if (rows := series.gaps[series.gaps > first]).size:
        step = f"step {series.step}" if series.freq is None else f"frequency {series.freq}"
        notes.append(f"rows that break the {step}: {_list_rows(series, rows)}")
    if num_missing := int(np.isnan(series.values[first:]).sum()):
        notes.append(
            f"missing values: {num_missing}; each is replaced by the last known value of its "
            "channel, and excluded from test errors"
        )
    return notes


def notes_on(series: data.TimeSeries, stop: int) -> list[str]:
    """Notes on times, missing values, possible missing-value codes, and outliers."""
    notes = []
    if series.time_zone is not None:
        zone, first = series.time_zone, series.index[0]
        hint = ""
        if zone == "UTC":
            hint = "; for local time, set timezone to a zone such as Europe/Berlin"
        notes.append(f"times and time features are in the time zone {zone}, from {first} on{hint}")
    notes += row_notes(series)
    constant = [
        name
        for name, values in zip(series.channels, series.values.T, strict=True)
        if np.nanmin(values) == np.nanmax(values)
    ]
    if constant:
        notes.append(
            f"constant channels ({itemize(constant)}): {len(constant)}; choose other targets"
        )
    if timed := _time_like(series):
        notes.append(
            f"channels that look like times ({itemize(timed)}) but are read as values: "
            f"{len(timed)}; if one holds the times, name it with time_column"
        )
    codes = outliers.find_codes(series.values[:stop])
    if codes:
        places = [
            f"{code.value:g} in {series.channels[code.channel]!r}, "
            f"{format_count(len(code.rows), 'time')}, first in {series.place(int(code.rows[0]))}"
            for code in codes
        ]
        notes.append(
            f"repeated values far from all others: {len(codes)} ({itemize(places, MAX_PLACES)}); "
            "if one is a code for missing values, name it with missing_values"
        )
        values = series.values.copy()
        for code in codes:
            values[code.rows, code.channel] = np.nan
        series = dataclasses.replace(series, values=values)
    if few := _nearly_constant(series, stop):
        notes.append(
            f"channels with the same value in all but a few rows ({itemize(few)}): {len(few)}"
        )
    flat = outliers.find_outliers(series.values[:stop])
    flattened = {tuple(place) for place in flat.tolist()}
    far = [p for p in outliers.find_far(series.values[:stop]).tolist() if tuple(p) not in flattened]
    for what, cells in (
        ("so large that scaling flattens all other values of their channel", flat.tolist()),
        (
            f"more than {outliers.MIN_STDS_FROM_MEDIAN:g} standard deviations from the median of "
            "their channel",
            far,
        ),
    ):
        if cells:
            notes.append(
                f"values {what}: {len(cells)} "
                f"({itemize(_places(series, cells), MAX_PLACES)}); leave the cell empty if one "
                "is a missing value"
            )
    return notes


def _time_like(series: data.TimeSeries) -> list[str]:
    """Channels of a series without times that look like times, by name or by equal steps."""
    if series.step is not None:
        return []
    channels = []
    for name, values in zip(series.channels, series.values.T, strict=True):
        steps = np.diff(values)
        named = name.lower() in (*TIME, YEAR_COLUMN) and pd.Series(values).is_monotonic_increasing
        if named or (len(steps) > 1 and steps[0] > 0 and (steps == steps[0]).all()):
            channels.append(name)
    return channels


def _list_rows(series: data.TimeSeries, rows: NDArray[np.int64]) -> str:
    """The number of rows, and the places and times of the first ones."""
    index = series.index
    places = [
        f"{series.place(row)}, {index[row]} after {index[row - 1]}"
        for row in rows[:MAX_PLACES].tolist()
    ]
    places += ["..."] * (len(rows) > MAX_PLACES)
    return f"{len(rows)} ({'; '.join(places)}); the rows are used in their order"


def _nearly_constant(series: data.TimeSeries, stop: int) -> list[str]:
    """Channels with one value in nearly all rows before ``stop``, and their first other value."""
    return [
        f"{series.channels[one.channel]!r} is {one.value:g} in all but "
        f"{format_count(len(one.rows), 'row')}, first "
        f"{series.values[one.rows[0], one.channel]:g} in {series.place(int(one.rows[0]))}"
        for one in outliers.find_still(series.values[:stop])
    ]


def _places(series: data.TimeSeries, cells: list[list[int]]) -> list[str]:
    """Outliers [row, channel], each with its value, channel and row."""
    return [
        f"{series.values[row, channel]:g} in {series.channels[channel]!r}, {series.place(row)}"
        for row, channel in cells
    ]
