"""Data spec of a forecasting run: names, scales, calendar, checksums."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import (
    OptionError,
    check_choice,
    check_integers,
    check_same_length,
    itemize,
)
from flax_linattn.data.series.frames import NIXTLA_ID
from flax_linattn.data.series.time_features import CIRCLES
from flax_linattn.data.tables.cells import split_cells
from flax_linattn.data.tables.time_index import (
    infer_frequency,
    integer_step,
    parse_frequency,
    same_step,
    season_length,
)
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.forecast.options import ForecastConfig, ForecastData
from flax_linattn.tasks.forecast.rows import TimeKind
from flax_linattn.tasks.spec import DataSpec, omit_if_empty

if TYPE_CHECKING:
    from flax_linattn.tasks.forecast.panel import SeriesPanel

PARTS = ("training", "validation", "test")
NIXTLA_TARGET = "y"
"""The only target of a panel whose series ``unique_id`` names, as in Nixtla's libraries."""


@dataclasses.dataclass(frozen=True)
class SeriesInfo:
    """A training series of a panel: scale of each channel, split, and MASE divisors.

    Attributes:
        name: Name of the series.
        mean: Mean of each channel over the training rows.
        std: Standard deviation of each channel over the training rows.
        split: First and last row, exclusive, of the training, validation and test rows.
        seasonal: Divisor of MASE of each target, see ``seasonal_scale``; None if undefined.
        checksum: Checksum of the rows of the split.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    split: tuple[tuple[int, int], ...]
    seasonal: tuple[float | None, ...]
    checksum: str


@dataclasses.dataclass(frozen=True)
class ForecastSpec(DataSpec):
    """Metadata of the training data, saved in the run folder; a run needs no training data.

    Attributes:
        dataset: Name of the data set.
        channels: Names of the observed channels.
        targets: Indices of the channels to forecast.
        freq: Frequency of the rows (``data.tables.time_index``); None for rows without times.
        integer_step: Usual difference of integer times; None if rows have none.
        time_features: Names of the time features that the model receives.
        standardizer: Mean and standard deviation of each channel over the training rows.
        split: Rows of the training, validation and test part, [begin, end) each.
        checksum: Checksum of the rows of the split.
        members: Training series of a panel; empty for a run on one series. With members, the
            standardizer is the median of their scales, which scales an unknown series, and the
            split counts the rows of all series.
        time_zone: Time zone of the times; None without times, or without a known zone.
        missing_flags: Whether missing-value flags are inputs of the model.
        known_future: Indices of the known future covariates.
        static: Indices of the known future covariates that are constant in the training rows of
            each series.
        calendar: Time features that the model receives for the horizon, too, each as two inputs
            after the channels, see ``data.calendar_circles``.
        time_name: Name of the column of times in the training data; None if it has none.
    """

    dataset: str
    channels: tuple[str, ...]
    targets: tuple[int, ...]
    freq: str | None
    time_features: tuple[str, ...]
    standardizer: data.Standardizer
    split: tuple[tuple[int, int], ...]
    checksum: str
    members: tuple[SeriesInfo, ...] = omit_if_empty()
    time_zone: str | None = None
    missing_flags: bool = False
    known_future: tuple[int, ...] = ()
    static: tuple[int, ...] = omit_if_empty()
    integer_step: int | None = omit_if_empty(None)
    calendar: tuple[str, ...] = omit_if_empty()
    time_name: str | None = omit_if_empty(None, compare=False)
    scale_fields: ClassVar[tuple[str, ...]] = ("standardizer",)
    free_fields: ClassVar[tuple[str, ...]] = (
        *("dataset", "freq", "split", "checksum", "members", "time_zone"),
        *("missing_flags", "static", "integer_step", "time_name"),
    )
    json_keys = MappingProxyType({"time_features": "marks", "missing_flags": "tells_missing"})

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """Combines this spec with that of a previous run: its scales, frequency and missing flags.

        A series of the previous run has the scale of that run. A new series has its own scale,
        except for known future covariates, whose scale all series share.

        Raises:
            OptionError: If the data do not match (see ``DataSpec``), the rows have another
                frequency, or the time features another time zone.
        """
        spec = super().continue_from(previous, refit_scales=refit_scales)
        same_freq = not (self.freq and previous.freq) or same_step(self.freq, previous.freq)
        needs_zone = bool(self.time_features or self.calendar)
        same_zone = not needs_zone or self.time_zone == previous.time_zone
        for name, fits in (("freq", same_freq), ("time_zone", same_zone)):
            if not fits:
                raise self.mismatch_error(previous, name)
        known = {info.name: info for info in previous.members}
        scale, members = spec.standardizer, list(spec.members)
        if not refit_scales and not members:
            scale = previous.select_series(self.dataset).standardizer
        for index, info in enumerate(() if refit_scales else spec.members):
            own = known.get(info.name, info)
            mean, std = list(own.mean), list(own.std)
            if own is info:  # all series share the scale of known future covariates
                for which in self.known_future:
                    mean[which] = float(scale.mean[which])
                    std[which] = float(scale.std[which])
            members[index] = dataclasses.replace(info, mean=tuple(mean), std=tuple(std))
        return dataclasses.replace(
            spec,
            freq=previous.freq or self.freq,
            standardizer=scale,
            members=tuple(members),
            time_zone=previous.time_zone,
            missing_flags=previous.missing_flags,
        )

    @property
    def time_kind(self) -> TimeKind | None:
        """Kind of the times of the rows; None without times, or for a single row."""
        if self.integer_step is not None:
            return "integer"
        if self.freq is None:
            return None
        return "local" if self.time_zone is None else "zoned"

    @property
    def observation(self) -> jax.ShapeDtypeStruct | None:
        """Shape and dtype of an input: channels, flags and time features; None if it varies."""
        if self.known_inputs:  # their number depends on the horizon
            return None
        width = self.num_inputs + self.num_flags + len(self.time_features)
        return jax.ShapeDtypeStruct((1, width), jnp.float32)

    @property
    def num_inputs(self) -> int:
        """Number of channels, and of the circles of ``calendar`` after them."""
        return len(self.channels) + 2 * len(self.calendar)

    @property
    def known_inputs(self) -> tuple[int, ...]:
        """Indices of the inputs that are known for the horizon: channels, and ``calendar``."""
        return (*self.known_future, *range(len(self.channels), self.num_inputs))

    @property
    def num_flags(self) -> int:
        """Number of inputs that flag missing values."""
        return self.num_inputs if self.missing_flags else 0

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the channels to forecast."""
        return tuple(self.channels[index] for index in self.targets)

    @property
    def season(self) -> int:
        """Rows of a day, of a week of daily rows, or of a year; 1 if rows have no times."""
        return season_length(self.freq)

    @property
    def parts(self) -> data.Split:
        """The rows of ``split`` as ranges of training, validation and test."""
        return data.Split(*(range(begin, end) for begin, end in self.split))

    @property
    def each(self) -> tuple[Self, ...]:
        """The data spec of each series that the run learned from."""
        return tuple(self.select_series(info.name) for info in self.members) or (self,)

    def in_units(self, standardized: NDArray) -> NDArray[np.float64]:
        """Standardized targets [H, targets], or [H, targets, 1 + Q], in the units of the file."""
        targets = list(self.targets)
        std, mean = self.standardizer.std[targets], self.standardizer.mean[targets]
        if standardized.ndim == 3:
            std, mean = std[:, None], mean[:, None]
        return standardized * std + mean

    def select_series(self, name: str, standardizer: data.Standardizer | None = None) -> Self:
        """The data spec of one series of a panel; unchanged for a run on one series.

        Args:
            name: Name of the series, which may be unknown to the run.
            standardizer: Scale of an unknown series; default the median over the training series.
        """
        if not self.members:
            return self
        scale, rows = standardizer or self.standardizer, ""
        split: tuple[tuple[int, int], ...] = ((0, 0),) * len(PARTS)
        for own in self.members:
            if own.name == name:
                scale = data.Standardizer(np.array(own.mean), np.array(own.std))
                split, rows = own.split, own.checksum
        return dataclasses.replace(
            self, dataset=name, standardizer=scale, split=split, checksum=rows, members=()
        )

    def for_series(self, series: data.TimeSeries, num_rows: int | None = None) -> Self:
        """The data spec of one series, in which an unknown series is scaled by its first rows.

        ``num_rows`` defaults to all rows. A channel without a value in them has the median scale of
        the training series.
        """
        if not self.members or any(info.name == series.name for info in self.members):
            return self.select_series(series.name)
        values = series.values[:num_rows]
        empty = np.isnan(values).all(axis=0)
        rows = dataclasses.replace(series, values=np.where(empty, 0.0, values), index=None)
        own = data.Standardizer.fit([rows.fill_forward().values], ddof=0)
        usual = self.standardizer
        # Known future covariates are compared between series, so all series share their scale.
        shared = empty | np.isin(np.arange(len(self.channels)), self.known_future)
        scale = data.Standardizer(
            np.where(shared, usual.mean, own.mean), np.where(shared, usual.std, own.std)
        )
        return self.select_series(series.name, scale)

    def check_fits(self, series: data.TimeSeries) -> None:
        """Refuses a series whose times do not match the times of the run.

        Raises:
            ValueError: If the run uses times and the series has none, only one of the two has a
                time zone, or the frequencies differ.
        """
        features = tuple(dict.fromkeys((*self.time_features, *self.calendar)))
        if features and series.times is None:
            raise ValueError(
                f"{series.name}: expected rows with times, from which the run computes "
                f"{', '.join(features)}, got rows without times; add a column of times."
            )
        if features and (series.time_zone is None) != (self.time_zone is None):
            kinds = ("times with their offset from UTC", "times without an offset from UTC")
            expected, got = kinds if self.time_zone else kinds[::-1]
            raise ValueError(
                f"{series.name}: expected {expected}, as in the training data of the run, got "
                f"{got}; write the times in the same form."
            )
        freq = self.infer_freq(series)
        if freq is not None and self.freq is not None and not same_step(freq, self.freq):
            raise ValueError(
                f"{series.name}: expected rows at the frequency {self.freq}, as in the training "
                f"data of the run, got {freq}; resample the rows to {self.freq}."
            )

    def in_zone(self, series: data.TimeSeries) -> data.TimeSeries:
        """Converts the times of a series, if they have a time zone, to the time zone of the run."""
        zone, times = self.time_zone, series.times
        if zone is None or times is None or times.tz is None or series.time_zone == zone:
            return series
        freq = self.freq if series.freq == self.freq else None
        return dataclasses.replace(series, index=times.tz_convert(zone), freq=freq)

    def infer_freq(self, series: data.TimeSeries) -> str | None:
        """The run's frequency, or another one that fits more rows of a series."""
        return infer_frequency(series.index, usual=self.freq)

    def check(self) -> None:
        super().check()
        check_integers(1, num_targets=len(self.targets))
        for target in self.targets:
            check_integers(0, len(self.channels) - 1, targets=target)
        for known in self.known_future:
            check_integers(0, len(self.channels) - 1, known_future=known)
        if not set(self.static) <= set(self.known_future):
            raise ValueError(
                f"expected static among the channels of known_future {list(self.known_future)}, "
                f"got {list(self.static)}."
            )
        for part in self.calendar:
            check_choice(CIRCLES, calendar=part)
        if self.freq is not None:
            parse_frequency(self.freq)
        if self.calendar and self.freq is None:
            raise ValueError(
                f"calendar={list(self.calendar)} needs the frequency of rows, got none."
            )
        if self.integer_step is not None:
            check_integers(1, integer_step=self.integer_step)
        check_same_length(split=self.split, parts=PARTS)
        for begin, end in self.split:
            check_integers(0, begin=begin)
            check_integers(begin, end=end)
        check_same_length(channels=self.channels, standardizer=self.standardizer.mean)
        for info in self.members:
            check_same_length(channels=self.channels, mean=info.mean, std=info.std)
            check_same_length(targets=self.targets, seasonal=info.seasonal)
            check_same_length(split=info.split, parts=PARTS)
            data.Standardizer(np.array(info.mean), np.array(info.std))


