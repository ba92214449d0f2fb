"""A training step of whole classifiers: ours, plain PyTorch's, plain Flax's.

    python -m experiments.efficiency.whole_models

Needs PyTorch beside this library. The model is Time-Series-Library's published classifier: three
post-norm layers of 128 features and 8 heads, RAdam on clipped gradients, dropout; every model sees
the past alone. Ours is what ``flax-linattn train classify --preset tslib`` compiles. Beside it the
same model in PyTorch and in Flax with their own attention, recurrent networks and a state-space
model of about as many parameters, and the products with weights alone, forward and backward, below
which no model of these sizes gets with XLA. All run in turns in one process on one core; ours and
PyTorch's transformer twice, which tells the noise of the machine. Times are those of this process
(CPU time), which leave out what others do on the core.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.efficiency import nnx_models, torch_models
from experiments.efficiency.programs import num_parameters
from experiments.efficiency.pytorch import import_torch
from experiments.measured import Measured, Rows
from experiments.options import configured
from flax_linattn import data, training
from flax_linattn.bench import Journal, compile_program, run_in_turns, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks.classify import ClassifyProblem
from flax_linattn.tasks.classify import model as classify_model
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.train_step import update_of

CHANNELS, CLASSES = 3, 10
AGAIN = ", the same again"
TRANSFORMER = "PyTorch, transformer"
PRODUCTS = "products with weights alone"
EPOCH = 1000
"""Sequences of what the table calls an epoch."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured.

    Attributes:
        lengths: T, and sequences of a batch.
        mechanisms: of our model.
        features: C; recurrent networks have as many as give them the parameters of the blocks.
        hidden: width of the feed-forward layers.
        num_layers: blocks, or recurrent networks.
        num_heads: of attention.
        rounds: how often each model is timed.
        seconds: no further round of a length begins after so long, once there are three.
        most_bytes: a program that needs more temporary memory is not run.
    """

    lengths: tuple[tuple[int, int], ...] = ((152, 16), (1000, 16), (4000, 4), (16_000, 1))
    mechanisms: tuple[str, ...] = (
        "aaren",
        "elementwise_series",
        "softmax",
        "taylorshift",
        "linear",
        "gated_linear",
    )
    features: int = 128
    hidden: int = 256
    num_layers: int = 3
    num_heads: int = 8
    rounds: int = 7
    seconds: float = 60.0
    most_bytes: float = 6e9


class Trained(NamedTuple):
    """A model in training.

    Attributes:
        step: does a training step, and waits for it; None if it does not run.
        facts: of its row.
    """

    step: Callable[[], Any] | None
    facts: dict[str, Any]


def measure(size: Size, journal: Journal) -> None:
    torch = import_torch()
    for length, batch_size in size.lengths:
        # At once, since models of a length run in turns; not at all if the journal has their rows.
        results = functools.cache(partial(of_length, size, length, batch_size))

        def result(name: str, results: Any = results) -> dict[str, Any]:
            return {"torch": torch.__version__} | results()[name]

        for name in models(size, length):
            key = {"length": length, "batch_size": batch_size, "model": name}
            journal.row(key, partial(result, name))


def of_length(size: Size, length: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """Every model's facts and milliseconds of a step."""
    batch = batch_of(length, batch_size)
    compile_program(lambda x: x + 1, (batch["values"],))  # what the first of a process pays
    trained = {name: make(batch) for name, make in models(size, length).items()}
    results = {name: one.facts for name, one in trained.items()}
    steps = {name: one.step for name, one in trained.items() if one.step is not None}
    for name in (size.mechanisms[0], TRANSFORMER):
        steps[name + AGAIN] = steps[name]
    timed = run_in_turns(steps, (), size.rounds, size.seconds, clock=time.process_time)
    for name, times in timed.items():
        of = name.removesuffix(AGAIN)
        results[of]["again" if name.endswith(AGAIN) else "milliseconds"] = spread(times)
    return results


def batch_of(length: int, batch_size: int) -> dict[str, np.ndarray]:
    """A batch of a data set of equal lengths."""
    rng = np.random.default_rng(0)
    return {
        "values": rng.normal(size=(batch_size, length, CHANNELS)).astype(np.float32),
        "mask": np.ones((batch_size, length), bool),
        "labels": rng.integers(0, CLASSES, batch_size).astype(np.int32),
    }


