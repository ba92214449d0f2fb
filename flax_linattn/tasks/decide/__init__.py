"""Decisions: offline reinforcement learning, what to do next for a return that is asked for.

Example:
    >>> from flax_linattn import tasks
    >>> config = tasks.get_task("decide").Config.of(mechanism="aaren", steps=100)
    >>> config.fit.context, config.play.act
    (20, 'restart')
"""

from flax_linattn.tasks.decide.agent import DecisionAgent, make_agent
from flax_linattn.tasks.decide.data import DecideSpec
from flax_linattn.tasks.decide.options import (
    DecideConfig,
    DecideData,
    DecideFit,
    DecideModel,
    DecidePlay,
)
from flax_linattn.tasks.decide.stream import DecideStream, DecideStreamOptions

__all__ = [
    "DecideConfig",
    "DecideData",
    "DecideFit",
    "DecideModel",
    "DecidePlay",
    "DecideSpec",
    "DecideStream",
    "DecideStreamOptions",
    "DecisionAgent",
    "make_agent",
]