def describe(panel: SeriesPanel, config: ForecastConfig) -> ForecastSpec:
    """Makes the data spec of a run; each series is scaled by its training rows."""
    source, first = config.data, panel.series[0]
    known = _indices(first, source.known_future, "known_future")
    pairs = list(zip(panel.series, panel.splits, strict=True))
    train = [one.values[: split.train.stop] for one, split in pairs]
    scales = _scales(panel, train, known)
    data_spec = ForecastSpec(
        dataset=panel.name,
        channels=first.channels,
        targets=_target_indices(first, source, known),
        freq=_common_frequency(panel.series),
        time_features=_time_features(panel.series, source),
        standardizer=data.Standardizer(
            np.median([scale.mean for scale in scales], axis=0),
            np.median([scale.std for scale in scales], axis=0),
        ),
        split=_to_pairs(panel.split),
        checksum=checksum(rows for one, split in pairs for rows in _rows(one, split.test.stop)),
        integer_step=next(
            (integer_step(one.index) for one in panel.series if one.has_integer_times), None
        ),
        time_zone=first.time_zone,
        missing_flags=config.model.missing_flags and any(np.isnan(rows).any() for rows in train),
        known_future=known,
        static=static_channels(train, known),
        calendar=_horizon_calendar(panel.series, source),
        time_name=first.time_name,
    )
    targets = list(data_spec.targets)
    for which, (part, (begin, end)) in enumerate(
        zip(data.Split._fields, data_spec.split, strict=True)
    ):
        rows = (one.values[split[which].start : split[which].stop, targets] for one, split in pairs)
        if begin < end and all(np.isnan(values).all() for values in rows):
            raise OptionError(
                f"expected values of {', '.join(data_spec.target_names)} in the {part} rows "
                f"({begin} to {end - 1}), got missing values only; choose another split or other "
                "targets.",
                "split",
                "targets",
            )
    if not source.is_panel:
        return data_spec
    members = tuple(
        SeriesInfo(
            name=one.name,
            mean=tuple(scale.mean.tolist()),
            std=tuple(scale.std.tolist()),
            split=_to_pairs(split),
            seasonal=seasonal_scale(rows[:, targets], source.season or data_spec.season),
            checksum=compute_checksum(one, split.test.stop),
        )
        for (one, split), rows, scale in zip(pairs, train, scales, strict=True)
    )
    return dataclasses.replace(data_spec, members=members)


