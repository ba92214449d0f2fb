"""Options of classification runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import OptionError, at_least
from flax_linattn.models import CLASSIFIER_LAYERS, Layers
from flax_linattn.tasks.classify.label_options import check_fraction
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import Config, FitOptions, ModelOptions, Options, mechanism_name
from flax_linattn.training import OptimizerOptions


@dataclasses.dataclass(frozen=True)
class ClassifyData(Options):
    """Which sequences, and what is made of them.

    Attributes:
        train_file: a .ts or .arff file (.gz and .xz too); default the embedded
            JapaneseVowels.
        test_file: the test file that belongs to it.
        select_on: the data that select the best parameters and end the training: a stratified
            share of the training data ("validation"), or "test", the TEST SET, which makes
            accuracies optimistic.
        validation_fraction: share of the training data held out for validation.
        scaling: mean and deviation of a channel are those of the training data ("train"), or of
            the set that it belongs to ("each"); "each-across-channels" then scales each step over
            its channels, too.
        buckets: lengths to pad to, each for an equal share of the sequences; a batch holds those of
            one. Less padding is computed, and the model compiled once for each.
    """

    train_file: Path | None = None
    test_file: Path | None = None
    select_on: Literal["validation", "test"] = "validation"
    validation_fraction: float = 0.2
    scaling: Literal["train", "each", "each-across-channels"] = "train"
    buckets: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        train, test = self.train_file, self.test_file
        names = ("train_file", "test_file")
        if (train is None) != (test is None):
            message = "give both files, to train and to test, or neither for JapaneseVowels."
            raise OptionError(message, *names)
        if train is not None and train == test:
            raise OptionError(f"the files to train and to test are the same, {train}.", *names)
        at_least(1, buckets=self.buckets)
        check_fraction(validation_fraction=self.validation_fraction)


@dataclasses.dataclass(frozen=True)
class ClassifyModel(ModelOptions):
    """Options of the time-series classifier.

    Attributes:
        layers: of the backbone.
        pooling: what of the sequence reaches the head: its mean, its last step, or all ("flatten":
            weights for each position).
        embedding: a convolution over the past ("causal", which streams) or around the ends of the
            sequence ("circular").
        padding: whether attention sees the padding of shorter sequences ("seen") or not
            ("masked").
        causal: whether attention sees only the past.
        latents: so many latents read the sequence, and the layers are among them instead of on
            every step: the mechanism is that by which they read, softmax that among them. Their
            mean reaches the head. None = there are none.
    """

    layers: Layers = CLASSIFIER_LAYERS
    pooling: Literal["mean", "last", "flatten"] = "mean"
    embedding: Literal["causal", "circular"] = "causal"
    padding: Literal["masked", "seen"] = "masked"
    causal: bool = True
    latents: int | None = None

    @property
    def sees_padding(self) -> bool:
        """Whether results depend on the length that sequences are padded to."""
        return self.embedding == "circular" or self.padding == "seen"


@dataclasses.dataclass(frozen=True)
class ClassifyFit(FitOptions):
    """How the classifier is trained, by RAdam."""

    optimizer: OptimizerOptions = OptimizerOptions("radam", clip_norm=4.0)


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(Config):
    """Everything that a classification run depends on."""

    data: ClassifyData = ClassifyData()
    model: ClassifyModel = ClassifyModel()
    fit: ClassifyFit = ClassifyFit()

    def __post_init__(self) -> None:
        model = self.model
        at_least(1, latents=model.latents)
        if model.latents is not None and (
            model.pooling != "mean" or model.sees_padding or not model.causal
        ):
            raise OptionError(
                "latents read every step once, in its order, and their mean is classified: leave "
                'pooling "mean", embedding "causal", padding "masked" and causal as they are.',
                "latents",
                "pooling",
                "embedding",
                "padding",
                causal=True,
            )
        if self.data.buckets > 1 and (model.pooling == "flatten" or model.sees_padding):
            raise OptionError(
                "buckets need a model whose parameters and results do not depend on the padding: "
                "pooling mean or last, embedding causal and padding masked.",
                "buckets",
                "pooling",
                "embedding",
                "padding",
            )
        if self.data.buckets > 1 and self.fit.runs > 1:
            raise OptionError(
                "many runs at once need batches of one length; pad to a single one, or train the "
                "runs one after another.",
                "buckets",
                "runs",
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        data = self.data
        dataset = "japanese-vowels" if data.train_file is None else data.train_file.name
        selected = ["selected-on-test"] if data.select_on == "test" else []
        latents = [] if self.model.latents is None else [f"{self.model.latents}-latents"]
        mechanism = mechanism_name(self.layers)
        parts = [dataset.split(".")[0], mechanism, *latents, *selected, self.seeds]
        return make_file_name(*parts)


def tslib(config: ClassifyConfig) -> ClassifyConfig:
    """As Time-Series-Library published: it SELECTS ON THE TEST SET, and scales each set by itself.

    Source: its ``exp_classification.py`` and ``UEAloader`` as of 2023; the learning rate is that of
    its ``adjust_learning_rate`` until the end of 2024.
    """
    return config.replace(
        select_on="test",
        scaling="each",
        pooling="flatten",
        embedding="circular",
        padding="seen",
        schedule="steps",
    )
