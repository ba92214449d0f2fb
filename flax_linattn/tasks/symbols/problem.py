"""What a run on symbols remembers."""

from __future__ import annotations

import dataclasses

from flax_linattn.checks import at_least
from flax_linattn.tasks.run_types import Problem


@dataclasses.dataclass(frozen=True)
class SymbolsProblem(Problem):
    """What is drawn; kept in the run folder.

    Attributes:
        num_tokens: different tokens, special ones among them.
        chance: how often a guess at random is right.
        checksum: of the first batches to train, validate and test on.
    """

    num_tokens: int
    chance: float
    checksum: str

    def check(self) -> None:
        """Types and sizes."""
        super().check()
        at_least(2, 2**31, num_tokens=self.num_tokens)