def _target_indices(
    series: data.TimeSeries, source: ForecastData, known: Sequence[int]
) -> tuple[int, ...]:
    """Indices of the channels to forecast."""
    if source.targets:
        targets = _indices(series, source.targets, "targets")
    elif source.id_column == NIXTLA_ID and NIXTLA_TARGET in series.channels:
        targets = (series.channels.index(NIXTLA_TARGET),)
    else:
        targets = tuple(i for i in range(len(series.channels)) if i not in known)
    if not targets or set(targets) & set(known):
        raise OptionError(
            "expected targets that are not known future covariates, got "
            f"known_future={','.join(series.channels[i] for i in known)} and the targets "
            f"{itemize([series.channels[i] for i in targets]) or 'none'}; choose other targets.",
            "targets",
            "known_future",
        )
    return targets


def covariate_notes(panel: SeriesPanel, source: ForecastData) -> list[str]:
    """A note on covariates of a table in Nixtla's form that are not known for the horizon."""
    channels = panel.series[0].channels
    others = [name for name in channels if name != NIXTLA_TARGET]
    in_nixtla_form = source.id_column == NIXTLA_ID and NIXTLA_TARGET in channels
    if source.targets or source.known_future or not in_nixtla_form or not others:
        return []
    return [
        f"past covariates that are not forecast: {itemize(others, 8)}; name columns whose values "
        "are known for the horizon with known_future"
    ]


