"""Train on the workers of a Ray cluster: python train_on_ray.py RUN NUM_WORKERS."""

import socket
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import ray
import ray.train.collective
from flax import nnx
from ray.train.v2.jax import JaxTrainer

from flax_linattn import data, models, training


def loss_fn(model, batch, dropout_key):
    """Returns the mean cross-entropy; padding has weight 0."""
    logits = model(batch["values"], dropout_key=dropout_key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    total, count = jnp.sum(losses * batch["weight"]), jnp.sum(batch["weight"])
    return total / count, {"loss": (total, count)}


def fit(run_dir):
    """Trains with all processes, in batches of 32 examples together."""
    x = np.random.default_rng(0).normal(size=(256, 20, 3)).astype(np.float32)
    arrays = {"values": x, "labels": (x.mean((1, 2)) > 0).astype(np.int32)}
    return training.fit(
        models.SequenceClassifier(3, 2, features=32, num_heads=4, rngs=nnx.Rngs(0)),
        training.Objective(loss_fn, optax.adam(1e-3)),
        training.Splits(data.Batches(arrays, 32, seed=0), data.Batches(arrays, 32, seed=None)),
        config=training.FitConfig(epochs=3),
        session=training.Session(run_dir, resume=bool(training.list_checkpoints(run_dir))),
    )


def work(config):
    """Joins the other workers at an address of the first one, and trains."""
    worker = ray.train.get_context()
    with socket.socket() as free:
        free.bind(("", 0))
        own = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
    coordinator = ray.train.collective.broadcast_from_rank_zero(own)
    training.start_process(coordinator, worker.get_world_size(), worker.get_world_rank())
    fit(config["run_dir"])


if __name__ == "__main__":
    run_dir, num_workers = Path(sys.argv[1]).absolute(), int(sys.argv[2])
    JaxTrainer(
        work,
        train_loop_config={"run_dir": run_dir},
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
        run_config=ray.train.RunConfig(
            storage_path=str(run_dir.parent / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()
