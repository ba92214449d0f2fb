"""Streams of text: the bits of each line as it arrives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import inference
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming
from flax_linattn.typing import Array, State

CHUNK_SIZE = 64
"""Number of tokens that are processed at once."""


class TextStream(Streaming):
    """Scores text as it arrives: bits -log2 p of each line, given all text before it.

    Each line is tokenized separately, with its newline. All lines form one document. If the run was
    trained on a single text, the first token costs log2 of the vocabulary size, because nothing
    precedes it.

    Args:
        run: The trained run.
        max_length: As in ``TextStreamOptions``.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    record_attributes = ("_log_p", "_num_tokens", "_num_bytes", "_bits")

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        check_integers(1, max_length=max_length)
        if not run.model.streams:
            raise OptionError(
                f"the run cannot stream, because {mechanism_name(run.config.layers)!r} has no "
                "causal form.",
                "run",
            )
        is_limited = not run.model.backbone.constant_memory or run.model.num_positions is not None
        self._limit = (max_length or run.config.data.context) if is_limited else None
        super().__init__(
            run,
            inference.Stream(run.model, max_length=self._limit),
            ["line", "bytes", "bits", "bits_per_byte"],
            max_length=self._limit,
        )
        self._tokenizer = run.data_spec.make_tokenizer()
        num_tokens = run.data_spec.num_tokens
        self._log_p = np.full(num_tokens, -math.log(num_tokens), np.float32)
        """Log-probabilities of the next token, after the last token."""
        self._num_tokens = self._num_bytes = 0
        self._bits = 0.0
        if run.data_spec.begin is not None:
            self._process(np.array([run.data_spec.begin], np.int32))

    @property
    def comments(self) -> bool:
        """Whether lines may be comments: False, because every line is text."""
        return False

    def parse(self, lines: Iterable[str]) -> Iterator[bytes]:
        """Yields the bytes of each line, with its newline."""
        for line in lines:
            yield f"{line}\n".encode("utf-8", "surrogateescape")

    def cells(self, observation: bytes) -> Sequence[Any]:
        """Returns the number of the line, its bytes, its bits, and its bits per byte."""
        bits = self._process(self._tokenizer.encode(observation))
        self.num_steps += 1
        self._num_bytes += len(observation)
        self._bits += bits
        per_byte = np.float32(bits / len(observation))
        return [self.num_steps, len(observation), np.float32(bits), per_byte]

    def _process(self, tokens: np.ndarray) -> float:
        """Processes tokens, and returns the sum of their bits."""
        if not len(tokens):  # some tokenizers drop white space
            return 0.0
        if self._limit is not None and self._num_tokens + len(tokens) > self._limit:
            raise OptionError(
                f"the text is longer than {self._limit:,} tokens, the maximum length of the "
                "stream; set max_length=..., or choose a mechanism with a state of constant size.",
                "max_length",
            )
        log_p, state = jnp.asarray(self._log_p), self._stream.state
        nats = []
        for start in range(0, len(tokens), CHUNK_SIZE):
            part = tokens[start : start + CHUNK_SIZE]
            padded = jnp.asarray(np.pad(part, (0, CHUNK_SIZE - len(part)))[None])
            mask = jnp.asarray(np.arange(CHUNK_SIZE)[None] < len(part))
            own, log_p, state = _score_chunk(self._run.model, padded, mask, log_p, state)
            nats.append(np.asarray(own)[: len(part)])
        if np.isnan(log_p).any():
            raise ValueError("the logits of the model are NaN, because its numbers overflow.")
        self._stream.state = state
        self._stream.num_steps += len(tokens)
        self._log_p = np.asarray(log_p, np.float32)
        self._num_tokens += len(tokens)
        return -float(np.sum(np.concatenate(nats), dtype=np.float64)) / math.log(2)

    def interface(self) -> dict[str, Any]:
        """Describes the vocabulary, and the token that begins a document."""
        tokens = {
            "kind": "token",
            "count": self._run.data_spec.num_tokens,
            "tokenizer": self._run.data_spec.tokenizer,
            "begin": self._run.data_spec.begin,
        }
        return {"inputs": [tokens], "outputs": {"kind": "logits"}}

    def num_observations(self, record: Record) -> int:
        """Number of tokens so far."""
        return int(record["_num_tokens"])

    def is_possible(self, record: Record) -> bool:
        """Whether counts and bits of a record are consistent."""
        return (
            record["_bits"] >= 0
            and record["num_steps"] <= record["_num_bytes"]
            and record["_num_tokens"] == record["_stream.num_steps"]
            and bool((record["_log_p"] <= 0).all())
        )

    def end(self) -> str | None:
        """Returns a note on the bits per byte of all lines."""
        if not self._num_bytes:
            return None
        return f"{self._bits / self._num_bytes:.4f} bits per byte of {self._num_bytes:,} bytes"


@nnx.jit
def _score_chunk(
    model: Any, tokens: Array, mask: Array, log_p: Array, state: State
) -> tuple[Array, Array, State]:
    """Log-probabilities of the tokens [C] and of the token after them [N], and the new state."""
    logits, state = model(tokens, mask=mask, state=state, return_state=True)
    all_log_p = jnp.concatenate([log_p[None], jax.nn.log_softmax(logits[0])])
    own = jnp.take_along_axis(all_log_p[:-1], tokens[0, :, None], axis=1)[:, 0]
    return own, all_log_p[jnp.sum(mask[0])], state