def _indices(series: data.TimeSeries, names: str, option: str) -> tuple[int, ...]:
    """Indices of the channels that an option names."""
    try:
        chosen = series.select(split_cells(names)).channels if names else ()
    except OptionError as error:
        error.options = (option,)
        raise
    return tuple(series.channels.index(name) for name in chosen)


def static_channels(
    rows: Sequence[NDArray[np.float64]], channels: Sequence[int]
) -> tuple[int, ...]:
    """Channels that are constant in the training rows [T, C] of each series; NaN = missing.

    Example:
        >>> static_channels([np.array([[1.0, 3.0], [2.0, np.nan]]), np.array([[4.0, 5.0]])], [0, 1])
        (1,)
    """
    return tuple(
        which
        for which in channels
        if all(len(np.unique(c[~np.isnan(c)])) < 2 for c in (one[:, which] for one in rows))
    )


def _time_features(series: Sequence[data.TimeSeries], source: ForecastData) -> tuple[str, ...]:
    """Names of the time features that the model receives."""
    timed = next((one for one in series if one.freq is not None), None)
    if not source.calendar or timed is None or any(one.times is None for one in series):
        return ()
    assert timed.times is not None and timed.freq is not None
    return tuple(data.calendar_features(timed.times[:1], timed.freq)[1])


