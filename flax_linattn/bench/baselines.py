"""Baselines of the benchmarks: softmax and linear attention, our engine, a loop over tokens.

Arguments are q, k, v [B, T, H, K]; ``engine`` and ``loop`` take the ``inputs`` of a mechanism with
its gates. There are no masks and no states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import ops
from flax_linattn.bench.timing import normal
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.typing import Array, State

NOISE = 0.5
"""Standard deviation of the noise added to the bias of a gate before its activation."""


def softmax(
    *, is_causal: bool = True, platform: str | None = None
) -> dict[str, Callable[..., Array]]:
    """Softmax attention by name, as XLA and, on the platform "gpu", cuDNN computes it."""
    programs = {"softmax attention (XLA)": softmax_xla}
    if (jax.default_backend() if platform is None else platform) == "gpu":
        programs["softmax attention (cuDNN, bfloat16)"] = softmax_cudnn
    return {name: partial(program, is_causal=is_causal) for name, program in programs.items()}


def softmax_xla(q: Array, k: Array, v: Array, *, is_causal: bool = True) -> Array:
    """Softmax attention as XLA compiles it."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation="xla")


def softmax_cudnn(q: Array, k: Array, v: Array, *, is_causal: bool = True) -> Array:
    """cuDNN's fused softmax attention, which computes in half precision only: bfloat16."""
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation="cudnn")
    return y.astype(jnp.float32)


def linear() -> dict[str, Callable[..., Array]]:
    """Our causal linear attention by name."""
    attend = ops.get_mechanism("linear").attend
    return {"linear attention": partial(attend, is_causal=True)}


def inputs(
    mechanism: ops.Mechanism,
    length: int,
    *,
    batch_size: int = 1,
    num_heads: int = 8,
    dim: int = 64,
) -> list[Array]:
    """Standard normal queries, keys and values, and the gates of a newly initialized layer.

    Gates are ``activation(bias_init + 0.5 * normal)``. Queries and keys have length 1 where the
    mechanism needs unit vectors. All are float32, of a fixed seed.

    Returns:
        q [B, T, H, K], or [H, K] where it is learned, k, v [B, T, H, K], and the mechanism's
        ``token_arguments`` [B, T, ...] in their order.

    Example:
        >>> arrays = inputs(ops.get_mechanism("gated_delta"), 16, dim=4)
        >>> [x.shape for x in arrays]
        [(1, 16, 8, 4), (1, 16, 8, 4), (1, 16, 8, 4), (1, 16, 8), (1, 16, 8)]
    """
    tokens = (batch_size, length, num_heads, dim)
    learned = mechanism.capabilities.learned_query
    declared = mechanism.token_arguments
    shapes = [argument.shape(num_heads, dim, dim) for argument in declared]
    q, k, v, *noise = normal(
        tokens[2:] if learned else tokens,
        tokens,
        tokens,
        *((batch_size, length, *shape) for shape in shapes),
    )
    if mechanism.capabilities.unit_vectors:
        q, k = l2_normalize(q), l2_normalize(k)
    gates = []
    for argument, shape, x in zip(declared, shapes, noise, strict=True):
        bias = argument.bias_init(jax.random.key(0), shape, np.float32)
        gates.append(argument.activation(bias + np.float32(NOISE) * x))
    return [q, k, v, *gates]


def by_name(
    mechanism: ops.Mechanism, arrays: Sequence[Array]
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Splits a mechanism's ``inputs`` into q, k, v, and its per-token inputs by name."""
    q, k, v, *gates = arrays
    names = (argument.name for argument in mechanism.token_arguments)
    return q, k, v, dict(zip(names, gates, strict=True))


def adapt_peers(
    spec: str, peers: Mapping[str, Callable[..., Array]]
) -> dict[str, Callable[..., Array]]:
    """Peers of q, k and v as functions of the ``inputs`` of a mechanism.

    They ignore gates, and take keys for queries where one query is learned for all tokens.
    """
    learned = ops.get_mechanism(spec).capabilities.learned_query

    def adapt(peer: Callable[..., Array]) -> Callable[..., Array]:
        def attend(q: Array, k: Array, v: Array, *gates: Array) -> Array:
            return peer(k if learned else q, k, v)

        return attend

    return {name: adapt(peer) for name, peer in peers.items()}


def loop(spec: str) -> Callable[..., Array]:
    """A causal mechanism as ``jax.lax.scan`` over its steps: a function of its ``inputs``.

    Raises:
        ValueError: If the mechanism has no state of constant size.
    """
    mechanism = _streaming(spec)

    def attend(*arrays: Array) -> Array:
        q, k, v, gates = by_name(mechanism, arrays)
        learned = mechanism.capabilities.learned_query
        state = mechanism.init_state(k.shape[0], k.shape[2], k.shape[3], v.shape[-1], dtype=k.dtype)
        tokens = {"k": k, "v": v, **gates} | ({} if learned else {"q": q})

        def step(state: State, token: dict[str, Array]) -> tuple[State, Array]:
            y, state = mechanism.step(**({"q": q} | token), state=state)
            return state, y

        tokens = {name: jnp.moveaxis(x, 1, 0) for name, x in tokens.items()}
        return jnp.moveaxis(jax.lax.scan(step, state, tokens)[1], 0, 1)

    return attend


def has_engine(spec: str) -> bool:
    """Whether ``engine`` can run the mechanism, because its outputs depend only on its state."""
    mechanism = ops.get_mechanism(spec)
    return isinstance(mechanism, ops.StreamingMechanism) and mechanism.reads_only_state


def engine(spec: str, *, chunk_size: int | None = 128) -> Callable[..., Array]:
    """A causal mechanism by the monoid engine alone, differentiated by JAX.

    Args:
        spec: Name of the mechanism, with hyperparameters.
        chunk_size: Tokens of a chunk; None scans all at once.

    Returns:
        A function of the mechanism's ``inputs``; q is the learned query [H, K] where it has one.

    Raises:
        ValueError: If the mechanism has no state of constant size, or its outputs depend on more
            than its state.
    """
    mechanism = _streaming(spec)
    if not has_engine(spec):
        raise ValueError(f"{spec!r} reads more than its state, so the engine alone cannot run it.")

    def attend(*arrays: Array) -> Array:
        q, k, v, gates = by_name(mechanism, arrays)
        learned = mechanism.capabilities.learned_query
        identity = mechanism.init_state(k.shape[0], k.shape[2], k.shape[3], v.shape[-1])
        q, k, v = mechanism.prepare(q, k, v, {})

        monoid = prefix.scan_monoid(
            partial(mechanism._lift_tokens, q), mechanism._merge, mechanism.read, identity
        )
        y, _ = prefix.attend(
            monoid,
            None if learned else q,
            {"k": k, "v": v, **gates, **mechanism.fixed_token_arguments(k, {})},
            is_causal=True,
            mask=None,
            starts=None,
            initial=None,
            chunk_size=chunk_size,
        )
        return y

    return attend


def _streaming(spec: str) -> ops.StreamingMechanism:
    mechanism = ops.get_mechanism(spec)
    if not isinstance(mechanism, ops.StreamingMechanism):
        raise ValueError(
            f"{spec!r} has no state of constant size, so neither engine nor loop can run it."
        )
    return mechanism
