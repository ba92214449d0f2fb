"""Options of time-series classification runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.layers import CLASSIFIER_LAYERS, Layers
from flax_linattn.models.sizes import MINIROCKET_FEATURES, MINIROCKET_KERNELS
from flax_linattn.tasks.classify.label_options import RecipeFit, check_fraction
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import Config, ModelOptions, Options, TaskOptions, mechanism_name
from flax_linattn.training.optimizer_options import OptimizerOptions

CLOSED_FORM_OPTIONS = ("num_features", "num_prefixes")
"""Options of the MiniRocket features and linear maps."""
TIME_LIMIT = 120.0
"""Time limit of the default preset in seconds."""


@dataclasses.dataclass(frozen=True)
class ClassifyData(Options):
    """Data set of time series with labels, and its preprocessing.

    Attributes:
        train_file: Training data: a .ts or .arff file, also with .gz or .xz. Default: the embedded
            JapaneseVowels data set.
        test_file: Test data, a file of the same format; required with ``train_file``.
        select_on: Data that select the best parameters and stop the training early: "validation" (a
            stratified fraction of the training data) or "test" (the TEST SET; the reported
            accuracies are then optimistic).
        validation_fraction: Fraction of the training data held out for validation.
        scaling: How channels are standardized: "train" (by the mean and standard deviation of the
            training data), "each" (training and test data by their own mean and standard deviation)
            or "each-across-channels" (as "each", and then each time step across its channels).
        buckets: Number of padded lengths, each for an equal fraction of the sequences; all
            sequences of a batch have the same padded length. More buckets need less padding and
            more compilations, one for each length.
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
            message = "pass both a training and a test file, or neither for JapaneseVowels."
            raise OptionError(message, *names)
        if train is not None and train == test:
            raise OptionError(
                f"expected different training and test files, got {train} for both.", *names
            )
        check_integers(1, buckets=self.buckets)
        check_fraction(validation_fraction=self.validation_fraction)


@dataclasses.dataclass(frozen=True)
class ClassifyModel(ModelOptions):
    """Options of the time-series classifier.

    Attributes:
        layers: Transformer blocks of the backbone.
        model: "attention" (an attention classifier, trained by gradients), "minirocket" (MiniRocket
            features with linear maps in closed form, to which the attention classifier is added
            where it lowers the loss of held-out sequences) or "closed-form" (MiniRocket features
            and linear maps, without attention).
        num_features: Maximum number of MiniRocket features, for ``model="minirocket"`` and
            ``model="closed-form"``.
        num_prefixes: Maximum number of prefix lengths with a linear map of their own, for
            ``model="minirocket"`` and ``model="closed-form"``.
        pooling: Input of the classification head: "mean" (the mean over all steps), "last" (the
            last step) or "flatten" (all steps, with weights for each position).
        embedding: Convolution of the embedding: "causal" (over past steps; the model can stream) or
            "circular" (wraps around the ends of the sequence).
        padding: Whether attention ignores the padding of shorter sequences ("masked") or attends to
            it ("seen").
        causal: Use causal attention, so that the model can stream.
        latents: Number of learned latents that attend to the sequence (Perceiver). ``mechanism`` is
            the attention from the latents to the sequence; the layers are softmax attention among
            the latents, whose mean is the input of the head. Default: no latents; the layers attend
            to every step.
    """

    layers: Layers = CLASSIFIER_LAYERS
    model: Literal["attention", "minirocket", "closed-form"] = "attention"
    num_features: int = MINIROCKET_FEATURES
    num_prefixes: int = 10
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
class ClassifyFit(RecipeFit):
    """How the classifier is trained, by RAdam."""

    optimizer: OptimizerOptions = OptimizerOptions("radam", clip_norm=4.0)


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(Config):
    """Options of a time-series classification run."""

    main_options = ("train_file", "test_file", "model", "learning_rate", *Config.main_options)
    data: ClassifyData = ClassifyData()
    model: ClassifyModel = ClassifyModel()
    fit: ClassifyFit = ClassifyFit()

    def __post_init__(self) -> None:
        model = self.model
        check_integers(1, 2**16, latents=model.latents)
        check_integers(MINIROCKET_KERNELS, 10**5, num_features=model.num_features)
        check_integers(1, 1000, num_prefixes=model.num_prefixes)
        for name in CLOSED_FORM_OPTIONS:
            if model.model == "attention" and getattr(model, name) != getattr(type(model), name):
                raise OptionError(
                    f"{name} has no effect on model='attention'; remove it, or choose "
                    "model='minirocket' or model='closed-form'.",
                    name,
                    "model",
                )
        if model.latents is not None and (
            model.pooling != "mean" or model.sees_padding or not model.causal
        ):
            raise OptionError(
                "latents need causal attention, pooling='mean', embedding='causal' and "
                "padding='masked'; leave these options at their defaults.",
                "latents",
                "pooling",
                "embedding",
                "padding",
                causal=True,
            )
        if self.data.buckets > 1 and (model.pooling == "flatten" or model.sees_padding):
            raise OptionError(
                "several buckets need a model that does not depend on the padding; choose "
                "pooling='mean' or pooling='last', embedding='causal' and padding='masked'.",
                "buckets",
                "pooling",
                "embedding",
                "padding",
            )
        if self.data.buckets > 1 and self.fit.runs > 1:
            raise OptionError(
                "several runs need batches of one length; use one bucket, or train the runs one "
                "after another.",
                "buckets",
                "runs",
            )

    def check_closed_form(self) -> None:
        """Raises OptionError for options of the attention, its training and its validation."""
        if self.fit.epochs != 1:
            raise OptionError(
                "model='closed-form' is not trained by gradients and has one epoch, got "
                f"epochs={self.fit.epochs}; set epochs=1, or choose model='minirocket'.",
                "model",
                "epochs",
            )
        own, usual = self.flat(), ClassifyConfig().flat()
        used = {field.name for field in dataclasses.fields(ClassifyData)}
        used -= {"select_on", "validation_fraction"}
        used |= {*CLOSED_FORM_OPTIONS, "model", "batch_size", "class_weights", "epochs"}
        for name in sorted(own.keys() - used - {"runs", "seed"}):
            if own[name] != usual[name]:
                raise OptionError(
                    f"{name} has no effect on model='closed-form'; remove it, or choose "
                    "model='minirocket'.",
                    name,
                    "model",
                )

    @property
    def label(self) -> str:
        """Name of the mechanism, or "closed-form"."""
        kind = self.model.model
        return kind if kind == "closed-form" else mechanism_name(self.layers)

    @property
    def name(self) -> str:
        """A name for the run folder."""
        data = self.data
        dataset = "japanese-vowels" if data.train_file is None else data.train_file.name
        selected = ["selected-on-test"] if data.select_on == "test" else []
        latents = [] if self.model.latents is None else [f"{self.model.latents}-latents"]
        parts = [dataset.split(".")[0], self.label, *latents, *selected, self.seeds]
        return make_file_name(*parts)


