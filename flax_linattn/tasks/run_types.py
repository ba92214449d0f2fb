"""What a run is made of, beside the options."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from flax_linattn.annotations import of_types

if TYPE_CHECKING:
    from flax_linattn.tasks.task import Task


class Problem(abc.ABC):
    """What the training data say: kept in the run folder, so that a run needs no training data.

    Attributes:
        checksum: of the data, as a JSON value: a resumed run must have the same.
    """

    checksum: Any

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""

    def check(self) -> None:
        """Refuses what no data say: the file may be damaged, or written by hand.

        Raises:
            ValueError: names what does not fit.
            TypeError: the same, of types.
        """
        if dataclasses.is_dataclass(self):
            of_types(self)

    @classmethod
    @abc.abstractmethod
    def from_json(cls, values: dict[str, Any]) -> Problem:
        """Back from ``to_json``."""


class Run(NamedTuple):
    """A run: the model with its selected parameters, and what it was made of.

    Attributes:
        task: whose run it is.
        config: what the run was started with, resolved; of one of several seeds, that of all.
        problem: what it learned of the data.
        model: an ``nnx.Module``.
        data: what its task loaded to train it; None in a run that comes from its folder.
        seed_index: its index among the runs of its folder, where these are several seeds.
    """

    task: Task[Any, Any, Any]
    config: Any
    problem: Any
    model: Any
    data: Any = None
    seed_index: int | None = None
