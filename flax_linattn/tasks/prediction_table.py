"""Predictions as a data frame, and the files that hold it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flax_linattn.checks import OptionError, itemize, quote
from flax_linattn.data.tables.cells import join_cells
from flax_linattn.storage import atomic_write

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
"""File name endings of tables."""
ROWS_AT_ONCE = 10_000
"""Number of rows that are held as text while a file is written."""


def make_table(names: Sequence[str], columns: Sequence[Any]) -> pd.DataFrame:
    """Makes a data frame of columns [N]: strings, integers, floats of any dtype, or times."""
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = pd.Index(names)
    return frame


def plain_rows(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yields rows of plain Python values: None for missing ones, strings for times and periods.

    A float has the fewest digits that identify it in the dtype of its column.

    Example:
        >>> times = pd.to_datetime(["2016-07-01 02:00", None])
        >>> columns = (times, np.float64([1 / 3, np.nan]), np.float32([1 / 3, 0.1]))
        >>> list(plain_rows(make_table(("time", "load", "p"), columns)))
        [('2016-07-01 02:00:00', 0.3333333333333333, 0.33333334), (None, None, 0.1)]
    """
    columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
    values = [c.array if c.dtype.kind == "M" else c.to_numpy() for c in columns]
    return zip(*(map(_plain, column) for column in values), strict=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.floating):
        return float(str(value)) if np.isfinite(value) else None
    if isinstance(value, np.generic):
        return value.item()
    if value is None or pd.isna(value):
        return None
    return value if isinstance(value, int) else str(value)


def check_out(path: Path) -> None:
    """Checks that a table can be written to a file, before anything is computed.

    Example:
        >>> check_out(Path("forecast.xls"))
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: out must end in .csv, .json, .jsonl or .parquet, got 'fo...
    """
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"out must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got "
            f"{quote(path.name)}.",
            "out",
        )
    if path.is_dir():
        raise OptionError(f"out must be a file, got the folder {path}; choose another name.", "out")


def write_table(path: Path, frame: pd.DataFrame) -> None:
    r"""Writes a data frame atomically, in the format of the file name.

    A missing value is an empty cell in .csv, and null in other formats. A .json file is a list of
    rows; a .jsonl file has one row per line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "load.csv")
        >>> write_table(path, pd.DataFrame({"step": [0, 1], "load": [0.5, np.nan]}))
        >>> path.read_text()
        'step,load\n0,0.5\n1,\n'
    """
    check_out(path)
    kind, names = path.suffix.lower(), list(frame.columns)
    if kind != ".csv" and len(set(names)) < len(names):
        raise OptionError(
            f"expected unique column names for {kind}, got {itemize(names)}; write a .csv file.",
            "out",
        )
    if kind == ".parquet":
        # Other programs read periods as integers.
        periods = [n for n in names if isinstance(frame.dtypes[n], pd.PeriodDtype)]
        with atomic_write(path) as file:
            frame.astype(dict.fromkeys(periods, "str")).to_parquet(file, index=False)
        return
    with atomic_write(path) as file:
        for line in _lines(frame, kind):
            file.write(line.encode())


def _lines(frame: pd.DataFrame, kind: str) -> Iterator[str]:
    """Yields the lines of a file; converts ``ROWS_AT_ONCE`` rows at a time to text."""
    names, firsts = list(frame.columns), range(0, len(frame), ROWS_AT_ONCE)
    parts = (plain_rows(frame.iloc[first : first + ROWS_AT_ONCE]) for first in firsts)
    rows = itertools.chain.from_iterable(parts)
    if kind == ".csv":
        yield from (f"{join_cells(row)}\n" for row in itertools.chain([names], rows))
        return
    begin, between, end = ("[\n", ",\n", "\n]\n") if kind == ".json" else ("", "\n", "\n")
    yield begin
    for number, row in enumerate(rows):
        yield (between if number else "") + json.dumps(dict(zip(names, row, strict=True)))
    yield end
