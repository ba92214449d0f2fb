"""An LSTM classifier as a baseline: one layer, and a linear head on its last state."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx

from experiments.options import run_without_model, task_config
from flax_linattn import training
from flax_linattn.tasks.classify.metrics import classifier_values, make_label_loss
from flax_linattn.tasks.classify.series.early import accuracy_by_fraction
from flax_linattn.typing import Array

FEATURES = 128
LEARNING_RATE = 1e-3
PATIENCE_STEPS = 300
"""Steps without a lower validation loss after which training ends, as in the default of ours."""
MAX_EPOCHS = 1000


class LSTMClassifier(nnx.Module):
    """Logits [B, classes] from the state after the last valid observation of [B, T, channels]."""

    def __init__(self, num_channels: int, num_classes: int, *, rngs: nnx.Rngs) -> None:
        cell = nnx.OptimizedLSTMCell(num_channels, FEATURES, rngs=rngs)
        self.layer = nnx.RNN(cell, rngs=rngs)
        self.head = nnx.Linear(FEATURES, num_classes, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, dropout_key: Array | None = None) -> Array:
        last = jnp.maximum(jnp.sum(mask, axis=1) - 1, 0)
        states = jnp.take_along_axis(self.layer(x), last[:, None, None], axis=1)
        return self.head(states[:, 0])


def compute_logits(model: LSTMClassifier, batch: dict[str, Array], key: Array | None) -> Array:
    """Logits of a batch; there is no dropout."""
    return model(batch["values"], mask=batch["mask"], dropout_key=key)


def train_lstm(files: Mapping[str, Any], seed: int, time_limit: float) -> dict[str, Any]:
    """Trains by Adam with early stopping on a stratified fifth of the training sequences."""
    config = task_config("classify", seed=seed, **files)
    run, test = run_without_model("classify", config)
    splits = run.task.batches(run.data, run.config, run.data_spec, 1)
    classes = run.data_spec.classes
    model = LSTMClassifier(len(run.data_spec.channels), len(classes), rngs=nnx.Rngs(seed))
    loss = make_label_loss(compute_logits)
    with tempfile.TemporaryDirectory() as folder:
        result = training.fit(
            model,
            training.Objective(loss, optax.adam(LEARNING_RATE)),
            splits,
            config=training.FitConfig(
                epochs=MAX_EPOCHS,
                patience=max(10, -(-PATIENCE_STEPS // len(splits.train))),
                seed=seed,
                time_limit=time_limit,
            ),
            session=training.Session(Path(folder, "run"), progress=False),
        )
    values = classifier_values(model, test, compute_logits, classes)
    return {
        **{name: value for name, value in values.items() if name.startswith("test_")},
        "accuracy_by_fraction": accuracy_by_fraction(model, test),
        "steps": result.steps,
    }
