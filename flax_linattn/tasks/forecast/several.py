"""Several series that one model learns from: read, described, scaled, cut into windows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import split_cells
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.forecast.data import (
    as_pairs,
    calendar_of,
    check_float32,
    checksum_of,
    fit_standardizer,
    known_of,
    load_data,
    marks_of,
    reading_of,
    standardize,
    static_of,
    step_seconds,
    targets_of,
)
from flax_linattn.tasks.forecast.notes import notes
from flax_linattn.tasks.forecast.options import ForecastConfig, ForecastData
from flax_linattn.tasks.forecast.problem import ForecastProblem, Member

VALUE = "value"
"""The channel of series that a file names one by one."""
PARTS = ("training", "validation", "test")
SHOWN = 5
"""Series that a note or an error names."""


class Several(NamedTuple):
    """The data of a run on several series.

    Attributes:
        name: of the data.
        series: those that the model learns from, or is tested on.
        splits: their rows of each part.
        told: what there is to say of those left out, or too short for windows.
    """

    name: str
    series: tuple[data.TimeSeries, ...]
    splits: tuple[data.Split, ...]
    told: tuple[str, ...] = ()


class SeveralWindows(data.Windows):
    """Windows of several series, each scaled by its own training rows.

    Args:
        problems: of each series, see ``ForecastProblem.of_series``.
        arrays: of all of them, one behind the other.
        rows: as ``data.Windows`` has them; so all further arguments.
        config: the run's options.
        seed: as there.
        stride: as there.
        begins: as there.

    Attributes:
        problems: as given.
    """

    def __init__(
        self,
        problems: Sequence[ForecastProblem],
        arrays: dict[str, NDArray],
        rows: Sequence[range],
        config: ForecastConfig,
        *,
        seed: int | None,
        stride: int = 1,
        begins: Sequence[int],
    ) -> None:
        self.problems = tuple(problems)
        super().__init__(
            arrays,
            rows,
            input_length=config.data.input_length,
            horizon=config.data.horizon,
            stride=stride,
            batch_size=config.fit.batch_size,
            seed=seed,
            begins=begins,
        )


def load_series_of(
    source: ForecastData, channels: Sequence[str] | None = None
) -> tuple[data.TimeSeries, ...]:
    """The series of a file, each with its own times and length.

    Args:
        source: with ``id_column``, those of a long table; else each channel of a table and each
            series of a ``.tsf`` file is one, whose only channel is ``value``.
        channels: to read of a long table; default those that the options choose.

    Raises:
        ValueError: a damaged file, an unknown series or channel, or a value beyond float32.
        FileNotFoundError: there is no such file.
    """
    chosen = split_cells(source.channels) if source.channels else None
    if source.id_column:
        if source.csv is None:
            raise OptionError("id_column is of a table; give one.", "id_column", "csv")
        named = channels if channels is not None else chosen
        series = data.load_long(
            source.csv,
            id_column=source.id_column,
            channels=named,
            **reading_of(source),
        )
    elif source.csv is not None and _is_tsf(source.csv):
        series = data.load_tsf(source.csv)
        if chosen is not None:
            known = {one.name: one for one in series}
            for name in chosen:
                if name not in known:
                    raise OptionError(
                        f"unknown series {name!r}; {source.csv} has {listed([*known])}", "channels"
                    )
            series = tuple(known[name] for name in chosen)
        series = tuple(dataclasses.replace(one, channels=(VALUE,)) for one in series)
    else:
        table = load_data(source)
        series = tuple(
            dataclasses.replace(table.select([name]), name=name, channels=(VALUE,))
            for name in table.channels
        )
    if source.csv is not None:
        for one in series:
            check_float32(source.csv, one)
    return series


def load_one_of(source: ForecastData, problem: ForecastProblem) -> data.TimeSeries:
    """The series that a problem of one of several is of.

    Raises:
        ValueError: as ``load_series_of``, or the file has no such series.
    """
    series = load_series_of(source, None if problem.channels == (VALUE,) else problem.channels)
    for one in series:
        if one.name == problem.dataset:
            return one
    names = _named([one.name for one in series])
    raise ValueError(
        f"expected a series {shown(problem.dataset)}, got {names}; choose one of these."
    )


def load_several(config: ForecastConfig) -> Several:
    """The series of a run, and their parts; such without a training value are left out.

    Raises:
        ValueError: as ``load_series_of``, or there is none left.
    """
    source = config.data
    data.chronological_split(10**15, source.split)  # what is wrong with it as such
    kept, splits, short, empty = [], [], [], []
    for series in load_series_of(source):
        try:
            split = data.chronological_split(series.num_steps, source.split)
        except OptionError:
            short.append(series.name)
            continue
        train = series.values[: split.train.stop]
        if np.isnan(train).all(axis=0).any():
            empty.append(series.name)
        else:
            kept.append(series)
            splits.append(split)
    told = [
        f"series {what}, which are left out: {_named(names)}"
        for what, names in (
            (f"with fewer rows than split ({source.split}) needs", short),
            ("of which a channel has no value in the training rows", empty),
        )
        if names
    ]
    if not kept:
        raise OptionError(
            f"expected a series to train on, got {'; '.join(told)}; give more rows, or another "
            "split.",
            "split",
        )
    needed = source.input_length + source.horizon
    for which, part in enumerate(PARTS):
        few = [
            series.name
            for series, split in zip(kept, splits, strict=True)
            if split[which].stop - max(split[which].start - source.input_length, 0) < needed
        ]
        if few:
            told.append(f"series too short for a {part} window of {needed} rows: {_named(few)}")
    name = "ETTh1" if source.csv is None else source.csv.name.split(".")[0]
    return Several(name, tuple(kept), tuple(splits), tuple(told))


def describe_several(several: Several, config: ForecastConfig) -> ForecastProblem:
    """What a run has to know of its series: each one's scale is that of its training rows.

    Of columns that are known for the horizon it is that of all of them.

    Raises:
        ValueError: an unknown target, or series whose rows are not equally far apart.
    """
    source, first = config.data, several.series[0]
    steps = {one.name: step_seconds(one) for one in several.series}
    usual = next((step for step in steps.values() if step is not None), None)
    for name, step in steps.items():
        if step is not None and usual is not None and not data.is_step(step, usual):
            raise ValueError(
                f"expected series whose rows are {usual:g} s apart, as those of the first, got "
                f"{step:g} s in {name}; train a model for each kind."
            )
    marks = marks_of(next((one for one in several.series if one.step is not None), first), source)
    if any(one.times is None for one in several.series):
        marks = ()
    scales = [
        fit_standardizer(one, split)
        for one, split in zip(several.series, several.splits, strict=True)
    ]
    known = known_of(first, source)
    scales = shared_scale(scales, several, known)
    problem = ForecastProblem(
        dataset=several.name,
        channels=first.channels,
        targets=targets_of(first, source),
        known_future=known,
        static=static_of(_train_values(several), known),
        step_seconds=usual,
        marks=marks,
        calendar=calendar_of(several.series, source),
        standardizer=data.Standardizer(
            np.median([scale.mean for scale in scales], axis=0),
            np.median([scale.std for scale in scales], axis=0),
        ),
        split=_rows_in_all(several.splits),
        checksum=checksum(
            array
            for one, split in zip(several.series, several.splits, strict=True)
            for array in (one.values[: split.test.stop], _times_of(one)[: split.test.stop])
        ),
        utc=None if first.times is None else first.utc,
    )
    season = source.season or problem.season
    targets = list(problem.targets)
    members = []
    for one, split, scale in zip(several.series, several.splits, scales, strict=True):
        train = one.values[split.train.start : split.train.stop, targets]
        member = Member(
            name=one.name,
            mean=tuple(scale.mean.tolist()),
            std=tuple(scale.std.tolist()),
            split=as_pairs(split),
            seasonal=seasonal_scale(train, season),
            checksum=checksum_of(one, split.test.stop),
        )
        members.append(member)
    return dataclasses.replace(problem, members=tuple(members))


def shared_scale(
    scales: Sequence[data.Standardizer], several: Several, channels: Sequence[int]
) -> list[data.Standardizer]:
    """Scales of which these channels have that of the training rows of all series together.

    What is known for the horizon is compared between series, and may be one number in each of them,
    such as the size of a shop, of which a scale of its own would leave nothing.
    """
    which = list(channels)
    if not which:
        return list(scales)
    rows = [
        dataclasses.replace(one, values=values, times=None).fill_forward()
        for one, values in zip(several.series, _train_values(several), strict=True)
    ]
    pooled = data.Standardizer.fit([one.values[:, which] for one in rows], ddof=0)
    return [_with_scale(scale, pooled, which) for scale in scales]


def _train_values(several: Several) -> list[NDArray[np.float64]]:
    each = zip(several.series, several.splits, strict=True)
    return [one.values[: split.train.stop] for one, split in each]


def _with_scale(
    scale: data.Standardizer, of_channels: data.Standardizer, channels: Sequence[int]
) -> data.Standardizer:
    mean, std = scale.mean.copy(), scale.std.copy()
    mean[list(channels)], std[list(channels)] = of_channels.mean, of_channels.std
    return data.Standardizer(mean, std)


def seasonal_scale(values: NDArray[np.float64], season: int) -> tuple[float | None, ...]:
    """What MASE divides by (Hyndman and Koehler, 2006): mean absolute seasonal differences.

    Where there is no such pair of known values, neighbours stand in, as in the Monash archive.

    Args:
        values: float64 [T, C], of the training rows; NaN = missing.
        season: rows.

    Returns:
        One a channel; None where there is no difference, or none but 0.

    Example:
        >>> seasonal_scale(np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]]), season=2)
        (1.0, None)
        >>> seasonal_scale(np.array([[1.0], [3.0]]), season=24)
        (2.0,)
    """
    scales: list[float | None] = []
    for channel in values.T:
        scale = None
        for lag in (season, 1):
            differences = np.abs(channel[lag:] - channel[:-lag])
            differences = differences[~np.isnan(differences)]
            if differences.size:
                scale = float(differences.mean()) or None
                break
        scales.append(scale)
    return tuple(scales)


def stack(
    series: Sequence[data.TimeSeries], problems: Sequence[ForecastProblem]
) -> tuple[dict[str, NDArray], list[int]]:
    """What a model sees of series, one behind the other, and where each begins."""
    of_each = [standardize(one, own) for one, own in zip(series, problems, strict=True)]
    if any("known" in arrays for arrays in of_each):
        for arrays in of_each:
            arrays.setdefault("known", np.ones(arrays["values"].shape, np.bool_))
    joined = {name: np.concatenate([a[name] for a in of_each]) for name in of_each[0]}
    begins = np.cumsum([0, *(one.num_steps for one in series)])[:-1]
    return joined, begins.tolist()


def several_splits(
    several: Several, config: ForecastConfig, problem: ForecastProblem
) -> list[SeveralWindows]:
    """Windows whose horizons lie in each part of each series.

    Raises:
        ValueError: no series has a window of a part.
    """
    problems = [problem.of_series(one.name) for one in several.series]
    arrays, begins = stack(several.series, problems)
    parts = []
    for which, part in enumerate(PARTS):
        rows = [
            range(begin + split[which].start, begin + split[which].stop)
            for begin, split in zip(begins, several.splits, strict=True)
        ]
        try:
            parts.append(
                SeveralWindows(
                    problems,
                    arrays,
                    rows,
                    config,
                    seed=config.seed if which == 0 else None,
                    stride=config.data.stride if part != "test" else 1,
                    begins=begins,
                )
            )
        except ValueError as error:
            raise OptionError(
                f"too few {part} rows: {error}; they depend on split ({config.data.split}), "
                f"input_length ({config.data.input_length}) and horizon ({config.data.horizon}).",
                "split",
                "input_length",
                "horizon",
            ) from None
    return parts


def other_windows(
    series: Sequence[data.TimeSeries], config: ForecastConfig, problem: ForecastProblem
) -> SeveralWindows:
    """Windows of all rows of series from another file.

    One that the run knows by name has its scale; of another the scale is that of its first
    ``input_length`` rows, which no window forecasts.

    Raises:
        ValueError: none has enough rows.
    """
    known = {member.name for member in problem.members}
    problems = [
        problem.of_series(one.name)
        if one.name in known
        else of_history(problem, one, config.data.input_length)
        for one in series
    ]
    arrays, begins = stack(series, problems)
    rows = [range(b, b + one.num_steps) for b, one in zip(begins, series, strict=True)]
    return SeveralWindows(problems, arrays, rows, config, seed=None, begins=begins)


def of_history(
    problem: ForecastProblem, series: data.TimeSeries, length: int | None = None
) -> ForecastProblem:
    """The problem of a series: if the run never saw it, the scale is that of its first rows.

    Args:
        problem: of a run on several series.
        series: what is known of it.
        length: how many of its rows give the scale; default all.

    Returns:
        That of a channel without a value in them is the median of the run's series.
    """
    if any(member.name == series.name for member in problem.members):
        return problem.of_series(series.name)
    values = series.values[:length]
    empty = np.isnan(values).all(axis=0)
    values = np.where(empty, 0.0, values)
    rows = dataclasses.replace(series, values=values, times=None)
    found = data.Standardizer.fit([rows.fill_forward().values], ddof=0)
    usual = problem.standardizer
    scale = data.Standardizer(
        np.where(empty, usual.mean, found.mean), np.where(empty, usual.std, found.std)
    )
    which = list(problem.known_future)
    shared = data.Standardizer(usual.mean[which], usual.std[which])
    return problem.of_series(series.name, _with_scale(scale, shared, which))


def about_several(several: Several) -> str:
    """How many series and rows there are."""
    lengths = [one.num_steps for one in several.series]
    channels = several.series[0].channels
    lines = [
        f"{several.name}: series {_named([one.name for one in several.series])} "
        f"of {min(lengths)} to {max(lengths)} rows of {', '.join(channels[:8])}"
        + (f" and {len(channels) - 8} more" if len(channels) > 8 else "")
    ]
    times = [one.times for one in several.series if one.times is not None]
    if times:
        lines.append(
            f"from {min(t[0] for t in times)} to {max(t[-1] for t in times)}, usually every "
            f"{several.series[0].step}"
        )
    totals = np.sum([[len(part) for part in split] for split in several.splits], axis=0)
    parts = ", ".join(
        f"{name} {count}" for name, count in zip(data.Split._fields, totals, strict=True)
    )
    return "\n".join([*lines, f"rows: {parts}"])


def notes_on_several(several: Several) -> list[str]:
    """What is left out, series too short for windows, and what of single series is odd."""
    found = list(several.told)
    of_each = [
        (one.name, notes(one, split.test.stop))
        for one, split in zip(several.series, several.splits, strict=True)
    ]
    odd = [(name, told) for name, told in of_each if told]
    found += [f"{name}: {line}" for name, told in odd[:SHOWN] for line in told]
    if len(odd) > SHOWN:
        found.append(f"of {len(odd) - SHOWN} further series there is something to note as well")
    return found


def _is_tsf(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").removesuffix(".xz").endswith(".tsf")


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({listed(names, SHOWN)})"


def _times_of(series: data.TimeSeries) -> NDArray:
    return np.zeros(0, "M8[s]") if series.times is None else series.times


def _rows_in_all(splits: Sequence[data.Split]) -> tuple[tuple[int, int], ...]:
    counts = np.sum([[len(part) for part in split] for split in splits], axis=0)
    ends = np.cumsum([0, *counts]).tolist()
    return tuple(itertools.pairwise(ends))
