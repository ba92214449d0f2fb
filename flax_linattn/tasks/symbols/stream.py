"""A trained model over a stream: symbols in, the next symbol out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flax_linattn import inference
from flax_linattn.checks import OptionError, at_least, shown
from flax_linattn.tasks.facts import read_count
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.tasks.symbols.questions import Questions

NONE = -1
"""A guess that there is none of yet."""


@dataclasses.dataclass(frozen=True)
class SymbolsStreamOptions:
    """Options of a stream of symbols.

    Symbols are whole numbers from 0, one a line; a blank line begins a new sequence.

    Attributes:
        max_length: most symbols of a sequence, for mechanisms with a cache in models that are no
            window; default the context.
    """

    max_length: int | None = None


class SymbolsStream(Streaming):
    """The next symbol after each, and how many guesses so far were right.

    A window model says nothing before its context is full: it has not learned to. Of sequences that
    are no series only what is asked for counts: where the symbols so far ask, they hold the answer,
    too (``Questions``).

    Args:
        run: the trained run.
        max_length: as in ``SymbolsStreamOptions``.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        at_least(1, max_length=max_length)
        data = run.config.data
        if not run.model.streams:
            raise ValueError("the run cannot stream: its mechanism has no causal form.")
        self._first = 1 if data.recalls else data.context
        self._questions = Questions(data, run.problem.num_tokens) if data.recalls else None
        length = data.context if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "prediction", "right", "guesses"],
            max_length=length,
        )
        self._guess, self._right, self._guesses = NONE, 0, 0

    def parse(self, lines: Iterable[str], name: str) -> Iterator[int | None]:
        """Reads a symbol a line; None where a new sequence begins."""
        return parse_symbols(lines, name, self._run.problem.num_tokens)

    def cells(self, observation: int | None) -> Sequence[Any] | None:
        """Step within the sequence, next symbol, and how many of how many guesses were right."""
        if observation is None:
            self._stream.reset()
            self._guess = NONE
            if self._questions is not None:
                self._questions.reset()
            self.num_breaks += 1
            return None
        try:
            scores = np.asarray(self._stream.step(np.array([observation], np.int32)))[0]
        except OptionError as error:  # no room is left
            raise OptionError(f"{error} A blank line begins one.", *error.options) from error
        if np.isnan(scores).any():
            raise ValueError("the model's scores are NaN: its numbers overflow.")
        self.num_steps += 1
        step, said = self._stream.num_steps, int(scores.argmax())
        if self._questions is None:
            if self._guess != NONE:
                self._count(self._guess == observation)
            self._guess = said if step >= self._first else NONE
            return self._cells(step, self._guess)
        answer = self._questions.answer(observation)
        if answer is not None:
            self._count(said == answer)
        return self._cells(step, said)

    def _count(self, right: bool) -> None:
        self._guesses += 1
        self._right += right

    def _cells(self, step: int, guess: int) -> Sequence[Any]:
        return [step, "" if guess == NONE else guess, self._right, self._guesses]

    def facts(self) -> dict[str, Any]:
        """The step within the sequence, the last guess or what answers stand in, and the counts."""
        counts = {
            "step": self._stream.num_steps,
            "next": self._guess - NONE,
            "right": self._right,
            "guesses": self._guesses,
        }
        return counts if self._questions is None else {**counts, "kept": self._questions.facts()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on within the sequence."""
        step, guess, right, guesses = (
            read_count(facts, name) for name in ("step", "next", "right", "guesses")
        )
        if right > guesses or guess > self._run.problem.num_tokens:
            raise ValueError(
                f"{right} of {guesses} guesses cannot be right, or {guess} be the next"
            )
        if self._questions is not None:
            self._questions.restore(step, facts.get("kept"))
        self._stream.num_steps = step
        self._guess, self._right, self._guesses = guess + NONE, right, guesses

    def ages(self, facts: Mapping[str, Any]) -> Sequence[int]:
        """The step within the sequence; of a window no more than it holds."""
        step = read_count(facts, "step")
        return [step if self._run.config.data.recalls else min(step, self._run.config.data.context)]

    def end(self) -> str | None:
        """How many guesses were right."""
        if not self._guesses:
            return None
        return f"{self._right} of {self._guesses} guesses were right"


def parse_symbols(lines: Iterable[str], name: str, num_tokens: int) -> Iterator[int | None]:
    """Reads a symbol a line; None where a blank line begins a new sequence.

    Args:
        lines: the text.
        name: of the source, for messages.
        num_tokens: different symbols.

    Raises:
        ValueError: a line that holds something else; the message names it.

    Example:
        >>> list(parse_symbols(["3", "", "0"], "lines", 4))
        [3, None, 0]
    """
    largest = num_tokens - 1
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            yield None
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= largest):
            raise ValueError(
                f"{name}:{number}: expected a symbol, a whole number from 0 to {largest}, got "
                f"{shown(text)}."
            )
        yield int(text)