def _horizon_calendar(series: Sequence[data.TimeSeries], source: ForecastData) -> tuple[str, ...]:
    """Time features that the model receives for the horizon."""
    parts, untimed = source.calendar_parts, [one.name for one in series if one.times is None]
    if parts and untimed:
        raise OptionError(
            f"{untimed[0]}: expected times for known_calendar={source.known_calendar!r}, got rows "
            "without times; name the column of times with time_column=..., or remove "
            "known_calendar.",
            "known_calendar",
            "time_column",
        )
    if parts and all(one.freq is None for one in series):
        raise OptionError(
            f"known_calendar={source.known_calendar!r} needs the frequency of rows, which a single "
            "row does not have; add rows, or remove known_calendar.",
            "known_calendar",
        )
    return parts


def _common_frequency(series: Sequence[data.TimeSeries]) -> str | None:
    """The frequency of the first series that has one; other frequencies are refused."""
    usual = next((one.freq for one in series if one.freq is not None), None)
    for one in series:
        if one.freq is not None and usual is not None and not same_step(one.freq, usual):
            raise ValueError(
                f"{one.name}: expected the frequency {usual} of the first series, got {one.freq}; "
                "resample the series, or train a model for each frequency."
            )
    return usual


def _scales(
    panel: SeriesPanel, train: Sequence[NDArray[np.float64]], known: Sequence[int]
) -> list[data.Standardizer]:
    """The scale of each series, by its training rows with missing values filled.

    Standard deviations divide by N, as in scikit-learn's ``StandardScaler`` and
    hence Time-Series-Library. All series share the scale of known future covariates: a covariate
    that is constant in each series, such as the size of a shop, would vanish in a scale of its own.
    """
    filled = []
    for one, rows in zip(panel.series, train, strict=True):
        empty = np.isnan(rows).all(axis=0)
        if empty.any():
            raise OptionError(
                f"{one.name}: expected values of channel {one.channels[int(np.argmax(empty))]!r} "
                f"in the training rows (the first {len(rows)}), got missing values only; choose "
                "other channels.",
                "channels",
            )
        filled.append(dataclasses.replace(one, values=rows, index=None).fill_forward().values)
    scales = [data.Standardizer.fit([rows], ddof=0) for rows in filled]
    if known and len(scales) > 1:
        pooled = data.Standardizer.fit([rows[:, list(known)] for rows in filled], ddof=0)
        for scale in scales:
            scale.mean[list(known)], scale.std[list(known)] = pooled.mean, pooled.std
    return scales


def seasonal_scale(values: NDArray[np.float64], season: int) -> tuple[float | None, ...]:
    """The divisor of MASE (Hyndman and Koehler, 2006): mean absolute seasonal differences.

    Takes the channels of training rows [T, C], NaN = missing; returns None if all differences are
    0. If no pair of values one season apart is known, consecutive values are used, as in the Monash
    archive.

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


def compute_checksum(series: data.TimeSeries, stop: int) -> str:
    """A checksum of the first rows up to ``stop``, which later rows do not change."""
    return checksum(_rows(series, stop))


def _rows(series: data.TimeSeries, stop: int) -> list[NDArray]:
    if series.times is None:
        return [series.values[:stop]]
    times = (series.times if series.times.tz is None else series.times.tz_convert(None)).to_numpy()
    seconds = times.astype("M8[s]")
    return [series.values[:stop], (seconds if (seconds == times).all() else times)[:stop]]


def _to_pairs(split: data.Split) -> tuple[tuple[int, int], ...]:
    return tuple((part.start, part.stop) for part in split)
