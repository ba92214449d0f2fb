"""Predictions as a table of named columns, and the files that hold it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, listed, shown
from flax_linattn.data.cells import join_cells
from flax_linattn.storage import write_text, write_whole

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
"""Of files that hold a table."""


class Table(NamedTuple):
    """Predictions, one row each.

    Attributes:
        names: of the columns.
        columns: an array [N] for each: texts, whole numbers, floats; or an index of times.
    """

    names: tuple[str, ...]
    columns: tuple[NDArray | pd.Index, ...]

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.columns[0])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows as plain values, None where there is none.

        Floats have nine digits, as many as float32 tells apart; times are texts.

        Example:
            >>> times = pd.to_datetime(["2016-07-01 02:00", None])
            >>> list(Table(("time", "load"), (times, np.array([1 / 3, np.nan]))).rows())
            [('2016-07-01 02:00:00', 0.333333333), (None, None)]
        """
        return zip(*(map(_plain, column) for column in self.columns), strict=True)


def _plain(value: Any) -> Any:
    if isinstance(value, pd.Timestamp | pd.Period) or value is pd.NaT:
        return None if value is pd.NaT else str(value)
    if isinstance(value, np.floating):
        return float(f"{value:.9g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def check_out(path: Path) -> None:
    """Refuses a file that no table can be written to, before anything is computed.

    Raises:
        ValueError: its name ends otherwise, it is a folder, or pyarrow is missing.

    Example:
        >>> check_out(Path("forecast.xls"))
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: expected a file to write that ends in .csv, .json, .jso...
    """
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"expected a file to write that ends in {', '.join(SUFFIXES)}, got "
            f"{shown(str(path))}; the ending says the format.",
            "out",
        )
    if path.is_dir():
        raise OptionError(f"{path} is a folder, expected a file; give another one.", "out")
    if path.suffix.lower() == ".parquet":
        _pyarrow("pyarrow")


def write_table(path: Path, table: Table) -> None:
    r"""Writes a table, in the format that the name's ending says; it is whole or not there.

    A missing value is an empty cell of a .csv, and null in the others; a .json is a list of rows,
    a .jsonl a row a line.

    Args:
        path: the file; its folder is made.
        table: what it is to hold.

    Raises:
        ValueError: as ``check_out``; or rows by name would lose one of two columns of one name.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "load.csv")
        >>> write_table(path, Table(("step", "load"), (np.arange(2), np.array([0.5, np.nan]))))
        >>> path.read_text()
        'step,load\n0,0.5\n1,\n'
    """
    check_out(path)
    kind = path.suffix.lower()
    if kind != ".csv" and len(set(table.names)) < len(table.names):
        raise OptionError(
            f"expected different names of columns, got {listed(table.names)}; write a .csv file.",
            "out",
        )
    if kind == ".parquet":
        arrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
        plain = [c.to_timestamp() if isinstance(c, pd.PeriodIndex) else c for c in table.columns]
        columns = [arrow.array(column, from_pandas=True) for column in plain]
        with write_whole(path) as file:
            parquet.write_table(arrow.table(columns, names=list(table.names)), file)
        return
    if kind == ".csv":
        # The writer leaves None empty.
        lines = [join_cells(row) for row in (table.names, *table.rows())]
    else:
        lines = [json.dumps(dict(zip(table.names, row, strict=True))) for row in table.rows()]
    text = "\n".join(lines) + "\n"
    write_text(path, "[\n" + ",\n".join(lines) + "\n]\n" if kind == ".json" else text)


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OptionError(
            "writing a .parquet file takes pyarrow: pip install pyarrow. Or write a .csv file.",
            "out",
        ) from None
