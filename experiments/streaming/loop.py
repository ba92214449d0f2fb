"""Time per token and size of the state, by the number of tokens: in one program, and from Python.

    python -m experiments.streaming.loop

The mechanisms alone, without projections: 8 heads of 64 channels, float32. In one program, the
output of a step is the next step's token, for 1,024 to 65,536 tokens. From Python, every step is a
call of one program, with or without donation of the state's memory. Variants run in turns in one
process, and numbers are medians. If other programs share the cores, they delay long calls much more
than short ones: compare the CPU time of this process with the elapsed time.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.measured import Measured, Rows
from experiments.rules import Range, no_more
from experiments.statements import Judge, Statement
from experiments.verdicts import Verdict
from flax_linattn import inference, ops
from flax_linattn.bench import Journal, spread
from flax_linattn.bench.report import markdown

MECHANISMS = ("aaren", "elementwise_series:order=2", "elementwise_series:order=6")
HEADS, CHANNELS = 8, 64


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    lengths: tuple[int, ...] = (1_024, 4_096, 16_384, 65_536)
    batches: tuple[int, ...] = (1, 8)
    rounds: int = 7
    calls: int = 300
    """Steps from Python in a round."""


def measure(size: Size, journal: Journal) -> None:
    for name in MECHANISMS:
        loop = partial(in_one_program, name, size.rounds, size.lengths)
        journal.row({"what": "loop", "mechanism": name}, loop)
        for batch in size.batches:
            key = {"what": "step", "mechanism": name, "batch": batch}
            journal.row(key, partial(from_python, name, batch, size.rounds, size.calls))


def step(mechanism: ops.Mechanism, token: Any, state: Any) -> tuple[Any, Any]:
    """One token [B, H, K] as its own query, key and value; Aaren's learned query is constant."""
    learned = mechanism.capabilities.learned_query
    q = jnp.linspace(-1.0, 1.0, HEADS * CHANNELS).reshape(HEADS, CHANNELS) if learned else token
    return mechanism.step(q, token, token, state)


def first(mechanism: ops.Mechanism, batch: int) -> tuple[Any, Any]:
    """A token and the empty state."""
    token = jax.random.normal(jax.random.key(0), (batch, HEADS, CHANNELS))
    return token, mechanism.init_state(batch, HEADS, CHANNELS, CHANNELS)


def time_call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    """One call: its result, and the microseconds that passed and that this process computed."""
    begin = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(function(*arguments))
    end = time.perf_counter(), time.process_time()
    return result, 1e6 * (end[0] - begin[0]), 1e6 * (end[1] - begin[1])


def make_loop(mechanism: ops.Mechanism, length: int) -> Callable[..., Any]:
    """A program of ``length`` steps, each on the output of the one before."""

    def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return step(mechanism, *carry)

    return jax.jit(lambda token, state: jax.lax.fori_loop(0, length, body, (token, state)))


def in_one_program(name: str, rounds: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds a token of the loop inside jit, by length, and the state's bytes after it."""
    mechanism = ops.get_mechanism(name)
    begin = first(mechanism, 1)
    programs = {length: make_loop(mechanism, length) for length in lengths}
    ends = {length: program(*begin) for length, program in programs.items()}
    times: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}
    medians: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(rounds):
        for length, program in programs.items():
            # A short program runs as often as gives the tokens of the longest.
            calls = max(lengths) // length
            for _ in range(calls):
                _, passed, computed = time_call(program, *begin)
                times[length].append((passed / length, computed / length))
            medians[length].append(statistics.median(us for us, _ in times[length][-calls:]))
    by_length = [
        {
            "tokens": length,
            "us": statistics.median(passed for passed, _ in times[length]),
            "computed_us": statistics.median(computed for _, computed in times[length]),
            "rounds_us": spread(medians[length]),
            "state_bytes": inference.state_bytes(ends[length][1]),
            "finite": bool(jnp.isfinite(ends[length][0]).all()),
        }
        for length in lengths
    ]
    return {"lengths": by_length}


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
                carries[kind], passed, _ = time_call(program, *carries[kind])
                times[kind].append(passed)
    return {f"{kind}_us": statistics.median(values) for kind, values in times.items()}


def constant(names: Sequence[str]) -> Judge:
    """The judge of "a step costs as much after any number of tokens"."""

    def judge(rows: Rows) -> Verdict:
        loops = [r["lengths"] for r in rows if r["what"] == "loop" and r["mechanism"] in names]
        ranges = [slowest(lengths) for lengths in loops]
        tokens = max((facts["tokens"] for lengths in loops for facts in lengths), default=0)
        ratios = (f"{r.middle:.2f} ({r.low:.2f} to {r.high:.2f} by the spread)" for r in ranges)
        text = f"slowest over fastest, up to {tokens:,} tokens: {', '.join(ratios)}"
        return Verdict(no_more(ranges), text)

    return judge


STATEMENTS = (
    Statement(
        "Aaren, section 3.3",
        "an update takes constant computation (the mechanism alone)",
        constant(MECHANISMS[:1]),
    ),
    Statement(
        "Element-wise attention, abstract and table 1",
        "inference of EA-series is O(t D), whatever L (the mechanism alone; EA-2, EA-6)",
        constant(MECHANISMS[1:]),
    ),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["loop in one program, us per token: wall time (CPU time)"]
    heads += [f"{length:,} tokens" for length in size.lengths]
    heads += ["slowest / fastest", "state"]
    loops = [[row["mechanism"], *_cells(row["lengths"])] for row in rows if row["what"] == "loop"]
    steps = [
        [row["mechanism"], str(row["batch"])]
        + [f"{row[kind]:.1f}" for kind in ("donated_us", "not_donated_us")]
        for row in rows
        if row["what"] == "step"
    ]
    step_heads = ["step from Python, us", "batch", "donated", "not donated"]
    return f"{markdown(heads, loops)}\n\n{markdown(step_heads, steps)}"


def _cells(lengths: list[dict[str, Any]]) -> list[str]:
    """Times by length, how flat they are, and the state."""
    sizes = sorted({facts["state_bytes"] for facts in lengths})
    return [
        *(f"{facts['us']:.2f} ({facts['computed_us']:.2f})" for facts in lengths),
        f"{flatness(lengths, 'us'):.2f} ({flatness(lengths, 'computed_us'):.2f})",
        " to ".join(f"{size:,} bytes" for size in sizes),
    ]


def flatness(lengths: list[dict[str, Any]], what: str) -> float:
    """The slowest token of a mechanism against the fastest, over the lengths."""
    values = [facts[what] for facts in lengths]
    return max(values) / min(values)


def slowest(lengths: list[dict[str, Any]]) -> Range:
    """The same of the time that passed, with the spread of the rounds where it was stored."""
    times = [
        Range(facts["us"], facts["rounds_us"]["min"], facts["rounds_us"]["max"])
        if "rounds_us" in facts
        else Range.exact(facts["us"])
        for facts in lengths
    ]
    return max(times).over(min(times))


EXPERIMENT = Measured(
    module="experiments.streaming.loop",
    about="Aaren, figure 5: memory and time per token are constant in the number of tokens so far",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=STATEMENTS,
    left_out={"": "projections and the rest of a model"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
