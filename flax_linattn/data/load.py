"""Loading by file name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flax_linattn.checks import OptionError
from flax_linattn.data.arff import load_arff
from flax_linattn.data.dataset import TimeSeriesDataset
from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.digits import load_spoken_arabic_digits
from flax_linattn.data.parquet import SUFFIXES, read_parquet
from flax_linattn.data.regular import TimesPolicy, regular
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.table import load_table, read_table
from flax_linattn.data.ts import load_ts
from flax_linattn.data.tsf import load_tsf
from flax_linattn.data.unknown import UnknownChannelError

_LOADERS = {".ts": load_ts, ".arff": load_arff}


def load_dataset(path: str | Path) -> TimeSeriesDataset:
    r"""Loads a ``.ts`` or ``.arff`` file, also with ``.gz`` or ``.xz`` after that.

    The two files of Spoken Arabic Digits (``..._Arabic_Digit.txt``) are read, too.

    Args:
        path: The file; its name says the format.

    Raises:
        ValueError: The name ends otherwise.
        FileNotFoundError: There is no such file.
        DataFormatError: The file breaks its format; see ``load_ts`` and ``load_arff``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.ts")
        ...     _ = path.write_text("@classLabel true a b\n@data\n1,2:a\n")
        ...     load_dataset(path).classes
        ('a', 'b')
    """
    digits = "_Arabic_Digit.txt" in Path(path).name
    loader = load_spoken_arabic_digits if digits else _LOADERS.get(_suffix(path))
    if loader is None:
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
    r"""Loads one long series from a table, a ``.tsf`` file (``.gz`` or ``.xz`` too) or Parquet.

    Args:
        path: The file; ``.tsf`` and ``.parquet`` by its name, anything else is read as a table.
            Parquet takes pyarrow: the extra ``parquet``.
        header: As in ``load_table``.
        channels: The channels to read, in this order. Default: all.
        times: As in ``load_table``.
        resample: As in ``load_table``.
        dialect: As in ``load_table``.

    Raises:
        ValueError: The series of a ``.tsf`` file are not of the same times; a channel is unknown;
            the name is that of a classification set.
        FileNotFoundError: There is no such file.
        DataFormatError: The file breaks its format; see ``load_table`` and ``load_tsf``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.csv")
        ...     _ = path.write_text("a,b\n1,2\n3,4\n")
        ...     load_series(path).values.tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    if _suffix(path) in _LOADERS:
        raise ValueError(
            f"expected a table or a .tsf file, got {Path(path).name!r}, labelled examples (they "
            "are for `flax-linattn train classify`, and load_dataset)"
        )
    if Path(path).suffix.lower() in SUFFIXES:
        return read_parquet(Path(path), "", channels, times, resample, dialect)[0]
    if _suffix(path) != ".tsf":
        return load_table(
            path,
            header=header,
            channels=channels,
            times=times,
            resample=resample,
            dialect=dialect,
        )
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
                f"{path}: expected series of the same times, but {series.name} ({series.place(0)}) "
                f"has {series.num_steps} steps from {_start(series)} and {first.name} "
                f"({first.place(0)}) {first.num_steps} from {_start(first)}; choose some with "
                "channels=..., or one by one with load_tsf",
                "channels",
            )
    values = np.concatenate([series.values for series in all_series], axis=1)
    name = Path(path).name.split(".")[0]
    joined = TimeSeries(name, values, tuple(series.name for series in all_series), first.index)
    return regular([joined], str(path), times, resample)[0]


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
    r"""Loads several series from one table, a column of which names the series of each row.

    Rows of one series need not stand together; those of each are in the order of their times.

    Args:
        path: The file, as of ``load_table``, or ``.parquet``.
        id_column: The name of that column.
        header: As in ``load_table``.
        channels: The columns to read, in this order. Default: all but ids and times.
        times: As in ``load_table``, within each series.
        resample: As in ``load_table``.
        dialect: As in ``load_table``; ``time_column`` names the column of times.

    Returns:
        The series in the order of their first rows, named by their ids; all have the same channels,
        each its own times and length.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: There is no such column.
        DataFormatError: The file breaks the format; the message names the line.

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
    if Path(path).suffix.lower() in SUFFIXES:
        return read_parquet(Path(path), id_column, channels, times, resample, dialect)
    return read_table(path, header, channels, times, resample, dialect, id_column)


def _start(series: TimeSeries) -> str:
    return "an unknown time" if series.times is None else str(series.times[0])


def _suffix(path: str | Path) -> str:
    name = Path(path).name.removesuffix(".gz").removesuffix(".xz")
    return Path(name).suffix.lower()
