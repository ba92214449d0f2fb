"""Layers in NumPy and float64, as plain as their equations: what modules are compared with."""

from typing import Any

import numpy as np
from scipy import special

ACTIVATIONS = {
    "gelu": lambda h: h * special.ndtr(h),
    "relu": lambda h: np.maximum(h, 0),
    "tanh": np.tanh,
    "silu": lambda h: h * special.expit(h),
}
GATES = {"swiglu": ACTIVATIONS["silu"], "geglu": ACTIVATIONS["gelu"]}


def array(variable: Any) -> np.ndarray:
    return np.asarray(variable[...], np.float64)


def affine(linear: Any, x: Any) -> np.ndarray:
    y = np.asarray(x, np.float64) @ array(linear.kernel)
    return y if linear.bias is None else y + array(linear.bias)


def normed(norm: Any, x: Any) -> np.ndarray:
    """Layer or RMS normalization of the last axis."""
    x = np.asarray(x, np.float64)
    if not hasattr(norm, "bias"):
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon)
        return scaled * (norm.offset + array(norm.scale))
    x = x - x.mean(-1, keepdims=True)
    # PyTorch's epsilon, or that of Flax's norms of queries and keys, which have no bias.
    epsilon = 1e-6 if norm.bias is None else 1e-5
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return scaled * array(norm.scale) + (0 if norm.bias is None else array(norm.bias))


def rotated(position: Any, x: np.ndarray) -> np.ndarray:
    """Rotary positions of x [..., T, H, K], as complex numbers."""
    d = int(x.shape[-1] * position.fraction)
    scaling = position.scaling
    frequency = scaling.frequencies(d, position.base)  # which test_position.py checks
    first, second = x[..., : d // 2], x[..., d // 2 : d]
    turn = np.exp(1j * np.arange(x.shape[-3])[:, None, None] * frequency)
    z = scaling.magnitude * turn * (first + 1j * second)
    return np.concatenate([z.real, z.imag, x[..., d:]], axis=-1)


def shifted(x: np.ndarray, steps: int) -> np.ndarray:
    """Each token of x [..., T, C] that many steps later, after zeros."""
    return np.concatenate([np.zeros_like(x[..., :steps, :]), x], axis=-2)[..., : x.shape[-2], :]


def attended(attention: Any, x: Any, context: Any = None, *, causal: bool = False) -> np.ndarray:
    """Softmax attention of x [..., T, C] to itself or a context; Aaren's has one learned query."""
    x = np.asarray(x, np.float64)
    asking = x if attention.query is None else np.broadcast_to(array(attention.query), x.shape)
    told = x if context is None else context
    convolved = attention._qkv_projections

    def heads(projection: Any, x: Any) -> np.ndarray:
        y = affine(projection, x)
        if attention.short_convolution is not None and projection in convolved:
            start = sum(p.out_features for p in convolved[: convolved.index(projection)])
            kernel = array(attention.short_convolution.kernel)[:, start : start + y.shape[-1]]
            y = ACTIVATIONS["silu"](sum(kernel[-1 - i] * shifted(y, i) for i in range(len(kernel))))
        return y.reshape(*y.shape[:-1], attention.num_heads, -1)

    q = heads(attention.query_projection, asking)
    k, v = heads(attention.key_projection, told), heads(attention.value_projection, told)
    if attention.normalize_qk == "l2":
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    elif attention.normalize_qk is not None:
        q, k = normed(attention.query_norm, q), normed(attention.key_norm, k)
    if attention.position is not None:
        q, k = rotated(attention.position, q), rotated(attention.position, k)
    score = np.einsum("...thk,...shk->...hts", q, k) / np.sqrt(q.shape[-1])
    if causal:
        score = np.where(np.tril(np.ones(score.shape[-2:], bool)), score, -np.inf)
    y = np.einsum("...hts,...shv->...thv", special.softmax(score, axis=-1), v)
    if attention.output_norm is not None:
        y = normed(attention.output_norm, y)
    y = y.reshape(*y.shape[:-2], -1)
    if attention.gate_projection is not None:
        gate = affine(attention.gate_projection, x)
        y = y * (
            ACTIVATIONS["silu"](gate) if attention.output_gate == "silu" else special.expit(gate)
        )
    return affine(attention.out_projection, y)


def perceived(feed_forward: Any, h: Any) -> np.ndarray:
    wide = affine(feed_forward.expand, h)
    if feed_forward.gate is None:
        wide = ACTIVATIONS[feed_forward.activation](wide)
    else:
        wide = GATES[feed_forward.activation](affine(feed_forward.gate, h)) * wide
    return affine(feed_forward.contract, wide)


def transformed(block: Any, h: Any, *, causal: bool = True) -> np.ndarray:
    """A block of such attention, with any norms and scales."""
    first, second = (
        block.residual_scale * (1.0 if scale is None else array(scale.scale))
        for scale in (block.attention_scale, block.feed_forward_scale)
    )
    if block.is_parallel:
        x = normed(block.attention_norm, h)
        attention = attended(block.attention, x, causal=causal)
        return h + first * attention + second * perceived(block.feed_forward, x)
    if block.norm == "sandwich":
        attention = attended(block.attention, normed(block.attention_norm, h), causal=causal)
        h = h + first * normed(block.attention_out_norm, attention)
        y = perceived(block.feed_forward, normed(block.feed_forward_norm, h))
        return h + second * normed(block.feed_forward_out_norm, y)
    if block.norm == "pre":
        attention = attended(block.attention, normed(block.attention_norm, h), causal=causal)
        h = h + first * attention
        return h + second * perceived(block.feed_forward, normed(block.feed_forward_norm, h))
    attention = attended(block.attention, h, causal=causal)
    h = normed(block.attention_norm, h + first * attention)
    return normed(block.feed_forward_norm, h + second * perceived(block.feed_forward, h))
