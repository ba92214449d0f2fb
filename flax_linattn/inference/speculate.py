"""Speculative decoding: a small model drafts tokens, and one parallel call verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn.checks import check_integers
from flax_linattn.inference.generate import DecodeOptions, prepare, raise_if_failed, start
from flax_linattn.inference.model import StreamingModel, check_model
from flax_linattn.inference.prefill import prefill_state
from flax_linattn.inference.programs import call_with_state, compile_once, step
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array, Mask, State


@register_state
class SpeculateOutput(NamedTuple):
    """Tokens that ``speculate`` generated, the states to continue from, and the acceptance.

    Attributes:
        tokens: New tokens, int32 [B, max_new_tokens], with ``pad`` after the last token of a row.
        lengths: Number of new tokens of each row, int32 [B], including the stop token.
        state: State of the model, as in ``GenerateOutput``.
        draft_state: State of the draft model after the same tokens.
        num_drafted: Number of verified draft tokens of each row, int32 [B].
        num_accepted: Number of draft tokens of each row that became new tokens, int32 [B].
        num_calls: Number of parallel calls of the model after the prompt, int32 []: one per round
            to verify the drafts, and one more if a row rejected a draft.
    """

    tokens: Int[Array, "B N"]
    lengths: Int[Array, "B"]
    state: State
    draft_state: State
    num_drafted: Int[Array, "B"]
    num_accepted: Int[Array, "B"]
    num_calls: Int[Array, ""]


class _Loop(NamedTuple):
    token: Array  # last token of each row, which no state has processed
    runs: Array
    failed: Array
    out: SpeculateOutput


def speculate(
    model: StreamingModel,
    draft_model: StreamingModel,
    prompt: Int[Array, "B T"],
    max_new_tokens: int,
    mask: Mask | None = None,
    *,
    num_draft_tokens: int = 4,
    stop: int | Sequence[int] = (),
    pad: int = 0,
    state: State | None = None,
    draft_state: State | None = None,
    max_length: int | None = None,
    chunk_size: int | None = None,
    dtype: DTypeLike | None = None,
) -> SpeculateOutput:
    """Generates the most likely tokens by speculative decoding (Leviathan et al., 2023).

    In each round the draft model proposes ``num_draft_tokens`` tokens per row by steps, and one
    parallel call of the model computes its own choice after each proposed token. The longest prefix
    of drafts that equals these choices is accepted, and followed by the model's next choice. States
    are immutable, so rejected tokens need no rollback: if a row rejects a token, a second call
    processes the accepted tokens from the same state, with the rejected tokens masked.

    The tokens equal the tokens of ``generate`` without a key, whatever the draft model. The
    parallel call and the step round differently, so the choice between tokens of almost
    equal logits may differ. The result is faster than ``generate`` only if a parallel call of
    ``num_draft_tokens + 1`` tokens costs little more than one step of the model, and most drafts
    are accepted; measure both.

    Args:
        model: A :class:`StreamingModel` of tokens, whose call returns logits at every position.
        draft_model: A smaller model of the same tokens.
        prompt: Tokens, int [B, T], T >= 1.
        max_new_tokens: Maximum number of new tokens of a row.
        mask: Boolean array of shape [B, T]; True marks valid tokens. Padding may be anywhere. A row
            of padding alone is not continued.
        num_draft_tokens: Number of tokens that the draft model proposes in each round.
        stop: The token or tokens that end a row.
        pad: Token after the last token of a row that has stopped.
        state: State of the model before the prompt; default the initial state. It remains valid.
        draft_state: State of the draft model before the prompt; default the initial state. A state
            without the tokens before the prompt gives worse drafts, but the same tokens.
        max_length: Maximum number of tokens of a sequence, as in ``generate``.
        chunk_size: Number of tokens of a chunk of the prompt, as in ``prefill``; default all.
        dtype: Dtype of the features that the states are made for; default float32.

    Returns:
        New tokens, the number of new tokens of each row, both states, and the numbers of drafted
        tokens, accepted tokens and calls.

    Raises:
        ValueError: As ``generate``, or if the models have different numbers of tokens.
        TypeError: As ``generate``.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model, draft_model = (
        ...     models.LanguageModel(11, features=16, num_layers=layers, num_heads=2,
        ...                          mechanism="aaren", rngs=nnx.Rngs(0)) for layers in (4, 1))
        >>> prompt = jnp.array([[1, 2, 3, 4]])
        >>> out = inference.speculate(model, draft_model, prompt, 12, num_draft_tokens=3)
        >>> bool((out.tokens == inference.generate(model, prompt, 12).tokens).all())
        True
    """
    check_integers(1, num_draft_tokens=num_draft_tokens)
    check_model(draft_model, sequences=True)
    arguments, static = prepare(
        model,
        prompt,
        max_new_tokens,
        mask,
        stop=stop,
        pad=pad,
        state=state,
        max_length=max_length,
        chunk_size=chunk_size,
        dtype=dtype,
    )
    graphdef, variables = nnx.split(draft_model)
    out, failed = _speculate(
        model,
        *arguments,
        variables,
        draft_state,
        draft_graphdef=graphdef,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        **static,
    )
    raise_if_failed(failed, out.lengths)
    return out


@compile_once(
    "draft_graphdef", "max_new_tokens", "num_draft_tokens", "max_length", "chunk_size", "dtype"
)
def _speculate(
    model: StreamingModel,
    prompt: Array,
    mask: Array | None,
    state: State | None,
    options: DecodeOptions,
    draft_variables: Any,
    draft_state: State | None,
    *,
    draft_graphdef: Any,
    max_new_tokens: int,
    num_draft_tokens: int,
    **static: Any,
) -> tuple[SpeculateOutput, Array]:
    draft_model = nnx.merge(draft_graphdef, draft_variables)
    first = start(model, prompt, mask, state, options, **static)
    _, draft_state = prefill_state(draft_model, prompt, mask, draft_state, **static)
    tokens = jnp.broadcast_to(options.pad, (prompt.shape[0], max_new_tokens))
    zeros = jnp.zeros_like(first.lengths)
    begin = _Loop(
        token=first.token,
        runs=first.runs & (first.lengths < max_new_tokens),
        failed=first.failed,
        out=SpeculateOutput(
            tokens=tokens.at[:, 0].set(first.token),
            lengths=first.lengths,
            state=first.state,
            draft_state=draft_state,
            num_drafted=zeros,
            num_accepted=zeros,
            num_calls=jnp.zeros((), jnp.int32),
        ),
    )
    loop = jax.lax.while_loop(
        lambda loop: jnp.any(loop.runs),
        lambda loop: _round(model, draft_model, loop, options.stop, num_draft_tokens),
        begin,
    )
    return loop.out, loop.failed


def _round(
    model: StreamingModel, draft_model: StreamingModel, loop: _Loop, stop: Array, num_drafts: int
) -> _Loop:
    """Drafts tokens, verifies them, and appends one to ``num_drafts + 1`` tokens to each row."""
    out, max_new_tokens = loop.out, loop.out.tokens.shape[1]
    index = out.lengths[:, None] + jnp.arange(num_drafts + 1)  # of the token after each input
    real = loop.runs[:, None] & (index < max_new_tokens)

    def draft(carry: tuple[Array, State], real: Array) -> tuple[tuple[Array, State], Array]:
        logits, state = step(draft_model, *carry, mask=real)
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return (token, state), token

    _, drafts = jax.lax.scan(draft, (loop.token, out.draft_state), real.T[:-1])
    inputs = jnp.concatenate([loop.token[:, None], drafts.T], axis=1)
    logits, verified = _call(model, inputs, real, out.state)
    num_tokens = jax.eval_shape(draft_model.step, loop.token, out.draft_state)[0].shape[-1]
    if logits.shape != (*inputs.shape, num_tokens):
        raise ValueError(
            "expected models whose call returns logits [B, T, tokens] of the same tokens, got "
            f"{logits.shape[2:]} from the model, and {num_tokens} from the draft model."
        )
    choices = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    is_right = choices[:, :-1] == inputs[:, 1:]
    has_nan = jnp.any(jnp.isnan(logits), axis=-1)
    # An input is valid if all drafts before it are right, and none of them ended the row.
    ends = jnp.pad(~is_right | jnp.isin(choices[:, :-1], stop), ((0, 0), (1, 0)))
    valid = real & (jnp.cumsum(ends, axis=1) == 0)
    failed = jnp.any(valid & has_nan, axis=1)
    valid = valid & (jnp.cumsum(has_nan, axis=1) == 0)
    num_new = jnp.sum(valid, axis=1, dtype=jnp.int32)
    last = jnp.take_along_axis(choices, jnp.maximum(num_new - 1, 0)[:, None], axis=1)[:, 0]
    token, lengths = jnp.where(num_new > 0, last, loop.token), out.lengths + num_new
    all_accepted = jnp.all(valid == real)
    write = jax.vmap(lambda row, index, new: row.at[index].set(new, mode="drop"))
    return _Loop(
        token=token,
        runs=loop.runs & ~failed & (lengths < max_new_tokens) & ~jnp.isin(token, stop),
        failed=loop.failed | failed,
        out=SpeculateOutput(
            tokens=write(out.tokens, jnp.where(valid, index, max_new_tokens), choices),
            lengths=lengths,
            state=jax.lax.cond(
                all_accepted,
                lambda: verified,
                lambda: _call(model, inputs, valid, out.state)[1],
            ),
            draft_state=_call(draft_model, inputs, valid, out.draft_state)[1],
            num_drafted=out.num_drafted + jnp.sum(real[:, :-1], axis=1, dtype=jnp.int32),
            num_accepted=out.num_accepted
            + jnp.sum(valid[:, :-1] & is_right, axis=1, dtype=jnp.int32),
            num_calls=out.num_calls + 2 - all_accepted.astype(jnp.int32),
        ),
    )


def _call(model: StreamingModel, x: Array, mask: Array, state: State) -> tuple[Array, State]:
    return call_with_state(
        model, state, x.shape[0], lambda: model(x, mask=mask, state=state, return_state=True)
    )
