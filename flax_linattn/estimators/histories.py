"""Series as a forecaster takes them, and forecasts in their form: arrays, data frames, panels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import listed, shown
from flax_linattn.data.cells import parse_time
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.frames import NIXTLA_ID, NIXTLA_TIME, as_pandas
from flax_linattn.estimators.sequences import as_numbers, check_not_empty

TARGET = "y"
"""The column to forecast in frames of Nixtla's libraries."""
MAX_CATEGORIES = 50
"""Strings that a column of a panel may have: each becomes a channel."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How frames are read, as the options of the command have it.

    Attributes:
        id: name of the column that names the series of each row.
        time: of the column of times; default that of ``dialect``, that of Nixtla's libraries in a
            frame of these, the index, or the only column of times.
        categories: of columns of strings, the strings that were fitted; None to take all.
        times: what is done about irregular times, see ``data.from_frame``.
        resample: the interval whose means are taken, likewise.
        dialect: of times that are texts, and what stands for a missing value.
    """

    id: str = NIXTLA_ID
    time: Any = None
    categories: Mapping[str, tuple[str, ...]] | None = None
    times: data.TimesPolicy = "report"
    resample: str = ""
    dialect: Dialect = PLAIN


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """One or several series, and the form in which they came.

    Attributes:
        series: as a run takes them.
        ndim: 1 for [T] and a pandas series, else 2.
        channels: labels of the channels of numbers, as the frame has them; None of an array.
        name: of a pandas series.
        ids: of the series, in a panel; else None.
        time_name: of the column of times; None where they are the index.
        categories: the strings of each column of strings, of which each is a channel.
        library: of a frame that is none of pandas, as narwhals has it.
    """

    series: tuple[data.TimeSeries, ...]
    ndim: int
    channels: pd.Index | None = None
    name: Any = None
    ids: pd.Index | None = None
    time_name: Any = None
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    library: Any = None

    @property
    def id_name(self) -> str:
        """Of the ids: the column, or the levels of the index."""
        names = (
            [] if self.ids is None else [str(name) for name in self.ids.names if name is not None]
        )
        return "/".join(names) or NIXTLA_ID

    @property
    def num_features(self) -> int:
        """Columns of values that were given."""
        if self.channels is None:
            return len(self.series[0].channels)
        return len(self.channels) + len(self.categories)

    def labels(self, names: Sequence[str]) -> pd.Index:
        """The channels of these names, labelled as in the frame."""
        if self.channels is None:
            return pd.Index(names)
        texts = [str(label) for label in self.channels]
        return self.channels[[texts.index(name) for name in names]]

    def select(self, series: Any) -> History:
        """A history of one of the series.

        Args:
            series: its label; None where there is only one.

        Raises:
            ValueError: there is no such series.
        """
        if self.ids is None and series is None:
            return self
        labels = [] if self.ids is None else self.ids.tolist()
        if series not in labels:
            raise ValueError(
                f"expected series as one of {listed([*map(repr, labels)], 5) or 'none'}, got "
                f"{shown(series)}."
            )
        at = labels.index(series)
        assert self.ids is not None
        return dataclasses.replace(self, series=(self.series[at],), ids=self.ids[[at]])

    def like(
        self,
        places: Sequence[int],
        indices: Sequence[pd.Index | None],
        values: Sequence[NDArray[np.float64]],
        labels: pd.Index,
        levels: Sequence[float] = (),
    ) -> Any:
        """Rows to come, in the form of what was given.

        Args:
            places: which series they follow.
            indices: of the rows of each, [H], as ``HorizonForecast.row_index``.
            values: of each, float64 [H, C], or with ``levels`` [H, C, Q].
            labels: of the C channels.
            levels: of the quantiles.

        Returns:
            An array as ``values``, without C where the history is [T]; or a frame, whose columns
            are pairs of a channel and a level where there are levels, and of a frame with a column
            of times their text, such as y@0.9.
        """
        if self.channels is None:
            return values[0][:, 0] if self.ndim == 1 else values[0]
        index = _joined([pd.RangeIndex(len(v)) if i is None else i
                         for i, v in zip(indices, values, strict=True)])  # fmt: skip
        if self.time_name is not None:
            index = index.rename(self.time_name)
        if self.ids is not None:
            ids = self.ids[np.repeat(list(places), [len(v) for v in values])]
            of_ids = [ids.get_level_values(level) for level in range(ids.nlevels)]
            index = pd.MultiIndex.from_arrays([*of_ids, index], names=[*ids.names, index.name])
        whole = np.concatenate([v.reshape(len(v), -1) for v in values])
        if self.ndim == 1 and not levels:
            return pd.Series(whole[:, 0], index, name=self.name)
        if levels and self.time_name is not None:
            labels = pd.Index([f"{label}@{level:g}" for label in labels for level in levels])
        elif levels:
            pairs = [
                (*(label if isinstance(label, tuple) else (label,)), level)
                for label in labels
                for level in levels
            ]
            labels = pd.MultiIndex.from_tuples(pairs, names=[*labels.names, "quantile"])
        frame = pd.DataFrame(whole, index, columns=labels)
        if self.time_name is not None:
            frame = frame.reset_index()
        if self.library is None:
            return frame
        table = pa.Table.from_pandas(frame, preserve_index=self.time_name is None and None)
        return nw.from_arrow(table, backend=self.library).to_native()


