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
    about="element-wise attention, figure 4: EA-2 and EA-6 need memory linear in L, SA quadratic; "
    "they fit more tokens a step, and keep their throughput where SA's falls",
    sizes={
        "cpu": Size(),
        "paper": Size(12, 768, (512, 2048, 8192, 32768), 80.0, 1 << 20),
    },
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "10 of BERT-base's 12 layers, a budget of 80 GB, timed steps of more than 2,048 "
        "tokens: for want of time and memory",
        "paper": "nothing; the paper names neither its lengths nor whether its models are causal: "
        "ours are",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
