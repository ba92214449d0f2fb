"""The one vocabulary of array axes, used by every signature and docstring of the package.

====  =======================================================================
axis  meaning
====  =======================================================================
B     batch
T     time: positions of the queries (and of the output)
S     source time: positions of the keys and values; S = T in self-attention
H     heads
K     key dimension of one head
V     value dimension of one head
C     channels: the feature axis of a module's input or output (d_model)
L     slots of a preallocated key/value cache
====  =======================================================================

The batch axis comes first in every array and in every leaf of every state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

import jax
from jaxtyping import Bool, Float, Int

Array: TypeAlias = jax.Array

Queries: TypeAlias = Float[Array, "B T H K"]
LearnedQuery: TypeAlias = Float[Array, "H K"]
Latents: TypeAlias = Float[Array, "*B L H K"]
Keys: TypeAlias = Float[Array, "B S H K"]
Values: TypeAlias = Float[Array, "B S H V"]
Outputs: TypeAlias = Float[Array, "B T H V"]

QueryStep: TypeAlias = Float[Array, "B H K"]
KeyStep: TypeAlias = Float[Array, "B H K"]
ValueStep: TypeAlias = Float[Array, "B H V"]
OutputStep: TypeAlias = Float[Array, "B H V"]

Mask: TypeAlias = Bool[Array, "B S"]
SegmentIds: TypeAlias = Int[Array, "B T"]
Visible: TypeAlias = Bool[Array, "B T S"]

Features: TypeAlias = Float[Array, "B T C"]
FeaturesStep: TypeAlias = Float[Array, "B C"]

State: TypeAlias = Any
"""A pytree of arrays, batch axis first; its structure is each mechanism's own."""


class SequenceOptions(TypedDict, total=False):
    """Options that every layer and model takes when it is called on sequences.

    Attributes:
        mask: Boolean array of shape [B, T]; True marks valid tokens.
        segment_ids: Integer array of shape [B, T]; ids of packed sequences.
        state: State returned by an earlier call, whose tokens precede these.
        form: Form of the computation; see ``ops.Mechanism.attend``.
    """

    mask: Mask | None
    segment_ids: SegmentIds | None
    state: State | None
    form: str


Parameters: TypeAlias = Mapping[str, Array]
"""The arguments of a mechanism's own that a call was given, by name."""

__all__ = [
    "Array",
    "Features",
    "FeaturesStep",
    "KeyStep",
    "Keys",
    "Latents",
    "LearnedQuery",
    "Mask",
    "OutputStep",
    "Outputs",
    "Parameters",
    "Queries",
    "QueryStep",
    "SegmentIds",
    "SequenceOptions",
    "State",
    "ValueStep",
    "Values",
    "Visible",
]
