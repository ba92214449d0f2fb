"""Grey pixels of images."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import NDArray

from flax_linattn import data, training
from flax_linattn.data.images import LabelledImages
from flax_linattn.tasks.classify.archives import read_images
from flax_linattn.tasks.classify.held_out import hold_out
from flax_linattn.tasks.classify.tokens.alphabets import ALPHABETS
from flax_linattn.tasks.classify.tokens.options import OF_LENGTHS, SequenceConfig, SequenceData
from flax_linattn.tasks.classify.tokens.sources.source import Source
from flax_linattn.tasks.files import checksum


class PixelsSource(Source):
    """Images of any official format, row by row; a pixel's grey value is a token.

    Args:
        options: of the data.

    Raises:
        ValueError: a damaged file, or none of such a kind.
    """

    alphabet = ALPHABETS["grey"]

    def __init__(self, options: SequenceData) -> None:
        train, test = (part.grey() for part in read_images(options.path, options.image_size))
        options.refuse(OF_LENGTHS, "images", "data")
        self.name, self.classes = options.data_name, train.classes
        height, width, _ = train.image_shape
        self.max_length = height * width
        self._checksum = checksum(
            array for part in (train, test) for array in (part.labels, part.pixels)
        )
        self._notes = tuple(dict.fromkeys((*train.notes, *test.notes)))
        self.fitted, self.validation = hold_out(train, test, options)
        self.test = test

    def splits(self, config: SequenceConfig, spans: int) -> training.Splits:
        """Training images in an order of each epoch's own."""
        if self.max_length % spans:
            raise ValueError(
                f"{self.max_length:,} pixels do not go over {spans} devices; bring the images to a "
                "size that does, or leave seq out of the mesh."
            )
        return training.Splits(
            self._batches(self.fitted, config, config.seed),
            self._batches(self.validation, config, None),
            self._batches(self.test, config, None),
        )

    def _batches(
        self, images: LabelledImages, config: SequenceConfig, seed: int | None
    ) -> data.Batches:
        tokens = images.pixels_as_tokens()
        arrays: dict[str, NDArray] = {"tokens": tokens, "labels": images.labels}
        return data.Batches(arrays, config.fit.batch_size, seed=seed)

    def checksum(self, config: SequenceConfig) -> str:
        """Of all pixels and classes."""
        return self._checksum

    def about(self, config: SequenceConfig) -> str:
        """Sizes."""
        names = ", ".join(self.classes[:10]) + (", ..." if len(self.classes) > 10 else "")
        height, width, _ = self.test.image_shape
        counts = [part.num_examples for part in (self.fitted, self.validation, self.test)]
        return (
            f"{self.name}: images of {height} x {width} grey pixels, {counts[0]:,} to train, "
            f"{counts[1]:,} to validate and {counts[2]:,} to test\n{len(self.classes)} classes: "
            f"{names}"
        )

    @property
    def notes(self) -> Sequence[str]:
        """Of the files."""
        return self._notes
