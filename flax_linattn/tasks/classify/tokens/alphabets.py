"""What tokens stand for, and how a line of a stream spells them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from flax_linattn.checks import shown
from flax_linattn.data.sets.listops import LISTOPS_TOKENS, parse_listops


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """The tokens of a kind of sequence.

    Attributes:
        name: by which a run remembers it.
        num_tokens: different ones.
        spelling: how a line spells tokens, for people.
        read: the tokens of a line that is not blank.
        between: tokens between two lines of one sequence.
        comments: whether there are comment lines, see ``data.cells.is_comment``.

    Example:
        >>> list(ALPHABETS["listops"].parse(["[MAX 2", "9 ]", "", "7"]))
        [11, 2, 9, 16, None, 7]
    """

    name: str
    num_tokens: int
    spelling: str
    read: Callable[[str], Iterable[int]]
    between: tuple[int, ...] = ()
    comments: bool = True

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Reads tokens; None where a blank line begins a new sequence.

        Raises:
            ValueError: a line spells none.
        """
        inside = False
        for line in lines:
            if not line.strip():
                inside = False
                yield None
                continue
            if inside:
                yield from self.between
            inside = True
            yield from self.read(line)


def _listops(line: str) -> list[int]:
    tokens: list[int] = parse_listops(line).tolist()
    return tokens


def _bytes(line: str) -> list[int]:
    # What was not UTF-8 came as a backslash escape, see open_lines.
    return list(line.encode("utf-8", "surrogateescape"))


def _grey(line: str) -> list[int]:
    values = []
    for text in line.replace(",", " ").split():
        if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) < 256):
            raise ValueError(
                f"expected grey values, whole numbers from 0 to 255, got {shown(text)}."
            )
        values.append(int(text))
    return values


ALPHABETS = {
    alphabet.name: alphabet
    for alphabet in (
        Alphabet(
            "listops",
            len(LISTOPS_TOKENS),
            f"tokens such as {LISTOPS_TOKENS[10]} 3 5 ], separated by blanks",
            _listops,
        ),
        Alphabet("bytes", 256, "text, of which each byte is a token", _bytes, (ord("\n"),), False),
        Alphabet("grey", 256, "grey values from 0 to 255, separated by blanks", _grey),
    )
}
"""By name."""
