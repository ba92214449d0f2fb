"""The model of a classification run, its loss and its optimizer."""

from __future__ import annotations

import optax
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.classes.loss import make_label_loss
from flax_linattn.tasks.classify.options import ClassifyConfig, ClassifyFit
from flax_linattn.tasks.classify.problem import ClassifyProblem
from flax_linattn.tasks.placed import placed_layers
from flax_linattn.typing import Array


def build_classifier(
    config: ClassifyConfig,
    problem: ClassifyProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.SequenceClassifier:
    """The freshly initialised model of a run.

    Args:
        config: the run's options.
        problem: what it learned of the data.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an option that the model does not take.
    """
    model = config.model
    return models.SequenceClassifier(
        len(problem.channels),
        len(problem.classes),
        pooling=model.pooling,
        max_length=problem.max_length,
        is_causal=model.causal,
        embedding_padding=model.embedding,
        attends_to_padding=model.padding == "seen",
        layers=placed_layers(config.layers, placement),
        rngs=nnx.Rngs(config.seed),
    )


def logits_of(
    model: models.SequenceClassifier, batch: dict[str, Array], dropout_key: Array | None
) -> Array:
    """Logits of a batch of padded sequences."""
    logits: Array = model(batch["values"], mask=batch["mask"], dropout_key=dropout_key)
    return logits


classification_loss = make_label_loss(logits_of)
"""Mean cross-entropy over the batch's real examples, and (sum, weight) of the metrics."""


def make_optimizer(fit: ClassifyFit, steps_per_epoch: int) -> optax.GradientTransformation:
    """RAdam with the run's learning rate at each step, on clipped gradients."""
    schedule: float | optax.Schedule = fit.learning_rate
    if fit.schedule == "steps":
        passes = fit.passes(steps_per_epoch)
        schedule = optax.join_schedules(
            [
                optax.constant_schedule(fit.learning_rate * (0.5 ** (e - 1) if e else 1.0))
                for e in range(0, passes + 1, 5)
            ],
            [e * steps_per_epoch for e in range(5, passes + 1, 5)],
        )
    return optax.chain(optax.clip_by_global_norm(fit.clip_norm), optax.radam(schedule))
