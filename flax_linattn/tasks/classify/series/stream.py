"""A trained classifier over a stream: observations in, class probabilities out."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, at_least
from flax_linattn.data.cells import BadCellError, parse_numbers
from flax_linattn.tasks.classify.figures import draw_stream
from flax_linattn.tasks.classify.series.evaluate import load_test
from flax_linattn.tasks.facts import read_count, read_numbers
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streaming import Streaming

MOST_DRAWN = 10_000
"""Predictions kept for a figure, so that an endless stream stays in constant memory."""

Observation = NDArray[np.float64] | None
"""Of all channels, NaN = missing; None = a new sequence begins."""


class Prediction(NamedTuple):
    """What is known after one observation.

    Attributes:
        step: observations of this sequence so far.
        probabilities: float32 [classes].
    """

    step: int
    probabilities: NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class ClassifyStreamOptions:
    """Options of a stream of a classifier.

    Observations are numbers separated by commas or blanks, "?" for a missing value; a blank line
    begins a new sequence.

    Attributes:
        sequence: stream this sequence of the run's test data instead (from 0).
        max_length: most observations of a sequence, for mechanisms with a cache; default the
            longest sequence of the run's data.
    """

    sequence: int | None = None
    max_length: int | None = None


class ClassifyStream(Streaming):
    """Class probabilities as observations come, one compiled step each.

    A missing value repeats the channel's last one, or the training mean if there is none.

    Args:
        run: the trained run.
        sequence: stream this sequence of the run's test data (from 0) instead of lines.
        max_length: most observations of a sequence, for mechanisms with a cache; default the
            longest sequence of the run's data.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(
        self, run: Run, *, sequence: int | None = None, max_length: int | None = None
    ) -> None:
        at_least(1, max_length=max_length)
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream: its model looks at the future, or its mechanism keeps no "
                "state. Train one that is causal, with a causal embedding and a mechanism that "
                "has a state.",
                "mechanism",
                causal=True,
                embedding="causal",
            )
        self._sequence = sequence
        self._max_length = run.problem.max_length if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=self._max_length),
            ["step", "prediction", *(f"p({name})" for name in run.problem.classes)],
            max_length=self._max_length,
        )
        self._last = np.asarray(run.problem.standardizer.mean, np.float64)
        self._drawn: deque[Prediction] = deque(maxlen=MOST_DRAWN)
        self._title = f"{run.problem.dataset}, {mechanism_name(run.config.layers)}"

    def parse(self, lines: Iterable[str], name: str) -> Iterator[Observation]:
        """Reads one observation a line; see ``parse_observations``."""
        return parse_observations(lines, len(self._run.problem.channels), name)

    def source(self) -> Iterator[Observation] | None:
        """A sequence of the run's test data, where one is asked for.

        Raises:
            ValueError: there is no such sequence.
        """
        index = self._sequence
        if index is None:
            return None
        test = load_test(self._run)
        if not 0 <= index < test.num_examples:
            raise OptionError(
                f"the test data have sequences 0 to {test.num_examples - 1}, got {index}.",
                "sequence",
            )
        truth = test.classes[test.labels[index]]
        self._title += f": test sequence {index}, class {truth}"
        print(f"# test sequence {index}, true class {truth}", file=sys.stderr)
        return iter(test.series[index])

    def step(self, observation: Observation) -> Prediction | None:
        """Takes in an observation; None begins a new sequence, and predicts nothing.

        Raises:
            ValueError: a sequence is longer than the model can take, or a value is out of range.
        """
        standardizer, channels = self._run.problem.standardizer, self._run.problem.channels
        if observation is None:
            self._stream.reset()
            self._last = np.asarray(standardizer.mean, np.float64)
            self.num_breaks += 1
            return None
        last = np.where(np.isnan(observation), self._last, observation)
        (scaled,) = standardizer.apply([last[None]], channels)
        try:
            logits = self._stream.step(scaled.astype(np.float32))
        except OptionError as error:  # no room is left
            message = f"{error} A blank line begins one."
            raise OptionError(message, *error.options, **error.values) from error
        self._last = last
        self.num_steps += 1
        probabilities = np.asarray(jax.nn.softmax(logits[0]))
        if np.isnan(probabilities).any():
            raise ValueError(
                f"the answer to observation {self._stream.num_steps} of the sequence is NaN: the "
                "model's numbers overflow, or its parameters hold NaN."
            )
        return Prediction(self._stream.num_steps, probabilities)

    def cells(self, observation: Observation) -> Sequence[Any] | None:
        """Step, most likely class, and the probability of each."""
        prediction = self.step(observation)
        if prediction is None:
            return None
        self._drawn.append(prediction)
        best = self._run.problem.classes[int(np.argmax(prediction.probabilities))]
        return [prediction.step, best, *(f"{p:.4f}" for p in prediction.probabilities)]

    def facts(self) -> dict[str, Any]:
        """The last value of each channel, and the step within the sequence."""
        return {"last": self._last.tolist(), "step": self._stream.num_steps}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on within the sequence."""
        last, step = read_numbers(facts, "last", len(self._last)), read_count(facts, "step")
        self._last, self._stream.num_steps = last, step

    def ages(self, facts: Mapping[str, Any]) -> Sequence[int]:
        """The step within the sequence."""
        return [read_count(facts, "step")]

    def draw(self, path: Path) -> None:
        """Draws the last 10,000 probabilities."""
        steps = [prediction.step for prediction in self._drawn]
        probabilities = np.stack([prediction.probabilities for prediction in self._drawn])
        draw_stream(steps, probabilities, self._run.problem.classes, path, self._title)


def parse_observations(
    lines: Iterable[str], num_channels: int, name: str = "standard input"
) -> Iterator[NDArray[np.float64] | None]:
    """Reads one observation a line: numbers separated by commas or blanks.

    "?", "NaN", "NA" and "null" are missing values. A blank line ends the sequence; there are no
    headers.

    Args:
        lines: the text.
        num_channels: numbers expected in a line.
        name: of the source, for messages.

    Yields:
        float64 [channels], NaN = missing; None where a new sequence begins.

    Raises:
        ValueError: a line that holds something else; the message names it.

    Example:
        >>> [o if o is None else o.tolist() for o in parse_observations(["1, 2", "", "3 ?"], 2)]
        [[1.0, 2.0], None, [3.0, nan]]
    """
    for number, line in enumerate(lines, start=1):
        fields = line.replace(",", " ").split()
        if not fields:
            yield None
            continue
        if len(fields) != num_channels:
            raise ValueError(
                f"{name}:{number}: expected {num_channels} values, one for each channel, got "
                f"{len(fields)} in {line.strip()!r}; separate them by commas or blanks."
            )
        try:
            yield parse_numbers(fields)
        except BadCellError as bad:
            raise ValueError(
                f"{name}:{number}: expected finite numbers, got {fields[bad.index]!r}; write '?' "
                "for a missing value, and leave out headers and comments."
            ) from None
