"""The model of a run on sequences."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from flax_linattn import models, training
from flax_linattn.models import Embedding
from flax_linattn.tasks.classify.tokens.options import SequenceConfig
from flax_linattn.tasks.classify.tokens.problem import SequenceProblem
from flax_linattn.typing import Array


def build_model(
    config: SequenceConfig,
    problem: SequenceProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.SequenceClassifier:
    """The freshly initialised model of a run.

    Raises:
        ValueError: an option that the model does not take.
    """
    options, rngs = config.model, nnx.Rngs(config.seed)
    layers = config.layers.map_mechanisms(placement.mechanism)
    backbone = models.Backbone(
        _embedding(config, problem, rngs),
        layers,
        is_causal=options.causal,
        max_length=problem.max_length,
        class_token=options.pooling == "class",
        rngs=rngs,
    )
    return models.SequenceClassifier(
        backbone,
        len(problem.classes),
        pooling=options.pooling,
        head_activation="none",
        rngs=rngs,
    )


def _embedding(config: SequenceConfig, problem: SequenceProblem, rngs: nnx.Rngs) -> Embedding:
    options, layers = config.model, config.layers
    tokens, features = problem.alphabet.num_tokens, layers.features
    how: dict[str, Any] = {
        "position": options.position,
        "max_length": problem.max_length,
        "dtype": layers.compute_dtype,
        "rngs": rngs,
    }
    if options.embedding == "conv":
        how["padding"] = "causal" if options.causal else "same"
        return models.ConvTokenEmbedding(tokens, features, **how)
    if options.embedding == "linear":
        return models.LinearTokenEmbedding(tokens, features, **how)
    return models.TokenEmbedding(tokens, features, **how)


def logits_of(
    model: models.SequenceClassifier, batch: dict[str, Array], dropout_key: Array | None
) -> Array:
    """Logits of a batch of padded sequences, or, at each token, of packed ones."""
    tokens = batch["tokens"].astype(jnp.int32)  # of pixels uint8
    logits: Array = model(
        tokens,
        mask=batch.get("mask"),
        segment_ids=batch.get("segment_ids"),
        dropout_key=dropout_key,
    )
    return logits
