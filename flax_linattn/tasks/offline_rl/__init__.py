"""Offline reinforcement learning: a decision transformer conditioned on a target return.

Example:
    >>> from flax_linattn import tasks
    >>> config = tasks.get_task("offline-rl").Config.of(mechanism="aaren", steps=100)
    >>> config.fit.context, config.play.act
    (20, 'restart')
"""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
