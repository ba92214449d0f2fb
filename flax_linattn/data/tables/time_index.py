"""Frequencies of pandas indices: inferred from rows, written as text, and continued.

A frequency is text: an alias of pandas (``D``, ``B``, ``W-SUN``, ``MS``, ``QE-DEC``, ``15min``,
``20ms``), or ``M@30``, ``3M@15``: a fixed day of every month or of every few months, and the last
day of a shorter month. Steps of hours and less are of constant duration; days and
longer ones keep the local time of day.
"""

from __future__ import annotations

import datetime
import functools
import re
import warnings
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, quote

_DAY = pd.Timedelta(days=1)
_MONTH = 28 * _DAY
_MIN_INFERRED = 3
"""Rows that ``pandas.infer_freq`` needs."""
_MONDAY = pd.DatetimeIndex(["2024-01-01"])
"""A Monday, the first day of a quarter and a year, from which seasons are counted."""
_MAX_MONTHS = 9999
"""Maximum number of months of a step, which ``_MONTH_DAY`` matches."""
_MONTH_DAY = re.compile(r"(\d{0,4})M@(\d{1,2})")


class MonthDay(NamedTuple):
    """The same day every n months, or the last day of a shorter month."""

    months: int
    day: int

    def after(self, times: pd.DatetimeIndex, steps: NDArray | int = 1) -> pd.DatetimeIndex:
        """Returns times some steps later, at the same time of day."""
        exact = times.to_numpy()
        month = np.timedelta64(1, "M")
        begin = exact.astype("M8[M]") + self.months * np.asarray(steps) * month
        length = (begin + month).astype("M8[D]") - begin.astype("M8[D]")
        day = np.minimum(np.timedelta64(self.day, "D"), length) - np.timedelta64(1, "D")
        clock = exact - exact.astype("M8[D]")
        return pd.DatetimeIndex((begin.astype("M8[D]") + day).astype(exact.dtype) + clock)


_Offset: TypeAlias = "pd.offsets.BaseOffset | MonthDay"


def parse_frequency(text: str, option: str = "freq") -> str:
    """Parses a frequency in the notation of ``infer_frequency``."""
    return _text(_parse(text, option))


def parse_offset(text: str, option: str = "freq") -> pd.offsets.BaseOffset:
    """Parses an alias to an offset of pandas, ignoring case if pandas knows only one case."""
    reason = ""
    for spelling in dict.fromkeys((text.strip(), text.strip().lower(), text.strip().upper())):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of aliases that pandas will drop
            try:
                offset = pd.tseries.frequencies.to_offset(spelling)
            except (ValueError, TypeError, OverflowError, Warning) as error:
                reason = reason or str(error)
                continue
        if offset is not None and offset.n > 0:
            return offset
        reason = reason or "it is no step forward"
    raise OptionError(
        f"{option} must be a frequency as pandas writes it, such as 15min, h, D, B, W-SUN, MS or "
        f"QE, got {quote(text)}.",
        option,
    )


def infer_frequency(index: pd.Index, usual: str | None = None) -> str | None:
    """Infers the frequency of an index, even with repeated and missing rows.

    It is the frequency of the index itself, if set, else the result of ``pandas.infer_freq``. If
    rows are missing, it is the frequency by which most rows follow the previous row: steps of the
    most frequent length, business days, weeks, and starts, ends, business starts and ends, or a
    fixed day of months, quarters and years.
    """
    times = timestamps(index)
    if times is None:
        return None
    if times.freq is not None and usual is None:
        return _text(times.freq)
    if isinstance(index, pd.PeriodIndex) and len(index.unique()) < _MIN_INFERRED:
        times = pd.period_range(index[0], periods=_MIN_INFERRED, freq=index.freq).to_timestamp()
    times = times.unique()
    if len(times) < 2:
        return usual
    whole = times.freq if times.freq is not None else _infer_whole(times)
    texts = [] if usual is None else [usual]
    texts += _candidates(times) if whole is None else [_text(whole)]
    if len(set(texts)) == 1:  # which takes no score
        return texts[0]
    scores = [float(np.mean(follows(times, text))) for text in texts]
    return texts[int(np.argmax(scores))]


