"""Generates the small data set of the package, ``data/sets/pendulum.npz``.

``python -m experiments.offline_rl.pendulum FILE`` reproduces the file.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from experiments.offline_rl.policies import Noisy, RandomPolicy, SwingUp
from flax_linattn.control import Agent, action_bounds, make_environments, play
from flax_linattn.data.episodes import Episodes, join_episodes, write_episodes

ENV_ID = "Pendulum-v1"
NOISE_STDS = (4.0, 2.0, 1.0, 0.5)
"""Standard deviations of the noise on the actions of ``SwingUp``, which are bounded by 2."""
EPISODES = 20
"""Number of episodes with random actions, and with each noise: 100 in all, with seeds 0 to 99."""
ABOUT = {
    "source": "random actions, and an energy controller (Astrom and Furuta, 2000) with noise",
    "environment": "Pendulum-v1 of gymnasium (MIT license)",
    "made by": "python -m experiments.offline_rl.pendulum",
}


def make_pendulum() -> Episodes:
    """Plays the set: from random actions, which know nothing, to ones near the best.

    Example:
        >>> episodes = make_pendulum()
        >>> episodes.num_episodes, episodes.num_steps, episodes.env_id
        (100, 20000, 'Pendulum-v1')
    """
    with closing(make_environments(ENV_ID, EPISODES)) as environments:
        low, high = action_bounds(environments)
        agents: list[Agent] = [RandomPolicy(low, high)]
        agents += [Noisy(SwingUp(), own, low, high) for own in NOISE_STDS]
        return join_episodes(
            [
                play(agent, environments, range(number * EPISODES, (number + 1) * EPISODES))
                for number, agent in enumerate(agents)
            ]
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.offline_rl.pendulum FILE.npz")
    write_episodes(Path(sys.argv[1]), make_pendulum(), ABOUT)
