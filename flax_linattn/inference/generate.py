"""Token generation: prefill of the prompt, sampling loop and early stop in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Int

from flax_linattn.checks import check_integers
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.inference.prefill import check_capacity, check_prompt, prefill_state
from flax_linattn.inference.programs import compile_once, step
from flax_linattn.inference.sampling import Sampling, choose, make_sampling
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


class DecodeOptions(NamedTuple):
    """Options of the decoding loop: stop tokens, padding token and sampling."""

    stop: Array
    pad: Array
    sampling: Sampling


class DecodeLoop(NamedTuple):
    """Values that the decoding loop carries from token to token.

    Attributes:
        token: Last token of each row, [B]; padding if the row has stopped.
        lengths: Number of tokens of each row, int32 [B].
        runs: Whether each row has not stopped, boolean [B].
        failed: Whether the logits of each row were NaN, boolean [B].
        num_tokens: Number of tokens of every row that still runs, int32 [].
        is_present: Tokens that each row contains, boolean [B, tokens], if there is a penalty.
        state: State of the model before ``token``.
    """

    token: Array
    lengths: Array
    runs: Array
    failed: Array
    num_tokens: Array
    is_present: Array | None
    state: State


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
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    repetition_penalty: ArrayLike | None = None,
    pad: int = 0,
    state: State | None = None,
    max_length: int | None = None,
    chunk_size: int | None = None,
    dtype: DTypeLike | None = None,
) -> GenerateOutput:
    """Continues rows of tokens: the prompt in parallel, then a ``lax.while_loop`` of steps.

    Without ``key``, each token is the most likely one. With it, token t of a row is sampled with
    ``fold_in(key of the row, t)``, so the samples of a row do not depend on other rows. The loop
    ends as soon as all rows have stopped; a row that has stopped keeps its state.

    The sampling options apply in this order, as in Hugging Face Transformers: repetition penalty,
    temperature, top_k, top_p, min_p. ``top_p`` and ``min_p`` use the probabilities of the
    tokens that remain.

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
        top_p: Float or float [B] in (0, 1]: samples from the smallest set of most likely tokens
            whose probability is at least ``top_p`` (nucleus sampling, Holtzman et al., 2020);
            default 1, all. It needs ``key``.
        min_p: Float or float [B] in [0, 1]: samples from tokens whose probability is at least
            ``min_p`` times that of the most likely token (Nguyen et al., 2025); default 0, all. It
            needs ``key``.
        repetition_penalty: Float or float [B] above 0, by which positive logits of tokens in the
            prompt or among the new tokens are divided, and negative ones multiplied (CTRL, Keskar
            et al., 2019); default 1, no penalty. Tokens before the prompt are not penalized,
            because ``state`` does not contain them.
        pad: Token after the last token of a row that has stopped.
        state: State before the prompt; default the initial state. It remains valid.
        max_length: Maximum number of tokens of a sequence, for mechanisms with a cache; default
            T + max_new_tokens, or the size of the cache in ``state``.
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
    arguments, options = prepare(
        model,
        prompt,
        max_new_tokens,
        mask,
        stop=stop,
        key=key,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        pad=pad,
        state=state,
        max_length=max_length,
        chunk_size=chunk_size,
        dtype=dtype,
    )
    out, failed = _generate(model, *arguments, max_new_tokens=max_new_tokens, **options)
    raise_if_failed(failed, out.lengths)
    return out


def prepare(
    model: StreamingModel,
    prompt: ArrayLike,
    max_new_tokens: int | None,
    mask: Mask | None,
    *,
    stop: int | Sequence[int] = (),
    pad: int = 0,
    state: State | None = None,
    max_length: int | None = None,
    chunk_size: int | None = None,
    dtype: DTypeLike | None = None,
    **sampling: Any,
) -> tuple[tuple[Array, Array | None, State | None, DecodeOptions], dict[str, Any]]:
    """Checks the arguments of ``generate``; returns array and static arguments of ``start``."""
    check_model(model, sequences=True)
    prompt, mask = check_prompt(prompt, mask, chunk_size)
    if not jnp.issubdtype(prompt.dtype, jnp.integer) or prompt.ndim != 2:
        raise TypeError(f"expected prompt as integers [B, T], got {prompt.dtype} {prompt.shape}.")
    check_integers(1, max_new_tokens=max_new_tokens)
    if state is None:
        check_capacity(prompt, mask, max_length)
    if max_length is None and max_new_tokens is not None:
        max_length = prompt.shape[1] + max_new_tokens
    options = DecodeOptions(
        stop=_tokens("stop", stop),
        pad=_tokens("pad", pad)[0],
        sampling=make_sampling(batch=prompt.shape[0], **sampling),
    )
    static = {"max_length": max_length, "chunk_size": chunk_size, "dtype": dtype}
    return (prompt.astype(jnp.int32), mask, state, options), static


