"""What a state file says beside the arrays, read as if a stranger had written it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import shown

Facts = Mapping[str, Any]


def read_count(facts: Facts, name: str) -> int:
    """A whole number from 0 on.

    Raises:
        ValueError: it is missing, or something else.

    Example:
        >>> read_count({"num_steps": -5}, "num_steps")
        Traceback (most recent call last):
        ...
        ValueError: expected num_steps as a whole number from 0 on, got -5
    """
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(name, "a whole number from 0 on", facts)
    return value


def read_numbers(facts: Facts, name: str, size: int) -> NDArray[np.float64]:
    """So many finite numbers, float64 [size].

    Raises:
        ValueError: they are missing, or something else.
    """
    values = facts.get(name)
    kinds = {type(value) for value in values} if isinstance(values, list) else {None}
    if isinstance(values, list) and len(values) == size and kinds <= {int, float}:
        try:
            numbers = np.array(values, np.float64)
        except OverflowError:
            numbers = np.array([np.inf])
        if np.isfinite(numbers).all():
            return numbers
    raise _wrong(name, f"{size} finite numbers", facts)


def read_time(facts: Facts, name: str, zone: str | None = None) -> pd.Timestamp | None:
    """A time in a time zone; None where there was none.

    Raises:
        ValueError: it is something else, or has a zone where there is none, or none where there is.
    """
    value = facts.get(name)
    if value is None:
        return None
    try:
        time = pd.Timestamp(datetime.fromisoformat(value) and value)  # pandas knows words, too
    except (TypeError, ValueError):
        time = pd.NaT
    if time is pd.NaT or (time.tz is None) != (zone is None):
        offset = "" if zone is None else "+00:00"
        raise _wrong(name, f"a time such as 2016-07-01T00:00:00{offset}", facts)
    return time if zone is None else time.tz_convert(zone)


def _wrong(name: str, expected: str, facts: Facts) -> ValueError:
    got = shown(facts[name]) if name in facts else "nothing"
    return ValueError(f"expected {name} as {expected}, got {got}")
