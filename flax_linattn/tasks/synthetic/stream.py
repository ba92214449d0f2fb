"""A trained model over a stream: symbols in, the next symbol out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flax_linattn import inference
from flax_linattn.checks import at_least, quote
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream
from flax_linattn.tasks.synthetic.options import SyntheticData


@dataclasses.dataclass(frozen=True)
class SyntheticStreamOptions:
    """Options of a stream of symbols.

    Each line is a symbol, an integer from 0. A blank line starts a new sequence.

    Attributes:
        max_length: Maximum number of symbols of a sequence, for mechanisms with a cache, except for
            series models. Default: the context length.
    """

    max_length: int | None = None


class SyntheticStream(Streaming):
    """The next symbol after each, and how many guesses so far were right.

    A window model says nothing before its context is full: it has not learned to. Of sequences that
    are no series only what is asked for counts: where the symbols so far ask, they hold the answer,
    too (``Questions``).

    Args:
        run: the trained run.
        max_length: as in ``SyntheticStreamOptions``.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        at_least(1, max_length=max_length)
        data = run.config.data
        if not run.model.streams:
            raise ValueError("the run cannot stream: its mechanism has no causal form.")
        self._first = 1 if data.recalls else data.context
        self._questions = Questions(data, run.data_spec.num_tokens) if data.recalls else None
        self.record_attributes = ("_guess", "_right", "_guesses")
        if self._questions is not None:
            self.record_attributes += ("_questions.step", "_questions.stored")
        length = data.context if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "prediction", "right", "guesses"],
            max_length=length,
        )
        self._guess = 0
        """The symbol that is expected next, plus 1; 0 = none."""
        self._right = self._guesses = 0

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Reads a symbol a line; None where a new sequence begins."""
        return parse_symbols(lines, self._run.data_spec.num_tokens)

    def cells(self, observation: int | None) -> Sequence[Any] | None:
        """Step within the sequence, next symbol, and how many of how many guesses were right."""
        if observation is None:
            self._stream.reset()
            self._guess = 0
            if self._questions is not None:
                self._questions.reset()
            self.num_breaks += 1
            return None
        with explain_full_stream():
            scores = np.asarray(self._stream.step(np.array([observation], np.int32)))[0]
        if np.isnan(scores).any():
            raise ValueError("the model's scores are NaN: its numbers overflow.")
        self.num_steps += 1
        step, said = self._stream.num_steps, int(scores.argmax())
        if self._questions is None:
            if self._guess:
                self._count(self._guess - 1 == observation)
            self._guess = said + 1 if step >= self._first else 0
            return self._cells(step, said if self._guess else "")
        answer = self._questions.answer(observation)
        if answer is not None:
            self._count(said == answer)
        return self._cells(step, said)

    def _count(self, right: bool) -> None:
        self._guesses += 1
        self._right += right

    def _cells(self, step: int, guess: int | str) -> Sequence[Any]:
        return [step, guess, self._right, self._guesses]

    def is_possible(self, record: Record) -> bool:
        """Right guesses among the guesses, and no symbols that the run does not have."""
        symbols = np.append(record.get("_questions.stored", 0), record["_guess"])
        step = record["_stream.num_steps"]
        return (
            record["_right"] <= record["_guesses"]
            and record.get("_questions.step", step) == step
            and bool((symbols <= self._run.data_spec.num_tokens).all())
        )

    def ages(self, record: Record) -> Sequence[int]:
        """The step within the sequence; of a window no more than it holds."""
        (step,) = super().ages(record)
        return [step if self._run.config.data.recalls else min(step, self._run.config.data.context)]

    def end(self) -> str | None:
        """How many guesses were right."""
        if not self._guesses:
            return None
        return f"{self._right} of {self._guesses} guesses were right"


def parse_symbols(lines: Iterable[str], num_tokens: int) -> Iterator[int | None]:
    """Reads a symbol a line; None where a blank line begins a new sequence.

    Example:
        >>> list(parse_symbols(["3", "", "0"], 4))
        [3, None, 0]
    """
    largest = num_tokens - 1
    for line in lines:
        text = line.strip()
        if not text:
            yield None
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= largest):
            raise ValueError(
                f"expected a symbol, a whole number from 0 to {largest}, got {quote(text)}."
            )
        yield int(text)


class Questions:
    """The questions of a sequence, one symbol after another.

    Of recall a key behind the pairs is one, of copying each symbol of the second half, of induction
    a trigger after the first, of parity each bit.

    Args:
        options: of sequences that are no series.
        num_tokens: different tokens, special ones among them.

    Example:
        >>> questions = Questions(SyntheticData("recall", base=8, num_pairs=2, context=10), 9)
        >>> [questions.answer(symbol) for symbol in (3, 8, 1, 7, 3, 0, 0, 0, 1, 0)]
        [None, None, None, None, 8, None, None, None, 7, None]
    """

    def __init__(self, options: SyntheticData, num_tokens: int) -> None:
        self._rules = options.rules
        self._last = num_tokens - 1
        """The largest token; of induction the trigger."""
        half = options.context // 2
        sizes = {"recall": 2 * options.num_pairs, "copying": half, "induction": 2}
        self.stored = np.zeros(sizes.get(options.rules, 1), np.int64)
        """What answers are made of: the pairs; the first half; the trigger and the symbol after it,
        each plus 1, 0 = none yet; the parity of the bits."""
        self.reset()

    def reset(self) -> None:
        """Resets the state for a new sequence."""
        self.step = 0
        self.stored[:] = 0

    def answer(self, symbol: int) -> int | None:
        """Takes in a symbol; the right answer to what it asks, None where it asks nothing."""
        self.step += 1
        match self._rules:
            case "recall" | "copying" if self.step <= len(self.stored):
                self.stored[self.step - 1] = symbol
                return None
            case "recall":
                pairs = dict(zip(*self.stored.reshape(-1, 2).T.tolist(), strict=True))
                return pairs.get(symbol) if symbol else None  # 0 is filler
            case "copying":
                place = self.step - 1 - len(self.stored)
                return int(self.stored[place]) if place < len(self.stored) else None
            case "induction":
                return self._after_trigger(symbol)
        self.stored ^= symbol
        return int(self.stored[0])

    def _after_trigger(self, symbol: int) -> int | None:
        trigger, after = self.stored.tolist()
        if not trigger:
            self.stored[0] = symbol + 1 if symbol == self._last else 0
        elif not after:
            self.stored[1] = symbol + 1
        elif symbol == self._last:
            return int(after) - 1
        return None