def start(
    model: StreamingModel,
    prompt: Array,
    mask: Array | None,
    state: State | None,
    options: DecodeOptions,
    *,
    max_length: int | None,
    chunk_size: int | None,
    dtype: DTypeLike | None,
) -> DecodeLoop:
    """Processes the prompt, and chooses the first new token of each row."""
    batch, sampling = prompt.shape[0], options.sampling
    logits, state = prefill_state(
        model, prompt, mask, state, max_length=max_length, chunk_size=chunk_size, dtype=dtype
    )
    if logits.ndim != 2 or not 1 <= (sampling.top_k or 1) <= logits.shape[1]:
        raise ValueError(
            "expected the model's step to return logits [B, tokens] with at least "
            f"top_k={sampling.top_k} tokens, got shape {logits.shape}."
        )
    is_present = None
    if sampling.repetition_penalty is not None:
        real = jnp.ones(prompt.shape, bool) if mask is None else mask
        is_present = jax.vmap(lambda row, tokens, real: row.at[tokens].max(real))(
            jnp.zeros(logits.shape, bool), prompt, real
        )
    loop = DecodeLoop(
        token=jnp.broadcast_to(options.pad, (batch,)),
        lengths=jnp.zeros(batch, jnp.int32),
        runs=jnp.ones(batch, bool) if mask is None else jnp.any(mask, axis=1),
        failed=jnp.zeros(batch, bool),
        num_tokens=jnp.zeros((), jnp.int32),
        is_present=is_present,
        state=state,
    )
    return _append(logits, loop, options)


def advance(model: StreamingModel, loop: DecodeLoop, options: DecodeOptions) -> DecodeLoop:
    """Processes the last token of each row that still runs, and chooses its next token."""
    logits, state = step(model, loop.token, loop.state, mask=loop.runs)
    return _append(logits, loop._replace(state=state), options)


def _append(logits: Array, loop: DecodeLoop, options: DecodeOptions) -> DecodeLoop:
    failed = loop.runs & jnp.any(jnp.isnan(logits), axis=1)
    runs = loop.runs & ~failed
    token = choose(logits, loop.num_tokens, options.sampling, loop.is_present)
    token = jnp.where(runs, token, options.pad)
    is_present = loop.is_present
    if is_present is not None:
        is_present = jax.vmap(lambda row, token, real: row.at[token].max(real))(
            is_present, token, runs
        )
    return DecodeLoop(
        token=token,
        lengths=loop.lengths + runs.astype(jnp.int32),
        runs=runs & ~jnp.isin(token, options.stop),
        failed=loop.failed | failed,
        num_tokens=loop.num_tokens + 1,
        is_present=is_present,
        state=loop.state,
    )


@compile_once("max_new_tokens", "max_length", "chunk_size", "dtype")
def _generate(
    model: StreamingModel,
    prompt: Array,
    mask: Array | None,
    state: State | None,
    options: DecodeOptions,
    *,
    max_new_tokens: int,
    **static: Any,
) -> tuple[GenerateOutput, Array]:
    def body(carry: tuple[DecodeLoop, Array]) -> tuple[DecodeLoop, Array]:
        loop = advance(model, carry[0], options)
        return loop, carry[1].at[:, loop.num_tokens - 1].set(loop.token)

    loop = start(model, prompt, mask, state, options, **static)
    tokens = jnp.broadcast_to(options.pad, (prompt.shape[0], max_new_tokens))
    loop, tokens = jax.lax.while_loop(
        lambda carry: (carry[0].num_tokens < max_new_tokens) & jnp.any(carry[0].runs),
        body,
        (loop, tokens.at[:, 0].set(loop.token)),
    )
    return GenerateOutput(tokens, loop.lengths, loop.state), loop.failed


def raise_if_failed(failed: ArrayLike, lengths: ArrayLike) -> None:
    """Raises ValueError for a row whose logits were NaN, unless the values are traced."""
    if not isinstance(failed, jax.core.Tracer) and np.asarray(failed).any():
        row = int(np.asarray(failed).argmax())
        raise ValueError(
            f"the logits of row {row} are NaN after {int(np.asarray(lengths)[row])} new tokens; "
            "possible causes: a full cache (make the state with a larger max_length), no more "
            "positions (make the model with more), unknown tokens in the prompt, or NaN in "
            "parameters or state."
        )


def _tokens(name: str, tokens: Any) -> Array:
    array = jnp.atleast_1d(jnp.asarray(tokens))
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(
            f"expected {name} as token ids (integers), got {array.dtype} {list(array.shape)}."
        )
    return array.astype(jnp.int32)
