"""Pairs of texts, as Long Range Arena's retrieval of papers of the ACL Anthology has them.

Sources: D. R. Radev et al., "The ACL Anthology Network corpus" (2013); Y. Tay et al., "Long Range
Arena" (2021), ``lra_benchmarks/matching/input_pipeline.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import same_number, shown
from flax_linattn.data.files import (
    LONGEST_LINE,
    MEND,
    STREAM_DAMAGE,
    DataFormatError,
    check_is_file,
    open_uncompressed,
)
from flax_linattn.data.labels import check_labels

CLASSES = ("apart", "linked")
"""Of labels 0 and 1: whether one paper cites the other."""

MOST_BYTES = 2**33
"""Of all texts that are kept, each different one once."""

_LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Labelled pairs of texts, as bytes.

    Attributes:
        name: The data set's name.
        classes: The class names of labels 0 and 1.
        labels: int32 ``[N]``.
        first: N texts.
        second: N texts.
        ids: N pairs of the names of both.

    Raises:
        ValueError: The parts do not fit together.

    Example:
        >>> pairs = TextPairs("toy", ("apart", "linked"), np.array([1], np.int32), (b"on trees",),
        ...                   (b"trees and graphs",), (("P1", "P2"),))
        >>> pairs.num_examples
        1
    """

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    first: tuple[bytes, ...]
    second: tuple[bytes, ...]
    ids: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.first), self.classes)
        same_number(first=self.first, second=self.second, ids=self.ids)

    @property
    def num_examples(self) -> int:
        """Number of pairs, N."""
        return len(self.first)


def load_pairs(path: str | Path) -> TextPairs:
    r"""Reads a file of pairs, such as ``new_aan_pairs.train.tsv`` (.gz and .xz too).

    A line is a label (0.0 or 1.0), the names of two texts, and the two texts, with tabs between.
    Texts are the exact bytes; quotation marks are bytes like others, as in Long Range Arena's own
    reader, but where the label is in them: then all cells are, and they are taken off. A text that
    is in many pairs takes memory once.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: A line holds something else, or the file is damaged; names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "toy.tsv")
        >>> _ = path.write_text("1.0\tP1\tP2\ton trees\ttrees and graphs\n")
        >>> load_pairs(path).second
        (b'trees and graphs',)
    """
    path = Path(path)
    check_is_file(path)
    labels, first, second, ids = [], [], [], []
    kept: dict[bytes, bytes] = {}
    room = MOST_BYTES
    for line, row in _lines(path):
        place = f"{path}:{line}"
        label, one, other, text, text_of_other = _cells(place, row)
        for found in {text, text_of_other} - kept.keys():
            kept[found] = found
            room -= len(found)
        if room < 0:
            raise DataFormatError(
                f"{place}: expected different texts of at most {MOST_BYTES:,} bytes, got more; "
                "split the file"
            )
        labels.append(label)
        ids.append((_name(one), _name(other)))
        first.append(kept[text])
        second.append(kept[text_of_other])
    if not labels:
        raise DataFormatError(f"{path}:1: expected a line for each pair, got none; {MEND}")
    name = path.name.removesuffix(".gz").removesuffix(".xz").removesuffix(".tsv")
    return TextPairs(
        name, CLASSES, np.array(labels, np.int32), tuple(first), tuple(second), tuple(ids)
    )


def _name(cell: bytes) -> str:
    return cell.decode("utf-8", "backslashreplace")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines without their ends, numbered from 1; empty ones are left out."""
    line = 0
    try:
        with open_uncompressed(path) as file:
            while row := file.readline(LONGEST_LINE + 1):
                line += 1
                if len(row) > LONGEST_LINE:
                    raise DataFormatError(
                        f"{path}:{line}: expected lines of at most {LONGEST_LINE:,} bytes, got a "
                        "longer one; check the file"
                    )
                if row := row.removesuffix(b"\n").removesuffix(b"\r"):
                    yield line, row
    except STREAM_DAMAGE as error:
        raise DataFormatError(
            f"{path}:{line + 1}: expected a whole compressed stream, got a damaged or truncated "
            f"one ({shown(error)}); fetch the file again"
        ) from error


def _cells(place: str, row: bytes) -> tuple[int, bytes, bytes, bytes, bytes]:
    cells = row.split(b"\t")
    if len(cells) != 5:
        raise DataFormatError(
            f"{place}: expected a label, two names and two texts with tabs between, got "
            f"{len(cells)} cells; {MEND}"
        )
    if cells[0][:1] == b'"':
        cells = [_unquoted(cell) for cell in cells]
    label = _LABELS.get(cells[0].strip())
    if label is None:
        raise DataFormatError(
            f"{place}: expected a label 0.0 or 1.0, got {shown(_name(cells[0]))}; {MEND}"
        )
    if not cells[3] or not cells[4]:
        raise DataFormatError(f"{place}: expected two texts, got an empty one; drop the line")
    return label, cells[1], cells[2], cells[3], cells[4]


def _unquoted(cell: bytes) -> bytes:
    if len(cell) < 2 or not (cell.startswith(b'"') and cell.endswith(b'"')):
        return cell
    return cell[1:-1].replace(b'""', b'"')
