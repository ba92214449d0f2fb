"""Loaders of series and data sets, chosen by file name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flax_linattn.checks import OptionError
from flax_linattn.data.errors import UnknownChannelError
from flax_linattn.data.series.arff import load_arff
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.series.frames import NIXTLA_ID, default_id, table_to_series
from flax_linattn.data.series.resampling import apply_times_policy
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.series.spoken_arabic_digits import load_spoken_arabic_digits
from flax_linattn.data.series.ts import load_ts
from flax_linattn.data.series.tsf import load_tsf
from flax_linattn.data.tables.dialect import PLAIN, Dialect, TimesPolicy
from flax_linattn.data.tables.tables import column_names, read_table

_LOADERS = {".ts": load_ts, ".arff": load_arff}


def load_dataset(path: str | Path) -> TimeSeriesDataset:
    r"""Loads a ``.ts`` or ``.arff`` file, also with ``.gz`` or ``.xz`` after that.

    The two files of Spoken Arabic Digits (``..._Arabic_Digit.txt``) are supported as well.

    Args:
        path: File; its name determines the format.

    Raises:
        ValueError: If the name has another suffix.
        FileNotFoundError: If the file does not exist.
        DataFormatError: If the file breaks its format; see ``load_ts`` and ``load_arff``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.ts")
        ...     _ = path.write_text("@classLabel true a b\n@data\n1,2:a\n")
        ...     load_dataset(path).classes
        ('a', 'b')
    """
    if "_Arabic_Digit.txt" in Path(path).name:
        return load_spoken_arabic_digits(path)
    if (loader := _LOADERS.get(_suffix(path))) is None:
        raise ValueError(
            f"expected a file name ending in .ts or .arff (then .gz or .xz), got "
            f"{Path(path).name!r}; rename the file, or call load_ts or load_arff (a table of one "
            "long series is for `flax-linattn train forecast`)"
        )
    return loader(path)


def load_series(
    path: str | Path,
    *,
    header: bool | None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
) -> TimeSeries:
    r"""Loads one long series from a table or a ``.tsf`` file, with one row per time.

    Tables are text, plain, ``.gz`` or ``.xz``, Parquet (``.parquet``), Feather version 2
    (``.feather``, ``.arrow``), or the first sheet of an Excel file (``.xlsx``, with the extra
    ``excel``).

    The first column holds the times if its cells are not numbers, or if it is named date, time,
    timestamp or ds; otherwise a column with such a name does. Times are ISO 8601 (``2016-07-01
    00:00:00``), ``2016/7/1 0:00``, months ``2016-07``, quarters ``2016Q3``, or integers such as
    years, and must not decrease. Integers in any column with such a name, or named year, are times
    if at most half of them repeat. ``dialect`` has options for other formats. Times with an offset
    from UTC keep it if it is the same in all rows; otherwise they are converted to UTC. Rows with
    repeated times or gaps are kept, see ``TimeSeries.repeated`` and ``gaps``; a file in which more
    than half of the rows are such is an error. Files of Time-Series-Library and of laiguokun's
    collection (without header and times) have this format. Cells may be quoted. An empty cell,
    ``?``, ``NA``, ``#N/A`` or ``NaN`` is a missing value. Blank lines and comments are skipped:
    lines that begin with ``#`` before the header, and with ``#`` and a space after it.

    Args:
        path: File; its name determines the format, and unknown formats are read as text.
        header: Whether the first line of text names the columns. Default: True if it begins with
            "date" or similar, or holds only words; False if it begins with a time, or holds only
            numbers in a ``.txt`` file. Any other first line is ambiguous and requires this option.
        channels: Columns to read, in this order; other columns may hold anything. Default: all.
        times: "strict" raises an error for a repeated time; "irregular" accepts series in which
            more than half of the rows are irregular.
        resample: Interval, such as "1h", over which to take means; see ``resample``.
        dialect: Separators, decimal points, times, missing values and encoding.

    Returns:
        The series; without a header its channels are ``0``, ``1``, ...

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a channel is unknown or repeated, ``times`` is unknown, the series of a
            ``.tsf`` file have different times, the file is a classification set, or the table holds
            several series.
        DataFormatError: If the file breaks its format; the message names the line or the row.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.csv")
        ...     _ = path.write_text("date,load,OT\n2016-07-01 00:00,5,30.5\n2016-07-01 01:00,,27\n")
        ...     series = load_series(path)
        >>> series.channels, series.values.tolist(), series.index[1]
        (('load', 'OT'), [[5.0, 30.5], [nan, 27.0]], Timestamp('2016-07-01 01:00:00'))
    """
    if _suffix(path) in _LOADERS:
        raise ValueError(
            f"expected a table or a .tsf file, got {Path(path).name!r} with labeled "
            "examples (use `flax-linattn train classify` or load_dataset)"
        )
    if _suffix(path) != ".tsf":
        panel = load_long(
            path,
            id_column="",
            header=header,
            channels=channels,
            times=times,
            resample=resample,
            dialect=dialect,
        )
        if len(panel) > 1:
            raise OptionError(
                f"{path}: expected one series, got {len(panel)} in column {NIXTLA_ID!r}; read "
                f"all with load_long, id_column={NIXTLA_ID!r}.",
                "id_column",
                id_column=NIXTLA_ID,
            )
        return panel[0]
    all_series = load_tsf(path)
    if channels is not None:
        named = {series.name: series for series in all_series}
        for channel in channels:
            if channel not in named:
                raise UnknownChannelError.of(channel, path, [*named])
        all_series = tuple(named[channel] for channel in channels)
    first = all_series[0]
    for series in all_series[1:]:
        if not series.index.equals(first.index):
            raise OptionError(
                f"{path}: expected series with the same times, but {series.name} "
                f"({series.place(0)}) has {series.num_steps} steps from {_start(series)} "
                f"and {first.name} ({first.place(0)}) {first.num_steps} from "
                f"{_start(first)}; select series with channels=..., or load them separately "
                "with load_tsf",
                "channels",
            )
    values = np.concatenate([series.values for series in all_series], axis=1)
    name = Path(path).name.split(".")[0]
    joined = TimeSeries(name, values, tuple(series.name for series in all_series), first.index)
    return apply_times_policy([joined], str(path), times, resample)[0]


def load_long(
    path: str | Path,
    *,
    id_column: str,
    header: bool | None = None,
    channels: Sequence[str] | None = None,
    times: TimesPolicy = "report",
    resample: str = "",
    dialect: Dialect = PLAIN,
) -> tuple[TimeSeries, ...]:
    r"""Loads several series from a table with a column that names the series of each row.

    Rows of a series need not be adjacent, but must be in order of time.

    Args:
        path: Table in a format of ``load_series``.
        id_column: Name of that column, such as ``unique_id``.
        header: As in ``load_series``.
        channels: Columns to read, in this order. Default: all except ids and times.
        times: As in ``load_series``, within each series.
        resample: As in ``load_series``.
        dialect: As in ``load_series``; ``time_column`` names the column of times.

    Returns:
        The series in the order of their first rows, named by their ids. All have the same channels;
        each has its own times and length.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a column does not exist.
        DataFormatError: If the file breaks the format; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "shops.csv")
        ...     _ = path.write_text("shop,date,sales\nBern,2024-01-01,5\nUri,2024-01-01,1\n"
        ...                         "Bern,2024-01-02,6\n")
        ...     several = load_long(path, id_column="shop")
        >>> [(series.name, series.values.ravel().tolist()) for series in several]
        [('Bern', [5.0, 6.0]), ('Uri', [1.0])]
    """
    table = read_table(path, dialect, header=header, texts=[id_column, NIXTLA_ID])
    id_column = id_column or default_id(table.names)
    name = Path(path).name.split(".")[0]
    return table_to_series(table, name, id_column, channels, times, resample, dialect)


def find_id_column(path: str | Path, dialect: Dialect = PLAIN) -> str:
    """Finds the id column, ``unique_id``, of a file in Nixtla's form; "" if there is none."""
    try:
        return default_id(column_names(Path(path), dialect))
    except (ValueError, OSError):
        return ""


def _start(series: TimeSeries) -> str:
    return "an unknown time" if series.times is None else str(series.times[0])


def _suffix(path: str | Path) -> str:
    name = Path(path).name.removesuffix(".gz").removesuffix(".xz")
    return Path(name).suffix.lower()
