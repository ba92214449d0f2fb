"""Gated mechanisms: time, memory, step and state compared with softmax, linear and a scan.

    python -m experiments.efficiency.gated

Gates come from a newly initialized layer, with noise (``bench.inputs``). The scan is
``jax.lax.scan`` over the steps of a mechanism, differentiated by JAX: the straightforward
implementation. All run in turns in one process. Other implementations in JAX need a newer Python
than 3.11, or a TPU; the kernels of flash-linear-attention need a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from experiments.efficiency.programs import each_pass
from experiments.measured import Measured, Rows
from experiments.rules import Range
from flax_linattn import ops
from flax_linattn.bench import (
    Journal,
    baselines,
    compare,
    compile_program,
    inputs,
    run_in_turns,
    spread,
)
from flax_linattn.bench.comparison import GATED, OURS, PASSES, mechanism
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

MECHANISMS = (*GATED, "aaren")
SOFTMAX, LINEAR, LOOP = "softmax", "linear", "a loop over tokens"
PEERS = (SOFTMAX, LINEAR, LOOP)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names.
        shapes: B and T.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
        steps: how often a step is timed.
        memory_gb: a program that needs more temporary memory is not run.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    shapes: tuple[tuple[int, int], ...] = ((8, 512), (1, 4096))
    num_heads: int = 8
    dim: int = 64
    rounds: int = 5
    seconds: float = 3.0
    steps: int = 200
    memory_gb: float = 4.0


def measure(size: Size, journal: Journal) -> None:
    each_pass(size, journal, sequences)
    journal.row({"what": "steps"}, partial(steps, size))


def sequences(
    size: Size, name: str, batch_size: int, length: int, which: str
) -> dict[str, dict[str, Any]]:
    """Costs of a mechanism and its peers over whole sequences."""
    ours = ops.get_mechanism(name)
    others = {LINEAR: mechanism("linear", is_causal=True), SOFTMAX: baselines.softmax_xla}
    programs = {OURS: mechanism(name, is_causal=True), **baselines.adapt_peers(name, others)}
    if ours.capabilities.constant_memory:
        programs[LOOP] = baselines.loop(name)
    arrays = inputs(ours, length, batch_size=batch_size, num_heads=size.num_heads, dim=size.dim)
    results = compare(
        {peer: PASSES[which](program) for peer, program in programs.items()},
        arrays,
        size.rounds,
        seconds=size.seconds,
        memory_limit=1e9 * size.memory_gb,
    )
    return {"results": results}


def steps(size: Size) -> dict[str, dict[str, Any]]:
    """Costs of one token of one row; caches have room for the longest sequence."""
    max_length = max(length for _, length in size.shapes)
    calls, results = {}, {}
    for name in dict.fromkeys((*size.mechanisms, LINEAR, SOFTMAX)):
        one = ops.get_mechanism(name)
        state = one.init_state(1, size.num_heads, size.dim, size.dim, max_length)
        results[name] = {"state_bytes": sum(x.nbytes for x in jax.tree.leaves(state))}
        arrays = inputs(one, 1, num_heads=size.num_heads, dim=size.dim)
        calls[name] = stream(one, state, arrays)
    for name, times in run_in_turns(calls, (), size.steps).items():
        results[name]["microseconds"] = spread([1e3 * time for time in times])
    return {"results": results}


def stream(one: ops.Mechanism, state: Any, arrays: list[Array]) -> Callable[[], Array]:
    """A function that takes in the same token again, in place, and gives its output."""
    q, k, v, gates = baselines.by_name(one, arrays)
    token = {name: x[:, 0] for name, x in {"k": k, "v": v, **gates}.items()}
    token["q"] = q if one.capabilities.learned_query else q[:, 0]

    def step(state: Any, token: dict[str, Array]) -> Any:
        return one.step(state=state, **token)

    compiled, _ = compile_program(step, (state, token), donate_argnums=0)

    def take() -> Array:
        nonlocal state
        y, state = compiled(state, token)
        return y

    return take


def table(rows: Rows, size: Size) -> str:
    whole = [row for row in rows if "pass" in row]
    heads = ["mechanism", "B x T", "pass", "ms", "temporary MB"]
    for peer in PEERS:
        heads += [f"{peer}: relative time", "relative memory"]
    lines = []
    for row in whole:
        ours = row["results"][OURS]
        line = [row["mechanism"], f"{row['batch_size']} x {row['tokens']:,}", row["pass"]]
        line += [_time(ours), number(ours["temporary_bytes"] / 1e6)]
        for peer in PEERS:
            line += _ratios(row["results"].get(peer), ours)
        lines.append(line)
    streams = next(row["results"] for row in rows if row.get("what") == "steps")
    one = [
        [
            name,
            Range.of(result["microseconds"]).text(),
            number(result["state_bytes"] / 1e3),
        ]
        for name, result in streams.items()
    ]
    max_length = max(length for _, length in size.shapes)
    caches = f"state, kB (caches of {max_length:,} tokens)"
    return "\n\n".join([markdown(heads, lines), markdown(["stream", "step, us", caches], one)])


def _time(result: dict[str, Any]) -> str:
    if "milliseconds" not in result:
        return str(result["not_run"])
    return Range.of(result["milliseconds"]).text()


def _ratios(peer: dict[str, Any] | None, ours: dict[str, Any]) -> list[str]:
    """How many times as long, and times the memory, a peer takes; the spread is that of both."""
    if peer is None:
        return ["-", "-"]
    memory = number(peer["temporary_bytes"] / max(1, ours["temporary_bytes"]))
    if "milliseconds" not in peer or "milliseconds" not in ours:
        return [_time(peer), memory]
    ratio = Range.of(peer["milliseconds"]).over(Range.of(ours["milliseconds"]))
    return [ratio.text(), memory]


EXPERIMENT = Measured(
    module="experiments.efficiency.gated",
    about="the papers time kernels of their own on GPUs; none compares on a CPU",
    sizes={
        "cpu": Size(),
        "paper": Size(shapes=((8, 2048), (4, 4096), (1, 16384)), rounds=20, memory_gb=40.0),
    },
    measure=measure,
    table=table,
    left_out={
        "cpu": "longer sequences, for lack of time; flash-linear-attention, because no GPU was "
        "available",
        "paper": "flash-linear-attention's kernels, which another experiment measures in part",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
