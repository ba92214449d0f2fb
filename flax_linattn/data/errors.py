"""Errors about names that a table does not have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Self

from flax_linattn.checks import OptionError, itemize, quote

MAX_COMPARED_NAMES = 1000
"""Maximum number of channels to search for a similar name."""


class UnknownChannelError(OptionError):
    """A channel was requested that the data do not have."""

    @classmethod
    def of(cls, name: str, source: object, channels: Sequence[str]) -> Self:
        """Says what the channels are called, and which one may be meant.

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
