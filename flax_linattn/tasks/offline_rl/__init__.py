"""Offline reinforcement learning: a decision transformer conditioned on a target return.

Example:
    >>> from flax_linattn import tasks
    >>> config = tasks.get_task("offline-rl").Config.of(mechanism="aaren", steps=100)
    >>> config.fit.context, config.play.act
    (20, 'restart')
"""

from flax_linattn.tasks.offline_rl.agent import DecisionAgent, make_agent
from flax_linattn.tasks.offline_rl.data import OfflineRLSpec
from flax_linattn.tasks.offline_rl.options import (
    OfflineRLConfig,
    OfflineRLData,
    OfflineRLFit,
    OfflineRLModel,
    OfflineRLPlay,
)
from flax_linattn.tasks.offline_rl.stream import OfflineRLStream, OfflineRLStreamOptions

__all__ = [
    "DecisionAgent",
    "OfflineRLConfig",
    "OfflineRLData",
    "OfflineRLFit",
    "OfflineRLModel",
    "OfflineRLPlay",
    "OfflineRLSpec",
    "OfflineRLStream",
    "OfflineRLStreamOptions",
    "make_agent",
]
