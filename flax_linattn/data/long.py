"""Several series in one table: a column names the series of each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flax_linattn.data.dialect import PLAIN, Dialect
from flax_linattn.data.parquet import SUFFIXES, read_parquet
from flax_linattn.data.regular import TimesPolicy
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.table import read_table


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
