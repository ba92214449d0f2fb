"""``flax-linattn generate RUN``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.tasks.options import Checkpoint


def generate(
    run: Path,
    /,
    prompt: tuple[str, ...] = (),
    prompt_file: Path | None = None,
    max_tokens: int = 256,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    state: Path | None = None,
    save_state: Path | None = None,
    max_length: int | None = None,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Continues a prompt with a language model, and prints the text as it is generated.

    Several prompts are continued in one batch; each result is a line of JSON with "prompt" and
    "text". Time and memory per token are constant for mechanisms with a state of constant size.

    Args:
        run: Folder of a trained language model, a run of the task text.
        prompt: Text to continue, or several texts.
        prompt_file: File with the text to continue, instead of ``prompt``.
        max_tokens: Maximum number of new tokens; 0 only processes the prompt.
        temperature: Divisor of the logits: lower values favor likely tokens, 0 selects the most
            likely one.
        top_k: Sample from the ``top_k`` most likely tokens. Default: all.
        top_p: Sample from the smallest set of most likely tokens whose probabilities sum to at
            least this value. Default: all.
        min_p: Sample from tokens at least this fraction as likely as the most likely one. Default:
            all.
        repetition_penalty: Divide positive logits of tokens that have occurred by this value, and
            multiply negative ones; values above 1 reduce repetition. Default: no penalty.
        seed: Random seed of the sampling.
        stop: Texts that end the generation; they are not printed.
        state: State file to continue from, written by ``save_state``; the prompt is appended to its
            text.
        save_state: File to write the state after the prompt and the new text to. Any number of
            continuations can start from it without processing the text again.
        max_length: Maximum number of tokens of prompt and new text together, for mechanisms with a
            cache. Default: the length of the prompt and ``max_tokens``.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation.
        checkpoint: Parameters to use: "best" (those with the best validation) or "last" (those at
            the end of training).
    """
    from flax_linattn import tasks
    from flax_linattn.tasks.protocols import Generating

    check_integers(0, max_tokens=max_tokens)
    if prompt and prompt_file is not None:
        raise OptionError(
            "prompt and prompt_file cannot be combined; remove one.", "prompt", "prompt_file"
        )
    text: str | bytes = "".join(prompt)
    if prompt_file is not None:
        try:
            text = prompt_file.read_bytes()
        except OSError as error:
            raise OptionError(
                f"cannot read a prompt from {prompt_file}: {error.strerror}.", "prompt_file"
            ) from error
    loaded = tasks.load_run(run, seed_index, checkpoint=checkpoint)
    task: Any = loaded.task
    if not isinstance(task, Generating):
        raise OptionError(
            f"'generate' needs a language model, but {run} is a run of {task.name}.", "run"
        )
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop,
        "max_length": max_length,
    }
    if len(prompt) > 1:
        if state is not None or save_state is not None:
            raise OptionError(
                f"state and save_state need a single prompt, got {len(prompt)}; pass one prompt, "
                "or remove state=... and save_state=....",
                "state" if state is not None else "save_state",
            )
        texts = task.generate_batch(loaded, prompt, **options)
        for given, new in zip(prompt, texts, strict=True):
            print(json.dumps({"prompt": given, "text": new}, ensure_ascii=False))
        return
    generator = task.generate(loaded, text, state=state, **options)
    for piece in generator:
        print(piece, end="", flush=True)
    if max_tokens:
        print()
    if save_state is not None:
        num_bytes = task.save_prompt(save_state, loaded, generator)
        print(f"# saved the state to {save_state} ({num_bytes:,} bytes)", file=sys.stderr)
