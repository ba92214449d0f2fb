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
"""Of files that hold a table."""
ROWS_AT_ONCE = 10_000
"""Rows that are held as text while a file is written."""


def make_table(names: Sequence[str], columns: Sequence[Any]) -> pd.DataFrame:
    """A data frame of columns [N] each: strings, integers, floats of their dtype, or times."""
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = pd.Index(names)
    return frame


def plain_rows(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Rows as plain values: None where there is none, times and periods as strings.

    A float has as many digits as tell it from its neighbors in the dtype of its column.

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
    """Refuses a file that no table can be written to, before anything is computed.

    Example:
        >>> check_out(Path("forecast.xls"))
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: expected a file to write that ends in .csv, .json, .jso...
    """
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"expected a file to write that ends in {', '.join(SUFFIXES)}, got "
            f"{quote(str(path))}; the ending says the format.",
            "out",
        )
    if path.is_dir():
        raise OptionError(f"{path} is a folder, expected a file; give another one.", "out")


def write_table(path: Path, frame: pd.DataFrame) -> None:
    r"""Writes a data frame, in the format of the name's ending; it is whole or not there.

    A missing value is an empty cell of a .csv, and null in the others; a .json is a list of rows,
    a .jsonl a row a line.

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
            f"expected different names of columns, got {itemize(names)}; write a .csv file.",
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
    """The lines of a file, from a part of the rows at a time: not all are held as text."""
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
