"""A tiny regression with dropout, small enough to train many times in a test."""

import json
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from flax_linattn.data import Batches
from flax_linattn.training import (
    FitConfig,
    Objective,
    Parallel,
    Session,
    Splits,
    fit,
    list_checkpoints,
)

STEPS_PER_EPOCH = 5
TIMING = {"seconds", "data_seconds", "saving_seconds", "examples_per_second"}


OPTIMIZER = optax.adamw(0.05)


class Net(nnx.Module):
    """Two layers with dropout between them, and running statistics of the input."""

    def __init__(self, seed: int = 0, width: int = 4) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)])
        self.mean = nnx.BatchStat(jnp.zeros(3))

    def __call__(self, x, dropout_key=None):
        if dropout_key is not None:
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * x.mean(0)
        hidden = jnp.tanh(self.layers[0](x - self.mean[...]))
        if dropout_key is not None:
            hidden = jnp.where(jax.random.bernoulli(dropout_key, 0.8, hidden.shape), hidden, 0.0)
        return self.layers[1](hidden)[:, 0]


def loss_fn(model, batch, dropout_key):
    weight = batch["weight"]
    error = model(batch["x"], dropout_key) - batch["y"]
    total, count = jnp.sum(weight * error**2), jnp.sum(weight)
    near = jnp.sum(weight, where=jnp.abs(error) < 0.5)
    return total / count, {"loss": (total, count), "accuracy": (near, count)}


def make_batches(count: int = 38, seed: int | None = 0, size: int = 8) -> Batches:
    """38 examples in batches of 8: the last of the five is padded."""
    x = np.random.default_rng(7).normal(size=(count, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5]).astype(np.float32)
    return Batches({"x": x, "y": y, "id": np.arange(count)}, size, seed=seed)


class Source:
    """Batches with something done before each is given out: ``action(step, batch)``.

    What that returns, if it returns anything, is given out instead.
    """

    def __init__(self, batches, action):
        self.batches, self.action = batches, action

    def __len__(self):
        return len(self.batches)

    def batch(self, step, rows=slice(None)):
        batch = self.batches.batch(step, rows)
        return self.action(step, batch) or batch


def signal_at(batches, step, signum=signal.SIGINT):
    """Batches that send the process a signal as a step's batch is asked for the first time."""
    left = [signum]

    def send(at, batch):
        if at == step and left:
            signal.raise_signal(left.pop())

    return Source(batches, send)


def poison_at(batches, *steps, name="x"):
    """Batches with NaN in some steps' array."""

    def poison(step, batch):
        return batch | {name: np.full_like(batch[name], np.nan)} if step in steps else None

    return Source(batches, poison)


def recorded(batches, path):
    """Batches that note in a file which examples are loaded for which step."""

    def record(step, batch):
        real = batch["id"][batch["weight"] > 0]
        with path.open("a") as file:
            file.write(json.dumps([step, real.tolist()]) + "\n")

    return Source(batches, record)


def train(run_dir: Path, *, runs=None, epochs=3, model=None, train=None, validation=None,
          parallel=None, loss=loss_fn, optimizer=None, hyperparameters=None, monitor="loss",
          mode="min", validate=None, resume=False, trackers=(), profile_steps=0, seed=3,
          opt_state=None, tokens_per_example=None, checkpoints=True, **config):  # fmt: skip
    """Fits the problem; returns the model and the result.

    With ``runs`` there are as many seeds at once, and a list of models is returned. ``train`` may
    then be a list of batches; otherwise it is that of the first run.
    """
    validation = make_batches(count=10, seed=None) if validation is None else validation
    if runs is None:
        model = Net() if model is None else model
        splits = Splits(make_batches() if train is None else train, validation)
    else:
        model = [Net(r) for r in range(runs)] if model is None else model
        batches = [make_batches(seed=r) for r in range(runs)]
        if isinstance(train, list):
            batches = train
        elif train is not None:
            batches[0] = train
        splits = [Splits(own, validation) for own in batches]
    result = fit(
        model,
        Objective(
            loss,
            OPTIMIZER if optimizer is None else optimizer,
            monitor,
            mode,
            validate,
            tokens_per_example,
        ),
        splits,
        config=FitConfig(epochs=epochs, seed=seed, **config),
        hyperparameters=hyperparameters,
        opt_state=opt_state,
        session=Session(
            run_dir,
            resume=resume,
            progress=False,
            parallel=Parallel("none") if parallel is None else parallel,
            trackers=trackers,
            profile_steps=profile_steps,
            checkpoints=checkpoints,
        ),
    )
    return model, result


def read_metrics(run_dir: Path) -> list[dict]:
    """The lines of metrics.jsonl without what a clock wrote."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMING} for line in lines]


def fingerprint(run_dir: Path) -> dict:
    """Everything a run came to: its metrics, checkpoints and the bits of every saved array."""
    newest = list_checkpoints(run_dir)[-1].path
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        items = ("model", "training")
        args = ocp.args.Composite(**{item: ocp.args.StandardRestore() for item in items})
        arrays = checkpointer.restore(newest / "arrays", args)
    record = json.loads((newest / "progress.json").read_text())["progress"]["record"]
    return {
        "metrics": read_metrics(run_dir),
        "checkpoints": [checkpoint.path.name for checkpoint in list_checkpoints(run_dir)],
        "arrays": {
            item: {name: (str(x.dtype), x.shape, x.tobytes()) for name, x in arrays[item].items()}
            for item in items
        },
        "best": record["best_step"],
    }


def bits(model: nnx.Module | list[nnx.Module]) -> list:
    """The bytes of every array of a model, or of each of several."""
    if isinstance(model, list):
        return [bits(one) for one in model]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nnx.state(model))]
