"""The task of classifying images, as the commands see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from flax import nnx

from flax_linattn import models, training
from flax_linattn.checks import OptionError
from flax_linattn.data.catalog import IMAGES, Entry
from flax_linattn.tasks.classify.baselines import Vectors, read_vectors
from flax_linattn.tasks.classify.images.data import (
    DrawnImages,
    FileImages,
    ImageSpec,
    image_batches,
    image_names,
    read_unlabeled,
)
from flax_linattn.tasks.classify.images.options import ImageConfig
from flax_linattn.tasks.classify.label_task import SourceTask
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array


@dataclasses.dataclass(frozen=True)
class ImageStreamOptions:
    """Images do not stream."""


class ImageTask(SourceTask[ImageConfig, ImageSpec]):
    """Classes of images."""

    name = "image"
    Config = ImageConfig
    DataSpec = ImageSpec
    is_causal = False
    splits_time = False
    StreamOptions = ImageStreamOptions
    kinds = (IMAGES,)

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """The folder of the files."""
        (folder,) = {file.parent for file in files}
        return {"folder": folder}

    def load(self, config: ImageConfig) -> DrawnImages | FileImages:
        """Files, or generated images."""
        options = config.data
        return (
            DrawnImages(options) if options.folder is None else FileImages(options, options.folder)
        )

    def config_of_file(self, config: ImageConfig, file: Path) -> ImageConfig:
        """Options that name a folder or an archive."""
        return config.replace(folder=file)

    def baseline_config(self, config: ImageConfig) -> ImageConfig:
        """Training images as they are."""
        return config if config.data.folder is None else config.replace(augmentation="none")

    def model(
        self,
        config: ImageConfig,
        problem: ImageSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.ImageClassifier:
        """A ``models.ImageClassifier``."""
        options = config.model
        height, width, channels = problem.image_shape
        return models.ImageClassifier(
            (height, width),
            options.patch_size,
            len(problem.classes),
            in_channels=channels,
            embedding=options.patches,
            position=options.position,
            pooling=options.pooling,
            layers=config.layers.map_mechanisms(placement.mechanism),
            rngs=nnx.Rngs(config.seed),
        )

    @staticmethod
    def logits_of(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        """Logits of a batch of scaled images."""
        logits: Array = model(batch["image"], dropout_key=dropout_key)
        return logits

    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Pixels."""
        return read_vectors(batches, "image")

    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Of a single image, or of all below a folder or in an archive, by name.

        Without a file, or where a folder holds an official format, those that are tested on.
        """
        names = [] if file is None else image_names(file)
        if file is None or not names:
            return self.test_batches(run, file), None
        return image_batches(read_unlabeled(run, file, names), run.config, run.problem), names

    def stream(self, run: Run, options: ImageStreamOptions) -> NoReturn:
        """Refused: an image comes as a whole."""
        raise OptionError(
            "a run on images does not stream, for an image comes as a whole; to stream pixels, "
            "train on them as a sequence.",
            "run",
        )
