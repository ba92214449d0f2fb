"""Token generation one step at a time: an iterator over tokens, with the current state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from flax_linattn.inference.generate import (
    DecodeLoop,
    DecodeOptions,
    advance,
    prepare,
    raise_if_failed,
    start,
)
from flax_linattn.inference.model import StreamingModel
from flax_linattn.inference.programs import compile_once
from flax_linattn.typing import Array, Mask, State


@compile_once("max_length", "chunk_size", "dtype")
def _start(model: StreamingModel, *arguments: Any, **options: Any) -> DecodeLoop:
    loop = start(model, *arguments, **options)
    # The next step donates the state, so arrays of the caller or of the model must be copied.
    return loop._replace(state=jax.tree.map(jnp.copy, loop.state))


_advance = compile_once(donate=["loop"])(advance)


class TokenStream(Iterator[NDArray[np.int32]]):
    """Iterator over the next token of each row, int32 [B], made by ``generate_tokens``.

    It ends when all rows have stopped, or after ``max_new_tokens``.

    Attributes:
        state: State after the prompt and all new tokens except the last token of each row, as in
            ``GenerateOutput``. The next token reuses its memory: copy it
            (``jax.tree.map(jnp.copy, stream.state)``) to use it later.
        lengths: Number of new tokens of each row so far, int32 [B], including the stop token.
        is_running: Whether each row has not stopped, boolean [B].
    """

    def __init__(
        self,
        model: StreamingModel,
        arguments: tuple[Any, ...],
        static: dict[str, Any],
        max_new_tokens: int | None,
    ) -> None:
        self._loop: DecodeLoop = _start(model, *arguments, **static)
        self._options: DecodeOptions = arguments[-1]
        self._advance = _advance.bind(model)
        self._num_tokens, self._max_new_tokens = 0, max_new_tokens
        prompt, mask = arguments[:2]
        self.is_running = (
            np.ones(len(prompt), bool) if mask is None else np.asarray(mask).any(axis=1)
        )
        self.lengths = np.zeros(len(prompt), np.int32)

    @property
    def state(self) -> State:
        """State of the model; see the attributes of the class."""
        return self._loop.state

    def __next__(self) -> NDArray[np.int32]:
        if not self.is_running.any() or self._num_tokens == self._max_new_tokens:
            raise StopIteration
        if self._num_tokens:
            self._loop = self._advance(options=self._options, loop=self._loop)
        tokens, lengths, runs, failed = jax.device_get(
            (self._loop.token, self._loop.lengths, self._loop.runs, self._loop.failed)
        )
        self._num_tokens += 1
        self.lengths, self.is_running = lengths, runs & ~failed.any()
        raise_if_failed(failed, lengths)
        return tokens


def generate_tokens(
    model: StreamingModel,
    prompt: Int[Array, "B T"],
    max_new_tokens: int | None = None,
    mask: Mask | None = None,
    **options: Any,
) -> TokenStream:
    """Continues rows of tokens like ``generate``, and yields each token as soon as it is chosen.

    The tokens equal the tokens of ``generate`` with the same arguments. Each token is one call of a
    program that reuses the memory of the state, so memory does not grow with the number of tokens
    if the state of the mechanism has constant size. ``generate`` is faster, since one program runs
    the whole loop.

    Args:
        model: A :class:`StreamingModel` of tokens; later changes of its weights have no effect.
        prompt: Tokens, int [B, T], T >= 1.
        max_new_tokens: Maximum number of new tokens of a row; default no maximum.
        mask: Boolean array of shape [B, T]; True marks valid tokens.
        **options: Further arguments of ``generate``: ``stop``, ``key``, ``temperature``, ``top_k``,
            ``top_p``, ``min_p``, ``repetition_penalty``, ``pad``, ``state``, ``max_length``,
            ``chunk_size`` and ``dtype``. A mechanism with a cache needs ``max_length`` if
            ``max_new_tokens`` is missing.

    Returns:
        An iterator over NumPy arrays, int32 [B], with the state after the tokens so far.

    Raises:
        ValueError: As ``generate``; from the iterator if logits are NaN, usually because a cache
            or a table of positions is full.
        TypeError: As ``generate``, and if ``jit`` traces the call.

    Example:
        >>> import itertools, jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.LanguageModel(11, features=16, num_layers=1, num_heads=2,
        ...                              mechanism="aaren", rngs=nnx.Rngs(0))
        >>> stream = inference.generate_tokens(model, jnp.array([[1, 2, 3, 4]]), top_p=0.9,
        ...                                    key=jax.random.key(0))
        >>> for tokens in itertools.islice(stream, 6):
        ...     pass        # print the text of tokens[0]
        >>> tokens.shape, stream.lengths.tolist(), stream.state.position.tolist()
        ((1,), [6], [9])
    """
    arguments, static = prepare(model, prompt, max_new_tokens, mask, **options)
    return TokenStream(model, arguments, static, max_new_tokens)