def models(size: Size, length: int) -> dict[str, Callable[[Any], Trained]]:
    """Functions of a batch, by the names of the models."""
    recurrent = {"GRU": ("GRUCell", 3), "LSTM": ("OptimizedLSTMCell", 4)}
    mixers = {"transformer": nnx_models.Attention, "S5": nnx_models.S5}
    made: dict[str, Callable[[Any], Trained]] = {
        mechanism: partial(ours, size, length, mechanism) for mechanism in size.mechanisms
    }
    made[PRODUCTS] = partial(products, size, length)
    made[TRANSFORMER] = partial(torch_transformer, size, length)
    made |= {
        f"PyTorch, {kind}": partial(torch_recurrent, size, length, kind, gates)
        for kind, (_, gates) in recurrent.items()
    }
    made |= {f"Flax, {name}": partial(flax_blocks, size, length, m) for name, m in mixers.items()}
    made |= {
        f"Flax, {kind}": partial(flax_recurrent, size, length, cell, gates)
        for kind, (cell, gates) in recurrent.items()
    }
    return made


def ours(size: Size, length: int, mechanism: str, batch: Any) -> Trained:
    """The step that a run of ``flax-linattn train classify`` compiles."""
    config = configured(
        "classify",
        preset="tslib",
        schedule="constant",
        mechanism=mechanism,
        features=size.features,
        hidden_features=size.hidden,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
    )
    channels, classes = (tuple(map(str, range(n))) for n in (CHANNELS, CLASSES))
    standardizer = data.Standardizer.fit(list(batch["values"]))
    problem = ClassifyProblem("random", channels, classes, (length,), standardizer)
    model = classify_model.build_classifier(config, problem)
    optimizer = classify_model.make_optimizer(config.fit, steps_per_epoch=1)
    graphdef, params, rest = split_model(model)
    update = update_of(
        graphdef, classify_model.classification_loss, optimizer, training.ONE_DEVICE, 0
    )
    state = TrainState.create(params, rest, optimizer, ("loss", "accuracy"))
    compiled, facts = compile_program(update, (state, batch, 0), donate_argnums=0)

    def step() -> Any:
        nonlocal state
        state = compiled(state, batch, 0)
        return state.step

    return checked(size, step, facts | {"parameters": num_parameters(model)})


def products(size: Size, length: int, batch: Any) -> Trained:
    """Tokens times the weights of the blocks and of the head, and their gradients."""
    features, rng = size.features, np.random.default_rng(0)
    block = [(features, features)] * 4 + [(features, size.hidden), (size.hidden, features)]
    shapes = [*block * size.num_layers, (length * features, CLASSES)]
    weights = [rng.normal(size=s, scale=s[0] ** -0.5).astype(np.float32) for s in shapes]
    tokens = rng.normal(size=(len(batch["labels"]) * length, features)).astype(np.float32)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        *inner, head = weights
        for weight in inner:
            x = x @ weight
        return jnp.sum(jnp.square(x.reshape(-1, length * features) @ head))

    compiled, facts = compile_program(jax.grad(loss), (weights, tokens))
    step = partial(compiled, jax.device_put(weights), jax.device_put(tokens))
    return checked(
        size,
        lambda: jax.block_until_ready(step()),
        facts | {"parameters": sum(w.size for w in weights)},
    )


def flax_blocks(size: Size, length: int, mixer: nnx_models.Mixer, batch: Any) -> Trained:
    """Blocks with a layer of ``nnx_models`` along time."""
    rngs = nnx.Rngs(0)
    layers: list[nnx.Module] = [
        nnx_models.Block(size.features, size.hidden, size.num_heads, mixer, rngs=rngs)
        for _ in range(size.num_layers)
    ]
    return flax(size, length, size.features, layers, rngs, batch)


def flax_recurrent(size: Size, length: int, cell: str, gates: int, batch: Any) -> Trained:
    """``nnx.RNN`` of a cell."""
    rngs, features = nnx.Rngs(0), recurrent_features(size, gates)
    layers: list[nnx.Module] = [
        nnx_models.Recurrent(getattr(nnx, cell), features, rngs) for _ in range(size.num_layers)
    ]
    return flax(size, length, features, layers, rngs, batch)


