"""A trained model over a stream: tokens in, class probabilities out."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, at_least
from flax_linattn.tasks.classify.figures import draw_stream
from flax_linattn.tasks.facts import read_count
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streaming import Streaming

MOST_DRAWN = 10_000
"""Predictions kept for a figure, so that an endless stream stays in constant memory."""


@dataclasses.dataclass(frozen=True)
class SequenceStreamOptions:
    """Options of a stream of tokens.

    A line holds tokens as the data spell them: of ListOps "[MAX 2 9 ]", of texts the text itself,
    of images grey values. A blank line begins a new sequence.

    Attributes:
        max_length: most tokens of a sequence, for mechanisms with a cache; default the longest
            sequence of the run's data.
    """

    max_length: int | None = None


class SequenceStream(Streaming):
    """Class probabilities after each token, one compiled step each.

    Args:
        run: the trained run.
        max_length: as in ``SequenceStreamOptions``.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        at_least(1, max_length=max_length)
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream: its model looks at the future, or its mechanism keeps no "
                "state. Train one that is causal, with pooling mean or last and a mechanism that "
                "has a state.",
                "mechanism",
                causal=True,
                pooling="mean",
            )
        length = run.problem.max_length if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "prediction", *(f"p({name})" for name in run.problem.classes)],
            max_length=length,
        )
        self._drawn: deque[tuple[int, NDArray[np.float32]]] = deque(maxlen=MOST_DRAWN)

    def parse(self, lines: Iterable[str], name: str) -> Iterator[int | None]:
        """Reads tokens; None where a new sequence begins."""
        return self._run.problem.alphabet.parse(lines, name)

    def cells(self, observation: int | None) -> Sequence[Any] | None:
        """Step within the sequence, most likely class, and the probability of each."""
        if observation is None:
            self._stream.reset()
            self.num_breaks += 1
            return None
        try:
            logits = self._stream.step(np.array([observation], np.int32))
        except OptionError as error:  # no room is left
            message = f"{error} A blank line begins one."
            raise OptionError(message, *error.options, **error.values) from error
        probabilities = np.asarray(jax.nn.softmax(logits[0]))
        if np.isnan(probabilities).any():
            raise ValueError(
                f"the answer to token {self._stream.num_steps} of the sequence is NaN: the model's "
                "numbers overflow, or it has no position for so many tokens."
            )
        self.num_steps += 1
        self._drawn.append((self._stream.num_steps, probabilities))
        best = self._run.problem.classes[int(np.argmax(probabilities))]
        return [self._stream.num_steps, best, *(f"{p:.4f}" for p in probabilities)]

    def facts(self) -> dict[str, Any]:
        """The step within the sequence."""
        return {"step": self._stream.num_steps}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on within the sequence."""
        self._stream.num_steps = read_count(facts, "step")

    def ages(self, facts: Mapping[str, Any]) -> Sequence[int]:
        """The step within the sequence."""
        return [read_count(facts, "step")]

    def draw(self, path: Path) -> None:
        """Draws the last 10,000 probabilities."""
        problem = self._run.problem
        title = f"{problem.dataset}, {mechanism_name(self._run.config.layers)}"
        steps, probabilities = zip(*self._drawn, strict=True)
        draw_stream(steps, np.stack(probabilities), problem.classes, path, title)
