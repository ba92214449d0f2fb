"""Training steps and generated tokens of language models: this library and plain PyTorch.

    python -m experiments.efficiency.language_models

Needs PyTorch. Four pre-norm blocks of 256 features with 4 heads over a vocabulary of 256 bytes;
AdamW. PyTorch's model uses its fused attention, and a cache of keys and values to generate. All
models run in turns in one process on one core, PyTorch's twice, which shows the noise of the
machine. Times are CPU times of this process. Weights are not trained: time does not depend on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.efficiency import torch_models
from experiments.efficiency.programs import in_turns, num_parameters
from experiments.efficiency.pytorch import import_torch
from experiments.efficiency.trials import AGAIN, TRANSFORMER
from experiments.measured import Measured, Rows
from experiments.text.generation import next_token
from flax_linattn import inference, models
from flax_linattn.bench import Journal, compile_program, spread
from flax_linattn.bench.report import interval, markdown, number

FEATURES, HIDDEN, NUM_LAYERS, NUM_HEADS, VOCABULARY = 256, 1024, 4, 4, 256
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: Mechanisms of our models.
        lengths: Lengths T of the sequences of a training batch.
        batch_size: Number of sequences of a training batch.
        positions: Numbers of tokens that are read before one is generated.
        rounds: How often each training step is timed; a generated token is timed 20 times as often.
        seconds: Time budget of a row; after three rounds, no further round starts beyond it.
    """

    mechanisms: tuple[str, ...] = (
        "aaren", "linear", "retention", "softmax", "taylorshift", "gated_linear", "gated_delta",
    )  # fmt: skip
    lengths: tuple[int, ...] = (512,)
    batch_size: int = 8
    positions: tuple[int, ...] = (100, 1_000, 10_000)
    rounds: int = 5
    seconds: float = 60.0


def measure(size: Size, journal: Journal) -> None:
    for length in size.lengths:
        journal.row({"what": "training", "tokens": length}, partial(train, size, length))
    for position in size.positions:
        journal.row({"what": "generation", "tokens": position}, partial(generate, size, position))


