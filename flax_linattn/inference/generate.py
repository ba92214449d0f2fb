"""Token generation: prompt, sampling loop and early stop in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import check_integers
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.inference.prefill import check_capacity, check_prompt, prefill_state
from flax_linattn.inference.programs import compile_once, step
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Mask, State


@register_state
class GenerateOutput(NamedTuple):
    """Tokens that ``generate`` generated, and the state to continue from.

    Attributes:
        tokens: New tokens, int32 [B, max_new_tokens], with ``pad`` after the last token of a row.
        lengths: Number of new tokens of each row, int32 [B], including the stop token.
        state: State after the prompt and all new tokens except the last token of each row. To
            continue, pass that token, ``tokens[i, lengths[i] - 1]``, as the prompt, and another
            ``key``, because the counter of samples restarts.
    """

    tokens: Int[Array, "B N"]
    lengths: Int[Array, "B"]
    state: State


class _Loop(NamedTuple):
    step: Array  # number of tokens of every row that still runs
    token: Array  # last token of each row
    runs: Array
    failed: Array
    out: GenerateOutput


def generate(
    model: StreamingModel,
    prompt: Int[Array, "B T"],
    max_new_tokens: int,
    mask: Mask | None = None,
    *,
    stop: int | Sequence[int] = (),
    key: Array | None = None,
    temperature: ArrayLike | None = None,
    top_k: int | None = None,
    pad: int = 0,
    state: State | None = None,
    max_length: int | None = None,
    chunk_size: int | None = None,
    dtype: DTypeLike | None = None,
) -> GenerateOutput:
    """Continues rows of tokens: the prompt in parallel, then a ``lax.while_loop`` of steps.

    Without ``key`` each token is the most likely one. With it token t of a row is sampled with
    ``fold_in(key of the row, t)``, so that the samples of a row depend on no other row. The loop
    ends as soon as all rows have stopped; a row that has stopped keeps its state.

    Args:
        model: A :class:`StreamingModel` of tokens, int [B] and [B, T], whose outputs are logits
            over the next token, [B, tokens] and [B, T, tokens].
        prompt: Tokens, int [B, T], T >= 1.
        max_new_tokens: Maximum number of new tokens of a row.
        mask: Boolean array of shape [B, T]; True marks valid tokens. Padding may be anywhere. A row
            of padding alone is not continued.
        stop: The token or tokens that end a row.
        key: Key of ``jax.random.key``: a single key, from which row i uses ``fold_in(key, i)``, or
            one key per row, [B].
        temperature: Float or float [B], the divisor of the logits, default 1; 0 selects the most
            likely token. It needs ``key``.
        top_k: Number of most likely tokens to sample from; default all. It needs ``key``.
        pad: Token after the last token of a row that has stopped.
        state: State before the prompt; default the initial state. It stays usable.
        max_length: Maximum number of tokens of a sequence, needed by mechanisms with a cache: that
            of ``state`` if it is given, T + max_new_tokens by default.
        chunk_size: Number of tokens of a chunk of the prompt, as in ``prefill``; default all.
        dtype: Dtype of the features that the state is made for; default float32.

    Returns:
        New tokens, the number of new tokens of each row, and the state.

    Raises:
        ValueError: If an argument is out of range, the model has no logits, the state belongs to
            another model, or logits are NaN, usually because a cache or a table of positions is
            full (under ``jit`` the sequence ends there instead, and
            ``has_overflowed(out.state)`` marks rows whose cache is full).
        TypeError: If the prompt or a token is not an integer, the mask is not boolean, ``key`` is
            not a random key, or ``model`` is not a model.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.LanguageModel(11, features=16, num_layers=1, num_heads=2,
        ...                              rngs=nnx.Rngs(0))
        >>> prompt = jnp.array([[1, 2, 3, 4], [5, 6, 0, 0]])
        >>> out = inference.generate(model, prompt, 6, prompt > 0, key=jax.random.key(0), top_k=5)
        >>> out.tokens.shape, out.lengths.tolist(), out.state.position.tolist()
        ((2, 6), [6, 6], [9, 7])
    """
    check_model(model, sequences=True)
    prompt, mask = check_prompt(prompt, mask, chunk_size)
    if not jnp.issubdtype(prompt.dtype, jnp.integer) or prompt.ndim != 2:
        raise TypeError(f"expected prompt as integers [B, T], got {prompt.dtype} {prompt.shape}.")
    check_integers(1, max_new_tokens=max_new_tokens, top_k=top_k)
    if key is None and not (temperature is None and top_k is None):
        raise ValueError(
            "temperature and top_k need a key to sample tokens; pass key=jax.random.key(seed)."
        )
    batch, prompt = prompt.shape[0], prompt.astype(jnp.int32)
    if state is None:
        check_capacity(prompt, mask, max_length)
        max_length = prompt.shape[1] + max_new_tokens if max_length is None else max_length
    out, failed = _generate(
        model,
        prompt,
        mask,
        state,
        stop=_tokens("stop", stop),
        keys=None if key is None else row_keys(key, batch),
        temperature=_temperatures(1.0 if temperature is None else temperature, batch),
        pad=_tokens("pad", pad)[0],
        max_new_tokens=max_new_tokens,
        top_k=top_k,
        max_length=max_length,
        chunk_size=chunk_size,
        dtype=dtype,
    )
    if not isinstance(failed, jax.core.Tracer) and np.asarray(failed).any():
        row = int(np.asarray(failed).argmax())
        raise ValueError(
            f"the logits of row {row} are NaN after {int(out.lengths[row])} new tokens; possible "
            "causes: a full cache (make the state with a larger max_length), no more positions "
            "(make the model with more), unknown tokens in the prompt, or NaN in parameters or "
            "state."
        )
    return out


@compile_once("max_new_tokens", "top_k", "max_length", "chunk_size", "dtype")
def _generate(
    model: StreamingModel,
    prompt: Array,
    mask: Array | None,
    state: State | None,
    *,
    stop: Array,
    keys: Array | None,
    temperature: Array,
    pad: Array,
    max_new_tokens: int,
    top_k: int | None,
    max_length: int | None,
    chunk_size: int | None,
    dtype: DTypeLike | None,
) -> tuple[GenerateOutput, Array]:
    batch = prompt.shape[0]
    logits, state = prefill_state(
        model, prompt, mask, state, max_length=max_length, chunk_size=chunk_size, dtype=dtype
    )
    if logits.ndim != 2 or not 1 <= (top_k or 1) <= logits.shape[1]:
        raise ValueError(
            f"expected the model's step to return logits [B, tokens] with at least top_k={top_k} "
            f"tokens, got shape {logits.shape}."
        )

    def write(logits: Array, state: State, loop: _Loop) -> _Loop:
        """Appends a token to each row that still runs."""
        failed = loop.runs & jnp.any(jnp.isnan(logits), axis=1)
        runs = loop.runs & ~failed
        token = jnp.where(runs, choose(logits, keys, loop.step, temperature, top_k), pad)
        out = GenerateOutput(
            tokens=loop.out.tokens.at[:, loop.step].set(token),
            lengths=loop.out.lengths + runs.astype(jnp.int32),
            state=state,
        )
        runs = runs & ~jnp.isin(token, stop)
        return _Loop(loop.step + 1, token, runs, loop.failed | failed, out)

    def body(loop: _Loop) -> _Loop:
        return write(*step(model, loop.token, loop.out.state, mask=loop.runs), loop)

    begin = _Loop(
        step=jnp.zeros((), jnp.int32),
        token=jnp.broadcast_to(pad, (batch,)),
        runs=jnp.ones(batch, bool) if mask is None else jnp.any(mask, axis=1),
        failed=jnp.zeros(batch, bool),
        out=GenerateOutput(
            tokens=jnp.broadcast_to(pad, (batch, max_new_tokens)),
            lengths=jnp.zeros(batch, jnp.int32),
            state=state,
        ),
    )
    loop = jax.lax.while_loop(
        lambda loop: (loop.step < max_new_tokens) & jnp.any(loop.runs),
        body,
        write(logits, state, begin),
    )
    return loop.out, loop.failed


def choose(
    logits: Float[Array, "B tokens"],
    keys: Array | None,
    count: Int[Array, ""],
    temperature: Float[Array, "B"],
    top_k: int | None,
) -> Int[Array, "B"]:
    """Chooses the next token of each row: the most likely token, or a sample if there are keys.

    Args:
        logits: Logits of the next token, [B, tokens].
        keys: Key of each row, [B], which is folded with ``count``; or None.
        count: Number of new tokens so far.
        temperature: Divisor of the logits, [B]; 0 selects the most likely token.
        top_k: Number of most likely tokens to sample from; None uses all.
    """
    likely = jnp.argmax(logits, axis=1).astype(jnp.int32)
    if keys is None:
        return likely
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
    warm = temperature > 0
    logits = logits.astype(jnp.float32) / jnp.where(warm, temperature, 1.0)[:, None]
    if top_k is None:
        sample = jax.vmap(jax.random.categorical)(keys, logits)
    else:
        logits, tokens = jax.lax.top_k(logits, top_k)
        rank = jax.vmap(jax.random.categorical)(keys, logits)
        sample = jnp.take_along_axis(tokens, rank[:, None], axis=1)[:, 0]
    return jnp.where(warm, sample.astype(jnp.int32), likely)


def row_keys(key: Any, batch: int) -> Array:
    """Returns a key for each row, folded from a single key or as given."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "expected a key of jax.random.key(seed), got "
            f"{getattr(key, 'dtype', type(key).__name__)}; wrap raw keys by "
            "jax.random.wrap_key_data."
        )
    if key.shape == ():
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch, dtype=jnp.uint32))
    if key.shape != (batch,):
        raise ValueError(
            f"expected a single key or one key per row, ({batch},), got shape {key.shape}."
        )
    return key


def _tokens(name: str, tokens: Any) -> Array:
    array = jnp.atleast_1d(jnp.asarray(tokens))
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(
            f"{name} must be integers, tokens of the model, got {array.dtype} {list(array.shape)}."
        )
    return array.astype(jnp.int32)


def _temperatures(temperature: ArrayLike, batch: int) -> Array:
    values = jnp.asarray(temperature, jnp.float32)
    if values.shape not in ((), (batch,)):
        raise ValueError(
            f"expected temperature as a number or one number per row, ({batch},), got shape "
            f"{values.shape}."
        )
    if not isinstance(values, jax.core.Tracer) and not (np.asarray(values) >= 0).all():
        raise ValueError(f"temperature must be at least 0, got {temperature}.")
    return jnp.broadcast_to(values, (batch,))
