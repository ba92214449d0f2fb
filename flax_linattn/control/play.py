"""Agents, and how they play episodes: several in parallel, each with its own seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_integers
from flax_linattn.control.environments import action_bounds, num_actions
from flax_linattn.data.episodes import Episodes

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


class Agent(Protocol):
    """Acts in B environments at once, each of which is a row.

    Rows are independent: an action in one row depends on no other row. Actions in rows without a
    running episode are ignored.
    """

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray[np.float32] | NDArray[np.int64]:
        """Chooses the next action of each row.

        Args:
            observations: Current observations, float32 [B, S].
            rewards: Rewards of the previous actions, float32 [B]; 0 where an episode begins.
            begins: Whether an episode begins with this observation, so that the agent has to forget
                the previous episode of the row; bool [B].

        Returns:
            Actions, float32 [B, A]; discrete actions, integers [B].
        """
        ...


@runtime_checkable
class SamplingAgent(Agent, Protocol):
    """An agent that samples actions, and receives the seed of each episode.

    Its samples in an episode depend on the seed of that episode alone, so that the row and the
    previous episodes do not change it.
    """

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Called when episodes begin, before ``act`` receives their first observations.

        Args:
            rows: Rows of these episodes.
            seeds: Seed of each episode, from 0.
        """
        ...


def play(
    agent: Agent,
    environments: VectorEnv,
    seeds: Sequence[int],
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Plays one episode for each seed, in all environments in parallel.

    A row whose episode has ended continues with the next seed. An episode depends only on its seed
    and the agent, not on the number of environments, if the rows of the agent are independent.

    Args:
        agent: The agent; a ``SamplingAgent`` receives the seeds.
        environments: Environments of ``make_environments``, which have no automatic resets.
        seeds: Seeds of the episodes, from 0.
        on_step: Called after each step of all rows, with the numbers of steps and of finished
            episodes so far; its exceptions end the play.

    Returns:
        The episodes, in the order of the seeds. Their actions are the agent's; continuous ones are
        clipped to the bounds of the environment, as D4RL's environments do (``NormalizedBoxEnv``).

    Raises:
        ValueError: If there are no seeds; if actions are not finite, have the wrong size or are out
            of the range of discrete actions; or if observations or rewards are not finite.

    Example:
        >>> from contextlib import closing
        >>> from flax_linattn.control import make_environments
        >>> class Damped:
        ...     def act(self, observations, rewards, begins):
        ...         return -observations[:, 2:]  # against the angular velocity
        >>> with closing(make_environments("Pendulum-v1", 2)) as environments:
        ...     episodes = play(Damped(), environments, seeds=[0, 1, 2])
        >>> episodes.num_episodes, episodes.lengths
        (3, array([200, 200, 200]))
    """
    if not len(seeds):
        raise ValueError("play needs at least one seed, got none.")
    check_integers(0, seed=min(seeds))
    env_id = environments.spec.id if environments.spec is not None else None
    choices = num_actions(environments)
    reset: Any = environments.reset  # its annotation has a single seed
    rows = environments.num_envs
    rewards = np.zeros(rows, np.float32)
    ended, playing = np.ones(rows, bool), np.zeros(rows, bool)
    episode = np.zeros(rows, np.intp)  # its number in each row
    terminated = np.zeros(len(seeds), bool)
    steps: list[tuple[NDArray, NDArray, NDArray, NDArray]] = []
    begun = count = 0
    while begun < len(seeds) or playing.any():
        begins = np.zeros(rows, bool)
        if ended.any():
            starting = np.flatnonzero(ended)[: len(seeds) - begun]
            chosen = [int(seed) for seed in seeds[begun : begun + len(starting)]]
            by_row = dict(zip(starting.tolist(), chosen, strict=True))
            received, _ = reset(
                seed=[by_row.get(row) for row in range(rows)], options={"reset_mask": ended}
            )
            observations = _check_observations(received, env_id)
            rewards[ended] = 0
            begins[starting] = playing[starting] = True
            episode[starting] = np.arange(begun, begun + len(starting))
            begun += len(starting)
            if isinstance(agent, SamplingAgent):
                agent.begin(starting.tolist(), chosen)
        answers = agent.act(observations.copy(), rewards.copy(), begins)
        if choices is None:
            actions: NDArray = _clip_actions(answers, environments, playing)
        else:
            actions = _check_choices(answers, choices, playing)
        received, gains, terminations, truncations, _ = environments.step(actions)
        rewards = gains.astype(np.float32)
        if (wrong := np.flatnonzero(~np.isfinite(rewards))).size:
            raise ValueError(
                f"expected finite rewards, got {gains[wrong[0]]} from {env_id} in row {wrong[0]}."
            )
        rows_of_steps = (episode, observations, actions, rewards)
        steps.append(tuple(array[playing] for array in rows_of_steps))  # type: ignore[arg-type]
        observations = _check_observations(received, env_id)
        count += int(playing.sum())
        ended = terminations | truncations
        terminated[episode[playing & terminations]] = True
        playing &= ~ended
        if on_step is not None:
            on_step(count, begun - int(playing.sum()))
    numbers, *arrays = (np.concatenate(own) for own in zip(*steps, strict=True))
    order = np.argsort(numbers, kind="stable")
    observations, actions, rewards = (array[order] for array in arrays)
    return Episodes(
        name=f"episodes of {env_id}",
        observations=observations,
        actions=actions,
        rewards=rewards,
        starts=np.cumsum([0, *np.bincount(numbers)], dtype=np.int64),
        terminated=terminated,
        env_id=env_id,
        num_actions=choices,
    )


def _check_observations(observations: NDArray, env_id: str | None) -> NDArray[np.float32]:
    """Converts observations to float32 `[B, S]`, and checks that they are finite."""
    array = np.asarray(observations, np.float32)
    wrong = ~np.isfinite(array).all(axis=1)
    if wrong.any():
        raise ValueError(
            f"expected finite observations, got others of {env_id} in row {int(np.argmax(wrong))}."
        )
    return array


def _clip_actions(
    answers: NDArray, environments: VectorEnv, playing: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Clips actions to the bounds, float32 `[B, A]`; checks only rows with a running episode."""
    low, high = action_bounds(environments)
    actions, shape = np.asarray(answers, np.float32), (environments.num_envs, len(low))
    if actions.shape != shape:
        raise ValueError(f"expected actions of shape {[*shape]}, got {[*actions.shape]}.")
    wrong = playing & ~np.isfinite(actions).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"actions must be finite, got {actions[row]} in row {row}.")
    return np.clip(actions, low, high)


def _check_choices(
    answers: NDArray, num_actions: int, playing: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Checks the discrete actions of rows with a running episode, int64 `[B]`; others become 0."""
    actions = np.asarray(answers)
    if actions.shape != playing.shape or actions.dtype.kind not in "iu":
        raise ValueError(
            f"expected discrete actions as integers of shape {[*playing.shape]}, got "
            f"{actions.dtype} {[*actions.shape]}."
        )
    wrong = playing & ((actions < 0) | (actions >= num_actions))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"expected discrete actions from 0 to {num_actions - 1}, got {actions[row]} in row "
            f"{row}."
        )
    return np.where(playing, actions, 0).astype(np.int64)
