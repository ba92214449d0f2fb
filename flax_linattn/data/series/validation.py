"""Validation of the examples of a data file, shared by all formats."""

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import itemize, quote
from flax_linattn.data.errors import REPAIR_ADVICE
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.labels import in_order
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.tables.cells import BadCellError, parse_numbers

MISSING = frozenset({"?", "nan"})
"""Spellings of a missing value in files of examples, in lower case."""


class ExampleBuilder:
    """Checks the examples of a file one by one and makes a data set of them.

    Args:
        reader: The file; errors name its current line.
        classes: The class labels that the header declares.
        dimensions: Number of dimensions (channels) that the header declares; None if it does not.
        length: Number of time steps; only an upper bound if ``equal_length`` is False.
        equal_length: Whether all series have one length; None if the header does not say.
        missing: Whether values may be missing; None if the header does not say.
        padded: Whether shorter series are filled up with missing time steps at the end.
    """

    def __init__(
        self,
        reader: LineReader,
        classes: tuple[str, ...],
        *,
        dimensions: int | None = None,
        length: int | None = None,
        equal_length: bool | None = None,
        missing: bool | None = None,
        padded: bool = False,
    ) -> None:
        self._reader, self._declared = reader, classes
        self._dimensions, self._length, self._equal_length = dimensions, length, equal_length
        self._missing, self._padded = missing, padded
        self._dimensions_origin = self._length_origin = "as the header declares"
        self._classes = in_order(classes)
        self._index = {label: index for index, label in enumerate(self._classes)}
        self._series: list[NDArray[np.float64]] = []
        self._labels: list[int] = []

    def add(self, dimensions: list[str], label: str | None) -> None:
        """Adds the example on the reader's current line."""
        self._reader.check_count(len(dimensions))
        label = self._check_count(dimensions, label)
        self._labels.append(self._parse_label(label))
        self._check_lengths([text.count(",") + 1 for text in dimensions])
        values = self._parse_values(dimensions)
        if self._padded:
            values = self._without_padding(values)
        self._series.append(values)

    def finish(self, name: str) -> TimeSeriesDataset:
        """Returns the examples added, as one data set."""
        if not self._series:
            raise self._reader.error(
                "at least one example after @data",
                "the end of the file",
                "the file is truncated: fetch it again",
            )
        return TimeSeriesDataset(
            name=name,
            series=tuple(self._series),
            labels=np.array(self._labels, np.int32),
            classes=self._classes,
            channels=tuple(f"dim_{index}" for index in range(self._series[0].shape[1])),
        )

    def _check_count(self, dimensions: list[str], label: str | None) -> str:
        if self._dimensions is None:
            self._dimensions = len(dimensions)
            self._dimensions_origin = f"as in the first example, line {self._reader.line}"
        if label is None or len(dimensions) != self._dimensions:
            ending = "no label" if label is None else "a label"
            raise self._reader.error(
                f"{self._dimensions} dimensions ({self._dimensions_origin}) and a label",
                f"{len(dimensions)} and {ending}",
                REPAIR_ADVICE,
            )
        return label

    def _parse_label(self, label: str) -> int:
        if label not in self._index:
            classes = itemize([quote(label) for label in self._declared])
            raise self._reader.error(
                f"a class label among {classes} at the end of the line",
                quote(label),
                f"declare the label in the header, or {REPAIR_ADVICE}",
            )
        if self._reader.terminated:
            return self._index[label]
        longer = [other for other in self._classes if other.startswith(label) and other != label]
        if longer:
            raise self._reader.error(
                f"a newline after the last label, as it may be a cut {quote(longer[0])}",
                f"{quote(label)} and the end of the file",
                "end the last line with a newline if the file is whole, or fetch it again",
            )
        return self._index[label]

    def _check_lengths(self, lengths: list[int]) -> None:
        if len(set(lengths)) > 1:
            raise self._reader.error(
                "all dimensions of an example of one length",
                f"lengths [{itemize([str(length) for length in lengths])}]",
                REPAIR_ADVICE,
            )
        length = lengths[0]
        if self._length is None:
            if self._equal_length:
                self._length = length
                self._length_origin = f"as in the first example, line {self._reader.line}"
            return
        bounded = self._equal_length is False
        if length != self._length and not (bounded and length < self._length):
            raise self._reader.error(
                f"{'at most ' * bounded}{self._length} time steps ({self._length_origin})",
                f"{length}",
                f"correct the header, or {REPAIR_ADVICE}",
            )

    def _parse_values(self, dimensions: list[str]) -> NDArray[np.float64]:
        tokens = ",".join(dimensions).split(",")
        try:
            values = parse_numbers(tokens, MISSING)
        except BadCellError as bad:
            dimension, step = divmod(bad.index, len(tokens) // len(dimensions))
            raise self._reader.error(
                "a finite number, or ? for a missing one",
                f"{quote(tokens[bad.index])} in dimension {dimension} at time step {step}",
                "correct the value, or fetch the file again",
            ) from None
        if self._missing is False and np.isnan(values).any():
            dimension, step = np.argwhere(np.isnan(values.reshape(len(dimensions), -1)))[0]
            raise self._reader.error(
                "no missing values, as the header declares @missing false",
                f"one in dimension {dimension} at time step {step}",
                "declare @missing true if it is meant, or fetch the file again",
            )
        return np.ascontiguousarray(values.reshape(len(dimensions), -1).T)

    def _without_padding(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        present = np.flatnonzero(~np.isnan(values).all(axis=1))
        if not present.size:
            raise self._reader.error(
                "an example with at least one value",
                "missing values only",
                "remove the example, or fetch the file again",
            )
        return values[: present[-1] + 1]
