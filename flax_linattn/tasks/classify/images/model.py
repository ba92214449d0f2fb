"""The model of a run on images."""

from __future__ import annotations

from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.classify.images.options import ImageConfig
from flax_linattn.tasks.classify.images.problem import ImageProblem
from flax_linattn.typing import Array


def build_model(
    config: ImageConfig,
    problem: ImageProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.ImageClassifier:
    """The freshly initialised model of a run.

    Raises:
        ValueError: an option that the model does not take.
    """
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


def logits_of(
    model: models.ImageClassifier, batch: dict[str, Array], dropout_key: Array | None
) -> Array:
    """Logits of a batch of scaled images."""
    logits: Array = model(batch["image"], dropout_key=dropout_key)
    return logits
