"""Options of runs on images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from flax_linattn.checks import at_least
from flax_linattn.models import Layers, vit_layers
from flax_linattn.tasks.classify.recipe import RecipeFit
from flax_linattn.tasks.classify.sources import OF_DRAWN, OF_FILES, ClassesData
from flax_linattn.tasks.files import as_name
from flax_linattn.tasks.options import Config, ModelOptions, mechanism_name


@dataclasses.dataclass(frozen=True)
class ImageData(ClassesData):
    """Which images, and what is made of them.

    Attributes:
        folder: of images, or an archive: a folder for each class under train and under val or test,
            or an official form of CIFAR-10, MNIST or Tiny-ImageNet; default drawn ones, of
            Pathfinder, 32 x 32.
        augmentation: of training images: "none"; "light" (shifts and flips); or "deit", as DeiT's,
            whose mixtures of images are an option of their own.
        mix: mix training images and their labels: mixup and cutmix, as DeiT.
    """

    folder: Path | None = None
    augmentation: Literal["none", "light", "deit"] = "none"
    mix: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder is None:
            self.refuse(("augmentation", "mix", *OF_FILES), "drawn images", "folder")
        else:
            self.refuse(OF_DRAWN, "a folder", "folder")


IMAGE_LAYERS = Layers(
    features=64,
    num_layers=4,
    num_heads=4,
    hidden_features=128,
    mechanism="taylorshift",
    norm="pre",
    dropout_rate=0.0,
)
"""Small ones of a vision transformer's kind; its own sizes are presets."""


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


@dataclasses.dataclass(frozen=True)
class ImageFit(RecipeFit):
    """How the classifier is trained."""

    epochs: int = 20
    patience: int = 10**6
    batch_size: int = 64
    learning_rate: float = 2e-3


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


def ti(config: ImageConfig) -> ImageConfig:
    """TaylorShift's ImageNet, size Ti: 12 layers of 192, 224 x 224 in patches of 16, 300 epochs.

    Departures: DeiT's augmentation, where the paper has DeiT III's of three operations; mixup
    beside CutMix; a tenth of the training images selects the parameters; images are brought to
    their size before they are cropped. All images are held in memory: at this size some 57,000.
    """
    return _of_paper(config, "ti")


def s(config: ImageConfig) -> ImageConfig:
    """The same, size S: 12 layers of 384."""
    return _of_paper(config, "s")


def _of_paper(config: ImageConfig, size: Literal["ti", "s"]) -> ImageConfig:
    layers = vit_layers(size, mechanism=config.layers.mechanism)
    of_layers: dict[str, Any] = {
        field.name: getattr(layers, field.name) for field in dataclasses.fields(layers)
    }
    return config.replace(
        **of_layers,
        image_size=224,
        patch_size=16,
        pooling="class",
        position="learned",
        **({} if config.data.folder is None else {"augmentation": "deit", "mix": True}),
        optimizer="fused_lamb",
        schedule="cosine",
        learning_rate=3e-3,
        weight_decay=1e-3,
        label_smoothing=0.1,
        batch_size=2048,
        epochs=300,
        warmup=5 / 300,
    )


PRESETS = {"ti": ti, "s": s}
"""Published protocols by name."""
