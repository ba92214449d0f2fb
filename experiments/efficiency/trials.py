"""Training steps of whole models: this library, plain PyTorch and plain Flax.

Needs PyTorch. Our step is the one that ``flax-linattn train`` compiles. It is compared with the
same model in PyTorch and in Flax with their own attention, and with recurrent networks and a
state-space model with about as many parameters. A lower bound for XLA at these sizes is the time of
the matrix products with weights alone, forward and backward. Every model is causal. All run in
turns in one process on one core, our first model and PyTorch's transformer twice, which shows the
noise of the machine. Times are CPU times of this process, which exclude other processes on the
core.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.efficiency import nnx_models, torch_models
from experiments.efficiency.programs import in_turns, num_parameters
from experiments.efficiency.pytorch import import_torch
from experiments.options import task_config
from flax_linattn import training
from flax_linattn.bench import compile_program, spread
from flax_linattn.tasks import get_task
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import make_update
from flax_linattn.training.validation import metric_names

AGAIN = ", the same again"
TRANSFORMER = "PyTorch, transformer"
PRODUCTS = "products with weights alone"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        lengths: T, and sequences of a batch.
        mechanisms: of our model.
        features: C; recurrent networks have as many as give them the parameters of the blocks.
        hidden: width of the feed-forward layers.
        num_layers: blocks, or recurrent networks.
        num_heads: of attention.
        rounds: how often each model is timed.
        seconds: no further round of a length begins after so long, once there are three.
        max_temporary_bytes: a program that needs more temporary memory is not run.
    """

    lengths: tuple[tuple[int, int], ...]
    mechanisms: tuple[str, ...] = (
        "aaren",
        "elementwise_series",
        "softmax",
        "taylorshift",
        "linear",
        "gated_linear",
    )
    features: int
    hidden: int
    num_layers: int
    num_heads: int = 8
    rounds: int = 7
    seconds: float = 60.0
    max_temporary_bytes: float = 6e9


class LearningTask(NamedTuple):
    """The task that the models learn.

    Attributes:
        task: the name of ours, whose options, loss and optimizer all models share.
        options: of its runs on T observations, but for the sizes of layers.
        data_spec: what such a run knows of its data.
        batch: of T and B the arrays of a batch by name.
        head: of ``nnx_models`` and ``torch_models``, the class that stands on an encoder.
        outputs: classes, or the horizon.
        num_channels: of an observation.
        num_logits: of the head's linear layer.
        read: what that layer sees of h [B, T, C].
        torch_optimizer: the optimizer by its name in ``torch.optim``.
    """

    task: str
    options: Callable[[int], dict[str, Any]]
    data_spec: Callable[[int], Any]
    batch: Callable[[int, int], dict[str, np.ndarray]]
    head: str
    outputs: int
    num_channels: int
    num_logits: int
    read: Callable[[jax.Array], jax.Array]
    torch_optimizer: str


class TrainedModel(NamedTuple):
    """A model in training and its costs.

    Attributes:
        step: does a training step, and waits for it; None if it does not run.
        facts: of its row.
    """

    step: Callable[[], Any] | None
    facts: dict[str, Any]


