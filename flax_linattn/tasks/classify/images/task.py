"""The task of images, as the commands see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from flax_linattn import models, ops, training
from flax_linattn.checks import OptionError
from flax_linattn.data.catalog import IMAGES, Entry
from flax_linattn.tasks.classify.figures import draw_confusion
from flax_linattn.tasks.classify.images.baselines import YARDSTICKS, yardstick_values
from flax_linattn.tasks.classify.images.data import Images, load_images_of
from flax_linattn.tasks.classify.images.model import build_model, logits_of
from flax_linattn.tasks.classify.images.options import ImageConfig
from flax_linattn.tasks.classify.images.predict import predict
from flax_linattn.tasks.classify.images.problem import ImageProblem
from flax_linattn.tasks.classify.metrics import run_values
from flax_linattn.tasks.classify.recipe import label_objective
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report, Task


@dataclasses.dataclass(frozen=True)
class ImageStreamOptions:
    """Images do not stream."""


class ImageTask(Task[ImageConfig, Images, ImageProblem]):
    """Classes of images."""

    name = "image"
    Config = ImageConfig
    Problem = ImageProblem
    StreamOptions = ImageStreamOptions
    kinds = (IMAGES,)

    def mechanisms(self) -> Sequence[str]:
        """Those that see a whole sequence."""
        return tuple(
            name for name in ops.list_mechanisms() if ops.get_mechanism(name).capabilities.noncausal
        )

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """The folder of the files."""
        (folder,) = {file.parent for file in files}
        return {"folder": folder}

    def check(self, config: ImageConfig, placement: training.Placement) -> None:
        """A mechanism sees all patches, which are few.

        Raises:
            ValueError: they do not go together.
        """
        if placement.spans > 1:
            raise OptionError("images are not split along their tokens; leave seq out.", "mesh")
        for mechanism in config.layers.mechanisms:
            if not mechanism.capabilities.noncausal:
                raise OptionError(
                    f"{mechanism.name!r} has no non-causal form; choose one of "
                    f"{', '.join(self.mechanisms())}.",
                    "mechanism",
                )

    def load(self, config: ImageConfig) -> Images:
        """Files, or what draws."""
        return load_images_of(config.data)

    def describe(self, data: Images, config: ImageConfig) -> ImageProblem:
        """Names, sizes, scales."""
        return data.describe(config)

    def about_data(self, data: Images, config: ImageConfig) -> str:
        """Sizes and classes."""
        return data.about(config)

    def notes(self, data: Images) -> Sequence[str]:
        """Of the files."""
        return data.notes

    def batches(
        self, data: Images, config: ImageConfig, problem: ImageProblem, spans: int
    ) -> training.Splits:
        """Scaled images."""
        return data.splits(config, problem)

    def model(
        self,
        config: ImageConfig,
        problem: ImageProblem,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.ImageClassifier:
        """A ``models.ImageClassifier``."""
        return build_model(config, problem, placement)

    def objective(
        self, config: ImageConfig, problem: ImageProblem, steps_per_epoch: int
    ) -> training.Objective:
        """Cross-entropy; selected by accuracy."""
        return label_objective(logits_of, config.fit, steps_per_epoch)

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """The run's own, or those of another folder."""
        options = (
            run.config.data if file is None else dataclasses.replace(run.config.data, folder=file)
        )
        data = load_images_of(options) if run.data is None or file is not None else run.data
        data.check_same(run, own=file is None)
        test = data.splits(run.config, run.problem).test
        assert test is not None
        return test

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Accuracy, figures of each class."""
        values = run_values(run, batches, logits_of)
        draw = partial(draw_confusion, np.array(values["confusion"]), run.problem.classes)
        return Report(values, ("classes",), {"confusion.png": draw}, YARDSTICKS)

    def yardsticks(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """The most frequent class, the nearest neighbour, a ridge."""
        return yardstick_values(run, batches)

    def predict(self, run: Run, file: Path | None) -> Table:
        """The class of each image."""
        return predict(run, file)

    def stream(self, run: Run, options: ImageStreamOptions) -> NoReturn:
        """Refused: an image comes as a whole.

        Raises:
            ValueError: always.
        """
        raise OptionError(
            "a run on images does not stream, for an image comes as a whole; to stream pixels, "
            "train on them as a sequence.",
            "run",
        )
