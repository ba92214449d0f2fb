"""Dates and times of the day as seconds since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flax_linattn.data.cells import parse_time
from flax_linattn.data.time_index import as_zone

_EPOCH = datetime(1970, 1, 1)


class SkippedTimeError(ValueError):
    """A time that clocks do not show, as they go forward over it."""


class Clock:
    """Reads dates; those that name no time zone are in one.

    Where clocks go back and show an hour twice, a time in it is the first of the two; where they go
    forward, a time that they skip is refused. A date alone is its midnight. Fractions of a second
    are kept to the microsecond; float64 holds the seconds of our years to a quarter of one.

    Args:
        timezone: Of dates without their own: a name of the IANA database.

    Raises:
        OptionError: There is no such time zone.

    Example:
        >>> Clock().seconds("1970-01-02 00:00:00.5"), Clock().seconds("1970-01-01T02:00+01:00")
        (86400.5, 3600.0)
        >>> Clock("America/New_York").seconds("1970-01-01"), Clock().seconds("noon")
        (18000.0, None)
    """

    def __init__(self, timezone: str = "UTC") -> None:
        self.timezone = timezone
        self._zone = as_zone(timezone)

    def seconds(self, text: str) -> float | None:
        """Seconds since 1970-01-01 UTC, or None if the text is no date.

        Args:
            text: ISO 8601, such as ``2016-07-01 00:00:00.25+02:00``, or ``2016/7/1 0:00``.

        Raises:
            SkippedTimeError: Clocks of the time zone skip this time.
        """
        time = parse_time(text)
        if time is None:
            return None
        offset = self._offset(time) if time.tzinfo is None else time.utcoffset() or timedelta()
        return (time.replace(tzinfo=None) - _EPOCH - offset).total_seconds()

    def _offset(self, time: datetime) -> timedelta:
        first = self._zone.utcoffset(time) or timedelta()
        second = self._zone.utcoffset(time.replace(fold=1)) or timedelta()
        if first < second:
            raise SkippedTimeError(f"clocks of {self.timezone} skip it")
        return first


def date_of(seconds: float) -> str:
    """A time in seconds since 1970-01-01 UTC for a message, as a date where there is one.

    Example:
        >>> date_of(86400.5), date_of(1e22)
        ('1970-01-02 00:00:00.500000+00:00', '1e+22')
    """
    try:
        return str((_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=UTC))
    except OverflowError:
        return str(float(seconds))
