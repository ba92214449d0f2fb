"""Mechanisms without a state, which need the whole sequence at once."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.typing import Array, Outputs, OutputStep, Parameters, State


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Whole sequences, the input of ``StatelessMechanism.mix``.

    Attributes:
        q: Queries of shape [B, T, H, K]; the learned query [H, K] if
            ``capabilities.learned_query``.
        k: Keys of shape [B, S, H, K].
        v: Values of shape [B, S, H, V].
        query_mask: Boolean array of shape [B, T]; True marks valid tokens.
        mask: Boolean array of shape [B, S]; True marks valid tokens.
        starts: Boolean array of shape [B, S]; True marks the first token of a packed segment. None
            means that nothing is packed.
        form: Name of the form, one of ``capabilities.forms`` or "auto".
        parameters: The mechanism's own arguments, by name.
        is_causal: Whether each position attends only to itself and earlier positions.
    """

    q: Array
    k: Array
    v: Array
    query_mask: Array
    mask: Array
    starts: Array | None
    form: str
    parameters: Parameters
    is_causal: bool = False


@dataclasses.dataclass(frozen=True)
class StatelessMechanism(Mechanism):
    """Base class of mechanisms defined by ``mix`` of whole sequences; not causal by default."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False, causal=False, packed=False, recurrent=False, forms=("parallel",)
    )

    @abc.abstractmethod
    def mix(self, whole: Sequences) -> Outputs:
        """Computes outputs [B, T, H, V]; arbitrary where no token is valid."""

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        dtype = accumulation_dtype(call.v.dtype)
        q, k, v = (x.astype(dtype) for x in (call.q, call.k, call.v))
        (batch, length), queries = k.shape[:2], call.num_queries
        query_mask, mask = (
            jnp.ones((batch, n), bool) if m is None else m
            for n, m in ((queries, call.query_mask), (length, call.mask))
        )
        if queries == 0 or length == 0:
            return jnp.zeros((batch, queries, *v.shape[2:]), dtype), None
        own = call.parameters
        y = self.mix(
            Sequences(q, k, v, query_mask, mask, call.starts, call.form, own, call.is_causal)
        )
        has_tokens = jnp.any(mask, axis=1)[:, None, None, None]
        return jnp.where(has_tokens, y, jnp.zeros_like(y)), None

    # Not reached: calls that need a state are rejected before.

    def _init_state(self, sizes: StateSizes) -> State:
        raise NotImplementedError

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        raise NotImplementedError

    def _check_state(self, state: State, q: Array, k: Array, v: Array) -> None:
        raise NotImplementedError
