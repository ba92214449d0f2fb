"""Shared options of the classification tasks: data splits and training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers, check_rate
from flax_linattn.models.layers import Layers
from flax_linattn.tasks.options import FitOptions, Options
from flax_linattn.training.optimizer_options import OptimizerOptions

GENERATED_DATA_OPTIONS = ("epoch_size", "validation_size", "test_size")
"""Options that have no effect on data from files."""
FILE_OPTIONS = ("validation_fraction", "split_seed", "select_on")
"""Options that have no effect on synthetic data."""


@dataclasses.dataclass(frozen=True)
class LabelData(Options):
    """Sizes of synthetic data, and the split of data from files.

    Attributes:
        image_size: Height and width of the images in pixels; image files are resized. 0 keeps the
            size of image files, and generates images of 32 x 32 pixels.
        epoch_size: Number of examples per epoch, for synthetic data.
        validation_size: Number of validation examples, for synthetic data.
        test_size: Number of test examples, for synthetic data.
        validation_fraction: Fraction of the training data held out for validation, for data from
            files.
        split_seed: Random seed that selects the held-out examples, for data from files.
        select_on: Data that select the best parameters and stop the training early: "validation"
            (the held-out examples) or "test" (the TEST SET; the reported accuracies are then
            optimistic).
    """

    image_size: int = 0
    epoch_size: int = 6400
    validation_size: int = 1000
    test_size: int = 2000
    validation_fraction: float = 0.1
    split_seed: int = 0
    select_on: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(0, 2**12, image_size=self.image_size)
        check_integers(1, 10**8, epoch_size=self.epoch_size)
        check_integers(1, 10**6, validation_size=self.validation_size, test_size=self.test_size)
        check_integers(0, split_seed=self.split_seed)
        check_fraction(validation_fraction=self.validation_fraction)

    def refuse(self, names: Iterable[str], kind: str, chosen_by: str) -> None:
        """Raises OptionError for options that have no effect on this kind of data."""
        for name in names:
            if getattr(self, name) != getattr(type(self), name):
                raise OptionError(f"{name} has no effect on {kind}; remove it.", name, chosen_by)


def check_fraction(**options: float) -> None:
    """Raises OptionError for fractions, by option name, that are not between 0 and 1."""
    for name, value in options.items():
        if not 0 < value < 1:
            raise OptionError(f"{name} must be between 0 and 1, got {value}.", name)


SMALL_LAYERS = Layers(
    features=64,
    num_layers=2,
    num_heads=4,
    hidden_features=128,
    mechanism="taylorshift",
    norm="pre",
    dropout_rate=0.0,
)
"""Default layers: small layers of TaylorShift's kind; presets have the published sizes."""

RECIPE = OptimizerOptions("lamb", schedule="cosine", warmup=0.05, last_rate=1e-5, weight_decay=1e-3)
"""Default optimizer: that of TaylorShift."""


@dataclasses.dataclass(frozen=True)
class RecipeFit(FitOptions):
    """How the classifier is trained.

    Attributes:
        label_smoothing: Label smoothing: fraction of the target probability that is spread evenly
            over all classes.
        class_weights: Weights of the classes in training: "none", or "balanced" (inverse to the
            number of their training examples, so that rare classes count as much as others).
    """

    optimizer: OptimizerOptions = RECIPE
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate(label_smoothing=self.label_smoothing)

    def example_weights(self, labels: NDArray[np.integer]) -> NDArray[np.float32]:
        """Weights [N] of training examples in the loss, by their classes.

        Example:
            >>> RecipeFit(class_weights="balanced").example_weights(np.array([0, 0, 0, 1])).tolist()
            [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 2.0]
        """
        if self.class_weights == "none":
            return np.ones(len(labels), np.float32)
        _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
        return (len(labels) / (len(counts) * counts[index])).astype(np.float32)
