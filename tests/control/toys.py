"""A small environment whose episodes end in both ways, after numbers of steps of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 12
COUNTDOWN = "Countdown-v0"


class Countdown(gymnasium.Env):
    """Ends in a terminal state after 3 to 17 steps, by its seed; cut off after ``LIMIT``."""

    observation_space = spaces.Box(-100, 100, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 18))
        self.place = self.np_random.normal()
        return self.observation(), {}

    def step(self, action):
        self.left -= 1
        self.place += float(action.sum())
        return self.observation(), self.place, self.left == 0, False, {}

    def observation(self):
        return np.array([self.left, self.place])


class Steps(Countdown):
    """Its actions are choices."""

    action_space = spaces.Discrete(3)

    def step(self, action):
        return super().step(np.array(action - 1))


class Pairs(Countdown):
    """Its actions are two choices."""

    action_space = spaces.MultiDiscrete([3, 2])


class Shifted(Countdown):
    """Its actions are choices that do not start from 0."""

    action_space = spaces.Discrete(3, start=-1)


class Pictures(Countdown):
    """It shows pictures."""

    observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)


class Lost(Countdown):
    """It shows what is no number."""

    def observation(self):
        return np.array([np.nan, 0.0]) if self.place > 50 else np.zeros(2)

    def step(self, action):
        self.place = 100.0
        return super().step(action)


@contextmanager
def registered(env_id: str, kind: type, limit: int | None = LIMIT) -> Iterator[str]:
    """A context in which gymnasium knows an environment."""
    gymnasium.register(env_id, entry_point=kind, max_episode_steps=limit)
    try:
        yield env_id
    finally:
        del gymnasium.registry[env_id]
