"""Options of runs on images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import at_least
from flax_linattn.models import Layers
from flax_linattn.tasks.classify.label_options import (
    OF_DRAWN,
    OF_FILES,
    RECIPE,
    SMALL_LAYERS,
    LabelData,
    RecipeFit,
)
from flax_linattn.tasks.files import as_name
from flax_linattn.tasks.options import Config, ModelOptions, mechanism_name
from flax_linattn.training import OptimizerOptions


@dataclasses.dataclass(frozen=True)
class ImageData(LabelData):
    """Which images, and what is made of them.

    Attributes:
        folder: of images, or an archive: a folder for each class under train and under val or test,
            or an official form of CIFAR-10, MNIST or Tiny-ImageNet; default drawn ones, of
            Pathfinder, 32 x 32.
        augmentation: of training images: "none", or "light": random shifts and flips.
    """

    folder: Path | None = None
    augmentation: Literal["none", "light"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder is None:
            self.refuse(("augmentation", *OF_FILES), "drawn images", "folder")
        else:
            self.refuse(OF_DRAWN, "a folder", "folder")


IMAGE_LAYERS = dataclasses.replace(SMALL_LAYERS, num_layers=4)
"""Small layers of a vision transformer."""


@dataclasses.dataclass(frozen=True)
class ImageModel(ModelOptions):
    """The classifier: a vision transformer.

    Attributes:
        layers: of the backbone.
        patch_size: height and width of a patch, which is a token.
        patches: what makes a token of a patch: a linear layer ("linear"), or convolutions over the
            image ("conv").
        position: how a token tells its place.
        pooling: what reaches the head: a class token of its own, or the mean of all tokens.
    """

    layers: Layers = IMAGE_LAYERS
    patch_size: int = 4
    patches: Literal["linear", "conv"] = "linear"
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    pooling: Literal["class", "mean"] = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, 2**10, patch_size=self.patch_size)


LAMB = dataclasses.replace(RECIPE, learning_rate=2e-3)
"""The optimizer, unless another is given."""


@dataclasses.dataclass(frozen=True)
class ImageFit(RecipeFit):
    """How the classifier is trained."""

    epochs: int = 20
    patience: int = 10**6
    batch_size: int = 64
    optimizer: OptimizerOptions = LAMB


@dataclasses.dataclass(frozen=True)
class ImageConfig(Config):
    """Everything that a run on images depends on."""

    data: ImageData = ImageData()
    model: ImageModel = ImageModel()
    fit: ImageFit = ImageFit()

    @property
    def name(self) -> str:
        """A name for the run folder."""
        folder = self.data.folder
        data = "pathfinder" if folder is None else folder.name.partition(".")[0]
        return as_name("image", data, mechanism_name(self.layers), self.seeds)
