"""Attention mechanisms as pure functions on arrays, behind one contract.

``list_mechanisms`` lists their names and ``get_mechanism`` makes one. ``contract`` defines the
interface, ``engine`` the forms that families of mechanisms share, and ``mechanisms`` has one module
per mechanism.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flax_linattn.ops import mechanisms
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.state import PackedState, register_state
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.contract.weights import weights
from flax_linattn.ops.engine.cache import CacheMechanism, KVCache
from flax_linattn.ops.engine.exponential import ExponentialState, ForgettingState
from flax_linattn.ops.engine.kernel import KernelMechanism, KernelState
from flax_linattn.ops.engine.series import SeriesState
from flax_linattn.ops.engine.shards import SequenceParallel, sequence_parallel
from flax_linattn.ops.engine.stateless import StatelessMechanism
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.engine.window import WindowCache
from flax_linattn.ops.mechanisms import *  # noqa: F403  (the classes of the registry)
from flax_linattn.ops.mechanisms.aaren import AarenState
from flax_linattn.ops.mechanisms.gated_delta import GatedDeltaState
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearState
from flax_linattn.ops.mechanisms.taylorshift import (
    taylorshift_n0,
    taylorshift_n1,
    taylorshift_optimal_dim,
)
from flax_linattn.ops.registry import get_mechanism, list_mechanisms, register_mechanism

__all__ = [
    "AarenState",
    "CacheMechanism",
    "Capabilities",
    "ExponentialState",
    "ForgettingState",
    "GatedDeltaState",
    "GatedLinearState",
    "KVCache",
    "KernelMechanism",
    "KernelState",
    "LearnedParameter",
    "Mechanism",
    "PackedState",
    "SequenceParallel",
    "SeriesState",
    "StatelessMechanism",
    "StreamingMechanism",
    "TokenArgument",
    "WindowCache",
    "get_mechanism",
    "list_mechanisms",
    "register_mechanism",
    "register_state",
    "sequence_parallel",
    "taylorshift_n0",
    "taylorshift_n1",
    "taylorshift_optimal_dim",
    "weights",
]

if not TYPE_CHECKING:  # a type checker reads the star above, and nothing more is here
    __all__ += mechanisms.__all__
