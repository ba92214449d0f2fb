"""RWKV-4's weighted key-value: Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023.

Every channel is a softmax average whose past decays at a fixed rate; the own token has a bonus:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (the same without v)
    y_t = sigmoid(q_t) wkv_t

=============  ==============================================================
here           paper (section 3.1, equations 13 to 19)
=============  ==============================================================
q              receptance r_t
time_decay     log w of each channel [H, K], as in its code; default 0
time_first     u, the bonus of the own token [H, K]; default 0
u, w           its b_t, a_t relative to a maximum (appendix D)
=============  ==============================================================

Departures: the token shift, which mixes each token with the previous one, and the output projection
belong to a layer's block; padding does not decay. A layer has the paper's initial values of a first
layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.averages import average_by_channel
from flax_linattn.ops.contract.call import Call, StepCall
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.numerics import exp_difference, match_varying_axes, safe_divide
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine import exponential, prefix
from flax_linattn.ops.engine.chunks import scan_tokens
from flax_linattn.ops.engine.exponential import ForgettingState, Level, Sums
from flax_linattn.ops.engine.exponential_scan import forgetting_scan
from flax_linattn.ops.engine.forms import scan_form
from flax_linattn.ops.engine.primal_only import primal_only
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.engine.tiles import shift_right
from flax_linattn.ops.mechanisms.aft import apply_gate
from flax_linattn.ops.mechanisms.forgetting_aaren import decay_between
from flax_linattn.typing import Array, Keys, Outputs, OutputStep, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class RWKV(StreamingMechanism):
    """RWKV-4's weighted key-value (module docstring: symbols, departures).

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> rwkv = ops.get_mechanism("rwkv")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> y, state = rwkv.attend(q, k, v, is_causal=True, return_state=True)
        >>> y.shape, state.w.shape
        ((2, 10, 4, 8), (2, 4, 8))
    """

    name: ClassVar[str] = "rwkv"
    about: ClassVar[str] = (
        "RWKV-4: per-channel weighted averages with a fixed decay (Peng et al., 2023)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True, noncausal=False, cross=False, channelwise=True, mergeable=True
    )
    parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first")
    reads_only_state: ClassVar[bool] = False
    merge_field: ClassVar[str] = "log_decay"
    scan: ClassVar[str] = "channels"

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        shape = (num_heads, key_dim)
        return {
            "time_decay": LearnedParameter(shape, init_time_decay),
            "time_first": LearnedParameter(shape, init_time_first),
        }

    def _init_state(self, sizes: StateSizes) -> ForgettingState:
        shape = (sizes.batch_size, sizes.num_heads, sizes.key_dim)
        return exponential.empty_forgetting_state(shape, shape, sizes.dtype)

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        for name in parameters:
            _channel_parameter(parameters, name, k)
        return q, k, v

    def fixed_token_arguments(self, k: Array, parameters: Parameters) -> dict[str, Array]:
        return {"log_decay": jnp.broadcast_to(self._log_decay(k, parameters), k.shape)}

    def _log_decay(self, k: Array, parameters: Parameters) -> Array:
        """Returns the fixed log-decays of all channels, [H, K]."""
        # A rate of e^30 leaves no weight after one token, and e^89 overflows float32.
        return -jnp.exp(jnp.minimum(_channel_parameter(parameters, "time_decay", k), 30.0))

    def lift(
        self,
        k: Array,
        v: Array,
        query: Array | None = None,
        log_decay: Array | None = None,
    ) -> ForgettingState:
        fades = jnp.zeros_like(k) if log_decay is None else log_decay
        return ForgettingState(fades, k, jnp.zeros_like(k), jnp.ones_like(k), v)

    def read(self, q: Array | None, state: ForgettingState) -> Array:
        # The past alone: attend and step add the token's own part.
        return apply_gate(self._require_query(q), state.sums.mean)

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, ForgettingState]:
        if call.k.shape[1] == 0:
            return tokens["v"], self._initial_state(call)
        inputs = q, tokens["k"], tokens["v"], call.mask, call.starts
        arrays = match_varying_axes((*inputs, self._initial_state(call), call.parameters))
        if call.form != "auto":
            return self._attend_by_scan(call.form, self.chunk_size, *arrays)
        forms: dict[str, Callable[..., Any]] = {
            "parallel": partial(self._attend_by_scan, "auto"),
            "recurrent": self._attend_by_token,
        }
        plain = scan_form("channels", "inference", "auto", forms, self.chunk_size)
        trained = partial(self._attend_by_scan, "auto", self.chunk_size)
        y, state = primal_only(plain, trained, *arrays)
        return y, state

    def _attend_by_scan(
        self,
        form: str,
        chunk_size: int,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        starts: Array | None,
        initial: ForgettingState,
        parameters: Parameters,
    ) -> tuple[Outputs, ForgettingState]:
        """Scans every channel as a head; position t reads the sums of t - 1."""
        rate = jnp.broadcast_to(self._log_decay(k, parameters), k.shape)
        channels = k.shape[2] * k.shape[3]
        flat = jax.tree.map(lambda x: x.reshape(x.shape[0], channels), initial)
        outputs, state = forgetting_scan(
            k.reshape(*k.shape[:2], channels),
            v.reshape(*v.shape[:2], channels, 1),
            masks.zero_padding(rate, mask).reshape(*k.shape[:2], channels),
            flat._replace(w=flat.w[..., None]),
            mask=mask,
            starts=starts,
            form=form,
            chunk_size=chunk_size,
        )
        u = safe_divide(jnp.ones_like(outputs.inverse), outputs.inverse)
        after = jax.tree.map(
            lambda x: x.reshape(k.shape), Sums(outputs.level, u, outputs.y[..., 0] * u)
        )
        past = shift_right(initial.sums, after)
        if starts is not None:
            past = past._replace(level=past.level.where(~starts))
        state = jax.tree.map(lambda x: x.reshape(x.shape[0], *k.shape[2:]), state)
        return self._add_own_token(q, k, v, past, parameters), state

    def _attend_by_token(
        self,
        chunk_size: int,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        starts: Array | None,
        initial: ForgettingState,
        parameters: Parameters,
    ) -> tuple[Outputs, ForgettingState]:
        """Loops over tokens and reads each state at once, storing only inputs and outputs."""
        nothing, rate = self._identity_state(k[:, 0], v[:, 0]), self._log_decay(k, parameters)
        nothing = prefix.drop_missing(nothing, initial)

        def body(before: ForgettingState, now: Any) -> tuple[ForgettingState, Array]:
            q, k, v, mask, start = now
            if start is not None:
                before = prefix.select(start, nothing, before)
            y = self._add_own_token(q, k, v, before.sums, parameters)
            after = before.merge(self.lift(k, v, log_decay=jnp.broadcast_to(rate, k.shape)))
            if mask is not None:
                after = prefix.select(mask, after, before)
            return after, y

        state, y = scan_tokens(body, initial, (q, k, v, mask, starts))
        return y, state

    def _add_own_token(
        self, q: Array, k: Array, v: Array, past: Sums, parameters: Parameters
    ) -> Array:
        """Merges the past of a token with the token itself and its bonus (equations 16 to 18)."""
        score = k + _channel_parameter(parameters, "time_first", k)
        own = Sums(Level(score, jnp.zeros_like(score)), jnp.ones_like(score), v)
        return apply_gate(q, past.merge(own).mean)

    def _step(self, call: StepCall) -> tuple[OutputStep, ForgettingState]:
        q, token = self._prepare(call)
        y = self._add_own_token(q, token["k"], token["v"], call.state.sums, call.parameters)
        state = call.state.merge(self._lift_tokens(q, token))
        if call.mask is not None:
            state = prefix.select(call.mask, state, call.state)
        return y, state

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        rate = self.fixed_token_arguments(k, parameters)["log_decay"]
        batch, length, heads, key_dim = k.shape
        channels = heads * key_dim
        itself = jnp.eye(length, dtype=bool)[None, :, :, None]
        # Token i has decayed t - 1 - i times at t: token t itself does not decay its past.
        fades = decay_between(rate.reshape(batch, length, channels), visible & ~itself[..., 0])
        score = k.reshape(batch, 1, length, channels) + fades
        bonus = _channel_parameter(parameters, "time_first", k).reshape(channels)
        own = k.reshape(batch, 1, length, channels) + bonus
        score = jnp.where(itself, own, score).reshape(batch, length, length, heads, key_dim)
        score = jnp.where(visible[..., None, None], score, -jnp.inf)
        weight = exp_difference(score, jnp.max(score, axis=2, keepdims=True))
        return average_by_channel(weight, v) / (1 + jnp.exp(-q))


def _channel_parameter(parameters: Parameters, name: str, k: Array) -> Array:
    """Returns a parameter [H, K], 0 if it was not passed."""
    value = parameters.get(name)
    if value is None:
        return jnp.zeros(k.shape[-2:], k.dtype)
    if value.shape != k.shape[-2:]:
        raise ValueError(
            f"{name} must be one number a channel, [H, K] = {k.shape[-2:]}, got {value.shape}."
        )
    return value.astype(k.dtype)


def init_time_decay(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Initializes channel c to -5 + 8 (c / (C - 1))^0.7: rates of 0.007 to 20 per token."""
    fraction = jnp.linspace(0, 1, shape[0] * shape[1], dtype=jnp.float32)
    return (-5 + 8 * fraction**0.7).reshape(shape).astype(dtype)


def init_time_first(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Initializes to log 0.3, plus -0.5, 0 and 0.5 in turn."""
    turn = (jnp.arange(shape[0] * shape[1]) + 1) % 3 - 1
    zigzag = 0.5 * turn.astype(jnp.float32)
    return (jnp.log(0.3) + zigzag).reshape(shape).astype(dtype)
