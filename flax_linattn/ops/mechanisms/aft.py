"""Attention free transformer (AFT): Zhai et al., "An Attention Free Transformer", 2021.

Symbols against the paper's (and equation 19 of the element-wise attention paper):

==============  ==============================================================
here            paper
==============  ==============================================================
position_bias   w_ij, learned, one number for each pair of positions [N, N],
                shared by all channels
score           k_jc + w_ij in channel c (AFT-full); k_jc (AFT-simple)
gate            sigmoid(q_ic), a factor of the output
==============  ==============================================================

``aft`` is AFT-full: its position biases need the tokens themselves, so it has a cache.
``aft_simple`` omits the biases and has a state of constant size, causal or not. Departures:
positions count the valid tokens of a segment, so padding anywhere changes nothing.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.averages import softmax_by_channel
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.numerics import exp_difference
from flax_linattn.ops.contract.pair_inputs import PairInputs, weight_shape
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import exponential, prefix
from flax_linattn.ops.engine.cache import KVCache
from flax_linattn.ops.engine.channel_blocks import expand_to_channels
from flax_linattn.ops.engine.channelwise import ChannelwiseSoftmax
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.exponential_scan import exponential_scan
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class AFT(ChannelwiseSoftmax):
    """AFT-full, with learned position biases (module docstring: symbols, departures).

    Attributes:
        chunk_size: Maximum number of queries, and of keys, per block in the chunked form.
        max_length: Number of positions N for which a layer learns biases; only layers are limited.
            ``attend`` and ``step`` take the biases as ``position_bias`` of shape [N, N], 0 by
            default.
        gate: Whether outputs are multiplied by sigmoid(q); without the gate it is equation 19 of
            the element-wise attention paper.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> aft = ops.get_mechanism("aft")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> aft.attend(q, k, v, is_causal=True, position_bias=jnp.zeros((16, 16))).shape
        (2, 10, 4, 8)
        >>> aft.attend(q, k, v, position_bias=jnp.zeros((8, 8)))
        Traceback (most recent call last):
        ...
        ValueError: position_bias holds 8 positions, got sequences of 10; make it larger.
    """

    name: ClassVar[str] = "aft"
    about: ClassVar[str] = "attention-free transformer with position biases (Zhai et al., 2021)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=False, cross=False, channelwise=True, pair_mask=True
    )
    parameters: ClassVar[tuple[str, ...]] = ("position_bias",)
    uses_positions: ClassVar[bool] = True

    max_length: int | None = None
    gate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, max_length=self.max_length)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        if self.max_length is None:
            raise ValueError(
                "an 'aft' layer learns a bias for each pair of positions and needs their number: "
                "get_mechanism('aft', max_length=...), or the max_length of the model."
            )
        shape = (self.max_length, self.max_length)
        return {"position_bias": LearnedParameter(shape, jax.nn.initializers.normal(0.02))}

    def finish(self, y: Array, q: Array) -> Array:
        return apply_gate(q, y) if self.gate else y

    def table(self, parameters: Parameters) -> Array | None:
        return parameters.get("position_bias")

    def scores(self, q: Array, k: Array, bias: Array | None) -> Array:
        if bias is None:
            return jnp.broadcast_to(k, (k.shape[0], q.shape[1], *k.shape[2:]))
        return k + expand_to_channels(bias, k)

    def _check_parameters(self, parameters: Parameters) -> None:
        bias = parameters.get("position_bias")
        if bias is not None and (bias.ndim != 2 or bias.shape[0] != bias.shape[1]):
            raise ValueError(f"position_bias must have shape [N, N], got {bias.shape}.")

    def _check_length(self, length: int, mask: Array | None, parameters: Parameters) -> None:
        bias = parameters.get("position_bias")
        if bias is not None and masks.static_max_length(length, mask) > bias.shape[0]:
            raise ValueError(
                f"position_bias holds {bias.shape[0]} positions, got sequences of "
                f"{masks.static_max_length(length, mask)}; make it larger."
            )

    def _check_capacity(self, max_length: int | None) -> None:
        if max_length is not None and max_length > (self.max_length or max_length):
            raise ValueError(
                f"this 'aft' has biases for {self.max_length} positions, and its cache cannot "
                f"have {max_length}."
            )

    def _check_overflow(self, state: KVCache, parameters: Parameters) -> None:
        super()._check_overflow(state, parameters)
        bias = parameters.get("position_bias")
        if bias is None or isinstance(state.length, jax.core.Tracer) or not state.length.size:
            return
        longest = int(jnp.max(state.length))
        if longest > bias.shape[0]:
            raise ValueError(
                f"position_bias holds {bias.shape[0]} positions, got token number {longest}; "
                "make it larger."
            )

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        position_bias = parameters.get("position_bias")
        score = jnp.broadcast_to(k[:, None], (k.shape[0], q.shape[1], *k.shape[1:]))
        if position_bias is not None:
            # A position is the number of earlier valid tokens of the segment. A token
            # that attends to none, and to which none attends, is padding.
            mutual = visible | jnp.swapaxes(visible, 1, 2)
            mutual = mutual & jnp.any(visible, axis=1, keepdims=True)
            position = jnp.sum(jnp.tril(mutual, -1), axis=2)
            bias = position_bias[position[:, :, None], position[:, None, :]]
            score = score + bias.astype(k.dtype)[..., None, None]
        per_pair = PairInputs.check(parameters, *weight_shape(q, k))
        y = softmax_by_channel(score, v, jnp.moveaxis(per_pair.visible_pairs(visible), 1, 3))
        return y / (1 + jnp.exp(-q)) if self.gate else y


@dataclasses.dataclass(frozen=True)
class AFTSimple(StreamingMechanism):
    """AFT-simple, without position biases (module docstring: symbols, departures).

    Attributes:
        gate: Whether outputs are multiplied by sigmoid(q).

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> aft = ops.get_mechanism("aft_simple")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> y, state = aft.attend(q, k, v, is_causal=True, return_state=True)
        >>> y.shape, state.w.shape
        ((2, 10, 4, 8), (2, 4, 8))
    """

    name: ClassVar[str] = "aft_simple"
    about: ClassVar[str] = "attention-free transformer without position biases (Zhai et al., 2021)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, channelwise=True, mergeable=True
    )
    scan: ClassVar[str] = "exponential"

    gate: bool = True

    def _init_state(self, sizes: StateSizes) -> ExponentialState:
        shape = (sizes.batch_size, sizes.num_heads, sizes.key_dim)
        return exponential.empty_state(shape, shape, sizes.dtype)

    def lift(self, k: Array, v: Array, query: Array | None = None) -> ExponentialState:
        return ExponentialState(m=k, u=jnp.ones_like(k), w=v)

    def read(self, q: Array | None, state: ExponentialState) -> Array:
        q = self._require_query(q)
        return apply_gate(q, state.mean) if self.gate else jnp.broadcast_to(state.mean, q.shape)

    def _make_monoid(self, q: Array, identity: ExponentialState) -> prefix.Monoid:
        def reduce(tokens: dict[str, Array], keep: Array | None) -> ExponentialState:
            score, v = tokens["k"], masks.zero_padding(tokens["v"], keep)
            if keep is not None:
                score = jnp.where(keep[..., None, None], score, -jnp.inf)
            m = jnp.max(score, axis=1)  # not a constant: it is a result, in the state
            weight = exp_difference(score, m[:, None])
            return ExponentialState(m, jnp.sum(weight, axis=1), jnp.sum(weight * v, axis=1))

        return super()._make_monoid(q, identity)._replace(reduce=reduce)

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, ExponentialState]:
        """Scans every channel as a head whose values have one channel."""
        k, v = tokens["k"], tokens["v"]
        batch, channels = k.shape[0], k.shape[2] * k.shape[3]
        m, u, w = (x.reshape(batch, channels) for x in self._initial_state(call))
        outputs, state = exponential_scan(
            k.reshape(*k.shape[:2], channels),
            v.reshape(*v.shape[:2], channels, 1),
            ExponentialState(m, u, w[..., None]),
            mask=call.mask,
            starts=call.starts,
            form=call.form,
            chunk_size=self.chunk_size,
        )
        y = outputs.y.reshape(v.shape)
        state = ExponentialState(*(x.reshape(batch, *k.shape[2:]) for x in state))
        return apply_gate(q, y) if self.gate else y, state

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        y = softmax_by_channel(k[:, None], v, visible)
        return y / (1 + jnp.exp(-q)) if self.gate else jnp.broadcast_to(y, q.shape)


def apply_gate(q: Array, y: Array) -> Array:
    """Multiplies the outputs by sigmoid(q)."""
    return jax.nn.sigmoid(q) * y
