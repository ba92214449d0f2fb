"""Bytes of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.data.texts import LabelledTexts, TextBatches, load_texts, taylorshift_bytes
from flax_linattn.tasks.classes.archives import data_path
from flax_linattn.tasks.classes.held_out import hold_out
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.sequence.alphabets import ALPHABETS
from flax_linattn.tasks.sequence.options import SequenceConfig, SequenceData
from flax_linattn.tasks.sequence.sources.packed import PackedBatches
from flax_linattn.tasks.sequence.sources.source import Source


class TextsSource(Source):
    """Texts in folders of their classes, such as aclImdb's; a byte is a token.

    Args:
        options: of the data.

    Raises:
        ValueError: a damaged file, or none of such a kind.
    """

    alphabet = ALPHABETS["bytes"]

    def __init__(self, options: SequenceData) -> None:
        self.parts = tuple(_as_asked(part, options) for part in load_texts(data_path(options.path)))
        self.name, self.classes = options.data_name, self.parts[0].classes
        self.max_length = options.max_length
        content: list[NDArray] = []
        for part in self.parts:
            content += [part.labels, *(np.frombuffer(text, np.uint8) for text in part.texts)]
        self._checksum = checksum(content)

    def splits(self, config: SequenceConfig, spans: int) -> training.Splits:
        """Training texts in an order, and perhaps with crops, of each epoch's own."""
        train, test = self.parts
        fitted, validation = hold_out(train, test, config.data)
        return training.Splits(
            self._packed(fitted, config, spans)
            if config.data.padding == "packed"
            else self._batches(fitted, config, spans, training=True),
            self._batches(validation, config, spans),
            self._batches(test, config, spans),
        )

    def _packed(self, texts: LabelledTexts, config: SequenceConfig, spans: int) -> PackedBatches:
        length = -(-config.data.max_length // spans) * spans
        return PackedBatches(texts, config.fit.batch_size, length, seed=config.seed)

    def _batches(
        self, texts: LabelledTexts, config: SequenceConfig, spans: int, *, training: bool = False
    ) -> TextBatches:
        options = config.data
        return TextBatches(
            texts,
            config.fit.batch_size,
            max_length=-(-options.max_length // spans) * spans,
            seed=config.seed if training else None,
            crop=options.crop if training else "prefix",
            padding="symbol" if options.padding == "symbol" else "masked",
        )

    def checksum(self, config: SequenceConfig) -> str:
        """Of all texts and classes."""
        return self._checksum

    def about(self, config: SequenceConfig) -> str:
        """Sizes."""
        train, test = self.parts
        return (
            f"{self.name}: {train.num_examples:,} texts to train and {test.num_examples:,} to "
            f"test, {train.lengths.min():,} to {train.lengths.max():,} bytes, of which "
            f"{self.max_length:,} are seen\n{len(self.classes)} classes: {', '.join(self.classes)}"
        )

    @property
    def notes(self) -> Sequence[str]:
        """Of the files."""
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes))


def _as_asked(texts: LabelledTexts, options: SequenceData) -> LabelledTexts:
    if not options.as_python:
        return texts
    return dataclasses.replace(texts, texts=tuple(map(taylorshift_bytes, texts.texts)))
