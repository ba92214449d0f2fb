"""Options of streams of decisions."""

from __future__ import annotations

import dataclasses

from flax_linattn.checks import LARGEST, OptionError, at_least


@dataclasses.dataclass(frozen=True)
class DecideStreamOptions:
    """Options of a stream of decisions.

    A step is a line: the reward of the action before (empty where there was none), then the numbers
    of the observation, separated by commas; a first line may name the columns. A blank line begins
    a new episode. What comes out is the action to take.

    Attributes:
        target_return: the return that is asked for; default what the run remembers.
        max_length: most steps of an episode, for mechanisms with a cache; default the longest
            episode that the run was trained on.
    """

    target_return: float | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        at_least(1, LARGEST, max_length=self.max_length)
        target = self.target_return
        if target is not None and not abs(target) < float("inf"):
            raise OptionError(f"target_return must be finite, got {target}.", "target_return")
