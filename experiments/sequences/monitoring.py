"""Training of a sequence classifier with a record of every loss and of the largest products."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.sequences.as_coded import AsCoded, record_sizes
from experiments.sequences.runs import cached_task
from flax_linattn import training
from flax_linattn.tasks.classify import SequenceConfig
from flax_linattn.tasks.classify.metrics import LogitsFn, make_label_loss
from flax_linattn.tasks.train_run import LOSS_SCALE
from flax_linattn.training.metrics import mean_metrics, zero_metrics
from flax_linattn.training.state import split_model
from flax_linattn.typing import Array

Sizes = Callable[[nnx.State, dict[str, Array]], dict[str, Array]]


@functools.lru_cache  # always the same function, so that steps stay compiled
def logits_by(form: str) -> LogitsFn:
    """Logits of a batch of sequences by a form of the mechanism."""

    def compute_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        logits: Array = model(
            batch["tokens"].astype(jnp.int32),
            mask=batch.get("mask"),
            dropout_key=dropout_key,
            form=form,
        )
        return logits

    return compute_logits


def train_monitored(
    config: SequenceConfig, form: str, every: int, *, tests: bool = True
) -> dict[str, Any]:
    """Trains by the recipe of a configuration for all its steps, and tests what it ends with.

    It ends early, with the step, where a loss or a gradient is no number. Nothing is selected.

    Args:
        config: whose mechanism is one of all layers; its learning rate ends with ``fit.steps``.
        form: of the mechanism, in training and test.
        every: steps of which losses are averaged, and between two records of sizes.
        tests: whether it is tested at the end.

    Returns:
        "curve", mean losses by the step they end with; "accuracy" and "loss" of the test, or
        "failed", the step that ended it, or that it came to without an update in its last
        ``every`` steps; for ``AsCoded`` "sizes", the largest products by step; "skipped", updates
        left out because a scaled gradient was too large; "updated", the last step with one;
        "seconds".
    """
    begin = time.perf_counter()
    task = cached_task("sequence")
    data = task.load(config)
    data_spec = task.describe(data, config)
    model = task.model(config, data_spec)
    splits = task.batches(data, config, data_spec, 1)
    objective = task.objective(config, data_spec, len(splits.train))
    loss_fn = make_label_loss(logits_by(form), config.fit.label_smoothing)
    graphdef, params, rest = split_model(model)
    scale = LOSS_SCALE if config.layers.dtype == "float16" else None
    names = ("accuracy", "loss")
    state = training.TrainState.create(params, rest, objective.optimizer, names, scale)
    step_of = training.make_train_step(graphdef, loss_fn, objective.optimizer, config.seed)
    max_sizes = _make_max_sizes(graphdef, rest, form)
    watches = isinstance(config.layers.mechanisms[0], AsCoded)
    curve, sizes, losses = [], [], []
    failed, skipped, updated = None, 0, 0
    for step in range(config.fit.steps):
        batch: Any = {name: jnp.asarray(x) for name, x in splits.train.batch(step).items()}
        state = step_of(state, batch)
        loss = mean_metrics(state.metrics)["loss"]
        if int(state.first_bad_step) >= 0:
            failed = step + 1
        elif math.isnan(loss):  # the loss scale was too large for a gradient: no update
            skipped += 1
        else:
            losses.append(loss)
            updated = step + 1
        last = failed is not None or (step + 1) % every == 0
        if watches and (last or step == 0):
            # After a bad step the parameters still are the parameters of that step.
            sizes.append({"step": step + 1, **_numbers(max_sizes(state.params, batch))})
        if last and losses:
            curve.append({"step": updated, "loss": round(float(np.mean(losses)), 4)})
            losses = []
        if failed is not None:
            break
        state = dataclasses.replace(state, metrics=zero_metrics(names))
    if failed is None and updated <= config.fit.steps - every:
        failed = config.fit.steps
    results: dict[str, Any] = {"curve": curve, "skipped": skipped, "updated": updated}
    results |= {"sizes": sizes} if watches else {}
    if failed is not None:
        results["failed"] = failed
    elif tests and splits.test is not None:
        nnx.update(model, state.params)
        results |= training.evaluate(model, loss_fn, splits.test)
    return results | {"seconds": time.perf_counter() - begin}


def _make_max_sizes(graphdef: nnx.GraphDef[Any], rest: nnx.State, form: str) -> Sizes:
    @jax.jit
    def max_sizes(params: nnx.State, batch: dict[str, Array]) -> dict[str, Array]:
        model = nnx.merge(graphdef, params, rest, copy=True)
        with record_sizes() as noted:
            logits_by(form)(model, batch, None)
        return {
            name: functools.reduce(jnp.maximum, [layer[name] for layer in noted])
            for name in noted[0]
        }

    return max_sizes


def _numbers(sizes: dict[str, Array]) -> dict[str, float]:
    return {name: float(x) for name, x in sizes.items()}
