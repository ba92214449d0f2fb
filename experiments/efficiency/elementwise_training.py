"""Training memory, the batch-length curve and throughput of EA-2, EA-6 and self-attention.

    python -m experiments.efficiency.elementwise_training

Element-wise attention paper, figure 4. A training step is loss and gradients, without an
optimizer. Memory is what the compiled step needs, weights and gradients included; the curve is
the greatest batch that fits a budget, found by compiling alone. Throughput is measured at batches
along the curve, the models in turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims import (
    FAILS,
    HOLDS,
    TIE,
    Claim,
    NotMeasuredError,
    Points,
    Verdict,
    all_of,
    by_the_best,
    exponent,
    grows,
    more,
    more_bytes,
    no_more,
    span,
)
from experiments.claims import REACH_OF_BYTES as BYTES
from experiments.efficiency.elementwise_models import KINDS, build
from experiments.efficiency.programs import observations, training_step
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal, compile_program, run_in_turns, spread
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown, number


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    num_layers: int = 2
    features: int = 768
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    budget_gb: float = 4.0
    timed_tokens: int = 2048
    """Most tokens of a timed step: its batch is that of the curve, or what these allow."""
    rounds: int = 3


def measure(size: Size, journal: Journal) -> None:
    programs = {
        name: training_step(build(kind, size.num_layers, size.features), kind.form)
        for name, kind in KINDS.items()
    }
    batches: dict[tuple[str, int], int] = {}
    for length in size.lengths:
        for name, (step, params) in programs.items():
            row = journal.row(
                {"what": "memory", "model": name, "length": length},
                partial(memory, step, params, length, size.budget_gb * 1e9),
            )
            batches[name, length] = row["batch"]
            jax.clear_caches()
    for length in size.lengths:
        at = {
            name: min(batches[name, length], max(1, size.timed_tokens // length))
            for name in programs
            if batches[name, length] and length <= size.timed_tokens
        }
        if at:
            journal.row(
                {"what": "throughput", "length": length},
                partial(throughput, programs, at, length, size.rounds),
            )
            jax.clear_caches()


def memory(step: Any, params: Any, length: int, budget: float) -> dict[str, Any]:
    """Bytes of a step of one sequence, and the greatest batch within the budget."""

    def needed(batch: int) -> int:
        x = jax.ShapeDtypeStruct((batch, length, 16), jnp.float32)
        return compile_program(step, (params, x))[1]["total_bytes"]

    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    one = needed(1)
    return {"total_bytes": one, "batch": greatest_batch(needed, one, 2 * weights, budget)}


def greatest_batch(
    needed: Callable[[int], int], one: int, fixed: int, budget: float, tries: int = 2
) -> int:
    """The greatest batch within the budget, to a few per cent; 0 if not even one fits.

    Args:
        needed: bytes by batch, each a compilation: nearly a straight line.
        one: of a batch of one.
        fixed: about what a batch of none would need: weights and gradients.
        budget: bytes.
        tries: most compilations.
    """
    if one > budget:
        return 0
    best, best_bytes, slope, beyond = 1, one, max(1, one - fixed), None
    for _ in range(tries):
        guess = best + int((budget - best_bytes) / slope)
        guess = guess if beyond is None else min(guess, beyond - 1)
        if guess <= best:
            break
        size = needed(guess)
        slope = max(1, (size - best_bytes) / (guess - best))
        if size > budget:
            beyond = guess
        else:
            best, best_bytes = guess, size
    return best


def throughput(programs: Any, batches: dict[str, int], length: int, rounds: int) -> dict[str, Any]:
    """Tokens a second, the models in turns."""
    calls = {}
    for name, batch in batches.items():
        step, params = programs[name]
        x = observations(batch, length, 16)
        compiled, _ = compile_program(step, (params, x))
        calls[name] = partial(compiled, params, x)
    times = run_in_turns(calls, (), rounds)
    return {
        "models": {
            name: {
                "batch": batches[name],
                "milliseconds": spread(values),
                "tokens_per_second": 1e3 * batches[name] * length / spread(values)["median"],
            }
            for name, values in times.items()
        }
    }


SERIES, PRINTED, BLOCKS = ("EA-2", "EA-6"), "SA", "SA, in blocks"


def points(rows: Rows, name: str, key: str) -> Points:
    """Bytes, tokens a step (``batch``) or tokens a second of a model, by length."""
    if key == "tokens_per_second":
        timed = [row for row in rows if row["what"] == "throughput" and name in row["models"]]
        return [(row["length"], row["models"][name][key]) for row in timed]
    found = [row for row in rows if row["what"] == "memory" and row["model"] == name]
    return [(r["length"], r[key] * (r["length"] if key == "batch" else 1)) for r in found]


def ratios(rows: Rows, key: str, other: str) -> list[float]:
    """Of EA-2 and EA-6 to another model, at every length where that has any."""
    theirs = dict(points(rows, other, key))
    return [y / theirs[n] for name in SERIES for n, y in points(rows, name, key) if theirs.get(n)]


Judge = Callable[[Rows], Verdict]


def of_both(judge: Callable[[Rows, str], Verdict]) -> Judge:
    """Of, or against, SA in blocks, which decides, and the paper's SA."""
    return lambda rows: by_the_best(judge(rows, BLOCKS), judge(rows, PRINTED))


