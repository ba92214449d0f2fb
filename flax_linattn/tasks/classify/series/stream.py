"""A trained classifier over a stream of observations of all channels."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models
from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify.class_stream import ClassStream, Prediction
from flax_linattn.tasks.classify.series.data import load_test
from flax_linattn.tasks.lines import CellLines
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, describe_channels
from flax_linattn.typing import Array


class ClassifyStream(ClassStream[NDArray[np.float64]]):
    """Predicts class probabilities after each observation of all channels; NaN is missing.

    A missing value repeats the last value of the channel, or the training mean if there is none.

    A run also decides, unless its model is "attention": after the first of the model's prefix
    lengths at which the most likely class has a probability of at least ``threshold``, that class
    is the decision until the sequence ends. A blank line ends a sequence, and then also prints a
    row: the prediction for the whole sequence (``models.MiniRocketClassifier.finish``). It is the
    decision if there was none before.

    Args:
        run: The trained run.
        sequence: Index, from 0, of a test sequence of the run to stream instead of lines.
        threshold: Probability at which the stream decides; default the one of the model.
        max_length: Maximum number of observations of a sequence, for mechanisms with a cache.
            Default: the longest sequence in the data of the run.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    record_attributes = ("_last", "_decision", "_logits")
    advice = "a causal embedding"
    remedy: ClassVar[Mapping[str, Any]] = {"embedding": "causal"}

    def __init__(
        self,
        run: Run,
        *,
        sequence: int | None = None,
        threshold: float | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(run, max_length=max_length)
        self._sequence = sequence
        self._last = self._mean
        self._title = f"{run.data_spec.dataset}, {run.config.label}"
        self._decision = 0
        """Number of the decided class, from 1; 0 before a decision."""
        self._threshold, self._prefix_lengths = _rule(run.model, threshold)
        self._owner["threshold"] = self._threshold
        if self._prefix_lengths:
            self.header = [*self.header[:2], "decision", *self.header[2:]]

    @property
    def _mean(self) -> NDArray[np.float64]:
        return np.asarray(self._run.data_spec.standardizer.mean, np.float64)

    def parse(self, lines: Iterable[str]) -> Iterator[NDArray[np.float64] | None]:
        """Parses one observation per line; see ``parse_observations``."""
        return parse_observations(lines, self._run.data_spec.channels)

    def source(self) -> Iterator[NDArray[np.float64] | None] | None:
        """Returns the test sequence that the options name, if any, and its end.

        Raises:
            ValueError: If the sequence does not exist.
        """
        index = self._sequence
        if index is None:
            return None
        test = load_test(self._run)
        if not 0 <= index < test.num_examples:
            raise OptionError(
                f"sequence must be from 0 to {test.num_examples - 1}, got {index}.",
                "sequence",
            )
        truth = test.classes[test.labels[index]]
        self._title += f": test sequence {index}, class {truth}"
        print(f"# test sequence {index}, true class {truth}", file=sys.stderr)
        return itertools.chain(test.series[index], [None])

    def interface(self) -> dict[str, Any]:
        """Describes the channels and the classes."""
        data_spec = self._run.data_spec
        channels = describe_channels(data_spec.channels, data_spec.standardizer)
        return {"inputs": [channels], "outputs": self.class_outputs()}

    def step(self, observation: NDArray[np.float64] | None) -> Prediction | None:
        """Processes an observation; None ends a sequence, and predicts nothing.

        Raises:
            ValueError: If a sequence is longer than the model supports, or a value is out of range.
        """
        prediction = super().step(observation)
        self._last = self._mean if observation is None else self._fill_missing(observation)
        return prediction

    def cells(self, observation: NDArray[np.float64] | None) -> Sequence[Any] | None:
        """Returns the step, the most likely class, the decision if any, and the probabilities.

        A blank line, None, ends a sequence, and returns its row if there is a decision rule.
        """
        whole = self.finish() if observation is None and self._prefix_lengths else None
        cells = super().cells(observation)
        if whole is not None:
            cells = self._row(whole)
        if cells is not None and self._prefix_lengths:
            classes, p = self._run.data_spec.classes, np.asarray(cells[2:])
            is_sure = cells[0] in self._prefix_lengths and p.max() >= self._threshold
            if not self._decision and (is_sure or whole is not None):
                self._decision = int(p.argmax()) + 1
            decision = classes[self._decision - 1] if self._decision else ""
            cells = [*cells[:2], decision, *cells[2:]]
        if observation is None:
            self._decision = 0
        return cells

    def finish(self) -> Prediction | None:
        """Predicts for the sequence so far as a whole; None before the first observation.

        Equal to ``tasks.predict`` for a sequence without missing values.
        """
        if not self._stream.num_steps:
            return None
        probabilities = jax.nn.softmax(self._logits)
        if isinstance(self._run.model, models.MiniRocketClassifier):
            probabilities = _finish(*nnx.split(self._run.model), self._logits, self._stream.state)
        return Prediction(self._stream.num_steps, np.asarray(probabilities))

    def end(self) -> str | None:
        """Returns a note if the last sequence lacks a blank line, which would add a row."""
        is_own = self._sequence is not None  # it ends on its own, unless the output is cut
        if is_own or not (self._prefix_lengths and self._stream.num_steps):
            return None
        missing = "the last sequence has no blank line after it, so its prediction was not printed"
        return f"note: {missing}; write a blank line after each sequence"

    def is_possible(self, record: Record) -> bool:
        """Whether the decided class exists."""
        return 0 <= record["_decision"] <= len(self._run.data_spec.classes)

    def _fill_missing(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.isnan(observation), self._last, observation)

    def _input(self, observation: NDArray[np.float64]) -> NDArray:
        data_spec = self._run.data_spec
        values = self._fill_missing(observation)[None]
        (scaled,) = data_spec.standardizer.apply([values], data_spec.channels)
        return scaled.astype(np.float32)


@partial(jax.jit, static_argnums=0)
def _finish(graphdef: nnx.GraphDef[Any], variables: Any, logits: Array, state: Any) -> Array:
    model: models.MiniRocketClassifier = nnx.merge(graphdef, variables)
    return jax.nn.softmax(model.finish(logits[None], state)[0])


def _rule(model: Any, threshold: float | None) -> tuple[float, tuple[int, ...]]:
    """Returns the threshold and the prefix lengths of a decision rule; no lengths without one."""
    if not isinstance(model, models.MiniRocketClassifier):
        if threshold is not None:
            raise OptionError(
                "expected no threshold, since the run has no decision rule; remove it, or train "
                "with model='minirocket' or model='closed-form'.",
                "threshold",
                "model",
            )
        return 0.0, ()
    if threshold is None:
        threshold = float(model.threshold[...])
    elif not 0 < threshold <= 1:
        raise OptionError(
            f"expected a threshold above 0 and up to 1, got {threshold}.", "threshold"
        )
    return threshold, model.prefix_lengths if threshold <= 1 else ()


def parse_observations(
    lines: Iterable[str], channels: tuple[str, ...]
) -> Iterator[NDArray[np.float64] | None]:
    """Parses one observation per line: numbers separated by commas or spaces, or a JSON object.

    "?", "NaN", "NA" and "null" are missing values. There is no header.

    Yields float64 [channels] with NaN for missing values; None for a blank line, which begins a new
    sequence.

    Example:
        >>> rows = parse_observations(["1, 2", "", "3 ?"], ("x", "y"))
        >>> [None if values is None else values.tolist() for values in rows]
        [[1.0, 2.0], None, [3.0, nan]]
    """
    hint = "Separate them by commas or spaces, without a header."
    for cells in CellLines(channels, header="none", blanks=True, hint=hint).cells(lines):
        yield None if cells is None else cells.numbers(channels)
