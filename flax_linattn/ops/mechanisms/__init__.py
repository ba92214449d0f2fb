"""The mechanisms that the papers compare with, behind the same contract."""

from flax_linattn.ops.mechanisms.aft import AFT, AFTSimple
from flax_linattn.ops.mechanisms.linear import LinearAttention
from flax_linattn.ops.mechanisms.linformer import Linformer
from flax_linattn.ops.mechanisms.nystrom import Nystrom
from flax_linattn.ops.mechanisms.performer import Performer
from flax_linattn.ops.mechanisms.rfa import RandomFeatureAttention
from flax_linattn.ops.mechanisms.taylor_features import Hedgehog

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