def continue_index(index: pd.Index, freq: str | None, count: int) -> pd.Index:
    """Continues an index: times by a frequency in local time, integers by their step.

    The ``count`` new rows have the type, time zone, resolution and name of the index. An index
    whose own ``freq`` has this alias is continued by its ``freq``, including holidays.

    Example:
        >>> continue_index(pd.RangeIndex(860, 1000), None, 2).tolist()
        [1000, 1001]
        >>> days = pd.date_range("2024-03-29", periods=2, freq="D", tz="Europe/Berlin")
        >>> [str(time) for time in continue_index(days, "D", 2)]
        ['2024-03-31 00:00:00+01:00', '2024-04-01 00:00:00+02:00']
    """
    times = timestamps(index)
    if times is None:
        step = integer_step(index)
        end = int(index[-1]) + step
        return pd.RangeIndex(end, end + count * step, step, name=index.name)
    assert freq is not None
    if isinstance(index, pd.PeriodIndex):
        return continue_index(times, freq, count).to_period(index.freq)
    offset = _parse(freq)
    if times.freq is not None and _text(times.freq) == freq:
        offset = times.freq
    last = _clock(times[-1:], offset)
    try:
        if isinstance(offset, MonthDay):
            ahead = offset.after(last, np.arange(1, count + 1))
        else:
            ahead = pd.date_range(last[0], periods=count + 1, freq=offset)
            ahead = ahead[ahead > last[0]][:count]  # a row off the grid is no step of its own
    except (OverflowError, pd.errors.OutOfBoundsDatetime):
        raise ValueError(
            f"expected times that pandas can hold, got {count} steps of {freq} after {index[-1]}."
        ) from None
    if times.tz is not None:
        if _is_elapsed(offset):
            ahead = ahead.tz_localize("UTC").tz_convert(times.tz)
        else:
            first = np.ones(count, bool)  # of two equal clock times
            ahead = ahead.tz_localize(times.tz, ambiguous=first, nonexistent="shift_forward")
    unit = times.unit if (ahead.as_unit(times.unit) == ahead).all() else ahead.unit
    return ahead.as_unit(unit).rename(index.name)


def follows(index: pd.Index, freq: str | None) -> NDArray[np.bool_]:
    """Whether each row except the first is one step after the previous row, bool ``[T - 1]``."""
    times = timestamps(index)
    if times is None:
        return np.diff(index.to_numpy()) == integer_step(index)
    if freq is None:
        return np.zeros(len(index) - 1, np.bool_)
    offset = _parse(freq)
    if times.freq is not None and _text(times.freq) == freq:
        offset = times.freq
    zoned, times = times, _clock(times, offset)
    if _is_elapsed(offset):
        step = pd.Timedelta(offset)
        allowed = step // 1000 if step < pd.Timedelta(seconds=1) else pd.Timedelta(0)
        return np.abs((times[1:] - times[:-1]) - step).to_numpy() <= allowed.to_timedelta64()
    # To and fro: the last of a month plus a month's start is the next day, but no step.
    if isinstance(offset, MonthDay):
        after, before = offset.after(times[:-1]), offset.after(times[1:], -1)
    else:
        with warnings.catch_warnings():  # some offsets are added one by one
            warnings.simplefilter("ignore", pd.errors.PerformanceWarning)
            after = times[:-1] + offset
            if isinstance(offset, pd.offsets.BusinessHour):  # pandas 2 goes back to the close
                before = times[:-1].where([offset.is_on_offset(time) for time in times[:-1]])
            else:
                before = times[1:] - offset
    matches = np.array((after == times[1:]) & (before == times[:-1]))
    if zoned.tz is None or matches.all():
        return matches
    # A row whose time the clocks skip stands right after it, as continue_index puts it.
    for expected, row in ((after, zoned[1:]), (before, zoned[:-1])):
        first = np.ones(len(matches), bool)  # of two equal clock times
        there = expected.tz_localize(zoned.tz, ambiguous=first, nonexistent="shift_forward")
        matches |= np.asarray((there == row) & (there.tz_localize(None) != expected))
    return matches