def train(size: Size, length: int) -> dict[str, Any]:
    """Milliseconds of a training step of each model."""
    torch = import_torch()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (size.batch_size, length + 1), np.int32)
    steps, facts = {}, {}
    for mechanism in size.mechanisms:
        steps[mechanism], facts[mechanism] = our_step(mechanism, tokens)
    model = make_torch(torch)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    given = torch.from_numpy(tokens).long()

    def torch_step() -> None:
        optimizer.zero_grad()
        logits = model(given[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten()).backward()
        optimizer.step()

    facts[TRANSFORMER] = {"parameters": torch_models.num_parameters(model)}
    steps |= {TRANSFORMER: torch_step, TRANSFORMER + AGAIN: torch_step}
    return _timed(torch, steps, size.rounds, size.seconds) | {"facts": facts}


def our_step(mechanism: str, tokens: np.ndarray) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A function that runs a training step, and the memory and parameters of its program."""
    model = make_model(mechanism)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adamw(LEARNING_RATE)

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params, rest, copy=True)(tokens[:, :-1])
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]))

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    carry = (params, optimizer.init(params))
    compiled, facts = compile_program(step, (*carry, tokens), donate_argnums=(0, 1))

    def call() -> Any:
        nonlocal carry
        carry = compiled(*carry, tokens)
        return carry

    return call, facts | {"parameters": num_parameters(model)}


def generate(size: Size, position: int) -> dict[str, Any]:
    """Milliseconds of a generated token of each model, after a prompt."""
    torch = import_torch()
    rounds = 20 * size.rounds
    max_length = position + 2 * (rounds + 2)  # each round runs twice
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, (1, position), np.int32)
    calls, facts = {}, {}
    for mechanism in size.mechanisms:
        model = make_model(mechanism)
        model.eval()
        stream = inference.generate_tokens(
            model, jnp.asarray(prompt), max_length=max_length, chunk_size=1024
        )
        calls[mechanism] = next_token(stream)
        facts[mechanism] = {"state_bytes": inference.state_bytes(stream.state)}
    model = make_torch(torch)
    with torch.no_grad():
        for name in (TRANSFORMER, TRANSFORMER + AGAIN):
            caches = model.start(torch.from_numpy(prompt).long(), max_length)
            calls[name] = partial(model.next, caches)
        times = _timed(torch, calls, rounds, size.seconds)
    facts[TRANSFORMER] = {"state_bytes": sum(x.nbytes for pair in caches["kv"] for x in pair)}
    return times | {"facts": facts}


def make_model(mechanism: str) -> models.LanguageModel:
    """Makes our model with a mechanism, and four heads of 64 channels."""
    return models.LanguageModel(
        VOCABULARY,
        features=FEATURES,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS,
        hidden_features=HIDDEN,
        mechanism=mechanism,
        rngs=nnx.Rngs(0),
    )


def _timed(
    torch: Any, calls: dict[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, Any]:
    times = in_turns(calls, rounds, seconds)
    return {
        "torch": torch.__version__,
        "milliseconds": {name: spread(each) for name, each in times.items()},
    }


def make_torch(torch: Any) -> Any:
    """A transformer with fused attention in plain PyTorch, without positions."""
    nn: Any = torch.nn
    functional = torch.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.norm = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
            self.qkv, self.out = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
            self.expand, self.contract = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, FEATURES)

        def forward(self, h: Any, cache: Any = None, first: int = 0) -> Any:
            """h [B, T, C]; with a cache the keys and values from ``first`` on are stored in it."""
            q, k, v = (
                x.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
                for x in self.qkv(self.attention_norm(h)).chunk(3, -1)
            )
            if cache is not None:
                last = first + h.shape[1]
                for stored, new in zip(cache, (k, v), strict=True):
                    stored[:, :, first:last] = new
                k, v = (stored[:, :, :last] for stored in cache)
            causal = h.shape[1] > 1
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            h = h + self.out(y.transpose(1, 2).flatten(2))
            y = functional.gelu(self.expand(self.norm(h)), approximate="tanh")
            return h + self.contract(y)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, FEATURES)
            self.blocks = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
            self.norm = nn.LayerNorm(FEATURES)

        def forward(self, tokens: Any, caches: Any = None) -> Any:
            h = self.embedding(tokens)
            for index, block in enumerate(self.blocks):
                own = (caches["kv"][index], caches["length"]) if caches else ()
                h = block(h, *own)
            return self.norm(h) @ self.embedding.weight.T

        def start(self, prompt: Any, max_length: int) -> dict[str, Any]:
            """Caches that hold a prompt [1, T]."""
            shape = (1, NUM_HEADS, max_length, FEATURES // NUM_HEADS)
            pairs = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.blocks]
            caches = {"kv": pairs, "length": 0}
            caches["token"] = self(prompt, caches)[:, -1:].argmax(-1)
            caches["length"] = prompt.shape[1]
            return caches

        def next(self, caches: dict[str, Any]) -> int:
            """Generates the next token after those in the caches, the most likely one."""
            caches["token"] = self(caches["token"], caches)[:, -1:].argmax(-1)
            caches["length"] += 1
            return int(caches["token"])

    return Transformer()


def table(rows: Rows, size: Size) -> str:
    """One line per model: milliseconds, and speed relative to PyTorch's transformer."""
    header, columns = ["model"], []
    for row in rows:
        unit = "step" if row["what"] == "training" else "token"
        place = f"{row['tokens']:,} tokens"
        header += [f"ms a {unit}, {place}", "times as fast as PyTorch"]
        header += ["temporary, MB" if unit == "step" else "state, bytes"]
        columns.append(partial(_cells, row))
    names = [*size.mechanisms, TRANSFORMER]
    lines = [[name, *(cell for column in columns for cell in column(name))] for name in names]
    return f"{markdown(header, lines)}\n\nPyTorch {rows[0]['torch']}."


def _cells(row: dict[str, Any], name: str) -> list[str]:
    times, facts = row["milliseconds"], row["facts"][name]
    peer, again = times[TRANSFORMER], times[TRANSFORMER + AGAIN]
    ratio = peer["median"] / times[name]["median"]
    if name == TRANSFORMER:
        ratio = peer["median"] / again["median"]
    memory = "-"
    if "temporary_bytes" in facts:
        memory = number(facts["temporary_bytes"] / 1e6)
    elif "state_bytes" in facts:
        memory = f"{facts['state_bytes']:,}"
    return [interval(list(times[name].values())), number(ratio), memory]


EXPERIMENT = Measured(
    module="experiments.efficiency.language_models",
    extras="plots,peers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={
        "cpu": "an accelerator, torch.compile, and PyTorch's memory, which it does not report on a "
        "CPU"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
