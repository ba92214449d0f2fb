"""Playing in environments of Gymnasium: agents, and episodes that they play."""

from flax_linattn.control.draw import check_drawing, draw
from flax_linattn.control.environments import (
    action_bounds,
    make_environments,
    max_episode_steps,
)
from flax_linattn.control.play import Agent, DrawingAgent, play

__all__ = [
    "Agent",
    "DrawingAgent",
    "action_bounds",
    "check_drawing",
    "draw",
    "make_environments",
    "max_episode_steps",
    "play",
]
