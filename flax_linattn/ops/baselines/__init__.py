"""The mechanisms that the papers compare with, behind the same contract."""

from flax_linattn.ops.baselines.aft import AFT, AFTSimple
from flax_linattn.ops.baselines.hedgehog import Hedgehog
from flax_linattn.ops.baselines.linear import LinearAttention
from flax_linattn.ops.baselines.linformer import Linformer
from flax_linattn.ops.baselines.nystrom import Nystrom
from flax_linattn.ops.baselines.performer import Performer
from flax_linattn.ops.baselines.rfa import RandomFeatureAttention

__all__ = [
    "AFT",
    "AFTSimple",
    "Hedgehog",
    "LinearAttention",
    "Linformer",
    "Nystrom",
    "Performer",
    "RandomFeatureAttention",
]
