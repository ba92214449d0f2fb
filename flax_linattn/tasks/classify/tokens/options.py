"""Options of runs on sequences of tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import OptionError, at_least
from flax_linattn.models import Layers
from flax_linattn.tasks.classify.label_options import (
    OF_DRAWN,
    OF_FILES,
    SMALL_LAYERS,
    LabelData,
    RecipeFit,
)
from flax_linattn.tasks.files import as_name
from flax_linattn.tasks.options import Config, ModelOptions, mechanism_name

DRAWN = ("listops", "listops-lra", "pathfinder")
"""Data that are drawn."""
FETCHED = {
    "imdb": "IMDB",
    "cifar-pixels": "CIFAR-10",
    "mnist-pixels": "MNIST",
    "fashion-mnist-pixels": "Fashion-MNIST",
}
"""Names for data of the catalogue, where ``data fetch`` has put them."""


OF_LENGTHS = ("min_length", "max_length")
OF_TEXTS = ("crop", "padding", "as_python")
NOT_TAKEN = {
    "listops": (*OF_TEXTS, *OF_FILES, "image_size"),
    "listops-lra": (*OF_TEXTS, *OF_FILES, "image_size"),
    "pathfinder": (*OF_TEXTS, *OF_FILES, *OF_LENGTHS),
}
"""Options that change nothing of drawn data."""


@dataclasses.dataclass(frozen=True)
class SequenceData(LabelData):
    """Which sequences, and what is made of them.

    Attributes:
        data: drawn ones: listops (TaylorShift's), listops-lra (Long Range Arena's) or pathfinder;
            or files of texts or images, a folder or an archive, whose bytes or grey pixels are the
            tokens: imdb, cifar-pixels, mnist-pixels and fashion-mnist-pixels are those that
            "data fetch" puts into the folder data, by the catalogue's name.
        min_length: of drawn ListOps, fewest tokens.
        max_length: of drawn ListOps, and of texts, most tokens.
        crop: of longer texts, a part drawn anew each epoch in training ("random"), or the
            first bytes ("prefix"); tests always take these.
        padding: of shorter texts, "masked"; "symbol": zero bytes that the model sees; or "packed":
            none in training, where several texts share a row, each cut to its beginning.
        as_python: take a text as Python prints its bytes, b'...', as TaylorShift's code does.
        test_lengths: of drawn ListOps, further lengths to test at, such as beyond training.
    """

    data: str = "listops"
    min_length: int = 20
    max_length: int = 80
    crop: Literal["random", "prefix"] = "random"
    padding: Literal["masked", "symbol", "packed"] = "masked"
    as_python: bool = False
    test_lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, 2**20, min_length=self.min_length, max_length=self.max_length)
        for length in self.test_lengths:
            at_least(4, 2**20, test_lengths=length)
        if self.test_lengths and self.data != "listops":
            raise OptionError(
                f"only listops is drawn at any length, got data={self.data}; leave test_lengths "
                "out.",
                "test_lengths",
                "data",
            )
        if self.data in DRAWN:
            self.refuse(NOT_TAKEN[self.data], self.data, "data")
        else:
            self.refuse(("min_length", *OF_DRAWN), "data of files", "data")

    @property
    def path(self) -> Path:
        """Of the files, where the data are no drawn ones."""
        return Path("data", FETCHED[self.data]) if self.data in FETCHED else Path(self.data)

    @property
    def data_name(self) -> str:
        """A short name of the data."""
        named = self.data in (*DRAWN, *FETCHED)
        return self.data if named else self.path.name.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class SequenceModel(ModelOptions):
    """The classifier.

    Attributes:
        layers: of the backbone.
        embedding: of tokens: a linear layer on one-hot vectors ("linear"), three convolutions on
            them ("conv"), or a table as of language models ("table").
        position: how the embedding tells positions.
        pooling: what reaches the head: a class token of its own ("class"), the mean of all tokens,
            or the last one.
        causal: whether attention and convolutions see only the past, so that the model streams;
            with pooling mean or last.
    """

    layers: Layers = SMALL_LAYERS
    embedding: Literal["linear", "conv", "table"] = "linear"
    position: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    pooling: Literal["class", "mean", "last"] = "class"
    causal: bool = False


@dataclasses.dataclass(frozen=True)
class SequenceFit(RecipeFit):
    """How the classifier is trained."""

    epochs: int = 10
    patience: int = 10**6
    batch_size: int = 32


@dataclasses.dataclass(frozen=True)
class SequenceConfig(Config):
    """Everything that a run on sequences depends on."""

    data: SequenceData = SequenceData()
    model: SequenceModel = SequenceModel()
    fit: SequenceFit = SequenceFit()

    def __post_init__(self) -> None:
        if self.model.causal and self.model.pooling == "class":
            raise OptionError(
                "a class token sees the whole sequence, and a causal model does not; choose "
                "pooling mean or last.",
                "pooling",
                "causal",
            )
        of_positions = ["position"] * (self.model.position == "learned") + ["mechanism"] * any(
            hasattr(mechanism, "max_length") for mechanism in self.layers.mechanisms
        )
        longest = max(self.data.test_lengths, default=0)
        if of_positions and longest > self.data.max_length:
            raise OptionError(
                f"what is learned of each position is not learned beyond max_length "
                f"({self.data.max_length}), so a test at {longest} would say nothing; choose "
                f"another {of_positions[0]}, or shorter test_lengths.",
                "test_lengths",
                *of_positions,
            )
        mixed = self.model.embedding == "conv" and not self.model.causal
        if self.data.padding == "packed" and (self.model.pooling == "class" or mixed):
            raise OptionError(
                "texts that share a row have neither a class token each nor convolutions across "
                "them; choose pooling mean or last, and another embedding or a causal model.",
                "padding",
                "pooling",
                "embedding",
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        return as_name(self.data.data_name, mechanism_name(self.layers), self.seeds)

    def resolve(self) -> SequenceConfig:
        """With an absolute path, where the data are files."""
        if self.data.data in DRAWN:
            return self
        return self.replace(data=str(self.data.path.resolve()))
