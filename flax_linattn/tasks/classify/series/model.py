"""The model of a classification run and its loss."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from flax import nnx

from flax_linattn import models, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify.loss import make_label_loss
from flax_linattn.tasks.classify.series.options import ClassifyConfig
from flax_linattn.tasks.classify.series.problem import ClassifyProblem
from flax_linattn.typing import Array

AMONG_LATENTS = "softmax"

Classifier: TypeAlias = models.SequenceClassifier | models.PerceiverReader


def build_classifier(
    config: ClassifyConfig,
    problem: ClassifyProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> Classifier:
    """The freshly initialised model of a run.

    Args:
        config: the run's options.
        problem: what it learned of the data.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an option that the model does not take.
    """
    model = config.model
    layers, rngs = config.layers.map_mechanisms(placement.mechanism), nnx.Rngs(config.seed)
    if model.latents is not None:
        if len(set(layers.mechanisms)) > 1:
            raise OptionError("latents read once, by one mechanism.", "mechanism", "latents")
        return models.PerceiverReader(
            len(problem.channels),
            len(problem.classes),
            num_latents=model.latents,
            reads_by=layers.mechanisms[0],
            layers=dataclasses.replace(layers, mechanism=AMONG_LATENTS),
            max_length=problem.max_length,
            rngs=rngs,
        )
    return models.SequenceClassifier(
        len(problem.channels),
        len(problem.classes),
        pooling=model.pooling,
        max_length=problem.max_length,
        is_causal=model.causal,
        embedding_padding=model.embedding,
        attends_to_padding=model.padding == "seen",
        layers=layers,
        rngs=rngs,
    )


def logits_of(model: Classifier, batch: dict[str, Array], dropout_key: Array | None) -> Array:
    """Logits of a batch of padded sequences."""
    logits: Array = model(batch["values"], mask=batch["mask"], dropout_key=dropout_key)
    return logits


classification_loss = make_label_loss(logits_of)
"""Mean cross-entropy over the batch's real examples, and (sum, weight) of the metrics."""
