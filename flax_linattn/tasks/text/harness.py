"""Evaluation of language models with lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import import_extra
from flax_linattn.data.texts import TokenWindows
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.text.evaluate import carries_state, score_carried, score_windows
from flax_linattn.tasks.text.generate import TextGenerator, padded_length


def harness_model(run: Run | str | Path) -> Any:
    """Makes an ``lm_eval.api.model.LM`` of a run, to pass to ``lm_eval.simple_evaluate``.

    A text without context is scored after the token that begins a document, or after a newline if
    the run was trained on a single text. Contexts longer than the learned positions are truncated
    at their beginning. Generation selects the most likely tokens, unless a task asks for sampling.

    Args:
        run: A run of the task text, or its folder.

    Raises:
        OptionError: If the package lm_eval is not installed.

    Example:
        >>> run = harness_model("runs/my")  # doctest: +SKIP
        >>> lm_eval.simple_evaluate(run, tasks=["lambada_openai"])  # doctest: +SKIP
    """
    api = import_extra(
        "lm_eval.api.model", "harness_model needs lm-evaluation-harness: pip install lm-eval"
    )
    loaded = run if isinstance(run, Run) else load_run(run)

    class HarnessModel(api.LM):  # type: ignore[name-defined]
        """Adapter from a run to the interface of the harness."""

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return [score_continuation(loaded, *request.args) for request in requests]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return [score_text(loaded, request.args[0]) for request in requests]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [generate_until(loaded, *request.args) for request in requests]

    return HarnessModel()


def score_continuation(run: Run, context: str, continuation: str) -> tuple[float, bool]:
    """Log-likelihood of a continuation in nats, and whether greedy decoding would generate it."""
    # Tokenizers join a space with the word after it, so spaces at the end of the context move.
    stripped = context.rstrip()
    context, continuation = stripped, context[len(stripped) :] + continuation
    encode = run.data_spec.make_tokenizer().encode
    before = _after_begin(run, encode(context.encode()))
    tokens = _after_begin(run, encode((context + continuation).encode()))
    count, positions = len(tokens) - len(before), run.model.num_positions
    if positions is not None:
        if count > positions:
            raise ValueError(
                f"expected a continuation of at most {positions:,} tokens, the learned positions "
                f"of the run, got {count:,}; train with another position."
            )
        tokens = tokens[-positions - 1 :]
    scores = score_windows(run, _windows(run, tokens))
    own = slice(len(tokens) - 1 - count, None)
    return _nats(scores.bits[own]), bool(scores.is_right[own].all())


def score_text(run: Run, text: str) -> float:
    """Log-likelihood of a text in nats, with the state carried over its whole length.

    A model with a growing cache attends to the whole text, or to windows of its learned positions.
    """
    tokens = _after_begin(run, run.data_spec.make_tokenizer().encode(text.encode()))
    score = score_carried if carries_state(run) else score_windows
    return _nats(score(run, _windows(run, tokens)).bits)


def _windows(run: Run, tokens: NDArray[np.int32]) -> TokenWindows:
    """Makes one window of all tokens, or windows as long as the learned positions."""
    length = padded_length(len(tokens) - 1)
    length = min(length, run.model.num_positions or length)
    return TokenWindows(tokens, 1, length=length, begin=None, seed=None)


def generate_until(run: Run, context: str, options: dict[str, Any]) -> str:
    """Continues a context up to the first stop text in ``options["until"]``."""
    until = options.get("until") or ()
    until = [until] if isinstance(until, str) else [text for text in until if text]
    prompt, max_tokens = context.encode(), int(options.get("max_gen_toks", 256))
    if (positions := run.model.num_positions) is not None:
        tokenizer = run.data_spec.make_tokenizer()
        # One position is for the token that begins a document.
        prompt = tokenizer.decode(tokenizer.encode(prompt)[-max(positions - max_tokens - 1, 1) :])
    sampling = {name: options[name] for name in ("top_k", "top_p", "min_p") if name in options}
    samples = bool(options.get("do_sample", options.get("temperature", 0)))
    generator = TextGenerator(
        run,
        prompt or "\n",
        max_tokens=max_tokens,
        stop=until,
        temperature=float(options.get("temperature", 1.0)) if samples else 0.0,
        **(sampling if samples else {}),
    )
    return "".join(generator)


def _after_begin(run: Run, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    begin = run.data_spec.begin
    first = run.data_spec.make_tokenizer().encode(b"\n") if begin is None else [begin]
    return np.concatenate([np.asarray(first, np.int32), tokens])


def _nats(bits: NDArray[np.floating]) -> float:
    return -float(np.sum(bits, dtype=np.float64)) * float(np.log(2))