class Trial:
    """Models that learn the same, from sequences of one length.

    Args:
        learned: what they learn.
        size: of them.
        length: T.
        batch_size: B.
    """

    def __init__(self, learned: LearningTask, size: Size, length: int, batch_size: int) -> None:
        self.learned, self.size, self.length = learned, size, length
        self.batch = learned.batch(length, batch_size)
        self.task = get_task(learned.task)
        self.config = task_config(
            learned.task,
            **learned.options(length),
            features=size.features,
            hidden_features=size.hidden,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
        )
        self.data_spec = learned.data_spec(length)
        self.objective: training.Objective = self.task.objective(self.config, self.data_spec, 1)

    def results(self) -> dict[str, dict[str, Any]]:
        """Every model's facts and milliseconds of a step."""
        # What the first program of a process pays.
        compile_program(lambda x: x + 1, (self.batch["values"],))
        models = {name: make() for name, make in self.models().items()}
        results = {name: one.facts for name, one in models.items()}
        steps = {name: one.step for name, one in models.items() if one.step is not None}
        for name in (self.size.mechanisms[0], TRANSFORMER):
            if name in steps:
                steps[name + AGAIN] = steps[name]
        for name, times in in_turns(steps, self.size.rounds, self.size.seconds).items():
            of = name.removesuffix(AGAIN)
            results[of]["again" if name.endswith(AGAIN) else "milliseconds"] = spread(times)
        return results

    def models(self) -> dict[str, Callable[[], TrainedModel]]:
        """Constructors of all models, by name."""
        recurrent = {"GRU": ("GRUCell", 3), "LSTM": ("OptimizedLSTMCell", 4)}
        mixers = {"transformer": nnx_models.Attention, "S5": nnx_models.S5}
        made: dict[str, Callable[[], TrainedModel]] = {
            mechanism: partial(self.ours, mechanism) for mechanism in self.size.mechanisms
        }
        made |= {PRODUCTS: self.products, TRANSFORMER: self.torch_transformer}
        made |= {
            f"PyTorch, {kind}": partial(self.torch_recurrent, kind, gates)
            for kind, (_, gates) in recurrent.items()
        }
        made |= {
            f"Flax, {name}": partial(self.flax_blocks, mixer) for name, mixer in mixers.items()
        }
        made |= {
            f"Flax, {kind}": partial(self.flax_recurrent, cell, gates)
            for kind, (cell, gates) in recurrent.items()
        }
        return made

    def ours(self, mechanism: str) -> TrainedModel:
        """The step that a run of ``flax-linattn train`` compiles."""
        loss, optimizer = self.objective.loss, self.objective.optimizer
        model = self.task.model(self.config.replace(mechanism=mechanism), self.data_spec)
        names = metric_names(model, loss, self.batch)
        graphdef, params, rest = split_model(model)
        update = make_update(graphdef, loss, optimizer, training.ONE_DEVICE, 0)
        state = TrainState.create(params, rest, optimizer, names)
        compiled, facts = compile_program(update, (state, self.batch, 0), donate_argnums=0)

        def step() -> Any:
            nonlocal state
            state = compiled(state, self.batch, 0)
            return state.step

        return self._checked(step, facts | {"parameters": num_parameters(model)})

    def products(self) -> TrainedModel:
        """Tokens times the weights of the blocks and of the head, and their gradients."""
        size, learned, rng = self.size, self.learned, np.random.default_rng(0)
        batch_size = len(self.batch["values"])
        h = jax.ShapeDtypeStruct((batch_size, self.length, size.features), np.float32)
        block = [(size.features,) * 2] * 4 + [(size.features, size.hidden)]
        block += [(size.hidden, size.features)]
        head = (jax.eval_shape(learned.read, h).shape[-1], learned.num_logits)
        shapes = [*block * size.num_layers, head]
        weights = [rng.normal(size=s, scale=s[0] ** -0.5).astype(np.float32) for s in shapes]
        tokens = rng.normal(size=(math.prod(h.shape[:2]), size.features)).astype(np.float32)

        def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
            *inner, head = weights
            for weight in inner:
                x = x @ weight
            return jnp.sum(jnp.square(learned.read(x.reshape(h.shape)) @ head))

        compiled, facts = compile_program(jax.grad(loss), (weights, tokens))
        step = partial(compiled, jax.device_put(weights), jax.device_put(tokens))
        return self._checked(
            lambda: jax.block_until_ready(step()),
            facts | {"parameters": sum(w.size for w in weights)},
        )

    def flax_blocks(self, mixer: nnx_models.Mixer) -> TrainedModel:
        """Blocks with a layer of ``nnx_models`` along time."""
        size, rngs = self.size, nnx.Rngs(0)
        layers: list[nnx.Module] = [
            nnx_models.Block(size.features, size.hidden, size.num_heads, mixer, rngs=rngs)
            for _ in range(size.num_layers)
        ]
        return self._flax(size.features, layers, rngs)

    def flax_recurrent(self, cell: str, gates: int) -> TrainedModel:
        """Recurrent layers: ``nnx.RNN`` of a cell."""
        rngs, features = nnx.Rngs(0), self._recurrent_features(gates)
        layers: list[nnx.Module] = [
            nnx_models.Recurrent(getattr(nnx, cell), features, rngs)
            for _ in range(self.size.num_layers)
        ]
        return self._flax(features, layers, rngs)

    def _flax(self, features: int, layers: list[nnx.Module], rngs: nnx.Rngs) -> TrainedModel:
        """A training of Flax's model with such layers, as a user compiles it."""
        learned = self.learned
        encoder = nnx_models.Encoder(learned.num_channels, self.length, features, layers, rngs=rngs)
        model = getattr(nnx_models, learned.head)(encoder, learned.outputs, rngs=rngs)
        optimizer = nnx.Optimizer(model, self.objective.optimizer, wrt=nnx.Param)
        jax.clear_caches()
        begin = time.perf_counter()
        compiled = nnx_models.training_step().lower(model, optimizer, self.batch).compile()
        facts = {
            "compile_seconds": time.perf_counter() - begin,
            "temporary_bytes": compiled.compiled.memory_analysis().temp_size_in_bytes,
            "parameters": num_parameters(model),
        }
        return self._checked(partial(compiled, model, optimizer, self.batch), facts)

    def torch_transformer(self) -> TrainedModel:
        """Blocks with PyTorch's fused attention."""
        size, block = self.size, torch_models.modules(import_torch()).Block
        blocks = [block(size.features, size.hidden, size.num_heads) for _ in range(size.num_layers)]
        return self._torch(size.features, blocks)

    def torch_recurrent(self, kind: str, gates: int) -> TrainedModel:
        """``torch.nn.GRU`` or ``torch.nn.LSTM``, by name."""
        torch, features = import_torch(), self._recurrent_features(gates)
        recurrent = torch_models.modules(torch).Recurrent
        layers = [recurrent(getattr(torch.nn, kind), features) for _ in range(self.size.num_layers)]
        return self._torch(features, layers)

    def _torch(self, features: int, layers: list[Any]) -> TrainedModel:
        """A training of PyTorch's model with such layers."""
        torch, learned, options = import_torch(), self.learned, self.config.fit.optimizer
        modules = torch_models.modules(torch)
        encoder = modules.Encoder(learned.num_channels, self.length, features, layers)
        model = getattr(modules, learned.head)(encoder, learned.outputs)
        optimizer = getattr(torch.optim, learned.torch_optimizer)(
            model.parameters(), lr=options.learning_rate
        )
        step = torch_models.training_step(torch, model, optimizer, options.clip_norm, self.batch)
        return TrainedModel(step, {"parameters": torch_models.num_parameters(model)})

    def _recurrent_features(self, gates: int) -> int:
        """Of a network of two square matrices a gate, with the matrices' size of a block."""
        block = 4 * self.size.features**2 + 2 * self.size.features * self.size.hidden
        return 2 * round(math.sqrt(block / (2 * gates)) / 2)

    def _checked(self, step: Callable[[], Any], facts: dict[str, Any]) -> TrainedModel:
        """Only runs what the memory allows."""
        if facts["temporary_bytes"] > self.size.max_temporary_bytes:
            return TrainedModel(
                None, facts | {"not_run": f"{facts['temporary_bytes'] / 1e9:.1f} GB"}
            )
        return TrainedModel(step, facts)
