"""Registry of mechanisms, in the order of ``ops.list_mechanisms`` and of all tables."""

# ruff: noqa: I001  (that order)

from typing import TYPE_CHECKING

from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.mechanisms.softmax import SoftmaxAttention as SoftmaxAttention
from flax_linattn.ops.mechanisms.aaren import Aaren as Aaren
from flax_linattn.ops.mechanisms.elementwise import Elementwise as Elementwise
from flax_linattn.ops.mechanisms.elementwise import ElementwiseSeries as ElementwiseSeries
from flax_linattn.ops.mechanisms.taylorshift import TaylorShift as TaylorShift
from flax_linattn.ops.mechanisms.expressive import Expressive as Expressive
from flax_linattn.ops.mechanisms.expressive import ExpressiveQuadratic as ExpressiveQuadratic
from flax_linattn.ops.mechanisms.bidirectional_aaren import BidirectionalAaren as BidirectionalAaren
from flax_linattn.ops.mechanisms.forgetting_aaren import ForgettingAaren as ForgettingAaren
from flax_linattn.ops.mechanisms.forgetting import Forgetting as Forgetting
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearAttention as GatedLinearAttention
from flax_linattn.ops.mechanisms.retention import Retention as Retention
from flax_linattn.ops.mechanisms.gated_delta import GatedDelta as GatedDelta
from flax_linattn.ops.mechanisms.rwkv import RWKV as RWKV
from flax_linattn.ops.mechanisms.linear import LinearAttention as LinearAttention
from flax_linattn.ops.mechanisms.aft import AFT as AFT
from flax_linattn.ops.mechanisms.aft import AFTSimple as AFTSimple
from flax_linattn.ops.mechanisms.taylor_features import TaylorFeatures as TaylorFeatures
from flax_linattn.ops.mechanisms.performer import Performer as Performer
from flax_linattn.ops.mechanisms.rfa import RandomFeatureAttention as RandomFeatureAttention
from flax_linattn.ops.mechanisms.linformer import Linformer as Linformer
from flax_linattn.ops.mechanisms.nystrom import Nystrom as Nystrom
from flax_linattn.ops.mechanisms.reformer import Reformer as Reformer
from flax_linattn.ops.mechanisms.eva import EVA as EVA

REGISTRY: dict[str, type[Mechanism]] = {
    vars(each)["name"]: each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Mechanism) and each is not Mechanism
}
"""Name -> class."""

if not TYPE_CHECKING:  # a type checker reads the lines above, and nothing more is here
    __all__ = [each.__name__ for each in REGISTRY.values()]
