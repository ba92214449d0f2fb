"""Capabilities of a mechanism, and the parameters that a layer learns for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from flax_linattn.typing import Array


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """Features that a mechanism supports.

    Attributes:
        constant_memory: Whether the size of the state is independent of the number of tokens.
        causal: Whether ``is_causal=True`` is supported.
        noncausal: Whether ``is_causal=False`` is supported.
        cross: Whether keys and values may have another length than the queries.
        packed: Whether ``segment_ids`` is supported.
        learned_query: Whether ``q`` is one learned query [H, K] instead of one query per token.
        latents: Whether L external queries, ``latents``, may replace the learned query; each
            attends to all tokens.
        channelwise: Whether every channel attends independently, so that V = K.
        recurrent: Whether there is a state, so that ``init_state``, ``step``, ``initial_state`` and
            ``return_state`` are supported.
        mergeable: Whether ``merge`` joins the states of two consecutive spans of tokens.
        unit_vectors: Whether queries and keys should have length 1; layers normalize them.
        shared_query_key: Whether ``k`` serves as query and key; layers project it once, and ``q``
            is ignored.
        pair_mask: Whether ``pair_mask`` is supported (``contract.pair_inputs``).
        bias: Whether ``bias`` of the scores is supported.
        weight_dropout: Whether ``dropout_rate`` and ``dropout_key`` of the weights are supported.
        forms: Values of ``form`` other than "auto".
    """

    constant_memory: bool
    causal: bool = True
    noncausal: bool = True
    cross: bool = True
    packed: bool = True
    learned_query: bool = False
    latents: bool = False
    channelwise: bool = False
    recurrent: bool = True
    mergeable: bool = False
    unit_vectors: bool = False
    shared_query_key: bool = False
    pair_mask: bool = False
    bias: bool = False
    weight_dropout: bool = False
    forms: tuple[str, ...] = ("parallel", "chunked", "recurrent")

    @property
    def grouped_queries(self) -> bool:
        """Whether several query heads may share a key head: each token has its own query."""
        return not (self.learned_query or self.shared_query_key)

    @property
    def pair_inputs(self) -> tuple[str, ...]:
        """Names of the supported inputs per pair of a query and a key."""
        return tuple(name for name, field in PAIR_INPUTS.items() if getattr(self, field))


PAIR_INPUTS = {
    "pair_mask": "pair_mask",
    "bias": "bias",
    "dropout_rate": "weight_dropout",
    "dropout_key": "weight_dropout",
}
"""Inputs per pair of a query and a key: name of the argument -> capability."""


class LearnedParameter(NamedTuple):
    """Shape and initializer of a mechanism's parameter that a layer learns.

    Attributes:
        shape: Shape of the array.
        init: Initializer (key, shape, dtype) -> array, as in ``jax.nn.initializers``.
    """

    shape: tuple[int, ...]
    init: Callable[[Array, tuple[int, ...], Any], Array]
