"""The lines that a stream of decisions reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.cells import BadCellError, is_number, parse_numbers


class Seen(NamedTuple):
    """What is seen in a step.

    Attributes:
        reward: of the action before; None where none is told.
        observation: float64 [S].
    """

    reward: float | None
    observation: NDArray[np.float64]


def parse_lines(lines: Iterable[str], name: str, observation_dim: int) -> Iterator[Seen | None]:
    """Reads a step a line; None for a blank line, which ends an episode.

    Args:
        lines: the text.
        name: of the source, for messages.
        observation_dim: S.

    Raises:
        ValueError: a line that holds something else; the message begins with name and line.

    Example:
        >>> for seen in parse_lines([",0.5,1", "-2,0.25,1"], "standard input", 2):
        ...     print(seen.reward, seen.observation.tolist())
        None [0.5, 1.0]
        -2.0 [0.25, 1.0]
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield None
            continue
        (cells,) = csv.reader([line.strip()])
        if number == 1 and len(cells) == observation_dim + 1 and not any(map(is_number, cells)):
            continue  # names of the columns
        place = f"{name}:{number}"
        if len(cells) != observation_dim + 1:
            raise ValueError(
                f"{place}: expected {observation_dim + 1} values, the reward of the action before "
                f"and {observation_dim} of the observation, got {len(cells)}."
            )
        told = bool(cells[0].strip())
        try:
            values = parse_numbers(cells if told else ["0", *cells[1:]], missing=())
        except BadCellError as error:
            raise ValueError(f"{place}: {error}.") from None
        if not np.abs(values).max() <= np.finfo(np.float32).max:  # nor is NaN one
            raise ValueError(f"{place}: expected finite numbers that float32 can hold.")
        yield Seen(float(values[0]) if told else None, values[1:])