def flax(
    size: Size, length: int, features: int, layers: list[nnx.Module], rngs: nnx.Rngs, batch: Any
) -> Trained:
    """A training of Flax's classifier with such layers, as a user compiles it."""
    model = nnx_models.Classifier(CHANNELS, CLASSES, length, features, layers, rngs=rngs)
    fit = configured("classify").fit
    tx = optax.chain(optax.clip_by_global_norm(fit.clip_norm), optax.radam(fit.learning_rate))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    jax.clear_caches()
    begin = time.perf_counter()
    compiled = nnx_models.training_step().lower(model, optimizer, batch).compile()
    facts = {
        "compile_seconds": time.perf_counter() - begin,
        "temporary_bytes": compiled.compiled.memory_analysis().temp_size_in_bytes,
        "parameters": num_parameters(model),
    }
    return checked(size, partial(compiled, model, optimizer, batch), facts)


def torch_transformer(size: Size, length: int, batch: Any) -> Trained:
    """Blocks with PyTorch's fused attention."""
    torch = import_torch()
    block = torch_models.modules(torch).Block
    layers = [block(size.features, size.hidden, size.num_heads) for _ in range(size.num_layers)]
    return torch_trained(torch, length, size.features, layers, batch)


def torch_recurrent(size: Size, length: int, kind: str, gates: int, batch: Any) -> Trained:
    """``torch.nn.GRU`` or ``torch.nn.LSTM``, by name."""
    torch, features = import_torch(), recurrent_features(size, gates)
    recurrent = torch_models.modules(torch).Recurrent
    layers = [recurrent(getattr(torch.nn, kind), features) for _ in range(size.num_layers)]
    return torch_trained(torch, length, features, layers, batch)


def torch_trained(torch: Any, length: int, features: int, layers: Any, batch: Any) -> Trained:
    """A training of PyTorch's classifier with such layers."""
    model = torch_models.modules(torch).Classifier(CHANNELS, CLASSES, length, features, layers)
    fit = configured("classify").fit
    step = torch_models.training_step(torch, model, batch, fit.learning_rate, fit.clip_norm)
    return Trained(step, {"parameters": torch_models.num_parameters(model)})


def recurrent_features(size: Size, gates: int) -> int:
    """Of a network of two square matrices a gate, with the matrices' size of a block."""
    block = 4 * size.features**2 + 2 * size.features * size.hidden
    return 2 * round(math.sqrt(block / (2 * gates)) / 2)


def checked(size: Size, step: Callable[[], Any], facts: dict[str, Any]) -> Trained:
    """Only runs what the memory allows."""
    if facts["temporary_bytes"] > size.most_bytes:
        return Trained(None, facts | {"not_run": f"{facts['temporary_bytes'] / 1e9:.1f} GB"})
    return Trained(step, facts)


def table(rows: Rows, size: Size) -> str:
    heads = ["T", "batch", "model", "parameters", "ms a step", "least to most", "the same again"]
    heads += [f"s an epoch of {EPOCH:,}", "times as fast as PyTorch's transformer"]
    heads += ["compile, s", "memory, MB"]
    peers = {row["length"]: row["milliseconds"] for row in rows if row["model"] == TRANSFORMER}
    lines = []
    for row in rows:
        told = [f"{row['length']:,}", str(row["batch_size"]), row["model"]]
        told.append(f"{row['parameters']:,}")
        if "milliseconds" not in row:
            told += [f"not run: {row['not_run']}", *[""] * 4]
        else:
            ms = row["milliseconds"]
            told += [
                number(ms["median"]),
                f"{number(ms['least'])} to {number(ms['most'])}",
                number(row["again"]["median"]) if "again" in row else "",
                number(ms["median"] / 1e3 * EPOCH / row["batch_size"]),
                number(peers[row["length"]]["median"] / ms["median"]),
            ]
        told += [
            number(row["compile_seconds"]) if "compile_seconds" in row else "",
            number(row["temporary_bytes"] / 1e6) if "temporary_bytes" in row else "",
        ]
        lines.append(told)
    return f"{markdown(heads, lines)}\n\nPyTorch {rows[0]['torch']}."


EXPERIMENT = Measured(
    module="experiments.efficiency.whole_models",
    about="none of the papers has this table",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={
        "cpu": "the forecaster; torch.compile; PyTorch's memory, which it does not tell on a CPU; "
        "dropout on attention's weights, which a fused attention does not form; validation"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
