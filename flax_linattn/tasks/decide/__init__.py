"""Decisions: offline reinforcement learning, what to do next for a return that is asked for.

Example:
    >>> from flax_linattn import tasks
    >>> config = tasks.get_task("decide").Config.of(mechanism="aaren", steps=100)
    >>> config.fit.context, config.play.act
    (20, 'window')
"""

from flax_linattn.tasks.decide.options import DecideConfig, DecideData, DecideFit, DecideModel
from flax_linattn.tasks.decide.options import DecidePlay as DecidePlay
from flax_linattn.tasks.decide.problem import DecideProblem

__all__ = [
    "DecideConfig",
    "DecideData",
    "DecideFit",
    "DecideModel",
    "DecidePlay",
    "DecideProblem",
]
