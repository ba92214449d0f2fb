"""Stream of a synthetic sequence task: symbols in, predictions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flax_linattn import inference
from flax_linattn.checks import check_integers, quote
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream
from flax_linattn.tasks.synthetic.options import SyntheticData


class SyntheticStream(Streaming):
    """Predicts the next symbol after each symbol, and counts the right predictions.

    A window model predicts nothing before its context is full, as in training. In recall tasks only
    the predictions at queries count, whose answers are in the symbols so far (``RecallQueries``).

    Args:
        run: The trained run.
        max_length: Maximum number of symbols, as in ``SyntheticStreamOptions``.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        check_integers(1, max_length=max_length)
        data = run.config.data
        if not run.model.streams:
            raise ValueError("the run cannot stream, because its mechanism has no causal form.")
        self._first = 1 if data.recalls else data.context
        self._queries = RecallQueries(data, run.data_spec.num_tokens) if data.recalls else None
        self.record_attributes = ("_guess", "_right", "_guesses")
        if self._queries is not None:
            self.record_attributes += ("_queries.step", "_queries.stored")
        length = data.context if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "prediction", "right", "guesses"],
            max_length=length,
        )
        self._guess = 0
        """The predicted next symbol plus 1; 0 is no prediction."""
        self._right = self._guesses = 0

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Parses one symbol per line; yields None where a new sequence begins."""
        return parse_symbols(lines, self._run.data_spec.num_tokens)

    def cells(self, observation: int | None) -> Sequence[Any] | None:
        """Returns the step in the sequence, the next symbol, and the counts of predictions."""
        if observation is None:
            self._stream.reset()
            self._guess = 0
            if self._queries is not None:
                self._queries.reset()
            self.num_breaks += 1
            return None
        with explain_full_stream():
            scores = np.asarray(self._stream.step(np.array([observation], np.int32)))[0]
        if np.isnan(scores).any():
            raise ValueError("the scores of the model are NaN, because its numbers overflow.")
        self.num_steps += 1
        step, prediction = self._stream.num_steps, int(scores.argmax())
        if self._queries is None:
            if self._guess:
                self._count(self._guess - 1 == observation)
            self._guess = prediction + 1 if step >= self._first else 0
            return self._cells(step, prediction if self._guess else "")
        answer = self._queries.answer(observation)
        if answer is not None:
            self._count(prediction == answer)
        return self._cells(step, prediction)

    def _count(self, right: bool) -> None:
        self._guesses += 1
        self._right += right

    def _cells(self, step: int, guess: int | str) -> Sequence[Any]:
        return [step, guess, self._right, self._guesses]

    def interface(self) -> dict[str, Any]:
        """Describes the symbols and their scores."""
        symbols = {"kind": "token", "count": self._run.data_spec.num_tokens}
        return {"inputs": [symbols], "outputs": {"kind": "logits"}}

    def is_possible(self, record: Record) -> bool:
        """Whether counts of predictions, steps and symbols are consistent."""
        symbols = np.append(record.get("_queries.stored", 0), record["_guess"])
        step = record["_stream.num_steps"]
        return (
            record["_right"] <= record["_guesses"]
            and record.get("_queries.step", step) == step
            and bool((symbols <= self._run.data_spec.num_tokens).all())
        )

    def ages(self, record: Record) -> Sequence[int]:
        """Number of symbols in the state: the step in the sequence, or the context of a window."""
        (step,) = super().ages(record)
        return [step if self._run.config.data.recalls else min(step, self._run.config.data.context)]

    def end(self) -> str | None:
        """Returns a note on the number of right predictions."""
        if not self._guesses:
            return None
        return f"{self._right} of {self._guesses} predictions were right"


def parse_symbols(lines: Iterable[str], num_tokens: int) -> Iterator[int | None]:
    """Parses one symbol per line; yields None where a blank line begins a new sequence.

    Example:
        >>> list(parse_symbols(["3", "", "0"], 4))
        [3, None, 0]
    """
    max_symbol = num_tokens - 1
    for line in lines:
        text = line.strip()
        if not text:
            yield None
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= max_symbol):
            raise ValueError(
                f"expected a symbol, an integer from 0 to {max_symbol}, got {quote(text)}."
            )
        yield int(text)


class RecallQueries:
    """Finds the queries of a recall sequence and their answers, symbol by symbol.

    Queries are keys after the pairs (recall), the symbols of the second half (copying), triggers
    after the first one (induction), or all bits (parity).

    Args:
        options: Options of a recall task.
        num_tokens: Number of different tokens, including special tokens.

    Example:
        >>> queries = RecallQueries(SyntheticData("recall", base=8, num_pairs=2, context=10), 9)
        >>> [queries.answer(symbol) for symbol in (3, 8, 1, 7, 3, 0, 0, 0, 1, 0)]
        [None, None, None, None, 8, None, None, None, 7, None]
    """

    def __init__(self, options: SyntheticData, num_tokens: int) -> None:
        self._rules = options.rules
        self._last = num_tokens - 1
        """The last token, which is the trigger of induction."""
        half = options.context // 2
        sizes = {"recall": 2 * options.num_pairs, "copying": half, "induction": 2}
        self.stored = np.zeros(sizes.get(options.rules, 1), np.int64)
        """The symbols for answers: the pairs; the first half; the trigger and the symbol after it,
        each plus 1 (0 is none yet); the parity of the bits."""
        self.reset()

    def reset(self) -> None:
        """Resets the state for a new sequence."""
        self.step = 0
        self.stored[:] = 0

    def answer(self, symbol: int) -> int | None:
        """Processes a symbol; returns the answer if it is a query, else None."""
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
