"""What a run on sequences remembers of its data."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax_linattn.checks import at_least, choice
from flax_linattn.tasks.classify.tokens.alphabets import ALPHABETS, Alphabet
from flax_linattn.tasks.run_types import Problem

LONGEST = 2**24
"""Tokens of a sequence."""


@dataclasses.dataclass(frozen=True)
class SequenceProblem(Problem):
    """What the data say; kept in the run folder.

    Attributes:
        dataset: its name.
        letters: the name of the tokens' alphabet.
        classes: names of the classes, in the order of the logits.
        max_length: tokens of the longest sequence, of those to test at further lengths, too.
        checksum: of the data.
    """

    dataset: str
    letters: str
    classes: tuple[str, ...]
    max_length: int
    checksum: str

    @property
    def alphabet(self) -> Alphabet:
        """What the tokens stand for."""
        return ALPHABETS[self.letters]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SequenceProblem:
        """Back from ``to_json``."""
        return cls(
            dataset=values["dataset"],
            letters=values["letters"],
            classes=tuple(values["classes"]),
            max_length=values["max_length"],
            checksum=values["checksum"],
        )

    def check(self) -> None:
        """Types, sizes, names."""
        super().check()
        choice(ALPHABETS, letters=self.letters)
        at_least(1, num_classes=len(self.classes))
        at_least(1, LONGEST, max_length=self.max_length)
