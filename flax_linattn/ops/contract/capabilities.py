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
        constant_memory: The state's size does not depend on the number of tokens.
        causal: ``is_causal=True`` is offered.
        noncausal: ``is_causal=False`` is offered.
        cross: Keys and values may have another length than the queries.
        packed: ``segment_ids`` is offered.
        learned_query: ``q`` is one learned query [H, K] instead of one query a token.
        latents: L external queries, ``latents``, may take the place of the learned one, each of
            which attends to all tokens.
        channelwise: Every channel attends by itself, so that V = K.
        recurrent: There is a state: ``init_state``, ``step``, ``initial_state`` and
            ``return_state`` are offered.
        mergeable: ``merge`` joins the states of two spans.
        unit_vectors: Queries and keys are meant to have length 1, which layers give them.
        shared_query_key: One vector of a token is its query and its key: ``k``, which layers
            project once; ``q`` is not looked at.
        forms: The values of ``form`` other than "auto".
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
    forms: tuple[str, ...] = ("parallel", "chunked", "recurrent")


class LearnedParameter(NamedTuple):
    """Shape and initializer of a mechanism's parameter that a layer learns.

    Attributes:
        shape: Of the array.
        init: (key, shape, dtype) -> its first value, as in ``jax.nn.initializers``.
    """

    shape: tuple[int, ...]
    init: Callable[[Array, tuple[int, ...], Any], Array]
