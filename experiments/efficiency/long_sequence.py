"""One sequence of a million tokens through a transformer, split over eight devices.

    python -m experiments.efficiency.long_sequence

On a CPU the eight devices are simulated. Memory is a device's own, and communication what arrives
at it, both read from the compiled programs; times of simulated devices, which share the same cores,
say nothing about real ones.
"""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.efficiency.programs import forward, observations, training_step
from experiments.efficiency.runner import Experiment, Rows
from flax_linattn import models, ops, training
from flax_linattn.bench import Journal, communicated, compile_program, run_in_turns, spread
from flax_linattn.bench.report import markdown, number

MECHANISMS = ("aaren", "elementwise_series:order=6")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    tokens: tuple[int, ...] = (2**17, 2**20)
    devices: tuple[int, ...] = (1, 8)
    num_layers: int = 4
    features: int = 32
    num_heads: int = 4
    rounds: int = 1
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


PASSES = {"outputs": forward, "loss and gradients": training_step}


def measure(size: Size, journal: Journal) -> None:
    for mechanism in MECHANISMS:
        for tokens in size.tokens:
            for which in PASSES:
                kept: dict[str, Any] = {}
                for devices in size.devices:
                    key = {"mechanism": mechanism, "tokens": tokens, "pass": which}
                    key |= {"devices": devices}
                    journal.row(
                        key, partial(measure_one, size, mechanism, tokens, which, devices, kept)
                    )


def measure_one(
    size: Size, mechanism: str, tokens: int, which: str, devices: int, kept: dict[str, Any]
) -> dict[str, Any]:
    """Facts of the program, its time, and how far its results are from those kept."""
    placement = training.Parallel("jit", {"seq": devices}).place(1)
    run, params = PASSES[which](build(mechanism, size, placement))
    batch = placement.batch({"values": np.asarray(observations(1, tokens, 4))})
    arguments = (placement.state(params), batch["values"])
    compiled, facts = compile_program(run, arguments)
    facts["communicated"] = communicated(compiled)
    needed = facts["total_bytes"] * devices
    if needed > size.memory_limit:
        return facts | {"not_run": f"needs {needed / 1e9:.0f} GB"}
    results = jax.tree.leaves(jax.device_get(compiled(*arguments)))
    if "results" in kept:
        pairs = zip(results, kept["results"], strict=True)
        errors = [np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs]
        facts["error"] = float(max(errors))
    else:
        kept["results"] = results
    times = run_in_turns({"run": compiled}, arguments, size.rounds)["run"]
    return facts | {"milliseconds": spread(times)}


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "tokens", "pass", "devices", "temporary MB a device"]
    heads += ["MB received by a device", "largest difference from one device", "s"]
    lines = []
    for row in rows:
        seconds = row["milliseconds"]["median"] / 1e3 if "milliseconds" in row else row["not_run"]
        lines.append(
            [
                row["mechanism"],
                f"{row['tokens']:,}",
                row["pass"],
                str(row["devices"]),
                number(row["temporary_bytes"] / 1e6),
                number(sum(row["communicated"].values()) / 1e6),
                f"{row['error']:.1e}" if "error" in row else "-",
                seconds if isinstance(seconds, str) else number(seconds),
            ]
        )
    return markdown(heads, lines)


EXPERIMENT = Experiment(
    name="long_sequence",
    paper="none of the papers splits sequences",
    sizes={"cpu": Size(), "paper": Size(features=512, num_heads=8)},
    measure=measure,
    table=table,
    draw=None,
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
