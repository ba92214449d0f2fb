"""Sequences that are drawn: ListOps and Pathfinder."""

from __future__ import annotations

from typing import TypeAlias

from flax_linattn import data, training
from flax_linattn.data.sets.listops import GrownListOps, SampledListOps
from flax_linattn.data.sets.pathfinder import Pathfinder
from flax_linattn.tasks.classify.drawn import (
    PATHFINDER_CLASSES,
    PATHFINDER_SIZE,
    TEST,
    TRAIN,
    VALIDATION,
    drawn_batches,
)
from flax_linattn.tasks.classify.tokens.alphabets import ALPHABETS
from flax_linattn.tasks.classify.tokens.options import SequenceConfig, SequenceData
from flax_linattn.tasks.classify.tokens.sources.source import Source
from flax_linattn.tasks.files import checksum

Task: TypeAlias = GrownListOps | SampledListOps | Pathfinder

LENGTHS = 4
"""Most lengths that batches of different lengths are padded to, each a program to compile."""


class DrawnSource(Source):
    """ListOps, whose classes are the values, or Pathfinder, whose classes are no and yes.

    Args:
        options: of the data.

    Raises:
        ValueError: there are no sequences of these lengths.
    """

    def __init__(self, options: SequenceData) -> None:
        self.name = options.data
        self._options = options
        self._task = self._make(1)
        if isinstance(self._task, Pathfinder):
            self.alphabet = ALPHABETS["grey"]
            self.classes: tuple[str, ...] = PATHFINDER_CLASSES
            self.max_length = self._task.size**2
        else:
            self.alphabet = ALPHABETS["listops"]
            self.classes = tuple(map(str, range(self._task.num_classes)))
            self.max_length = max(self._task.max_length, *options.test_lengths, 1)

    def _make(self, multiple_of: int) -> Task:
        options = self._options
        lengths = (options.min_length, options.max_length)
        if options.data == "pathfinder":
            return Pathfinder(options.image_size or PATHFINDER_SIZE)
        if options.data == "listops-lra":
            return SampledListOps(*lengths)
        return GrownListOps(*lengths, multiple_of=multiple_of)

    def splits(self, config: SequenceConfig, spans: int) -> training.Splits:
        """Training never sees an example twice; validation and test are always the same."""
        options = config.data
        return training.Splits(
            self._batches(config, options.epoch_size, TRAIN, spans),
            self._batches(config, options.validation_size, VALIDATION, spans),
            self._batches(config, options.test_size, TEST, spans),
        )

    def at_length(self, config: SequenceConfig, length: int) -> training.BatchSource:
        """ListOps of exactly this length, as many as there are to test on."""
        task = GrownListOps(length, length)
        return self._drawn(task, config, config.data.test_size, TEST + 1 + length)

    def _batches(
        self, config: SequenceConfig, size: int, stream: int, spans: int
    ) -> training.BatchSource:
        least, most = self._options.min_length, self._options.max_length
        # Runs that are trained at once take batches of one length.
        steps = 1 if config.fit.runs > 1 else LENGTHS
        multiple = -(-max(1, -(-most // steps)) // spans) * spans if most > least else spans
        task = self._make(multiple)
        if not isinstance(task, GrownListOps) and self.max_length % spans:
            raise ValueError(
                f"sequences of {self.max_length} tokens do not go over {spans} devices; choose a "
                "length that is a multiple, or leave seq out of the mesh."
            )
        return self._drawn(task, config, size, stream)

    def _drawn(
        self, task: Task, config: SequenceConfig, size: int, stream: int
    ) -> data.DrawnBatches:
        return drawn_batches(task, config.fit.batch_size, size, seed=config.seed, stream=stream)

    def checksum(self, config: SequenceConfig) -> str:
        """Of the first batch of each part."""
        firsts = [part.batch(0) for part in self.splits(config, 1) if part is not None]
        return checksum(batch[name] for batch in firsts for name in sorted(batch))

    def about(self, config: SequenceConfig) -> str:
        """Sizes."""
        options = config.data
        return (
            f"{self.name}: drawn anew, {options.epoch_size:,} an epoch to train, "
            f"{options.validation_size:,} to validate and {options.test_size:,} to test, "
            f"{_lengths(self._task)} tokens, {len(self.classes)} classes"
        )


def _lengths(task: Task) -> str:
    if isinstance(task, Pathfinder):
        return str(task.size**2)
    return f"{task.min_length} to {task.max_length}"
