"""Time of a token and size of the state, whatever came before: in one program, and from Python.

    python -m experiments.streaming.loop

The mechanisms alone, without projections: 8 heads of 64 channels, float32. In one program the
output of a step is the next step's token, for 1,024 to 65,536 tokens. From Python every step is
a call of one program, with the state's memory reused (donated) or not. Variants run in turns in
one process; figures are medians. Where other programs share the cores, long calls wait and
short ones hardly do: the time that this process computed, beside the time that passed, tells.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn import inference, ops
from flax_linattn.bench import provenance
from flax_linattn.bench.report import source_line

HERE = Path(__file__).parent
COMMAND = "python -m experiments.streaming.loop"
MECHANISMS = ("aaren", "elementwise_series:order=2", "elementwise_series:order=6")
LENGTHS = (1_024, 4_096, 16_384, 65_536)
BATCHES = (1, 8)
HEADS, CHANNELS = 8, 64


def step(mechanism: ops.Mechanism, token: Any, state: Any) -> tuple[Any, Any]:
    """One token [B, H, K] as its own query, key and value; Aaren's learned query is constant."""
    learned = mechanism.capabilities.learned_query
    q = jnp.linspace(-1.0, 1.0, HEADS * CHANNELS).reshape(HEADS, CHANNELS) if learned else token
    return mechanism.step(q, token, token, state)


def first(mechanism: ops.Mechanism, batch: int) -> tuple[Any, Any]:
    """A token and the empty state."""
    token = jax.random.normal(jax.random.key(0), (batch, HEADS, CHANNELS))
    return token, mechanism.init_state(batch, HEADS, CHANNELS, CHANNELS)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    """One call: its result, and the microseconds that passed and that this process computed."""
    begin = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(function(*arguments))
    end = time.perf_counter(), time.process_time()
    return result, 1e6 * (end[0] - begin[0]), 1e6 * (end[1] - begin[1])


def looped(mechanism: ops.Mechanism, length: int) -> Callable[..., Any]:
    """A program of ``length`` steps, each on the output of the one before."""

    def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return step(mechanism, *carry)

    return jax.jit(lambda token, state: jax.lax.fori_loop(0, length, body, (token, state)))


def in_one_program(name: str, rounds: int, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Microseconds a token of the loop inside jit, by length, and the state's bytes after it."""
    mechanism = ops.get_mechanism(name)
    begin = first(mechanism, 1)
    programs = {length: looped(mechanism, length) for length in lengths}
    ends = {length: program(*begin) for length, program in programs.items()}
    times: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}
    for _ in range(rounds):
        for length, program in programs.items():
            # A short program runs as often as gives the tokens of the longest.
            for _ in range(max(lengths) // length):
                _, passed, computed = timed(program, *begin)
                times[length].append((passed / length, computed / length))
    return [
        {
            "mechanism": name,
            "tokens": length,
            "us": statistics.median(passed for passed, _ in times[length]),
            "computed_us": statistics.median(computed for _, computed in times[length]),
            "state_bytes": inference.state_bytes(ends[length][1]),
            "finite": bool(jnp.isfinite(ends[length][0]).all()),
        }
        for length in lengths
    ]


def from_python(name: str, batch: int, rounds: int, calls: int) -> dict[str, Any]:
    """Microseconds of a call of the jitted step, with the state donated and not, in turns."""
    mechanism = ops.get_mechanism(name)

    def one(token: Any, state: Any) -> tuple[Any, Any]:
        return step(mechanism, token, state)

    programs = {"donated": jax.jit(one, donate_argnames="state"), "not_donated": jax.jit(one)}
    carries = {kind: program(*first(mechanism, batch)) for kind, program in programs.items()}
    times: dict[str, list[float]] = {kind: [] for kind in programs}
    for _ in range(rounds):
        for kind, program in programs.items():
            for _ in range(calls):
                carries[kind], passed, _ = timed(program, *carries[kind])
                times[kind].append(passed)
    medians = {f"{kind}_us": statistics.median(values) for kind, values in times.items()}
    return {"mechanism": name, "batch": batch, **medians}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    loops, steps = results["loop"], results["step"]
    lengths = list(dict.fromkeys(row["tokens"] for row in loops))
    heads = [f"{length:,} tokens" for length in lengths]
    lines = [
        f"| loop in one program, us a token: passed (computed) | {' | '.join(heads)} "
        "| slowest / fastest | state |",
        "|---" * (len(lengths) + 3) + "|",
    ]
    for name in dict.fromkeys(row["mechanism"] for row in loops):
        rows = [row for row in loops if row["mechanism"] == name]
        cells = [f"{row['us']:.2f} ({row['computed_us']:.2f})" for row in rows]
        sizes = {row["state_bytes"] for row in rows}
        state = " to ".join(f"{size:,} bytes" for size in sorted(sizes))
        ratios = f"{flatness(rows, 'us'):.2f} ({flatness(rows, 'computed_us'):.2f})"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratios} | {state} |")
    lines += ["", "| a step from Python, us | batch | donated | not donated |", "|---" * 4 + "|"]
    for row in steps:
        donated, kept = (f"{row[kind]:.1f}" for kind in ("donated_us", "not_donated_us"))
        lines.append(f"| {row['mechanism']} | {row['batch']} | {donated} | {kept} |")
    lines += ["", source_line(results)]
    return "\n".join(lines) + "\n"


def flatness(rows: list[dict[str, Any]], what: str) -> float:
    """The slowest token of a mechanism against the fastest, over the lengths."""
    values = [row[what] for row in rows]
    return max(values) / min(values)


def main() -> None:
    """Measures and writes loop.json and loop.md beside this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    loops, steps = [], []
    for name in MECHANISMS:
        loops += in_one_program(name, options.rounds, LENGTHS)
        steps += [from_python(name, batch, options.rounds, 300) for batch in BATCHES]
    results = provenance(COMMAND) | {"loop": loops, "step": steps}
    (options.output / "loop.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "loop.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
