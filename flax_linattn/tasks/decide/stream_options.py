"""Options of streams of decisions."""

from __future__ import annotations

import dataclasses
from typing import Literal

from flax_linattn.checks import LARGEST, OptionError, at_least, choice


@dataclasses.dataclass(frozen=True)
class DecideStreamOptions:
    """Options of a stream of decisions.

    A step is a line: the reward of the action before (empty where there was none), then the numbers
    of the observation, separated by commas; a first line may name the columns. A blank line begins
    a new episode. What comes out is the action to take.

    Attributes:
        act: "stream": all steps of the episode count; "restart": the last ones, as many as the
            model was trained on at most. Default as the run was tested; restart for one that was
            tested by the window, which sees as much.
        target_return: the return that is asked for; default what the run remembers.
        max_length: most steps of an episode, for mechanisms with a cache; default the longest
            episode that the run was trained on.
    """

    act: Literal["stream", "restart"] | None = None
    target_return: float | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        at_least(1, LARGEST, max_length=self.max_length)
        if self.act is not None:
            choice(("stream", "restart"), act=self.act)
        target = self.target_return
        if target is not None and not abs(target) < float("inf"):
            raise OptionError(f"target_return must be finite, got {target}.", "target_return")