def find_gaps(index: pd.Index, freq: str | None) -> NDArray[np.int64]:
    """Finds rows that neither follow the previous row by one step nor repeat it, int64.

    For steps of a month or longer, on any day, a row is a gap if it is an eighth of a step early or
    late. The step of integers is the most frequent difference; times without a frequency have no
    gaps.

    Example:
        >>> days = pd.to_datetime(["2024-01-09", "2024-02-08", "2024-03-11", "2024-05-09"])
        >>> find_gaps(days, "ME")
        array([3])
        >>> find_gaps(pd.Index([1949, 1950, 1951, 1954]), None)
        array([3])
    """
    times = timestamps(index)
    if isinstance(index, pd.RangeIndex) or (times is not None and freq is None):
        return np.zeros(0, np.int64)
    odd = ~follows(index, freq) & (index[1:] != index[:-1])
    if times is None or freq is None:
        return 1 + np.flatnonzero(odd)
    min_step, max_step = step_bounds(freq)
    if min_step >= _MONTH:
        passed = times[1:] - times[:-1]
        odd &= (passed < 7 / 8 * min_step) | (passed > 9 / 8 * max_step)
    return 1 + np.flatnonzero(odd)


def shortest_step(freq: str) -> pd.Timedelta:
    """Returns the shortest time between rows of a frequency: for months 28 to 30 days."""
    return step_bounds(freq)[0]


@functools.lru_cache(256)
def step_bounds(freq: str) -> tuple[pd.Timedelta, pd.Timedelta]:
    """Returns the shortest and longest time between rows, equal for steps of fixed duration.

    Example:
        >>> [str(step) for step in step_bounds("ME")]
        ['29 days 00:00:00', '31 days 00:00:00']
    """
    offset = _parse(freq)
    if _is_elapsed(offset):
        return pd.Timedelta(offset), pd.Timedelta(offset)
    rows = continue_index(_MONDAY, freq, 12)
    return (rows[1:] - rows[:-1]).min(), (rows[1:] - rows[:-1]).max()


def same_step(freq: str, other: str) -> bool:
    """Whether two frequencies have the same step; months, whose days differ, count as equal."""
    one, two = shortest_step(freq), shortest_step(other)
    return abs(one - two) <= (max(one, two) / 8 if min(one, two) >= _MONTH else pd.Timedelta(0))


@functools.lru_cache(256)
def season_length(freq: str | None) -> int:
    """Returns the season: a day, a week for daily rows, or a year for longer steps, in rows."""
    if freq is None:
        return 1
    step = shortest_step(freq)
    days = 1.0 if step < _DAY else 7.0 if step < 7 * _DAY else 365.25
    if _is_elapsed(_parse(freq)):
        return max(1, round(days * _DAY / step))
    cycles = 4  # whole days from 365.25
    number = int(cycles * days * _DAY / step)
    end = _MONDAY[0] + cycles * days * _DAY
    rows = continue_index(_MONDAY - pd.Timedelta(minutes=1), freq, number)
    return max(1, round(int((rows < end).sum()) / cycles))


def timestamps(index: pd.Index) -> pd.DatetimeIndex | None:
    """Returns the times of an index, for periods their starts; None if it has no times."""
    if isinstance(index, pd.PeriodIndex):
        return index.to_timestamp()
    return index if isinstance(index, pd.DatetimeIndex) else None


def zone_name(zone: datetime.tzinfo | None) -> str | None:
    """Returns a time zone as a string that ``pandas.DatetimeIndex.tz_convert`` accepts."""
    if zone is None:
        return None
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None:
        offset = zone.utcoffset(_MONDAY[0].to_pydatetime()) or datetime.timedelta(0)
        minutes = round(offset / datetime.timedelta(minutes=1))
        sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
        name = f"UTC{sign}{hours:02}:{rest:02}" if minutes else "UTC"
    return str(name)


