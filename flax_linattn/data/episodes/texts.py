"""Texts that a file holds, for messages and for people."""

from __future__ import annotations

from collections.abc import Sequence

from flax_linattn.checks import listed, shown


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
