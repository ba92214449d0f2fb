"""Notes on a source of episodes, and strings of files, for messages and for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import listed, shown

NO_TIMEOUTS = "no timeouts: only terminal states end episodes"
"""Of a file whose episodes that time cut cannot be told from the next ones."""


def count_cut_short(lengths: NDArray[np.int64], terminated: NDArray[np.bool_]) -> int:
    """Episodes without a terminal state that are shorter than the longest.

    Args:
        lengths: Steps of each episode, int64 [E].
        terminated: Whether it ended in a terminal state, bool [E].

    Example:
        >>> count_cut_short(np.array([3, 9, 9, 2]), np.array([False, False, True, True]))
        1
    """
    return int((~terminated & (lengths < lengths.max())).sum())


def about_cut_short(lengths: NDArray[np.int64], terminated: NDArray[np.bool_]) -> list[str]:
    """The note on them, if there are any.

    Example:
        >>> about_cut_short(np.array([3, 9]), np.array([False, False]))
        ['cut before step 9 without a terminal state: 1 episode, whose return may be of a part']
        >>> about_cut_short(np.array([3, 9]), np.array([True, False]))
        []
    """
    number = count_cut_short(lengths, terminated)
    if not number:
        return []
    returns = "return" if number == 1 else "returns"
    return [
        f"cut before step {int(lengths.max()):,} without a terminal state: "
        f"{counted(number, 'episode')}, whose {returns} may be of a part"
    ]


def about_left_out(number: int, what: str, where: str) -> list[str]:
    """The note on what has no end, if there is any.

    Example:
        >>> about_left_out(137, "step", "behind the last end")
        ['137 steps behind the last end are left out; keep_unfinished keeps them']
        >>> about_left_out(0, "step", "behind the last end")
        []
    """
    if not number:
        return []
    verb, them = ("is", "it") if number == 1 else ("are", "them")
    return [f"{counted(number, what)} {where} {verb} left out; keep_unfinished keeps {them}"]


def printed(names: Sequence[str]) -> str:
    r"""Names from a file for a message, without what a terminal would take for commands.

    Example:
        >>> printed(["a", "\x1b[1m"]), printed([])
        ('a, \\x1b[1m', 'none')
    """
    return listed([shown(name, 80)[1:-1] for name in names]) or "none"


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "step"), counted(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def environment_name(value: object) -> str | None:
    r"""What a file says of its environment, where that is a name.

    Example:
        >>> environment_name("Hopper-v5"), environment_name("\x1b[1m"), environment_name(3)
        ('Hopper-v5', None, None)
    """
    return value if isinstance(value, str) and value and value.isprintable() else None