def minirocket(config: ClassifyConfig) -> ClassifyConfig:
    """MiniRocket features in closed form, and attention, which trains for at most two minutes.

    Early stopping counts steps, too, because an epoch of a small data set has few. Smoothed labels
    limit the confidence of the attention, which is averaged with the linear maps.
    """
    return config.replace(
        model="minirocket",
        epochs=1000,
        patience_steps=300,
        time_limit=TIME_LIMIT,
        label_smoothing=0.1,
    )


def closed_form(config: ClassifyConfig) -> ClassifyConfig:
    """MiniRocket features and linear maps in closed form, without attention."""
    return config.replace(model="closed-form", epochs=1)


def tslib(config: ClassifyConfig) -> ClassifyConfig:
    """Time-Series-Library's protocol, which scales each set alone and SELECTS ON THE TEST SET.

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


@dataclasses.dataclass(frozen=True)
class ClassifyStreamOptions:
    """Options of a stream of a classifier.

    Each line is an observation: numbers separated by commas or spaces, "?" for a missing value. A
    blank line ends a sequence, and prints the prediction for the whole sequence if the run has a
    decision rule.

    Attributes:
        sequence: Index, from 0, of a test sequence of the run to stream instead of the input.
        threshold: Probability of the most likely class at which the stream decides; not available
            for ``model="attention"``. Default: the threshold that held-out sequences chose.
        max_length: Maximum number of observations of a sequence, for mechanisms with a cache.
            Default: the longest sequence in the data of the run.
    """

    sequence: int | None = None
    threshold: float | None = None
    max_length: int | None = None


class ClassifyOptions(TaskOptions):
    """The options of the classification of time series."""

    name = "classify"
    Config = ClassifyConfig
    StreamOptions = ClassifyStreamOptions
    presets: ClassVar[Mapping[str, Any]] = {
        "tslib": tslib,
        "minirocket": minirocket,
        "closed-form": closed_form,
    }
    default_preset = "minirocket"
