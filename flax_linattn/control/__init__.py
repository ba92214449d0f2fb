"""Playing in environments: agents, policies, episodes, and data sets collected from them."""

from flax_linattn.control.agent import Agent, DrawingAgent
from flax_linattn.control.collect import StoppedError, collect
from flax_linattn.control.draw import check_drawing, draw
from flax_linattn.control.environments import Environments, make_environments
from flax_linattn.control.play import play
from flax_linattn.control.policies import Noisy, RandomPolicy, SwingUp
from flax_linattn.control.weights import NetworkPolicy, read_policy

__all__ = [
    "Agent",
    "DrawingAgent",
    "Environments",
    "NetworkPolicy",
    "Noisy",
    "RandomPolicy",
    "StoppedError",
    "SwingUp",
    "check_drawing",
    "collect",
    "draw",
    "make_environments",
    "play",
    "read_policy",
]
