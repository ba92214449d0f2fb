"""The model of a run on symbols and its loss."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from flax_linattn import models, training
from flax_linattn.tasks.symbols.data import SymbolsSpec
from flax_linattn.tasks.symbols.options import SymbolsConfig
from flax_linattn.typing import Array

Model: TypeAlias = models.WindowModel | models.LanguageModel


def build_model(
    config: SymbolsConfig,
    problem: SymbolsSpec,
    placement: training.Placement = training.ONE_DEVICE,
) -> Model:
    """The freshly initialised model of a run.

    Raises:
        ValueError: an option that the model does not take.
    """
    layers, context = config.layers.map_mechanisms(placement.mechanism), config.data.context
    rngs = nnx.Rngs(config.seed)
    if config.data.recalls:
        position = config.model.position
        return models.LanguageModel(
            problem.num_tokens,
            tied=False,
            position=position,
            layers=layers,
            max_length=context,
            rngs=rngs,
        )
    return models.WindowModel(
        problem.num_tokens,
        context,
        readout=config.model.readout,
        projections=config.model.projections,
        layers=layers,
        kernel_init=nnx.initializers.variance_scaling(
            config.model.init_scale**2, "fan_in", "normal"
        ),
        bias_init=nnx.initializers.zeros_init(),
        rngs=rngs,
    )


def make_loss(kind: str) -> training.LossFn:
    """The loss of ``SymbolsFit.loss``; always the same function, so that steps stay compiled."""
    return {"squared": SQUARED, "cross_entropy": CROSS_ENTROPY}[kind]


def squared_difference(scores: Array, targets: Array) -> Array:
    """The squared difference to one-hot targets, summed over the symbols: [..., N] -> [...]."""
    right = jax.nn.one_hot(targets, scores.shape[-1], dtype=scores.dtype)
    return jnp.sum((scores - right) ** 2, axis=-1)


def loss_fn(
    error: Any, model: Model, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean error of what is asked for, the accuracy, and the success.

    The success is the share of series, or of sequences, in which every answer is right; a batch of
    windows is one series.
    """
    scores = model(batch["tokens"], dropout_key=dropout_key)
    if "target" in batch:  # windows of one series
        asked = jnp.ones((1, scores.shape[0]), bool)
        scores, targets = scores[None], batch["target"][None]
    else:
        asked, targets = batch["asked"], batch["targets"]
    weight = asked.astype(jnp.float32)
    total, count = jnp.sum(error(scores, targets) * weight), jnp.sum(weight)
    right = jnp.argmax(scores, axis=-1) == targets
    whole = jnp.all(right | ~asked, axis=1)
    return total / count, {
        "loss": (total, count),
        "accuracy": (jnp.sum(weight, where=right), count),
        "success": (jnp.sum(whole, dtype=jnp.float32), jnp.float32(whole.size)),
    }


SQUARED = partial(loss_fn, squared_difference)
CROSS_ENTROPY = partial(loss_fn, optax.softmax_cross_entropy_with_integer_labels)
