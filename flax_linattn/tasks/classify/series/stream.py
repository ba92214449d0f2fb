"""A trained classifier over a stream of observations of all channels."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify.class_stream import ClassStream, Prediction
from flax_linattn.tasks.classify.series.data import load_test
from flax_linattn.tasks.lines import CellLines
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import describe_channels


@dataclasses.dataclass(frozen=True)
class ClassifyStreamOptions:
    """Options of a stream of a classifier.

    Each line is an observation: numbers separated by commas or spaces, "?" for a missing value. A
    blank line starts a new sequence.

    Attributes:
        sequence: Index, from 0, of a test sequence of the run to stream instead of the input.
        max_length: Maximum number of observations of a sequence, for mechanisms with a cache.
            Default: the longest sequence in the data of the run.
    """

    sequence: int | None = None
    max_length: int | None = None


class ClassifyStream(ClassStream[NDArray[np.float64]]):
    """Predicts class probabilities after each observation of all channels; NaN is missing.

    A missing value repeats the last value of the channel, or the training mean if there is none.

    Args:
        run: The trained run.
        sequence: Index, from 0, of a test sequence of the run to stream instead of lines.
        max_length: Maximum number of observations of a sequence, for mechanisms with a cache.
            Default: the longest sequence in the data of the run.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    record_attributes = ("_last",)
    advice = "a causal embedding"
    remedy: ClassVar[Mapping[str, Any]] = {"embedding": "causal"}

    def __init__(
        self, run: Run, *, sequence: int | None = None, max_length: int | None = None
    ) -> None:
        super().__init__(run, max_length=max_length)
        self._sequence = sequence
        self._last = self._mean

    @property
    def _mean(self) -> NDArray[np.float64]:
        return np.asarray(self._run.data_spec.standardizer.mean, np.float64)

    def parse(self, lines: Iterable[str]) -> Iterator[NDArray[np.float64] | None]:
        """Parses one observation per line; see ``parse_observations``."""
        return parse_observations(lines, self._run.data_spec.channels)

    def source(self) -> Iterator[NDArray[np.float64]] | None:
        """Returns the test sequence that the options name, if any.

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
        return iter(test.series[index])

    def interface(self) -> dict[str, Any]:
        """Describes the channels and the classes."""
        data_spec = self._run.data_spec
        channels = describe_channels(data_spec.channels, data_spec.standardizer)
        return {"inputs": [channels], "outputs": self.class_outputs()}

    def step(self, observation: NDArray[np.float64] | None) -> Prediction | None:
        """Processes an observation; None begins a new sequence, and predicts nothing.

        Raises:
            ValueError: If a sequence is longer than the model supports, or a value is out of range.
        """
        prediction = super().step(observation)
        self._last = self._mean if observation is None else self._fill_missing(observation)
        return prediction

    def _fill_missing(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.isnan(observation), self._last, observation)

    def _input(self, observation: NDArray[np.float64]) -> NDArray:
        data_spec = self._run.data_spec
        values = self._fill_missing(observation)[None]
        (scaled,) = data_spec.standardizer.apply([values], data_spec.channels)
        return scaled.astype(np.float32)


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