def _joined(indices: Sequence[pd.Index]) -> pd.Index:
    return indices[0].append([*indices[1:]]) if len(indices) > 1 else indices[0]


def as_history(
    given: Any,
    channels: Sequence[str] | None = None,
    reading: Reading = Reading(),
    name: str = "the history",
) -> History:
    """Reads series.

    Args:
        given: numbers [T, C] or [T]; or a data frame or pandas series of them. One with a column of
            ids, or with a MultiIndex whose last level is time, is a panel.
        channels: those that it has to have; of a frame by name.
        reading: how frames are read.
        name: of a single series, for messages.

    Raises:
        ValueError: it is something else, empty, or has other channels; times that fall.
        TypeError: it holds objects that are no numbers.

    Example:
        >>> as_history([1.0, 2.0, 4.0]).series[0].channels
        ('x0',)
        >>> panel = pd.DataFrame({"unique_id": [7, 7, 8], "ds": [1, 2, 1], "y": [3.0, 4.0, 5.0]})
        >>> [(one.name, one.num_steps) for one in as_history(panel).series]
        [('7', 2), ('8', 1)]
    """
    if isinstance(given, pd.Series):
        label = 0 if given.name is None else given.name
        history = _read_frame(given.to_frame(label), channels, reading, name)
        return dataclasses.replace(history, ndim=1, name=given.name)
    if isinstance(given, pd.DataFrame):
        return _read_frame(given, channels, reading, name)
    frame = nw.from_native(given, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        history = _read_frame(as_pandas(given), channels, reading, name)
        return dataclasses.replace(history, library=frame.implementation)
    return _read_array(given, channels, name)


def _read_array(given: Any, channels: Sequence[str] | None, name: str) -> History:
    values = as_numbers(given)
    if not 1 <= values.ndim <= 2:
        raise ValueError(
            f"expected numbers [T, C] or [T], one row for each time, got {list(values.shape)}."
        )
    check_not_empty(values)
    ndim, values = values.ndim, values.reshape(len(values), -1)
    count = values.shape[1]
    if channels is not None and count != len(channels):
        raise ValueError(
            f"X has {count} features, but Forecaster is expecting {len(channels)} features as "
            f"input: {listed(channels, 5)}."
            + (" Reshape your data to [T, C] if it has them." if ndim == 1 else "")
        )
    names = [f"x{c}" for c in range(count)] if channels is None else channels
    return History((data.TimeSeries(name, values, tuple(names)),), ndim)


def _read_frame(
    given: pd.DataFrame, channels: Sequence[str] | None, reading: Reading, name: str
) -> History:
    """A frame, whose ids and times are brought into one form for ``data.from_frame``."""
    frame, ids, time_name, dialect = given, None, None, reading.dialect
    if given.index.nlevels > 1:
        ids = given.index.droplevel(-1)
        frame = given.set_axis(given.index.get_level_values(-1))
    else:
        if reading.id in frame.columns:
            ids = pd.Index(frame[reading.id])
            frame = frame.drop(columns=reading.id)
        named = [*dialect.time_columns, reading.time, NIXTLA_TIME if ids is not None else None]
        found = [column for column in named if column is not None and column in frame.columns]
        if found and len(dialect.time_columns) < 2:
            time_name, *_ = found
            frame = frame.set_index(time_name)
            dialect = dataclasses.replace(dialect, time_column="")
    check_not_empty(np.empty(frame.shape, np.bool_))
    labels = frame.columns
    plain = frame.set_axis([str(label) for label in labels], axis=1)
    categories: Mapping[str, tuple[str, ...]] = {}
    if ids is not None:
        texts = _as_texts(ids, name)
        plain, categories = _encode(plain, texts, reading.categories, name)
        plain = plain.assign(**{NIXTLA_ID: texts})
    read: Any = data.from_frame(
        plain,
        id_column=None if ids is None else NIXTLA_ID,
        channels=channels,
        times=reading.times,
        resample=reading.resample,
        dialect=dialect,
        name=name,
    )
    series: tuple[data.TimeSeries, ...] = (read,) if ids is None else read
    if ids is not None and pd.api.types.is_integer_dtype(plain.index):  # no row numbers, but places
        codes, _ = pd.factorize(texts)
        rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        series = tuple(
            dataclasses.replace(one, index=plain.index[own])
            for own, one in zip(rows, series, strict=True)
        )
    for one in series:
        as_numbers(one.values)  # within float32
    names = series[0].channels
    if channels is None and ids is None and len(names) < plain.shape[1]:  # a column of times
        time_name = next(label for label in labels if str(label) not in names)
    of_names = {str(label): label for label in labels}
    chosen = [labels.get_loc(of_names[channel]) for channel in names if channel in of_names]
    labels, of_series = labels[chosen], None if ids is None else ids.unique()
    return History(series, 2, labels, None, of_series, time_name, categories)


def _as_texts(ids: pd.Index, name: str) -> NDArray:
    """The id of each row as text, such as "north/7" of two levels."""
    several = ids.nlevels > 1
    texts = np.array(["/".join(map(str, of)) if several else str(of) for of in ids], object)
    if not several and ids.hasnans:
        row = int(np.argmax(ids.isna()))
        raise ValueError(f"{name}, row {row}, from 0: expected the id of a series, got none.")
    if len(set(texts)) < len(ids.unique()):
        raise ValueError(f"{name}: expected ids of series that differ as text; rename some.")
    return texts


def _is_text(column: pd.Series) -> bool:
    """Whether a column holds something else than numbers and times."""
    if pd.api.types.is_numeric_dtype(column) or column.dtype.kind in "mM":
        return False
    try:
        pd.to_numeric(column.astype(object))
    except (ValueError, TypeError):
        return True
    return False


def _encode(
    frame: pd.DataFrame,
    ids: NDArray,
    fitted: Mapping[str, tuple[str, ...]] | None,
    name: str,
) -> tuple[pd.DataFrame, Mapping[str, tuple[str, ...]]]:
    """Columns of strings as channels of 0 and 1, one for each string: static covariates.

    Args:
        frame: of a panel.
        ids: of the series of each row.
        fitted: the strings of each column; None to find them.
        name: of the frame.

    Raises:
        ValueError: strings differ within a series, or are too many; a fitted column is missing.
    """
    if fitted is None:
        found = [label for label in frame.columns if _is_text(frame[label])]
        fitted = {label: tuple(sorted({*frame[label].dropna().map(str)})) for label in found}
    channels: dict[str, Any] = {}
    for label, strings in fitted.items():
        if label not in frame.columns:
            raise ValueError(f"{name}: expected the column {label!r}, as in fit; add it.")
        of_series = frame[label].astype(object).groupby(ids, sort=False).nunique(dropna=False)
        if of_series.max() > 1:
            series = of_series.idxmax()
            raise ValueError(
                f"{name}: expected numbers in column {label!r}, or a string that is the same in "
                f"all rows of a series, got {of_series.max()} in {series!r}; convert it."
            )
        if len(strings) > MAX_CATEGORIES:
            raise ValueError(
                f"{name}: expected at most {MAX_CATEGORIES} strings in column {label!r}, got "
                f"{len(strings)}; leave the column out, or group them."
            )
        texts = frame[label].map(str, na_action="ignore")
        channels |= {f"{label}={text}": (texts == text).astype(float) for text in strings}
    return frame.drop(columns=[*fitted]).assign(**channels), fitted


def as_future(
    given: Any,
    history: History,
    names: Sequence[str],
    needed: Sequence[str],
    indices: Sequence[pd.Index],
    reading: Reading = Reading(),
) -> list[dict[str, NDArray[np.float64]]]:
    """Reads known future covariates.

    Args:
        given: of the rows to come, in the form of the history: an array [H, F], or a frame, which
            may have other columns and later rows, too.
        history: which these rows follow.
        names: of the channels that are known for the horizon.
        needed: those that may not be missing, the F of an array.
        indices: of the rows to come of each series, [H].
        reading: how the history was read, of which the dialect counts.

    Returns:
        For each series, the channels that are there, float64 [H] by name.

    Raises:
        ValueError: a channel, a series or a row is missing.
    """
    horizon = len(indices[0])
    if history.channels is None and not hasattr(given, "columns"):
        values = as_numbers(given)
        if values.shape == (horizon,):
            values = values[:, None]
        if values.shape != (horizon, len(needed)):
            raise ValueError(
                f"expected X_future as [{horizon}, {len(needed)}], a row for each step of the "
                f"horizon and a column for {listed(needed)}, got {list(values.shape)}."
            )
        return [dict(zip(needed, values.T, strict=True))]
    if not hasattr(given, "columns"):
        raise ValueError(
            f"expected X_future as a frame with {listed(needed)}, like the history, got "
            f"{type(given).__name__}."
        )
    reading = Reading(history.id_name, history.time_name, {}, "irregular", dialect=reading.dialect)
    there = {str(label) for label in getattr(given, "column_names", given.columns)}
    if gone := [name for name in needed if name not in there]:
        raise ValueError(f"X_future has no column {gone[0]!r}, got {listed(sorted(there), 9)}.")
    chosen = [name for name in names if name in there]
    future = as_history(given, chosen, reading, "X_future")
    by_name = {one.name: one for one in future.series}
    found = []
    for one, index in zip(history.series, indices, strict=True):
        rows = future.series[0] if history.ids is None else by_name.get(one.name)
        if rows is None:
            raise ValueError(f"X_future has no rows of series {one.name!r}; add {horizon}.")
        where = "X_future" if history.ids is None else f"X_future of series {one.name!r}"
        if not rows.index.is_unique:
            row = rows.index[rows.index.duplicated()][0]
            raise ValueError(f"{where}: expected one row of each time, got {row} again.")
        at = rows.index.get_indexer(index)
        if (at < 0).any():
            raise ValueError(
                f"{where}: expected rows from {index[0]} to {index[-1]}, got "
                f"{rows.index[0]} to {rows.index[-1]}, without {index[int(np.argmin(at))]}."
            )
        found.append(dict(zip(chosen, rows.values[at].T, strict=True)))
    return found


def as_time(time: Any) -> datetime:
    """A time as files have it.

    Args:
        time: a ``datetime``, ``numpy.datetime64``, text, or a pandas time or period, which begins
            there.

    Returns:
        The time in UTC if it has a zone, else without one.

    Raises:
        ValueError: it is none.

    Example:
        >>> as_time(np.datetime64("2016-07"))
        datetime.datetime(2016, 7, 1, 0, 0)
    """
    exact = time.to_timestamp() if hasattr(time, "to_timestamp") else time
    if isinstance(exact, np.datetime64):
        exact = exact.astype("M8[us]")
    found = None if isinstance(exact, int | float | np.number) else parse_time(str(exact))
    if found is None:
        raise ValueError(
            f"expected a time such as 2016-07-01 00:00:00, got {shown(time)}; give a datetime, a "
            "numpy.datetime64, or text."
        )
    return found
