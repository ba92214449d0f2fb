"""Reading of histories and known future covariates from arrays and data frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import itemize, quote
from flax_linattn.data.series.frames import NIXTLA_ID, NIXTLA_TIME, to_pandas_frame
from flax_linattn.data.tables.cells import parse_time
from flax_linattn.estimators.history import FrameOptions, History
from flax_linattn.estimators.sequences import check_not_empty, read_numbers

DEFAULT_NAME = "the history"
TARGET = "y"
"""Default target column of a frame in the form of Nixtla's libraries."""
DEFAULT_OPTIONS = FrameOptions()
MAX_CATEGORIES = 50
"""Maximum number of strings in a column of a panel: each becomes a channel."""


def read_history(
    given: Any,
    channels: Sequence[str] | None = None,
    options: FrameOptions = DEFAULT_OPTIONS,
    name: str = DEFAULT_NAME,
    sort: bool = False,
) -> History:
    """Reads a history of one series or a panel from an array or data frame.

    Args:
        given: Numbers [T, C] or [T], or a data frame or pandas series. A frame with a column of ids
            or a MultiIndex whose last level is time is a panel.
        channels: Channels that are required, selected by name from a frame. Default: all.
        options: Options for reading a frame.
        name: Name of a single series in messages.
        sort: Whether to sort the rows of each series of a frame by time.

    Raises:
        ValueError: If the data are empty, not numeric, or lack a channel, or times are not sorted.
        TypeError: If the data are neither an array nor a frame, or hold objects that are not
            numbers.

    Example:
        >>> read_history([1.0, 2.0, 4.0]).series[0].channels
        ('x0',)
        >>> panel = pd.DataFrame({"unique_id": [7, 7, 8], "ds": [1, 2, 1], "y": [3.0, 4.0, 5.0]})
        >>> [(one.name, one.num_steps) for one in read_history(panel).series]
        [('7', 2), ('8', 1)]
    """
    _check_kind(given, "X" if name == DEFAULT_NAME else name)
    if isinstance(given, pd.Series):
        label = 0 if given.name is None else given.name
        history = _read_frame(given.to_frame(label), channels, options, name, sort)
        return dataclasses.replace(history, ndim=1, name=given.name)
    if isinstance(given, pd.DataFrame):
        return _read_frame(given, channels, options, name, sort)
    frame = nw.from_native(given, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        history = _read_frame(to_pandas_frame(given), channels, options, name, sort)
        return dataclasses.replace(history, library=frame.implementation)
    values = read_numbers(given)
    if not 1 <= values.ndim <= 2:
        raise ValueError(
            f"expected numbers [T, C] or [T], got the shape {list(values.shape)}; pass an array "
            "with one row for each time."
        )
    check_not_empty(values.shape)
    ndim, values = values.ndim, values.reshape(len(values), -1)
    count = values.shape[1]
    if channels is not None and count != len(channels):
        raise ValueError(
            f"X has {count} features, but Forecaster is expecting {len(channels)} features as "
            f"input: {itemize(channels, 5)}."
            + (" Reshape your data to [T, C] if it has them." if ndim == 1 else "")
        )
    names = [f"x{c}" for c in range(count)] if channels is None else channels
    return History((data.TimeSeries(name, values, tuple(names)),), ndim)


def _check_kind(given: Any, name: str) -> None:
    """Refuses objects that are no array and no frame, with advice for their conversion."""
    rows = list(given) if isinstance(given, list | tuple) else []
    first = rows[0] if rows else None
    if given is None:
        remedy = f"pass the series as {name}"
    elif isinstance(given, str | Path):
        remedy = "read the file first, such as by pandas.read_csv"
    elif hasattr(given, "toarray"):
        remedy = f"sparse data are not supported, pass {name}.toarray()"
    elif isinstance(given, Mapping) or isinstance(first, Mapping):
        remedy = f"pass pandas.DataFrame({name})"
    elif hasattr(first, "columns"):
        remedy = f"pass a panel: pandas.concat, with the name of each series in {NIXTLA_ID!r}"
    elif len(sizes := {len(row) if hasattr(row, "__len__") else 0 for row in rows}) > 1:
        raise ValueError(
            f"expected rows of {name} with the same number of channels, got rows of "
            f"{itemize([*map(str, sorted(sizes))], 3)} numbers; for several series, pass a panel."
        )
    else:
        return
    of_first = f" of {type(first).__name__}" if rows else ""
    raise TypeError(
        f"expected {name} as an array [T, C] or [T], a data frame or a pandas series, got "
        f"{type(given).__name__}{of_first}; {remedy}."
    )


def _check_ids(ids: pd.Series, name: str) -> None:
    """Refuses ids of series that are neither strings nor integers."""
    odd = [
        (row, value)
        for row, value in enumerate(ids.tolist() if _may_be_odd(ids) else [])
        if not isinstance(value, str | int)
        and not (isinstance(value, float) and (value.is_integer() or np.isnan(value)))
        and value is not None
        and value is not pd.NA
    ]
    if odd:
        row, value = odd[0]
        raise ValueError(
            f"{name}: expected strings or integers in column {ids.name!r} (ids of series), got "
            f"{quote(value)} ({type(value).__name__}) in row {row} (counting from 0); convert the "
            "column with astype(str), or name another column in options={'id_column': ...}."
        )


def _may_be_odd(ids: pd.Series) -> bool:
    """Whether the dtype of ids allows values that are neither strings nor integers."""
    return not (pd.api.types.is_integer_dtype(ids) or isinstance(ids.dtype, pd.StringDtype))


def _read_frame(
    frame: pd.DataFrame,
    channels: Sequence[str] | None,
    options: FrameOptions,
    name: str,
    sort: bool = False,
) -> History:
    """Reads a frame with ``data.from_frame``, and stores the labels of its columns."""
    ids, time, dialect, id_column = None, None, options.dialect, options.id
    has_levels = frame.index.nlevels > 1
    if has_levels:
        ids = frame.index.droplevel(-1)
        frame = frame.set_axis(frame.index.get_level_values(-1))
    else:
        if frame.index.name == options.id and options.id not in frame.columns:
            frame = frame.reset_index()  # an older form of Nixtla's frames, ids in the index
        if options.id in frame.columns:
            _check_ids(frame[options.id], name)
            ids = pd.Index(frame[options.id])
            frame = frame.drop(columns=options.id)
        named = [*dialect.time_columns, options.time, NIXTLA_TIME if ids is not None else None]
        times = [column for column in named if column is not None and column in frame.columns]
        if times and len(dialect.time_columns) < 2:
            time, *_ = times
            frame = frame.set_index(time)
            dialect = dataclasses.replace(dialect, time_column="")
    check_not_empty(frame.shape)
    labels = {str(label): place for place, label in enumerate(frame.columns)}
    plain = frame.set_axis([str(label) for label in frame.columns], axis=1)
    categories: Mapping[str, tuple[str, ...]] = {}
    if ids is not None:
        keys: Any = ids if ids.nlevels == 1 else pd.Index(["/".join(map(str, of)) for of in ids])
        if keys.unique().map(lambda key: str(key).strip()).nunique() < len(ids.unique()):
            raise ValueError(
                f"{name}: expected ids of series that differ as strings, got ids such as 1 and "
                "'1'; rename them."
            )
        plain, categories = _encode(plain, keys, options, name)
        while id_column in plain.columns:  # the ids are in the index, and this column has values
            id_column += "_"
        plain.insert(0, id_column, keys)
        is_time = has_levels or time is not None or plain.index.name is not None
        if is_time and pd.api.types.is_integer_dtype(plain.index):  # else read as row numbers
            level = str(frame.index.name or "time")
            while level in plain.columns:
                level += "_"
            plain.index = plain.index.rename(level)
            dialect = dataclasses.replace(dialect, time_column=level)
    read: Any = data.from_frame(
        plain,
        id_column=None if ids is None else id_column,
        channels=channels,
        times=options.times,
        resample=options.resample,
        dialect=dialect,
        name=name,
        sort=sort,
    )
    series: tuple[data.TimeSeries, ...] = (read,) if ids is None else read
    for one in series:
        read_numbers(one.values)  # refuses values beyond float32
    names = series[0].channels
    if channels is None and ids is None and len(names) < plain.shape[1]:  # a column of times
        time = next(label for label in frame.columns if str(label) not in names)
    levels = [] if ids is None else [str(level) for level in ids.names if level is not None]
    return History(
        series,
        2,
        frame.columns[[labels[channel] for channel in names if channel in labels]],
        ids=None if ids is None else ids.unique(),
        options=dataclasses.replace(
            options, id="/".join(levels) or NIXTLA_ID, time=time, categories=categories
        ),
    )


def _is_text(column: pd.Series) -> bool:
    """Whether a column holds values other than numbers and times."""
    if pd.api.types.is_numeric_dtype(column) or column.dtype.kind in "mM":
        return False
    try:
        pd.to_numeric(column.astype(object))
    except (ValueError, TypeError):
        return True
    return False


def _first_text(column: pd.Series) -> str:
    """The first value of a column that is not a number, and its row, for a message."""
    is_text = pd.to_numeric(column.astype(object), errors="coerce").isna() & column.notna()
    row = int(np.argmax(is_text.to_numpy()))
    return f"{quote(column.iloc[row])} in row {row} (counting from 0)"


def _encode(
    frame: pd.DataFrame, ids: pd.Index, options: FrameOptions, name: str
) -> tuple[pd.DataFrame, Mapping[str, tuple[str, ...]]]:
    """One-hot channels of the string columns of a panel, and the strings of each column."""
    fitted = options.categories
    for label in options.targets or (TARGET,):
        if label in frame.columns and _is_text(frame[label]):
            raise ValueError(
                f"{name}: expected numbers in column {label!r}, a target, got "
                f"{_first_text(frame[label])}; convert the column with pandas.to_numeric, or name "
                "other targets in options={'targets': ...}."
            )
    if fitted is None:
        labels = [label for label in frame.columns if _is_text(frame[label])]
        fitted = {label: tuple(sorted({*frame[label].dropna().map(str)})) for label in labels}
    channels: dict[str, Any] = {}
    for label, strings in fitted.items():
        if label not in frame.columns:
            raise ValueError(
                f"{name}: expected the columns of fit, got none with the name {label!r}; add it."
            )
        counts = frame[label].astype(object).groupby(ids, sort=False).nunique(dropna=False)
        if counts.max() > 1:
            series = str(counts.idxmax())
            raise ValueError(
                f"{name}: expected numbers in column {label!r}, or the same string in all rows of "
                f"a series, got {_first_text(frame[label])} and {counts.max()} different values in "
                f"series {series!r}; convert the column with pandas.to_numeric, or drop it."
            )
        if len(strings) > MAX_CATEGORIES:
            raise ValueError(
                f"{name}: expected at most {MAX_CATEGORIES} different strings in column {label!r}, "
                f"got {len(strings)}; drop the column, or group its strings into fewer categories."
            )
        texts = frame[label].map(str, na_action="ignore")
        channels |= {f"{label}={text}": (texts == text).astype(float) for text in strings}
    return frame.drop(columns=[*fitted]).assign(**channels), fitted


def read_future(
    given: Any,
    history: History,
    names: Sequence[str],
    needed: Sequence[str],
    indices: Sequence[pd.Index],
) -> list[dict[str, NDArray[np.float64]]]:
    """Reads the known future covariates of the horizon from an array or data frame.

    Args:
        given: An array [H, F] if the history is an array; else a frame in the form of the history,
            with further columns and later rows allowed, in any order.
        history: The history before the horizon.
        names: Names of the known future covariates.
        needed: The F names among them that are required.
        indices: Index of the horizon of each series, [H].

    Returns:
        For each series float64 [H] by channel.

    Raises:
        ValueError: If a channel, a series or a row is missing, or a time occurs twice.
    """
    horizon = len(indices[0])
    if history.channels is None and not hasattr(given, "columns"):
        values = read_numbers(given)
        if values.shape == (horizon,):
            values = values[:, None]
        if values.shape != (horizon, len(needed)):
            raise ValueError(
                f"expected X_future as an array [{horizon}, {len(needed)}], got the shape "
                f"{list(values.shape)}; pass a row for each step of the horizon, with the columns "
                f"{itemize(needed)}."
            )
        return [dict(zip(needed, values.T, strict=True))]
    if not hasattr(given, "columns"):
        raise ValueError(
            f"expected X_future as a data frame, like the history, got {type(given).__name__}; "
            f"pass a frame with the columns {itemize(needed)}."
        )
    columns = {str(label) for label in getattr(given, "column_names", given.columns)}
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(
            f"expected the column {missing[0]!r} in X_future, got the columns "
            f"{itemize(sorted(columns), 9)}; add the column."
        )
    chosen = [name for name in names if name in columns]
    options = dataclasses.replace(history.options, categories={}, times="irregular", resample="")
    future = read_history(given, chosen, options, "X_future", sort=True)
    by_name = {one.name: one for one in future.series}
    covariates = []
    for one, index in zip(history.series, indices, strict=True):
        rows = future.series[0] if history.ids is None else by_name.get(one.name)
        if rows is None:
            raise ValueError(
                f"expected {horizon} rows of series {one.name!r} in X_future, got none; add them."
            )
        where = "X_future" if history.ids is None else f"X_future of series {one.name!r}"
        if not rows.index.is_unique:
            row = rows.index[rows.index.duplicated()][0]
            raise ValueError(
                f"{where}: expected one row for each time, got several for {row}; remove all but "
                "one."
            )
        at = rows.index.get_indexer(index)
        if (at < 0).any():
            raise ValueError(
                f"{where}: expected rows from {index[0]} to {index[-1]}, got rows "
                f"from {rows.index[0]} to {rows.index[-1]}, without "
                f"{index[int(np.argmin(at))]}; add the missing rows."
            )
        covariates.append(dict(zip(chosen, rows.values[at].T, strict=True)))
    return covariates


def convert_time(time: Any) -> datetime | int:
    """Converts a time, a period (its start) or a string to ``datetime``; keeps integers.

    Args:
        time: A ``datetime``, ``numpy.datetime64``, pandas timestamp or period, string or integer.

    Returns:
        The time, in UTC if it has a time zone.

    Raises:
        ValueError: If ``time`` is not a valid time.

    Example:
        >>> convert_time(np.datetime64("2016-07"))
        datetime.datetime(2016, 7, 1, 0, 0)
    """
    if isinstance(time, int | np.integer) and not isinstance(time, bool):
        return int(time)
    exact = time.to_timestamp() if hasattr(time, "to_timestamp") else time
    if isinstance(exact, np.datetime64):
        exact = exact.astype("M8[us]")
    parsed = None if isinstance(exact, bool | float | np.number) else parse_time(str(exact))
    if parsed is None:
        raise ValueError(
            f"expected a time such as 2016-07-01 00:00:00, got {quote(time)}; pass a datetime, a "
            "numpy.datetime64, or a string."
        )
    return parsed
