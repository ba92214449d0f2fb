"""Parquet files, by pyarrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flax_linattn.data.dialect import Dialect
from flax_linattn.data.files import DataFormatError, check_is_file
from flax_linattn.data.frames import read_frame
from flax_linattn.data.regular import TimesPolicy
from flax_linattn.data.series import TimeSeries

SUFFIXES = (".parquet", ".pq")


def read_parquet(
    path: Path,
    id_column: str,
    channels: Sequence[str] | None,
    times: TimesPolicy,
    resample: str,
    dialect: Dialect,
) -> tuple[TimeSeries, ...]:
    """The series of a file, as ``load_long`` and ``load_series`` give them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: As ``from_frame``; pyarrow is not installed.
        DataFormatError: It is no Parquet file, or a damaged one.
    """
    check_is_file(path)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: Parquet files take pyarrow: pip install 'flax-linattn[parquet]'."
        ) from None
    try:
        table = parquet.read_table(path, partitioning=None)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataFormatError(
            f"{path}: expected a whole Parquet file, got a damaged one, or another kind of file "
            f"({reason[:200]}); fetch it again, or correct its name"
        ) from None
    several = read_frame(table, str(path), id_column, channels, times, resample, dialect)
    return several if id_column else (dataclasses.replace(several[0], name=path.stem),)
