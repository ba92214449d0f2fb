"""Token generation: prompt, sampling loop and early stop in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import at_least
from flax_linattn.inference.compiled import compiled, step
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.inference.prefill import check_capacity, check_prompt, prefill_state
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Mask, State


@register_state
class GenerateOutput(NamedTuple):
    """Tokens that ``generate`` generated, and the state to continue from.

    Attributes:
        tokens: int32 [B, max_new_tokens]; ``pad`` behind a row's last token.
        lengths: int32 [B], tokens of each row, the stop token included.
        state: After the prompt and all tokens but each row's last: ``generate`` goes on with that
            one, ``tokens[i, lengths[i] - 1]``, as the prompt, and with another ``key``, since draws
            are numbered anew.
    """

    tokens: Int[Array, "B N"]
    lengths: Int[Array, "B"]
    state: State


class _Loop(NamedTuple):
    step: Array  # tokens of every row that still runs
    token: Array  # the last one of each row
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

    Without ``key`` each token is the most likely one. With it tokens are drawn, number t of a row
    by ``fold_in(key of the row, t)``: what a row draws depends on no other row. The loop ends
    as soon as all rows have stopped; a row that has stopped keeps its state.

    Args:
        model: A :class:`StreamingModel` of tokens, int [B] and [B, T], whose outputs are logits
            over the next token, [B, tokens] and [B, T, tokens].
        prompt: Int [B, T], T >= 1.
        max_new_tokens: Most tokens a row is continued by.
        mask: Boolean array of shape [B, T]; True marks valid tokens. Padding may be anywhere. A row
            of padding alone is not continued.
        stop: The token or tokens that end a row.
        key: Of ``jax.random.key``: one, from which row i has ``fold_in(key, i)``, or [B], each
            row's own.
        temperature: Float or float [B], which divides the logits, default 1; 0 = the most likely
            token. It needs ``key``.
        top_k: Draw among this many most likely tokens; default all. It needs ``key``.
        pad: Stands behind the last token of a row that has stopped.
        state: What came before the prompt; default nothing. It stays usable.
        max_length: Maximum number of tokens of a sequence, needed by mechanisms with a cache: that
            of ``state`` if it is given, T + max_new_tokens by default.
        chunk_size: Tokens of a piece of the prompt, as in ``prefill``; default all in one.
        dtype: Of the features that the state is made for; default float32.

    Returns:
        Tokens, their number in each row, and the state.

    Raises:
        ValueError: An argument out of range; a model that does not give logits; a state of another
            model; logits that are NaN, above all when a cache or a table of positions is full
            (under ``jit`` the row ends there instead).
        TypeError: A prompt or a token that is not integer, a mask that is not bool, no random key,
            or no model.

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
        raise TypeError(f"expected prompt as int [B, T], got {prompt.dtype} {prompt.shape}.")
    at_least(1, max_new_tokens=max_new_tokens, top_k=top_k)
    if key is None and not (temperature is None and top_k is None):
        raise ValueError("temperature and top_k are for drawing tokens, which needs a key.")
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
            f"the logits of row {row} are NaN after {int(out.lengths[row])} new tokens: the model "
            "has no room for more (make the state with a larger max_length, or the model with more "
            "positions), the prompt holds tokens that it does not know, or its parameters or state "
            "hold NaN."
        )
    return out


@compiled("max_new_tokens", "top_k", "max_length", "chunk_size", "dtype")
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
            f"expected logits [B, tokens], with at least top_k={top_k} tokens, from the model's "
            f"step, got shape {logits.shape}."
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
    """The next token of each row: the most likely one, or a drawn one where there are keys.

    Args:
        logits: Of the next token.
        keys: [B], each row's own, folded with ``count``; or None.
        count: Tokens that the row has been continued by.
        temperature: 0 = the most likely token.
        top_k: Draw among this many most likely tokens; None = all.
    """
    likely = jnp.argmax(logits, axis=1).astype(jnp.int32)
    if keys is None:
        return likely
    draws = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
    warm = temperature > 0
    logits = logits.astype(jnp.float32) / jnp.where(warm, temperature, 1.0)[:, None]
    if top_k is None:
        drawn = jax.vmap(jax.random.categorical)(draws, logits)
    else:
        logits, tokens = jax.lax.top_k(logits, top_k)
        rank = jax.vmap(jax.random.categorical)(draws, logits)
        drawn = jnp.take_along_axis(tokens, rank[:, None], axis=1)[:, 0]
    return jnp.where(warm, drawn.astype(jnp.int32), likely)


def row_keys(key: Any, batch: int) -> Array:
    """A key for each row, from one or as given."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "expected key as jax.random.key(seed) gives it, got "
            f"{getattr(key, 'dtype', type(key).__name__)}; wrap raw keys by "
            "jax.random.wrap_key_data."
        )
    if key.shape == ():
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch, dtype=jnp.uint32))
    if key.shape != (batch,):
        raise ValueError(f"expected one key or one a row, ({batch},), got shape {key.shape}.")
    return key


def _tokens(name: str, tokens: Any) -> Array:
    found = jnp.atleast_1d(jnp.asarray(tokens))
    if found.size and not jnp.issubdtype(found.dtype, jnp.integer):
        raise TypeError(
            f"{name} must be whole numbers, tokens of the model, got {found.dtype} "
            f"{list(found.shape)}."
        )
    return found.astype(jnp.int32)


def _temperatures(temperature: ArrayLike, batch: int) -> Array:
    values = jnp.asarray(temperature, jnp.float32)
    if values.shape not in ((), (batch,)):
        raise ValueError(
            f"expected temperature as one number or one a row, ({batch},), got shape "
            f"{values.shape}."
        )
    if not isinstance(values, jax.core.Tracer) and not (np.asarray(values) >= 0).all():
        raise ValueError(f"temperature must be at least 0, got {temperature}.")
    return jnp.broadcast_to(values, (batch,))
