"""Errors of data files: broken formats, damaged files, unknown channels."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from flax_linattn.checks import OptionError, itemize, quote

REPAIR_ADVICE = "correct the line, or fetch the file again if it is cut short or damaged"
"""Advice for errors about a malformed line."""

MAX_COMPARED_NAMES = 1000
"""Maximum number of channels to search for a similar name."""


class DataFormatError(OptionError):
    """A data file violates its format; the message begins with ``path:line:`` or ``path``."""


class UnknownChannelError(OptionError):
    """A channel was requested that the data do not have."""

    @classmethod
    def of(cls, name: str, source: object, channels: Sequence[str]) -> Self:
        """Makes an error that lists the channels and suggests a similar name.

        Example:
            >>> str(UnknownChannelError.of("laod", "sales.csv", ["load", "price"]))
            "unknown channel 'laod'; sales.csv has load, price; did you mean 'load'?"
        """
        near = difflib.get_close_matches(str(name), channels[:MAX_COMPARED_NAMES], 1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of these."
        return cls(
            f"unknown channel {quote(name)}; {source} has {itemize(channels)}; {hint}",
            "channels",
        )


def printed(names: Sequence[str]) -> str:
    r"""Formats names from a file for messages, with terminal control characters escaped.

    Example:
        >>> printed(["a", "\x1b[1m"]), printed([])
        ('a, \\x1b[1m', 'none')
    """
    return itemize([quote(name, 80)[1:-1] for name in names]) or "none"


@contextmanager
def report_damage(
    path: Path | str, expected: str, advice: str = "fetch it again"
) -> Iterator[None]:
    """Context manager that converts any error of a damaged file to one that names the file.

    Libraries raise almost any exception on damaged files, from KeyError to MemoryError. ``advice``
    says what the user can do; an ``OptionError`` is passed on.
    """
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        raise DataFormatError(
            f"{path}: expected {expected}, got a damaged one, or another kind of file "
            f"({quote(error, 100)}); {advice}"
        ) from error