def linear_memory(rows: Rows) -> Verdict:
    curves = {name: points(rows, name, "total_bytes") for name in SERIES}
    powers = (f"{name} as L^{exponent(curve, BYTES):.2f}" for name, curve in curves.items())
    return Verdict(all_of(grows(c, 1, BYTES) for c in curves.values()), ", ".join(powers))


def quadratic_memory(rows: Rows, name: str) -> Verdict:
    curve = points(rows, name, "total_bytes")
    return Verdict(grows(curve, 2, BYTES), f"{name} as L^{exponent(curve, BYTES):.2f}")


def less_memory(rows: Rows, other: str) -> Verdict:
    """At the longest sequence."""
    length, theirs = points(rows, other, "total_bytes")[-1]
    found = [theirs / dict(points(rows, name, "total_bytes"))[length] for name in SERIES]
    return Verdict(more_bytes(found), f"{span(found)} times less than {other} at L = {length:,}")


def more_tokens(rows: Rows, other: str) -> Verdict:
    """At every length at which the other fits."""
    found = ratios(rows, "batch", other)
    without = [n for n, tokens in points(rows, other, "batch") if not tokens]
    none = f", which does not fit at L = {without[0]:,}" if without else ""
    return Verdict(more_bytes(found), f"{span(found)} times as many as {other}{none}")


def left(rows: Rows, name: str, key: str) -> float:
    """What the longest L leaves of the most at shorter L."""
    values = [y for _, y in points(rows, name, key)]
    if len(values) < 2:
        raise NotMeasuredError("one length alone was measured")
    return values[-1] / max(values[:-1])


def keeps(key: str, tie: float) -> Judge:
    """The judge of "tokens a step, or a second, stay as many as L grows", of EA-series."""

    def judge(rows: Rows) -> Verdict:
        shares = {name: left(rows, name, key) for name in SERIES}
        shown = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        return Verdict(no_more([1 / share for share in shares.values()], tie), f"{shown} {KEPT}")

    return judge


def falls(key: str, tie: float) -> Judge:
    """The judge of "they become fewer", of SA."""

    def judge(rows: Rows, name: str) -> Verdict:
        share = left(rows, name, key)
        word = HOLDS if share * tie <= 1 else FAILS
        return Verdict(word, f"{name} {100 * share:.0f} % {KEPT}")

    return of_both(judge)


KEPT = "of the most at shorter L"
FEW = 1.1
"""Batches are whole numbers: a tenth fewer is as many."""


def faster(rows: Rows, other: str) -> Verdict:
    """Tokens a second at every length."""
    found = ratios(rows, "tokens_per_second", other)
    return Verdict(more(found), f"{span(found)} times those of {other}")


def more_pronounced(rows: Rows, other: str) -> Verdict:
    """The longer the sequences the larger the lead, in throughput and in memory."""
    rises = []
    for key in ("tokens_per_second", "total_bytes"):
        theirs = dict(points(rows, other, key))
        lead = [y / theirs[n] for n, y in points(rows, "EA-6", key) if theirs.get(n)]
        if len(lead) < 2:
            raise NotMeasuredError("one length alone was measured")
        rises.append(lead[-1] / lead[0] if key == "tokens_per_second" else lead[0] / lead[-1])
    text = f"EA-6's lead over {other} grows {rises[0]:.2g} times in tokens/s, {rises[1]:.2g} in"
    return Verdict(all_of([more(rises[:1]), more_bytes(rises[1:])]), f"{text} memory")


