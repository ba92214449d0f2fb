from flax_linattn.tasks.offline_rl.agent import DecisionAgent, make_agent
from flax_linattn.tasks.offline_rl.data import OfflineRLSpec
from flax_linattn.tasks.offline_rl.options import (
    OfflineRLConfig,
    OfflineRLData,
    OfflineRLFit,
    OfflineRLModel,
    OfflineRLPlay,
    OfflineRLStreamOptions,
)
from flax_linattn.tasks.offline_rl.stream import OfflineRLStream

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