def integer_step(index: pd.Index) -> int:
    """Returns the most frequent difference of an integer index; 1 if there is none."""
    if isinstance(index, pd.RangeIndex) and len(index) > 1:
        return int(index.step)
    steps, counts = np.unique(np.diff(index.to_numpy()), return_counts=True)
    counts, steps = counts[steps > 0], steps[steps > 0]
    return int(steps[np.argmax(counts)]) if steps.size else 1


@functools.lru_cache(256)
def _parse(text: str, option: str = "freq") -> _Offset:
    match = _MONTH_DAY.fullmatch(text.strip())
    if match is None:
        return parse_offset(text, option)
    months, day = int(match[1] or 1), int(match[2])
    if not months or not 1 <= day <= 31:
        raise OptionError(
            f"{option} must be a day of the month from M@1 to M@31, got {quote(text)}.",
            option,
        )
    return MonthDay(months, day)


def _text(offset: _Offset) -> str:
    if isinstance(offset, MonthDay):
        return f"{offset.months if offset.months > 1 else ''}M@{offset.day}"
    return str(offset.freqstr)


def _is_elapsed(offset: _Offset) -> bool:
    """Whether an offset is a fixed duration, not days of a calendar."""
    return isinstance(offset, pd.offsets.Tick) and not isinstance(offset, pd.offsets.Day)


def _clock(times: pd.DatetimeIndex, offset: _Offset) -> pd.DatetimeIndex:
    """Returns times without a zone: in UTC for fixed durations, else in local time."""
    if times.tz is None:
        return times
    return times.tz_convert(None) if _is_elapsed(offset) else times.tz_localize(None)


def _infer_whole(times: pd.DatetimeIndex) -> pd.offsets.BaseOffset | None:
    """Infers the frequency with pandas, which does not allow missing rows."""
    if len(times) < _MIN_INFERRED:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that offsets will come in place of texts
        freq = pd.infer_freq(times)
    if freq == "bh" and not follows(times, freq).all():  # any eight hours of a day
        return None
    return pd.tseries.frequencies.to_offset(freq)


def _candidates(times: pd.DatetimeIndex) -> list[str]:
    """Yields candidate frequencies, the most likely ones first."""
    local, exact = times.tz_localize(None), times.tz_convert(None) if times.tz else times
    days = _mode(local[1:].normalize() - local[:-1].normalize()) // _DAY
    elapsed = _mode(exact[1:] - exact[:-1])
    candidates = []
    if elapsed >= _MONTH - _DAY / 12:
        candidates += _monthly(local)
    if days and days % 7 == 0:
        candidates.append(f"{days // 7 if days > 7 else ''}W-{local[-1]:%a}".upper())
    if days == 1 and elapsed > _DAY / 2 and (local.day_of_week < 5).all():
        weeks = (local[-1].normalize() - local[0].normalize()) // _DAY > local[-1].day_of_week
        candidates += ["B", "D"] if weeks else ["D", "B"]
    if days and elapsed > _DAY / 2:
        candidates.append(_text(parse_offset(f"{days}D")))
    return [*candidates, _text(pd.tseries.frequencies.to_offset(elapsed))]


def _monthly(local: pd.DatetimeIndex) -> list[str]:
    """Candidate frequencies that are integers of months."""
    month = local.year * 12 + local.month
    months = int(_mode(np.diff(month)))
    if not 0 < months <= _MAX_MONTHS:
        return []
    day = min(int(local.day.max()), 31)
    candidates = [f"{'' if months == 1 else months}M@{day}"]
    for kind in ("BME", "ME", "BMS", "MS"):  # as pandas writes them: quarters by their own names
        text = f"{months}{kind}"
        try:
            ahead = continue_index(local[-1:], text, 9)
        except (ValueError, OverflowError):  # beyond the times that pandas holds
            ahead = local[:0]
        candidates.insert(0, _text(_infer_whole(ahead) or _parse(text)))
    return candidates


def _mode(steps: pd.TimedeltaIndex | NDArray) -> pd.Timedelta | int:
    """Returns the most frequent step; the smallest one in a tie."""
    values, counts = np.unique(np.asarray(steps), return_counts=True)
    step = values[np.argmax(counts)]
    return pd.Timedelta(step) if np.asarray(steps).dtype.kind == "m" else step
