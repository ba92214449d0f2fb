"""Sampling of the next token, with options in the order of Hugging Face Transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampling:
    """Checked sampling options as a pytree of arrays; see ``generate``.

    Attributes:
        keys: Key of each row, [B]; None selects the most likely token.
        temperature: Divisor of the logits, [B]; 0 selects the most likely token.
        top_k: Number of most likely tokens to sample from; None means all.
        top_p: Probability of the smallest set of most likely tokens to sample from, [B].
        min_p: Minimum probability of a token relative to the most likely token, [B].
        repetition_penalty: Penalty of tokens that the row already contains, [B].
    """

    keys: Array | None = None
    temperature: Float[Array, "B"] | None = None
    top_k: int | None = dataclasses.field(default=None, metadata={"static": True})
    top_p: Float[Array, "B"] | None = None
    min_p: Float[Array, "B"] | None = None
    repetition_penalty: Float[Array, "B"] | None = None


def make_sampling(
    batch: int,
    *,
    key: Array | None = None,
    temperature: ArrayLike | None = None,
    top_k: int | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    repetition_penalty: ArrayLike | None = None,
) -> Sampling:
    """Checks the options of ``generate``, and broadcasts them to one value per row."""
    check_integers(1, top_k=top_k)
    if key is None and any(option is not None for option in (temperature, top_k, top_p, min_p)):
        raise ValueError(
            "temperature, top_k, top_p and min_p need a key to sample tokens; pass "
            "key=jax.random.key(seed)."
        )
    return Sampling(
        keys=None if key is None else row_keys(key, batch),
        temperature=_per_row("temperature", temperature, batch),
        top_k=top_k,
        top_p=_per_row("top_p", top_p, batch, is_positive=True, maximum=1),
        min_p=_per_row("min_p", min_p, batch, maximum=1),
        repetition_penalty=_per_row(
            "repetition_penalty", repetition_penalty, batch, is_positive=True
        ),
    )


def choose(
    logits: Float[Array, "B tokens"],
    count: Int[Array, ""],
    sampling: Sampling,
    is_present: Bool[Array, "B tokens"] | None = None,
) -> Int[Array, "B"]:
    """Chooses the next token of each row: the most likely token, or a sample if there are keys.

    Args:
        logits: Logits of the next token, [B, tokens].
        count: Number of new tokens so far, which is folded into the keys.
        sampling: Sampling options.
        is_present: Tokens that each row already contains, for the repetition penalty.
    """
    logits = penalize(logits.astype(accumulation_dtype(logits.dtype)), sampling, is_present)
    likely = jnp.argmax(logits, axis=1).astype(jnp.int32)
    if sampling.keys is None:
        return likely
    # Logits are not sorted, so that a key gives each token the same noise, whichever tokens are
    # filtered.
    keys = jax.vmap(jax.random.fold_in, (0, None))(sampling.keys, count)
    logits = filter_logits(logits.astype(jnp.float32), sampling)
    sample = jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
    if sampling.temperature is None:
        return sample
    return jnp.where(sampling.temperature > 0, sample, likely)


def penalize(logits: Array, sampling: Sampling, is_present: Array | None) -> Array:
    """Lowers the logits of tokens that each row already contains."""
    if sampling.repetition_penalty is None or is_present is None:
        return logits
    penalty = sampling.repetition_penalty[:, None].astype(logits.dtype)
    return jnp.where(is_present, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def filter_logits(logits: Array, sampling: Sampling) -> Array:
    """Divides logits by the temperature, and sets logits of excluded tokens to -inf.

    The most likely token always remains; of tokens with equal logits, the first ones remain.
    """

    def select(logits: Array, top_p: Array | None) -> Array:
        values, tokens = jax.lax.top_k(logits, sampling.top_k or logits.size)
        selected = jnp.ones(values.shape, bool)
        if top_p is not None:
            # The sum of rounded probabilities may reach 1 before the last token.
            before = jnp.cumsum(jax.nn.softmax(values)[:-1])
            selected = selected.at[1:].set((before < top_p) | (top_p >= 1))
        return jnp.zeros(logits.shape, bool).at[tokens].set(selected)

    if sampling.temperature is not None:
        temperature = jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)
        logits = logits / temperature[:, None]
    selected = jnp.ones(logits.shape, bool)
    if sampling.top_k is not None or sampling.top_p is not None:
        selected = jax.vmap(select)(logits, sampling.top_p)
    if sampling.min_p is not None:
        maximum = jnp.max(logits, axis=1, keepdims=True)
        likely = logits >= maximum + jnp.log(sampling.min_p)[:, None]
        selected = selected & (likely | (logits == maximum))  # inf + log(0) is NaN
    return jnp.where(selected, logits, -jnp.inf)


def row_keys(key: Any, batch: int) -> Array:
    """Returns a key for each row: the given keys, or a single key folded with the row index."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "expected a key of jax.random.key(seed), got "
            f"{getattr(key, 'dtype', type(key).__name__)}; wrap raw keys with "
            "jax.random.wrap_key_data."
        )
    if key.shape == ():
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch, dtype=jnp.uint32))
    if key.shape != (batch,):
        raise ValueError(
            f"expected a single key or one key per row, ({batch},), got shape {key.shape}."
        )
    return key


def _per_row(
    name: str,
    value: ArrayLike | None,
    batch: int,
    *,
    is_positive: bool = False,
    maximum: float = np.inf,
) -> Array | None:
    """Broadcasts a number to float32 [B], and checks its range if its value is known."""
    if value is None:
        return None
    values = jnp.asarray(value, jnp.float32)
    if values.shape not in ((), (batch,)):
        raise ValueError(
            f"expected {name} as a number or one number per row, ({batch},), got shape "
            f"{values.shape}."
        )
    if not isinstance(values, jax.core.Tracer):
        known = np.asarray(values)
        if not (((known > 0) if is_positive else (known >= 0)) & (known <= maximum)).all():
            limits = "greater than 0" if is_positive else "at least 0"
            limits += f" and at most {maximum}" if maximum < np.inf else ""
            raise ValueError(f"{name} must be {limits}, got {value}.")
    return jnp.broadcast_to(values, (batch,))
