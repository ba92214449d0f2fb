"""Playing episodes, several at once, each begun by its own seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flax_linattn.control.agent import Agent, DrawingAgent
from flax_linattn.control.environments import Environments
from flax_linattn.data.episodes import Episodes


def play(
    agent: Agent,
    environments: Environments,
    seeds: Sequence[int],
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Plays an episode for each seed, as many at once as there are environments.

    A row whose episode has ended takes the next seed. An episode depends on its seed and the agent
    alone, not on the number of environments, as far as the agent's rows are independent.

    Args:
        agent: what plays. One that draws at random is told the seeds (``DrawingAgent``).
        environments: where.
        seeds: of the episodes, from 0.
        on_step: called after each step of all rows, with the numbers of steps and of whole
            episodes so far; what it raises ends the play.

    Returns:
        The episodes, in the order of the seeds. Their actions are those taken: what the agent
        answered, clipped to the bounds of the environment.

    Raises:
        ValueError: there are no seeds; the agent's answers are not finite, or of another size.

    Example:
        >>> from flax_linattn.control import SwingUp, make_environments
        >>> with make_environments("Pendulum-v1", 2) as environments:
        ...     episodes = play(SwingUp(), environments, seeds=[0, 1, 2])
        >>> episodes.num_episodes, episodes.lengths
        (3, array([200, 200, 200]))
    """
    if not len(seeds):
        raise ValueError("play takes a seed for each episode, got none.")
    table = _Table(environments, len(seeds))
    rows = environments.num_envs
    observations = np.zeros((rows, environments.observation_dim), np.float32)
    rewards = np.zeros(rows, np.float32)
    free = np.ones(rows, bool)
    begun = steps = 0
    while begun < len(seeds) or not free.all():
        begins = np.zeros(rows, bool)
        starting = np.flatnonzero(free)[: len(seeds) - begun].tolist()
        if starting:
            episodes = range(begun, begun + len(starting))
            chosen = [int(seeds[episode]) for episode in episodes]
            observations[starting] = environments.reset(starting, chosen)
            rewards[starting] = 0
            begins[starting] = True
            free[starting] = False
            if isinstance(agent, DrawingAgent):
                agent.begin(starting, chosen)
            table.begin(starting, episodes)
            begun += len(starting)
        answers = agent.act(observations.copy(), rewards.copy(), begins)
        actions = environments.clip(answers, ~free)
        seen, rewards, terminated, truncated = environments.step(actions, ~free)
        table.add(np.flatnonzero(~free), observations, actions, rewards)
        steps += int((~free).sum())
        observations = seen
        done = ~free & (terminated | truncated)
        for row in np.flatnonzero(done):
            table.end(int(row), bool(terminated[row]))
        free |= done
        if on_step is not None:
            on_step(steps, begun - int((~free).sum()))
    return table.episodes()


class _Table:
    """What was played: a buffer of a whole episode a row, and the episodes that have ended."""

    def __init__(self, environments: Environments, num_episodes: int) -> None:
        self._env_id = environments.env_id
        size = (environments.num_envs, environments.max_steps)
        self._observations = np.empty((*size, environments.observation_dim), np.float32)
        self._actions = np.empty((*size, environments.action_dim), np.float32)
        self._rewards = np.empty(size, np.float32)
        self._steps = np.zeros(environments.num_envs, np.intp)
        self._episode = np.zeros(environments.num_envs, np.intp)
        empty = np.empty(0, np.float32)
        self._ended = [(empty, empty, empty)] * num_episodes
        self._terminated = np.zeros(num_episodes, bool)

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        self._episode[rows] = episodes
        self._steps[rows] = 0

    def add(
        self, rows: np.ndarray, observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray
    ) -> None:
        at = self._steps[rows]
        self._observations[rows, at] = observations[rows]
        self._actions[rows, at] = actions[rows]
        self._rewards[rows, at] = rewards[rows]
        self._steps[rows] += 1

    def end(self, row: int, terminated: bool) -> None:
        steps, episode = self._steps[row], self._episode[row]
        arrays = (self._observations, self._actions, self._rewards)
        observations, actions, rewards = (array[row, :steps].copy() for array in arrays)
        self._ended[episode] = (observations, actions, rewards)
        self._terminated[episode] = terminated

    def episodes(self) -> Episodes:
        observations, actions, rewards = zip(*self._ended, strict=True)
        lengths = [len(reward) for reward in rewards]
        return Episodes(
            name=f"episodes of {self._env_id}",
            observations=np.concatenate(observations),
            actions=np.concatenate(actions),
            rewards=np.concatenate(rewards),
            starts=np.cumsum([0, *lengths], dtype=np.int64),
            terminated=self._terminated,
            env_id=self._env_id,
        )
