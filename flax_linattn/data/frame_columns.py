"""The columns of a frame: times, ids and numbers, as narwhals has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import TIME
from flax_linattn.data.dialect import Dialect

if TYPE_CHECKING:
    import narwhals


def load_narwhals() -> Any:
    """narwhals, which is an extra.

    Raises:
        ValueError: It is not installed.
    """
    try:
        import narwhals
    except ImportError:
        raise ValueError("frames take narwhals: pip install 'flax-linattn[frames]'.") from None
    return narwhals


def as_frame(native: Any) -> narwhals.DataFrame[Any]:
    """A frame as narwhals has it.

    Raises:
        ValueError: Two columns have one name.
        TypeError: It is no frame.
    """
    nw = load_narwhals()
    names = getattr(native, "column_names", getattr(native, "columns", ()))
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ValueError(f"expected different names of columns, got {shown(twice[0])} twice.")
    try:
        frame: narwhals.DataFrame[Any] = nw.from_native(native, eager_only=True)
    except TypeError:
        raise TypeError(
            f"expected a frame of pandas, polars or Arrow, got {type(native).__name__}; collect a "
            "lazy one first."
        ) from None
    return frame


def rows_of(
    frame: narwhals.DataFrame[Any], name: str, id_column: str
) -> list[tuple[str, NDArray[np.int64]]]:
    """The rows of each series, by its name.

    Raises:
        ValueError: There is no such column, or a row has no name in it.
    """
    if not id_column:
        return [(name, np.arange(len(frame)))]
    _check_named(frame, name, id_column, "id_column")
    column = frame[id_column]
    if column.is_null().any():
        row = int(np.argmax(column.is_null().to_numpy()))
        raise OptionError(
            f"{name}, row {row}, from 0: expected the name of a series in column {id_column!r}, "
            "got none; add it.",
            "id_column",
        )
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(column.to_list()):
        rows.setdefault(str(label), []).append(row)
    return [(label, np.array(of, np.int64)) for label, of in rows.items()]


def _check_named(frame: narwhals.DataFrame[Any], name: str, column: str, option: str) -> None:
    if column not in frame.columns:
        raise OptionError(
            f"unknown column {shown(column)}; {name} has {listed([*map(str, frame.columns)])}",
            option,
        )


def times_of(
    frame: narwhals.DataFrame[Any], name: str, id_column: str, dialect: Dialect
) -> tuple[pd.Index | None, str | None]:
    """The times of the rows, and the column that holds them.

    Raises:
        ValueError: There is no such column, or several may be meant; a row has no time.
    """
    nw = load_narwhals()
    dates = (nw.Datetime, nw.Date)
    column = dialect.time_column
    if column:
        _check_named(frame, name, column, "time_column")
    else:
        index = nw.maybe_get_index(frame)
        if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
            return _known(index, name), None
        rest = [other for other in frame.columns if other != id_column]
        found = [other for other in rest if isinstance(frame.schema[other], dates)]
        found = found or [
            other
            for other in rest
            if str(other).lower() in TIME
            and (frame.schema[other] == nw.String or dialect.time_unit != "none")
        ]
        if len(found) > 1:
            raise OptionError(
                f"{name}: expected one column of times, got {listed([*map(str, found)])}; say "
                "which one holds them, with time_column=...",
                "time_column",
            )
        if not found:
            return None, None
        column = found[0]
    column_of = frame[column]
    kind = column_of.dtype
    if isinstance(kind, nw.Date):
        column_of, kind = column_of.cast(nw.Datetime("us")), nw.Datetime("us")
    if isinstance(kind, nw.Datetime):
        zone = kind.time_zone
        if zone is not None:
            column_of = column_of.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        times = _known(pd.DatetimeIndex(column_of.to_numpy()), name)
        return times if zone is None else times.tz_localize("UTC").tz_convert(zone), column
    parsed = [dialect.time(str(stamp)) for stamp in column_of.to_list()]
    kinds = {time if time is None else time.tzinfo is not None for time in parsed}
    if len(kinds) > 1 or None in kinds:
        row = parsed.index(None) if None in kinds else 0
        raise OptionError(
            f"{name}, row {row}, from 0: expected times of one kind in column {column!r}, got "
            f"{shown(column_of[row])}; make it a column of times, such as by pandas.to_datetime.",
            "time_column",
        )
    return pd.DatetimeIndex(parsed), column


def _known(index: pd.Index, name: str) -> pd.Index:
    if index.hasnans:
        row = int(np.argmax(index.isna()))
        raise ValueError(f"{name}, row {row}, from 0: expected a time, got none; drop the row.")
    return index


def numbers_of(column: narwhals.Series[Any], name: str, dialect: Dialect) -> NDArray[np.float64]:
    """The values of a column, NaN where one is missing.

    Raises:
        ValueError: It holds something else than finite numbers.
    """
    nw = load_narwhals()
    kind = column.dtype
    if not (kind.is_numeric() or kind == nw.Boolean):
        raise OptionError(
            f"{name}: expected numbers in column {column.name!r}, got {kind}; convert it first, or "
            "take other columns only, with channels=...; where it names the series of each row, "
            "say so, with id_column=...",
            "channels",
            "id_column",
        )
    values = np.array(column.cast(nw.Float64).to_numpy(), np.float64)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise ValueError(
            f"{name}, row {row}, from 0: expected a finite number in column {column.name!r}, got "
            f"{values[row]}; leave it out if the value is missing."
        )
    return dialect.without_codes(values)
