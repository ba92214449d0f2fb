"""Text generation: prompts, text in pieces or batches, and saved states of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, check_integers, quote
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import State

CHUNK_SIZE = 512
"""Number of tokens of a prompt that are processed at once."""
LENGTH_MULTIPLE = 64
"""Prompts are padded to a multiple of this length, so that few lengths are compiled."""


class PromptState(NamedTuple):
    """State of a model after a text, from which any number of continuations start.

    Attributes:
        state: State after all tokens but the last, with one row.
        token: The last token.
        max_length: Maximum number of tokens that the state holds; None if unlimited.
    """

    state: State
    token: int
    max_length: int | None


class TextGenerator(Iterator[str]):
    """Iterator over a generated text, in pieces of whole characters.

    Args:
        run: A run of a language model.
        prompt: Text to continue.
        max_tokens: Maximum number of new tokens; None generates indefinitely, if the state has a
            constant size.
        stop: Texts that end the generation; they are not part of the output.
        prompt_state: State of the text before the prompt, see ``load_prompt``. If its document has
            ended, the prompt begins a new document.
        max_length: Maximum number of tokens of the whole text, for mechanisms with a cache.
            Default: the length of the prompt and ``max_tokens``.
        seed: Random seed of the sampling.
        temperature: Divisor of the logits; 0 selects the most likely token.
        **sampling: ``top_k``, ``top_p``, ``min_p`` and ``repetition_penalty`` of
            ``inference.generate``.

    Raises:
        OptionError: If the prompt is empty or too long, or an option is out of range.
    """

    def __init__(
        self,
        run: Run,
        prompt: str | bytes,
        *,
        max_tokens: int | None = 256,
        stop: Sequence[str] = (),
        prompt_state: PromptState | None = None,
        max_length: int | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        **sampling: Any,
    ) -> None:
        check_integers(0, max_tokens=max_tokens)
        _check_stop(stop)
        if prompt_state is not None and prompt_state.token == run.data_spec.begin:
            # In training, documents do not attend to the documents before them.
            initial = run.model.init_state(1, prompt_state.max_length)
            prompt_state = prompt_state._replace(state=initial)
        tokens = _prompt_tokens(run, prompt, prompt_state)
        if prompt_state is not None:
            max_length = prompt_state.max_length
        elif not _has_limit(run):
            max_length = None
        elif max_length is None:
            max_length = len(tokens) + (max_tokens or 0)
        _check_length(run, len(tokens), max_tokens, max_length, prompt_state)
        self._run, self._max_length = run, max_length
        self._last = int(tokens[-1])
        state = None if prompt_state is None else prompt_state.state
        self._state, self._stream = state, None
        if max_tokens == 0:
            self._state = read_tokens(run, tokens[:-1], state, max_length)
        else:
            padded, mask = _pad([tokens])
            self._stream = inference.generate_tokens(
                run.model,
                jnp.asarray(padded),
                max_tokens,
                jnp.asarray(mask),
                stop=[] if run.data_spec.begin is None else [run.data_spec.begin],
                state=state,
                max_length=None if state is not None else max_length,
                chunk_size=CHUNK_SIZE,
                **_sampling(seed, temperature, sampling),
            )
        pieces = run.data_spec.make_tokenizer().decode_stream(self._tokens())
        self._pieces = until(pieces, stop)

    def _tokens(self) -> Iterator[int]:
        for row in self._stream or ():
            self._last = int(row[0])
            yield self._last

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def prompt_state(self) -> PromptState:
        """State after the prompt and all text so far, to continue from or to save."""
        state = self._state if self._stream is None else self._stream.state
        return PromptState(jax.tree.map(jnp.copy, state), self._last, self._max_length)


def generate_batch(
    run: Run,
    prompts: Sequence[str | bytes],
    *,
    max_tokens: int = 256,
    stop: Sequence[str] = (),
    max_length: int | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    **sampling: Any,
) -> list[str]:
    """Continues several prompts in one program; see ``TextGenerator`` for the options.

    Prompt i samples with the key ``fold_in(key(seed), i)``, whatever the other prompts are.
    """
    check_integers(1, max_tokens=max_tokens)
    _check_stop(stop)
    if not prompts:
        return []
    rows = [_prompt_tokens(run, prompt, None) for prompt in prompts]
    longest = max(map(len, rows))
    if _has_limit(run) and max_length is None:
        max_length = longest + max_tokens
    _check_length(run, longest, max_tokens, max_length, None)
    padded, mask = _pad(rows)
    begin = run.data_spec.begin
    out = inference.generate(
        run.model,
        jnp.asarray(padded),
        max_tokens,
        jnp.asarray(mask),
        stop=[] if begin is None else [begin],
        max_length=max_length,
        chunk_size=CHUNK_SIZE,
        **_sampling(seed, temperature, sampling),
    )
    decode_stream = run.data_spec.make_tokenizer().decode_stream
    pairs = zip(np.asarray(out.tokens), np.asarray(out.lengths), strict=True)
    return ["".join(until(decode_stream(row[:length]), stop)) for row, length in pairs]


def until(pieces: Iterator[str], stop: Sequence[str]) -> Iterator[str]:
    """Yields text up to the first stop text; holds back text that may begin a stop text.

    Example:
        >>> list(until(iter(["a", "b", "<e", "x<", "end", ">c"]), ["<end>"]))
        ['a', 'b', '<ex']
    """
    held = ""
    for piece in pieces:
        held += piece
        places = [place for text in stop if (place := held.find(text)) >= 0]
        if places:
            if text := held[: min(places)]:
                yield text
            return
        keep = max((_common(held, text) for text in stop), default=0)
        if text := held[: len(held) - keep]:
            yield text
            held = held[len(held) - keep :]
    if held:
        yield held


def _common(held: str, stop: str) -> int:
    """Length of the longest suffix of a text that is a proper prefix of a stop text."""
    sizes = range(min(len(held), len(stop) - 1), 0, -1)
    return next((size for size in sizes if held.endswith(stop[:size])), 0)


def read_tokens(
    run: Run, tokens: NDArray[np.int32], state: State | None, max_length: int | None
) -> State:
    """Computes the state after tokens, starting from a state or from the initial state."""
    if not len(tokens):
        return run.model.init_state(1, max_length) if state is None else state
    padded, mask = _pad([tokens])
    _, state = inference.prefill(
        run.model,
        jnp.asarray(padded),
        jnp.asarray(mask),
        state=state,
        max_length=None if state is not None else max_length,
        chunk_size=CHUNK_SIZE,
    )
    return state


def save_prompt(path: Path, run: Run, prompt_state: PromptState) -> None:
    """Saves the state after a text; the file has the size of the state, not of the text."""
    metadata = {
        "task": run.task.name,
        "mechanism": mechanism_name(run.config.layers),
        "model": fingerprint(run.model),
        "token": prompt_state.token,
        "max_length": prompt_state.max_length,
    }
    save_state(path, prompt_state.state, metadata)


def load_prompt(path: Path, run: Run) -> PromptState:
    """Loads a state that ``save_prompt`` saved.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, or belongs to another model.
    """
    names: dict[str, Any] = {}

    def check(metadata: dict[str, Any]) -> None:
        if "token" not in metadata:
            raise OptionError(
                f"expected the state of a prompt, got the state of a stream in {path}; save one "
                "with save_state=..., or remove state=....",
                "state",
                "save_state",
            )
        if metadata.get("model") != fingerprint(run.model):
            raise OptionError(
                f"the state {path} was not saved by this run; use the run that saved it, or remove "
                "state=....",
                "state",
            )
        token, length = metadata["token"], metadata.get("max_length")
        is_token = type(token) is int and 0 <= token < run.data_spec.num_tokens
        if not is_token or not (length is None or (type(length) is int and 0 < length < 2**31)):
            raise ValueError(f"{path} is a damaged state file: expected a token and max_length.")
        if (length is None) == _has_limit(run):
            raise ValueError(f"{path} is a damaged state file: got max_length {quote(length)}.")
        names.update(token=token, max_length=length)

    with_limit = inference.describe_state(path).metadata.get("max_length")
    length = with_limit if type(with_limit) is int and 0 < with_limit < 2**31 else None
    length = (length or 1) if _has_limit(run) else None
    # Only shapes: the file must hold arrays of max_length slots before memory is allocated.
    like = jax.eval_shape(lambda: run.model.init_state(1, length))
    state, _ = load_state(path, like, check=check)
    return PromptState(state, names["token"], names["max_length"])


def _has_limit(run: Run) -> bool:
    return not run.model.backbone.constant_memory


def _prompt_tokens(
    run: Run, prompt: str | bytes, prompt_state: PromptState | None
) -> NDArray[np.int32]:
    text = prompt.encode("utf-8", "surrogateescape") if isinstance(prompt, str) else prompt
    try:
        tokens = run.data_spec.make_tokenizer().encode(text)
    except ValueError as error:
        raise OptionError(f"{error}.", "prompt") from None
    begin = run.data_spec.begin
    first = [prompt_state.token] if prompt_state is not None else [] if begin is None else [begin]
    tokens = np.concatenate([np.array(first, np.int32), tokens])
    if not len(tokens):
        raise OptionError(
            "expected a prompt of at least one character, because a run that was trained on a "
            "single text has no token that begins a text; pass prompt=....",
            "prompt",
        )
    return tokens


def _check_length(
    run: Run,
    num_tokens: int,
    max_tokens: int | None,
    max_length: int | None,
    prompt_state: PromptState | None,
) -> None:
    positions = run.model.num_positions
    before = 0
    if prompt_state is not None:
        before = int(np.asarray(prompt_state.state.position)[0])
    if positions is not None and before + num_tokens + (max_tokens or 0) > positions:
        raise OptionError(
            f"expected a prompt and new tokens of at most {positions:,} tokens together, because "
            f"the run has learned positions, got {before + num_tokens:,} and {max_tokens or 0:,}; "
            "shorten the prompt, lower max_tokens, or train with another position.",
            "prompt",
            "max_tokens",
        )
    if max_tokens is None and (positions is not None or _has_limit(run)):
        raise OptionError(
            f"the mechanism {mechanism_name(run.config.layers)!r} needs max_tokens=..., because "
            "its cache grows with every token.",
            "max_tokens",
        )
    needed = before + num_tokens + (max_tokens or 0)
    if max_length is not None and needed > max_length:
        raise OptionError(
            f"expected max_length of at least {needed:,}, the tokens of the prompt and max_tokens, "
            f"got {max_length:,}; a saved state keeps its max_length.",
            "max_length",
            "max_tokens",
        )


def _check_stop(stop: Sequence[str]) -> None:
    if isinstance(stop, str) or not all(stop):
        raise OptionError(
            f"expected stop as a list of texts of at least one character, got {quote(stop)}.",
            "stop",
        )


def _sampling(seed: int, temperature: float, options: dict[str, Any]) -> dict[str, Any]:
    check_integers(0, 2**32 - 1, seed=seed)
    if temperature == 0:  # the most likely token
        penalty = options.get("repetition_penalty")
        return {} if penalty is None else {"repetition_penalty": penalty}
    return {"key": jax.random.key(seed), "temperature": temperature, **options}


def padded_length(length: int) -> int:
    """Rounds a length up to a multiple of ``LENGTH_MULTIPLE``."""
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def _pad(rows: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Pads rows at the end to a common multiple of ``LENGTH_MULTIPLE``; returns rows and mask."""
    length = padded_length(max(map(len, rows)))
    padded = np.stack([np.pad(row, (0, length - len(row))) for row in rows])
    return padded, np.arange(length) < np.array([len(row) for row in rows])[:, None]
