"""What plays: an agent answers observations with actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Agent(Protocol):
    """Plays in B environments at once, each of which is a row.

    Rows are independent: what an agent does in one depends on nothing in another one. What it
    answers for rows in which nothing is played at the moment is not used.
    """

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """What to do next.

        Args:
            observations: float32 [B, S], what is seen now.
            rewards: float32 [B], of the actions given last; 0 where an episode begins.
            begins: bool [B], where an episode begins with this observation: the agent forgets what
                it knows of the episode before in that row.

        Returns:
            Actions, float32 [B, A].
        """
        ...


@runtime_checkable
class DrawingAgent(Agent, Protocol):
    """An agent that draws at random, and is told whose numbers to draw.

    What it draws in an episode depends on the seed of that episode alone, so that an episode is
    the same in whichever row, and after whichever others, it is played.
    """

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Says that episodes begin, before ``act`` sees their first observations.

        Args:
            rows: the rows in which they do.
            seeds: the seed of each, from 0.
        """
        ...
