"""Options of image classification runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import check_integers
from flax_linattn.models.layers import Layers
from flax_linattn.tasks.classify.label_options import (
    FILE_OPTIONS,
    GENERATED_DATA_OPTIONS,
    RECIPE,
    SMALL_LAYERS,
    LabelData,
    RecipeFit,
)
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import Config, ModelOptions, TaskOptions, mechanism_name
from flax_linattn.training.optimizer_options import OptimizerOptions


@dataclasses.dataclass(frozen=True)
class ImageData(LabelData):
    """Data set of images with labels, and its preprocessing.

    Attributes:
        folder: Folder or archive of images: one folder for each class under train and under val or
            test, or the official files of CIFAR-10, MNIST or Tiny-ImageNet. Default: synthetic
            Pathfinder images.
        augmentation: Augmentation of training images: "none" or "light" (random shifts and flips).
    """

    folder: Path | None = None
    augmentation: Literal["none", "light"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder is None:
            self.refuse(("augmentation", *FILE_OPTIONS), "synthetic images", "folder")
        else:
            self.refuse(GENERATED_DATA_OPTIONS, "a folder", "folder")


IMAGE_LAYERS = dataclasses.replace(SMALL_LAYERS, num_layers=4)
"""Small layers of a vision transformer."""


@dataclasses.dataclass(frozen=True)
class ImageModel(ModelOptions):
    """The classifier: a vision transformer.

    Attributes:
        layers: Transformer blocks of the backbone.
        patch_size: Height and width of a patch in pixels; each patch is a token.
        patches: Patch embedding: "linear" (a linear layer) or "conv" (convolutions over the image).
        position: Positional encoding of the patches.
        pooling: Input of the classification head: "class" (a learned class token) or "mean" (the
            mean of all tokens).
    """

    layers: Layers = IMAGE_LAYERS
    patch_size: int = 4
    patches: Literal["linear", "conv"] = "linear"
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    pooling: Literal["class", "mean"] = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, 2**10, patch_size=self.patch_size)


LAMB = dataclasses.replace(RECIPE, learning_rate=2e-3)
"""Default optimizer of image runs."""


@dataclasses.dataclass(frozen=True)
class ImageFit(RecipeFit):
    """How the classifier is trained."""

    epochs: int = 20
    patience: int = 10**6
    batch_size: int = 64
    optimizer: OptimizerOptions = LAMB


@dataclasses.dataclass(frozen=True)
class ImageConfig(Config):
    """Options of an image classification run."""

    main_options = ("folder", "patch_size", "learning_rate", *Config.main_options)
    data: ImageData = ImageData()
    model: ImageModel = ImageModel()
    fit: ImageFit = ImageFit()

    @property
    def name(self) -> str:
        """A name for the run folder."""
        folder = self.data.folder
        data = "pathfinder" if folder is None else folder.name.partition(".")[0]
        return make_file_name("image", data, mechanism_name(self.layers), self.seeds)


@dataclasses.dataclass(frozen=True)
class ImageStreamOptions:
    """Options of image streams; there are none, because images do not stream."""


class ImageOptions(TaskOptions):
    """The options of the classification of images."""

    name = "image"
    Config = ImageConfig
    StreamOptions = ImageStreamOptions
    is_causal = False
