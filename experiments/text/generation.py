"""Time and memory of generating a token by its position, for constant states and for a cache.

    python -m experiments.text.generation

Models of the size of the text task's default read a prompt of random bytes, then generate tokens
one at a time, as ``flax-linattn generate`` does. All models of a row run in turns in one process.
Weights are not trained: time and memory do not depend on them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.measured import Measured, Rows
from flax_linattn import inference, models
from flax_linattn.bench import Journal, run_in_turns
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks.text.options import TEXT_LAYERS

SOFTMAX = "softmax"
NUM_TOKENS = 257
"""Bytes and the token that ends a document."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names.
        positions: number of tokens before the generated ones.
        chunk_size: number of tokens of a chunk of the prompt.
        rounds: how often each model generates a token in the measurement.
        seconds: no further round of a row begins after so long, once there are three.
    """

    mechanisms: tuple[str, ...] = (
        SOFTMAX, "softmax:window=256", "aaren", "elementwise_series", "gated_delta", "taylorshift",
    )  # fmt: skip
    positions: tuple[int, ...] = (100, 10_000, 100_000)
    chunk_size: int = 1024
    rounds: int = 401
    seconds: float = 60.0


def measure(size: Size, journal: Journal) -> None:
    for position in size.positions:
        journal.row({"position": position}, partial(generate, size, position))


def generate(size: Size, position: int) -> dict[str, Any]:
    """Milliseconds of a token, and bytes of the state, at a position."""
    calls, states = {}, {}
    for mechanism in size.mechanisms:
        stream = start(size, mechanism, position)
        states[mechanism] = inference.state_bytes(stream.state)
        calls[mechanism] = next_token(stream)
    times = run_in_turns(calls, (), size.rounds, size.seconds)
    return {
        "milliseconds": {name: _deciles(each) for name, each in times.items()},
        "state_bytes": states,
    }


def start(size: Size, mechanism: str, position: int) -> inference.TokenStream:
    """A stream of tokens after a prompt of random bytes."""
    layers = dataclasses.replace(TEXT_LAYERS, mechanism=mechanism)
    model = models.LanguageModel(NUM_TOKENS, layers=layers, rngs=nnx.Rngs(0))
    model.eval()
    prompt = np.random.default_rng(0).integers(0, 256, (1, position), np.int32)
    return inference.generate_tokens(
        model,
        jnp.asarray(prompt),
        key=jax.random.key(0),
        max_length=position + 2 * (size.rounds + 1),  # each round runs twice
        chunk_size=size.chunk_size,
    )


def next_token(stream: inference.TokenStream) -> Callable[[], Any]:
    """A call that generates a token; the first one, which compiles, is made here."""
    call = partial(next, stream)
    call()
    call()
    return call


def table(rows: Rows, size: Size) -> str:
    """A line for each mechanism, and for each position its time and its state."""
    header = ["mechanism"]
    for row in rows:
        header += [f"ms at {row['position']:,}", f"bytes of state at {row['position']:,}"]
    lines = []
    for name in size.mechanisms:
        line = [name]
        for row in rows:
            line += [_milliseconds(row["milliseconds"][name]), f"{row['state_bytes'][name]:,}"]
        lines.append(line)
    layers = TEXT_LAYERS
    return "\n\n".join(
        [
            markdown(header, lines),
            f"One row, {layers.num_layers} blocks of {layers.features} features with "
            f"{layers.num_heads} heads, {NUM_TOKENS} tokens. Median time of a token (from the 10th "
            "to the 90th percentile), sampling and the transfer of the token included. A cache has "
            "a slot for each token.",
        ]
    )


def _deciles(times: list[float]) -> dict[str, float]:
    """The median, and the first and last decile."""
    low, *_, high = statistics.quantiles(times, n=10)
    return {"p10": low, "median": statistics.median(times), "p90": high}


def _milliseconds(times: dict[str, float]) -> str:
    return f"{number(times['median'])} ({number(times['p10'])} to {number(times['p90'])})"


EXPERIMENT = Measured(
    module="experiments.text.generation",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator, several rows at once, and a tokenizer"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
