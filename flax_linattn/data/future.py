"""The times of the rows that follow a series."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MONTH = 28 * 86400
_DAY = np.timedelta64(1, "D")
_MONTHS = {31: 1, 92: 3, 365: 12}
"""By the days that most of these have."""


def times_after(
    times: NDArray[np.datetime64], step: np.timedelta64, count: int
) -> NDArray[np.datetime64]:
    """The times of the rows to come, at the usual distance, or by months where these are meant.

    Rows are months, quarters or years where they are 28 days apart or more, and all stand at the
    same time of their month, or at its end. A single row tells nothing of that: they are where the
    usual step is that of most months (31 days), quarters or years.

    Args:
        times: datetime64[s] ``[T]``, T >= 1.
        step: The usual time between rows.
        count: H.

    Returns:
        datetime64[s] ``[H]``.

    Example:
        >>> hours = np.array(["2016-07-01T22", "2016-07-01T23"], "M8[s]")
        >>> times_after(hours, np.timedelta64(3600, "s"), 2).tolist()[1].isoformat()
        '2016-07-02T01:00:00'
        >>> ends = np.array(["2024-01-31", "2024-02-29", "2024-03-31"], "M8[s]")
        >>> times_after(ends, np.timedelta64(31, "D"), 2).astype("M8[D]").astype(str).tolist()
        ['2024-04-30', '2024-05-31']
    """
    ahead = np.arange(1, count + 1)
    months_of_step = _MONTHS.get(round(step / _DAY), 0)
    if step / np.timedelta64(1, "s") >= _MONTH and (len(times) > 1 or months_of_step):
        for shift in (_DAY, 0 * _DAY):  # the first of a month follows its end
            shifted = times + shift
            months = shifted.astype("M8[M]")
            within = shifted - months
            if (within == within[-1]).all() and (not shift or within[-1] < _DAY):
                each, counts = np.unique(np.diff(months).astype(int), return_counts=True)
                by = int(each[np.argmax(counts)]) if each.size else months_of_step
                later = (months[-1] + by * ahead).astype("M8[s]") + within[-1] - shift
                return later.astype("M8[s]")
    return (times[-1] + ahead * step).astype("M8[s]")