FIGURE = "Element-wise attention, figure 4"
CLAIMS = (
    Claim(
        f"{FIGURE}, and table 1",
        "training memory of EA-series grows linearly with L",
        linear_memory,
    ),
    Claim(
        f"{FIGURE}, and table 1",
        "SA's training memory grows quadratically ('exponentially' in the text)",
        of_both(quadratic_memory),
    ),
    Claim(
        FIGURE,
        "EA-series needs much less memory than SA for long sequences",
        of_both(less_memory),
    ),
    Claim(FIGURE, "EA-series processes more tokens a step than SA", of_both(more_tokens)),
    Claim(FIGURE, "EA-series' tokens a step stay as many as L grows", keeps("batch", FEW)),
    Claim(FIGURE, "SA's tokens a step become fewer as L grows", falls("batch", FEW)),
    Claim(FIGURE, "EA-series has a much higher throughput than SA", of_both(faster)),
    Claim(
        f"{FIGURE}, and table 1",
        "EA-series keeps its throughput as L grows",
        keeps("tokens_per_second", TIE),
    ),
    Claim(FIGURE, "SA's throughput falls as L grows", falls("tokens_per_second", TIE)),
    Claim(
        "Element-wise attention, introduction",
        "the advantage in training grows with L",
        of_both(more_pronounced),
    ),
)


def table(rows: Rows, size: Size) -> str:
    memory_rows = {(r["model"], r["length"]): r for r in rows if r["what"] == "memory"}
    speeds = {r["length"]: r["models"] for r in rows if r["what"] == "throughput"}
    heads = ["model"] + [f"L = {length:,}" for length in size.lengths]

    def speed(name: str, length: int) -> str:
        facts = speeds.get(length, {}).get(name)
        return f"{number(facts['tokens_per_second'])} ({facts['batch']})" if facts else "-"

    def needed(name: str, length: int) -> str:
        return number(memory_rows[name, length]["total_bytes"] / 1e9)

    def batch(name: str, length: int) -> str:
        return f"{memory_rows[name, length]['batch']:,}"

    cells = {
        "memory, GB, batch 1": needed,
        f"greatest batch in {size.budget_gb:g} GB": batch,
        "tokens/s (batch)": speed,
    }
    lines = [
        [f"{name}: {what}", *(cell(name, length) for length in size.lengths)]
        for what, cell in cells.items()
        for name in KINDS
    ]
    return markdown(heads, lines)


def draw(rows: Rows) -> Any:
    figure = import_figure()(figsize=(10.5, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    memory_rows = [r for r in rows if r["what"] == "memory"]

    def lines(key: str, scale: float) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [
                (r["length"], scale * r[key]) for r in memory_rows if r["model"] == name and r[key]
            ]
            for name in KINDS
        }

    draw_lines(left, lines("total_bytes", 1e-9), xlabel="L", ylabel="training memory, GB, batch 1")
    draw_lines(middle, lines("batch", 1), xlabel="L", ylabel="greatest batch in the budget")
    speeds = {
        name: [
            (r["length"], r["models"][name]["tokens_per_second"])
            for r in rows
            if r["what"] == "throughput" and name in r["models"]
        ]
        for name in KINDS
    }
    draw_lines(right, speeds, xlabel="L", ylabel="tokens/s")
    left.legend(fontsize=8)
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.elementwise_training",
    about="element-wise attention, figure 4",
    sizes={
        "cpu": Size(),
        "paper": Size(12, 768, (512, 2048, 8192, 32768), 80.0, 1 << 20),
    },
    measure=measure,
    table=table,
    draw=draw,
    claims=CLAIMS,
    left_out={
        "cpu": "10 of BERT-base's 12 layers, a budget of 80 GB, timed steps of more than 2,048 "
        "tokens: for want of time and memory",
        "paper": "nothing; the paper names neither its lengths nor whether its models are causal: "
        "ours are",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
