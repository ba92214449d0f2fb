"""Whether a table looks like one of several series, and which column tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flax_linattn.data.dialect import Dialect

MOST_ROWS = 200_000
"""Rows of a table that are looked at."""
MOST_SHARE = 0.5
"""Of rows, how many ids there may be."""
LOOKED_AT = 100
"""Rows that tell which column holds the times."""


def find_id(rows: Sequence[Sequence[str]], header: Sequence[str], dialect: Dialect) -> str | None:
    """The column that tells several series apart, if times say that there are any.

    Times repeat or fall from row to row, and rise among the rows of each value of that column.

    Args:
        rows: The cells, as wide as the header.
        header: The names of the columns.
        dialect: How they are written.

    Returns:
        Its name: a column of words goes before one of numbers, then that of the fewest values.

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
        if column != timed and 1 < count <= MOST_SHARE * len(rows) and _rise(ids, times):
            found.append((any(map(dialect.is_value, ids)), count, column, name))
    return min(found)[-1] if found else None


def _timed(rows: Sequence[Sequence[str]], header: Sequence[str], dialect: Dialect) -> int | None:
    """Which column holds the times: that of the dialect, or the first of nothing else."""
    if dialect.time_column:
        return header.index(dialect.time_column) if dialect.time_column in header else None
    for column in range(len(header)):
        cells = [row[column] for row in rows[:LOOKED_AT]]
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
