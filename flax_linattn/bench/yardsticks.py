"""What anyone may compare a mechanism with: softmax attention, and our engine's generic form.

Arguments are q, k, v [B, T, H, K]. No masks, no states.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from flax_linattn import ops
from flax_linattn.ops.engine import prefix
from flax_linattn.typing import Array


def softmax(
    *, is_causal: bool = True, platform: str | None = None
) -> dict[str, Callable[..., Array]]:
    """Softmax attention by name: ``jax.nn.dot_product_attention`` as the platform computes it.

    Args:
        is_causal: whether a query sees only the past.
        platform: "cpu", "gpu" or "tpu", default jax's; a GPU also has cuDNN's.
    """
    programs: dict[str, Callable[..., Array]] = {
        "softmax attention (XLA)": partial(softmax_xla, is_causal=is_causal)
    }
    if (jax.default_backend() if platform is None else platform) == "gpu":
        programs["softmax attention (cuDNN, bfloat16)"] = partial(
            softmax_cudnn, is_causal=is_causal
        )
    return programs


def softmax_xla(q: Array, k: Array, v: Array, *, is_causal: bool = True) -> Array:
    """Softmax attention as XLA compiles it."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation="xla")


def softmax_cudnn(q: Array, k: Array, v: Array, *, is_causal: bool = True) -> Array:
    """cuDNN's fused softmax attention, which computes in half precision only: bfloat16."""
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation="cudnn")
    return y.astype(jnp.float32)


def engine(spec: str, *, chunk_size: int | None = 128) -> Callable[..., Array]:
    """A causal streaming mechanism by the monoid engine alone, differentiated by jax.

    Args:
        spec: its name, with hyperparameters.
        chunk_size: tokens a chunk; None scans all at once.

    Returns:
        A function of q, k, v; q is the learned query [H, K] where the mechanism has one.
    """
    mechanism = ops.get_mechanism(spec)
    if not isinstance(mechanism, ops.StreamingMechanism):
        raise ValueError(f"{spec!r} has no state of constant size, so the engine cannot run it.")

    def attend(q: Array, k: Array, v: Array) -> Array:
        learned = mechanism.capabilities.learned_query
        identity = mechanism.init_state(k.shape[0], k.shape[2], k.shape[3], v.shape[-1])

        monoid = prefix.scanned(
            partial(mechanism._lift, q), mechanism._merge, mechanism.read, identity
        )
        y, _ = prefix.attend(
            monoid,
            None if learned else q,
            {"k": k, "v": v},
            is_causal=True,
            mask=None,
            starts=None,
            initial=None,
            chunk_size=chunk_size,
        )
        return y

    return attend
