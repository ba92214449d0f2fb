"""ListOps expressions as tokens: token names, values, and files of expressions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import quote
from flax_linattn.data.files.text_files import LineReader

DIGITS = 10
OPERATIONS = ("[MIN", "[MAX", "[MED", "[FIRST", "[LAST", "[SM")
LISTOPS_TOKENS = (*map(str, range(DIGITS)), *OPERATIONS, "]")
"""Names of the tokens by index: digits, operations, the end of a list."""

MIN, MAX, MED, FIRST, LAST, SM = range(DIGITS, DIGITS + len(OPERATIONS))
END = DIGITS + len(OPERATIONS)
_NUMBERS = {name: number for number, name in enumerate(LISTOPS_TOKENS)} | {"X": END}


def apply_operation(operation: int, values: Sequence[int]) -> int:
    """Evaluates an operation on the values of a list; returns a digit.

    The median of an even number of values is the mean of the middle two, rounded down, as in Long
    Range Arena and in Nangia and Bowman's files; see ``GrownListOps`` for TaylorShift's.
    """
    if operation == MIN:
        return min(values)
    if operation == MAX:
        return max(values)
    if operation == SM:
        return sum(values) % DIGITS
    if operation == FIRST:
        return values[0]
    if operation == LAST:
        return values[-1]
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def evaluate_listops(tokens: ArrayLike) -> int:
    """Evaluates an expression of tokens int [T], indices into ``LISTOPS_TOKENS``, to a digit.

    Raises:
        ValueError: If ``tokens`` are not one complete expression; the message names the place.

    Example:
        >>> evaluate_listops(parse_listops("[MAX 2 9 [MIN 4 7 ] 0 ]"))
        9
    """
    open_lists: list[tuple[int, list[int]]] = []
    value = None
    for place, token in enumerate(np.asarray(tokens).tolist()):
        if value is not None:
            raise ValueError(f"expected the end of the expression at token {place}, got more.")
        if DIGITS <= token < END:
            open_lists.append((token, []))
            continue
        if token == END:
            if not open_lists or not open_lists[-1][1]:
                raise ValueError(f"expected a value before the end of a list, at token {place}.")
            operation, values = open_lists.pop()
            token = apply_operation(operation, values)
        elif not 0 <= token < DIGITS:
            raise ValueError(f"expected a token from 0 to {END}, got {token} at token {place}.")
        if open_lists:
            open_lists[-1][1].append(token)
        else:
            value = token
    if value is None:
        raise ValueError("expected the end of the expression, got no more tokens.")
    return value


def parse_listops(text: str) -> NDArray[np.int32]:
    """Parses the text of an expression to tokens, int32 [T]; parentheses are ignored.

    Raises:
        ValueError: If ``text`` holds another token.

    Example:
        >>> parse_listops("( ( [SM 6 ) 5 ) ]").tolist()
        [15, 6, 5, 16]
    """
    names = [name for name in text.split() if name not in ("(", ")")]
    for name in names:
        if name not in _NUMBERS:
            raise ValueError(f"expected digits, {', '.join(OPERATIONS)} and ], got {quote(name)}.")
    return np.array([_NUMBERS[name] for name in names], np.int32)


class Expressions(NamedTuple):
    """Expressions of a file: tokens int32 [T] of each expression, and values int32 [N]."""

    tokens: tuple[NDArray[np.int32], ...]
    labels: NDArray[np.int32]


def read_listops(path: str | Path) -> Expressions:
    """Reads a file with a label, a tab and an expression per line (also .gz and .xz).

    This is the format of Nangia and Bowman's official files. Long Range Arena's files, whose first
    line names the columns (the expression first), are read as well.

    Raises:
        DataFormatError: If a line is not a row of the format, or its label is not the value of its
            expression; the message names the line.
        FileNotFoundError: If the file does not exist.
    """
    tokens, labels = [], []
    with LineReader(path) as lines:
        label_first = True
        for line in lines:
            cells = line.split("\t")
            if lines.line == 1 and cells == ["Source", "Target"]:
                label_first = False
                continue
            if len(cells) != 2:
                raise lines.error("a label, a tab and an expression", quote(line), "mend the line")
            label, text = cells if label_first else cells[::-1]
            try:
                own = parse_listops(text)
                value = evaluate_listops(own)
            except ValueError as error:
                raise lines.error("an expression", f"{quote(text)}: {error}", "mend it") from None
            if label.strip() != str(value):
                raise lines.error(f"the value {value}", quote(label), "mend the label")
            tokens.append(own)
            labels.append(value)
    if not tokens:
        raise lines.error("expressions", "none", "give another file")
    return Expressions(tuple(tokens), np.array(labels, np.int32))
