"""The error of a channel that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from flax_linattn.checks import OptionError, listed, shown

COMPARED = 1000
"""Channels among which one of a like name is looked for."""


class UnknownChannelError(OptionError):
    """A name is none of the channels; says what these are called, and which one may be meant.

    Args:
        name: What was asked for.
        source: Where, such as a file.
        channels: The names that it has.

    Example:
        >>> str(UnknownChannelError("laod", "sales.csv", ["load", "price"]))
        "unknown channel 'laod'; sales.csv has load, price; did you mean 'load'?"
    """

    def __init__(self, name: str, source: object, channels: Sequence[str]) -> None:
        near = difflib.get_close_matches(str(name), channels[:COMPARED], 1)
        hint = f"did you mean {near[0]!r}?" if near else "choose among these."
        super().__init__(
            f"unknown channel {shown(name)}; {source} has {listed(channels)}; {hint}", "channels"
        )
