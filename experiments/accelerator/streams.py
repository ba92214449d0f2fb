"""Steps per second of a model as a recurrent network, by batch size.

    python -m experiments.accelerator.streams

``Stream.step`` is one program per token, called from Python; ``unroll`` is a loop over tokens in
one program. Caches have the capacity for all tokens of a round.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from functools import partial
from typing import Any

import jax
from flax import nnx

from experiments.efficiency.programs import observations
from experiments.measured import Measured, Rows
from flax_linattn import inference, models
from flax_linattn.bench import Journal, compile_program, memory_limit, spread
from flax_linattn.bench.report import markdown, number

MECHANISMS = (
    "aaren",
    "elementwise_series:order=6",
    "taylorshift",
    "linear",
    "gated_linear",
    "gated_delta",
    "rwkv",
    "softmax",
)
CHANNELS = 16
STREAM, UNROLL = "Stream.step", "unroll"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: with hyperparameters.
        rows: B.
        num_layers: of the model.
        features: of the model, with 64 channels a head.
        tokens: of a round.
        rounds: how often they are timed.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    rows: tuple[int, ...] = (1, 8, 64, 512, 4096)
    num_layers: int = 4
    features: int = 512
    tokens: int = 256
    rounds: int = 5


def measure(size: Size, journal: Journal) -> None:
    for mechanism in size.mechanisms:
        for rows in size.rows:
            for how in (STREAM, UNROLL):
                key = {"mechanism": mechanism, "rows": rows, "how": how}
                journal.row(key, partial(measure_rows, size, mechanism, rows, how))


def measure_rows(size: Size, mechanism: str, rows: int, how: str) -> dict[str, Any]:
    """Costs of a step of all rows."""
    model = models.Backbone(
        CHANNELS,
        size.features,
        num_layers=size.num_layers,
        num_heads=max(1, size.features // 64),
        hidden_features=4 * size.features,
        mechanism=mechanism,
        rngs=nnx.Rngs(0),
    )
    made = jax.eval_shape(lambda: model.init_state(rows, max_length=size.tokens))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made))
    if 2 * state > memory_limit():  # the old one and the new
        return {"state_bytes": state, "not_run": f"a state of {state / 1e9:.0f} GB"}
    try:
        costs = by_stream(size, model, rows) if how == STREAM else by_unroll(size, model, rows)
    except RuntimeError as error:  # it does not fit
        return {"state_bytes": state, "not_run": str(error).splitlines()[0][:120]}
    second = 1e3 / costs["milliseconds"]["median"]
    rate = {"steps_per_second": second, "tokens_per_second": rows * second}
    return {"state_bytes": state, **costs, **rate}


def by_stream(size: Size, model: Any, rows: int) -> dict[str, Any]:
    """Milliseconds of ``Stream.step``: medians of rounds."""
    facts = compiled_step(size, model, rows)
    stream = inference.Stream(model, batch_size=rows, max_length=size.tokens)
    x = observations(rows, CHANNELS)
    jax.block_until_ready(stream.step(x))
    medians = []
    for _ in range(size.rounds):
        stream.reset()
        times = []
        for _ in range(size.tokens):
            begin = time.perf_counter()
            jax.block_until_ready(stream.step(x))
            times.append(1e3 * (time.perf_counter() - begin))
        medians.append(statistics.median(times))
    return facts | {"milliseconds": spread(medians)}


def compiled_step(size: Size, model: Any, rows: int) -> dict[str, Any]:
    """Memory and compile time of the model's step."""
    graph, variables = nnx.split(model)

    def step(variables: Any, state: Any, x: jax.Array) -> Any:
        return nnx.merge(graph, variables).step(x, state)

    state = jax.eval_shape(lambda: model.init_state(rows, max_length=size.tokens))
    arguments = (variables, state, observations(rows, CHANNELS))
    return compile_program(step, arguments, donate_argnums=1)[1]


def by_unroll(size: Size, model: Any, rows: int) -> dict[str, Any]:
    """Milliseconds a token of ``unroll``."""
    graph, variables = nnx.split(model)

    def loop(variables: Any, x: jax.Array) -> Any:
        return inference.unroll(nnx.merge(graph, variables), x, max_length=size.tokens)

    x = observations(rows, size.tokens, CHANNELS)
    compiled, facts = compile_program(loop, (variables, x))
    jax.block_until_ready(compiled(variables, x))
    times = []
    for _ in range(size.rounds):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(variables, x))
        times.append(1e3 * (time.perf_counter() - begin) / size.tokens)
    return facts | {"milliseconds": spread(times)}


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "rows", "by", "ms per step (min - max)", "steps/s", "tokens/s"]
    lines = []
    for row in rows:
        line = [row["mechanism"], f"{row['rows']:,}", f"`{row['how']}`"]
        if "not_run" in row:
            line += [row["not_run"], "-", "-"]
        else:
            times = [number(row["milliseconds"][name]) for name in ("median", "min", "max")]
            line += [f"{times[0]} ({times[1]} - {times[2]})"]
            line += [number(row["steps_per_second"]), number(row["tokens_per_second"])]
        lines.append([*line, number(row["state_bytes"] / 1e6)])
    return markdown([*heads, "state, MB"], lines)


EXPERIMENT = Measured(
    module="experiments.accelerator.streams",
    about="none of the papers counts rows",
    sizes={"paper": Size()},
    measure=measure,
    table=table,
    left_out={"paper": "half precision; caches of more than 256 tokens"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
