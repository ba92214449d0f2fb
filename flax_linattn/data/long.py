"""Tables in long format: which column names the series of each row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flax_linattn.data.dialect import Dialect

MAX_ROWS = 200_000
"""Limit on the rows of a table that are read to find the column."""
MAX_ID_FRACTION = 0.5
"""Limit on the number of ids, as a fraction of the rows."""
TIME_ROWS = 100
"""Rows that are read to find the column of times."""


def find_id(rows: Sequence[Sequence[str]], header: Sequence[str], dialect: Dialect) -> str | None:
    """The column that names the series of each row, if the times say that there are several.

    Times repeat or fall from row to row, and rise among the rows of each value of that column.

    Args:
        rows: The cells, as wide as the header.
        header: The names of the columns.
        dialect: How they are written.

    Returns:
        Its name: a column of words comes before one of numbers, then that of the fewest values.

    Example:
        >>> rows = [["Bern", "2024-01-01", "5"], ["Bern", "2024-01-02", "6"],
        ...         ["Uri", "2024-01-01", "1"], ["Uri", "2024-01-02", "1"]]
        >>> find_id(rows, ["shop", "date", "sales"], Dialect())
        'shop'
    """
    timed = _timed(rows, header, dialect)
    if timed is None:
        return None
    times = [time for row in rows if (time := dialect.time(row[timed])) is not None]
    zoned = {time.tzinfo is not None for time in times}
    if len(times) < len(rows) or len(zoned) > 1 or _rise([""] * len(rows), times):
        return None
    found = []
    for column, name in enumerate(header):
        ids = [row[column] for row in rows]
        count = len(set(ids))
        if column != timed and 1 < count <= MAX_ID_FRACTION * len(rows) and _rise(ids, times):
            found.append((any(map(dialect.is_value, ids)), count, column, name))
    return min(found)[-1] if found else None


def _timed(rows: Sequence[Sequence[str]], header: Sequence[str], dialect: Dialect) -> int | None:
    """Which column holds the times: that of the dialect, or the first of nothing else."""
    if dialect.time_column:
        return header.index(dialect.time_column) if dialect.time_column in header else None
    for column in range(len(header)):
        cells = [row[column] for row in rows[:TIME_ROWS]]
        if not any(map(dialect.is_value, cells)) and all(map(dialect.time, cells)):
            return column
    return None


def _rise(ids: Sequence[str], times: Sequence[datetime]) -> bool:
    """Whether times rise among the rows of each id."""
    last: dict[str, datetime] = {}
    for name, time in zip(ids, times, strict=True):
        if name in last and time <= last[name]:
            return False
        last[name] = time
    return True
