"""A transformer on one sequence of a million tokens, split over eight devices.

    python -m experiments.efficiency.long_sequence

On a CPU the eight devices are simulated. Memory is that of each device, and communication is the
bytes that each device receives; both are read from the compiled programs. Simulated devices share
the same cores, so their times say nothing about real devices.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.efficiency.programs import forward, observations
from experiments.measured import Measured, Rows
from flax_linattn import models, ops, training
from flax_linattn.bench import Journal, communication_bytes, compile_program
from flax_linattn.bench.report import markdown, number

MECHANISMS = ("aaren", "elementwise_series:order=6")


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    tokens: tuple[int, ...] = (2**17, 2**20)
    devices: tuple[int, ...] = (1, 8)
    num_layers: int = 4
    features: int = 32
    num_heads: int = 4
    memory_limit: float = 18e9


def build(mechanism: str, size: Size, placement: training.Placement) -> models.Backbone:
    """A causal transformer that computes on these devices."""
    return models.Backbone(
        4,
        size.features,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        hidden_features=2 * size.features,
        mechanism=placement.mechanism(ops.get_mechanism(mechanism)),
        kernel_size=1,
        rngs=nnx.Rngs(0),
    )


def training_step(model: nnx.Module) -> tuple[Callable[..., Any], Any]:
    """``step(params, x)``, loss and gradients of putting the input out again; the parameters."""
    apply, params = forward(model)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(params, x)[..., : x.shape[-1]] - x))

    return jax.value_and_grad(loss), params


PASSES = {"outputs": forward, "loss and gradients": training_step}


def measure(size: Size, journal: Journal) -> None:
    for mechanism in MECHANISMS:
        for tokens in size.tokens:
            for which in PASSES:
                one = partial(execute, size, mechanism, tokens, which)
                reference = functools.cache(partial(one, min(size.devices)))
                for devices in size.devices:
                    key = {"mechanism": mechanism, "tokens": tokens, "pass": which}
                    key |= {"devices": devices}
                    alone = devices == min(size.devices)
                    program = reference if alone else partial(one, devices)
                    journal.row(key, partial(compare, program, reference))


Ran = tuple[dict[str, Any], list[Any] | None]


def compare(measure_one: Callable[[], Ran], reference: Callable[[], Ran]) -> dict[str, Any]:
    """Facts of a program, and how far its results are from others.

    The error counts relative to the largest result: some gradients are 0 but for rounding.
    """
    (facts, results), (_, expected) = measure_one(), reference()
    if results is None or expected is None:
        return facts
    scale = max(np.max(np.abs(x)) for x in expected)
    errors = [np.max(np.abs(a - b)) for a, b in zip(results, expected, strict=True)]
    return facts | {"error": float(max(errors) / scale)}


def execute(size: Size, mechanism: str, tokens: int, which: str, devices: int) -> Ran:
    """Facts of the program, and its results where it fits."""
    placement = training.Parallel("jit", {"seq": devices}).place(1)
    program, params = PASSES[which](build(mechanism, size, placement))
    batch = placement.batch({"values": np.asarray(observations(1, tokens, 4))}, 1)
    arguments = (placement.state(params), batch["values"])
    compiled, facts = compile_program(program, arguments)
    facts["communication_bytes"] = communication_bytes(compiled)
    needed = facts["total_bytes"] * devices
    if needed > size.memory_limit:
        return facts | {"not_run": f"needs {needed / 1e9:.0f} GB"}, None
    begin = time.perf_counter()
    results = jax.tree.leaves(jax.block_until_ready(compiled(*arguments)))
    facts["seconds"] = time.perf_counter() - begin
    return facts, jax.device_get(results)


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "tokens", "pass", "devices", "temporary MB per device"]
    heads += ["MB received per device", "largest difference from one device", "s"]
    lines = []
    for row in rows:
        ran = "seconds" in row
        compared = "error" in row and row["devices"] > min(size.devices)
        lines.append(
            [
                row["mechanism"],
                f"{row['tokens']:,}",
                row["pass"],
                str(row["devices"]),
                number(row["temporary_bytes"] / 1e6),
                number(sum(row["communication_bytes"].values()) / 1e6),
                f"{row['error']:.1e}" if compared else "-",
                number(row["seconds"]) if ran else row["not_run"],
            ]
        )
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.long_sequence",
    about="none of the papers splits sequences",
    sizes={"cpu": Size(), "paper": Size(features=512, num_heads=8)},
    measure=measure,
    table=table,
    left_out={"cpu": "real devices: times are of eight simulated ones", "paper": "nothing"},
)

if __name__ == "__main__":
    # Simulated devices share the cores, and wait for each other longer than real ones.
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + " --xla_cpu_collective_call_terminate_timeout_seconds=3600"
    )
    jax.config.update("jax_num_cpu_devices", max(Size().devices))
    EXPERIMENT.main()
