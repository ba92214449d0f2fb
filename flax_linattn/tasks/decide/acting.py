"""An agent of a run: what it asks for, and what it remembers of its actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn.tasks.decide.data import columns
from flax_linattn.tasks.decide.memory import Memory, make_memory
from flax_linattn.tasks.decide.problem import DecideProblem
from flax_linattn.tasks.run_types import Run


class DecisionAgent:
    """Plays in B rows with a run's model: a ``control.Agent``.

    It asks for a return at the begin of an episode, and after each reward for what is left of it.

    Args:
        problem: of the run.
        memory: how its model sees the steps before.
        num_rows: B.
        target_return: that is asked for.

    Attributes:
        memory: as given.
        returns_to_go: what is asked for now, float64 [B], in the unit of rewards.
        steps: of the episode so far, int64 [B].
    """

    def __init__(
        self, problem: DecideProblem, memory: Memory, num_rows: int, target_return: float
    ) -> None:
        self._problem, self._target = problem, target_return
        self.memory = memory
        self.returns_to_go = np.full(num_rows, target_return, np.float64)
        self.steps = np.zeros(num_rows, np.int64)
        self.last_actions = np.zeros((num_rows, problem.action_dim), np.float32)
        """Those given last, float32 [B, A] in -1 ... 1."""

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """See ``control.Agent``.

        Raises:
            ValueError: shapes do not fit, a number is not finite, or the model has no room for the
                step; nothing is taken in then.
        """
        problem = self._problem
        expected = {
            "observations": (len(self.steps), problem.observation_dim),
            "rewards": (len(self.steps),),
            "begins": (len(self.steps),),
        }
        given = {"observations": observations, "rewards": rewards, "begins": begins}
        for name, shape in expected.items():
            got = np.shape(given[name])
            if got != shape:
                raise ValueError(f"expected {name} {list(shape)}, got {list(got)}.")
            if not np.isfinite(given[name]).all():
                raise ValueError(f"expected finite {name}, got {given[name]}.")
        time = np.where(begins, 0, self.steps)
        asked = np.where(begins, self._target, self.returns_to_go - rewards)
        x = columns(
            time,
            ~begins,
            asked / problem.return_scale,
            problem.scaled_observations(observations),
            np.where(begins[:, None], 0, self.last_actions),
        )
        actions = self.memory.decide(x, begins)
        self.steps, self.returns_to_go, self.last_actions = time + 1, asked, actions
        return problem.actions(actions)


def make_agent(
    run: Run,
    num_rows: int,
    max_steps: int,
    *,
    act: str | None = None,
    target_return: float | None = None,
) -> DecisionAgent:
    """An agent of a run, for a loop of one's own; ``control.play`` is one.

    Args:
        run: the trained run.
        num_rows: B.
        max_steps: of an episode. Rows in which none is played any more may be seen beyond it.
        act: "window", "stream" or "restart"; default as the run's options say.
        target_return: that is asked for; default what the run remembers.

    Raises:
        ValueError: the model cannot stream, where it has to; or has no times for so many steps.
    """
    act = run.config.play.act if act is None else act
    target = run.problem.target_return if target_return is None else target_return
    memory = make_memory(run, act, num_rows, max_steps)
    return DecisionAgent(run.problem, memory, num_rows, target)
