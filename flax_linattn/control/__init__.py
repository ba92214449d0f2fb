"""Agents in Gymnasium environments, played episodes, and animations of episodes."""

from flax_linattn.control.animation import check_rendering, save_animation
from flax_linattn.control.environments import (
    action_bounds,
    make_environments,
    max_episode_steps,
    num_actions,
)
from flax_linattn.control.play import Agent, SamplingAgent, play

__all__ = [
    "Agent",
    "SamplingAgent",
    "action_bounds",
    "check_rendering",
    "make_environments",
    "max_episode_steps",
    "num_actions",
    "play",
    "save_animation",
]
