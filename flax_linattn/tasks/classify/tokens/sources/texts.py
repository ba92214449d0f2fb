"""Bytes of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.data.texts import LabelledTexts, TextBatches, load_texts, taylorshift_bytes
from flax_linattn.tasks.classify.archives import check_classes, data_path
from flax_linattn.tasks.classify.held_out import hold_out
from flax_linattn.tasks.classify.tokens.alphabets import ALPHABETS
from flax_linattn.tasks.classify.tokens.options import SequenceConfig, SequenceData
from flax_linattn.tasks.classify.tokens.sources.packed import PackedBatches
from flax_linattn.tasks.classify.tokens.sources.source import Source
from flax_linattn.tasks.files import checksum

LONG = 512
"""Bytes from which padding costs more than compiling a model for several lengths."""
LENGTHS = 4


class TextsSource(Source):
    """Texts in folders of their classes, such as aclImdb's; a byte is a token.

    Args:
        options: of the data.

    Raises:
        ValueError: a damaged file, or none of such a kind.
    """

    alphabet = ALPHABETS["bytes"]

    def __init__(self, options: SequenceData) -> None:
        train, test = (_as_asked(part, options) for part in load_texts(data_path(options.path)))
        check_classes(options.path, train.classes)
        self.name, self.classes = options.data_name, train.classes
        self.max_length = options.max_length
        content: list[NDArray] = []
        for part in (train, test):
            content += [part.labels, *(np.frombuffer(text, np.uint8) for text in part.texts)]
        self._checksum = checksum(content)
        self._notes = tuple(dict.fromkeys((*train.notes, *test.notes)))
        self.fitted, self.validation = hold_out(train, test, options)
        self.test = test

    def splits(self, config: SequenceConfig, spans: int) -> training.Splits:
        """Training texts in an order, and perhaps with crops, of each epoch's own."""
        return training.Splits(
            self._packed(self.fitted, config, spans)
            if config.data.padding == "packed"
            else self._batches(self.fitted, config, spans, training=True),
            self._batches(self.validation, config, spans),
            self._batches(self.test, config, spans),
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
            lengths=self._lengths(texts, config, spans),
        )

    def _lengths(
        self, texts: LabelledTexts, config: SequenceConfig, spans: int
    ) -> tuple[int, ...] | None:
        """Lengths that long texts are padded to; None for one."""
        most = config.data.max_length
        if most < LONG or config.data.padding == "symbol" or config.fit.runs > 1:
            return None
        shares = np.quantile(np.minimum(texts.lengths, most), np.linspace(0, 1, LENGTHS + 1)[1:])
        return tuple(sorted({-(-int(np.ceil(share)) // spans) * spans for share in shares}))

    def checksum(self, config: SequenceConfig) -> str:
        """Of all texts and classes."""
        return self._checksum

    def about(self, config: SequenceConfig) -> str:
        """Sizes."""
        counts = [part.num_examples for part in (self.fitted, self.validation, self.test)]
        longest = max(part.lengths.max() for part in (self.fitted, self.validation, self.test))
        return (
            f"{self.name}: {counts[0]:,} texts to train, {counts[1]:,} to validate and "
            f"{counts[2]:,} to test, of up to {longest:,} bytes, of which {self.max_length:,} are "
            f"seen\n{len(self.classes)} classes: {', '.join(self.classes)}"
        )

    @property
    def notes(self) -> Sequence[str]:
        """Of the files."""
        return self._notes


def _as_asked(texts: LabelledTexts, options: SequenceData) -> LabelledTexts:
    if not options.as_python:
        return texts
    return dataclasses.replace(texts, texts=tuple(map(taylorshift_bytes, texts.texts)))
