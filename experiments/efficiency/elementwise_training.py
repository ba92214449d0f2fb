"""Training memory, batch-length curve and throughput of EA-2, EA-6 and self-attention.

    python -m experiments.efficiency.elementwise_training

Element-wise attention paper, figure 4. A training step is loss and gradients, without an optimizer.
Memory is that of the compiled step, including weights and gradients. The curve is the largest batch
that fits a budget, found by compiling without running. Throughput is measured at batches along the
curve, with the models in turns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.efficiency.elementwise_models import KINDS, build
from experiments.efficiency.programs import Program, observations, training_step
from experiments.measured import Measured, Rows
from experiments.rules import (
    EXPONENTIAL,
    Points,
    Range,
    exponent,
    exponential_excess,
    grows,
    more,
    more_bytes,
    more_counts,
    no_more,
    no_more_bytes,
    no_more_counts,
    span,
)
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict, combine, with_note
from flax_linattn.bench import Journal, compile_program, run_in_turns, spread
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    num_layers: int = 2
    features: int = 768
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    budget_gb: float = 4.0
    timed_tokens: int = 2048
    """Most tokens of a timed step: its batch is that of the curve, or what these allow."""
    rounds: int = 3


def measure(size: Size, journal: Journal) -> None:
    get_program = cache(partial(build_program, size))  # on first use: stored rows need no model
    batches: dict[tuple[str, int], int] = {}
    for length in size.lengths:
        for name in KINDS:
            row = journal.row(
                {"what": "memory", "model": name, "length": length},
                partial(memory, get_program, name, length, size.budget_gb * 1e9),
            )
            batches[name, length] = row["batch"]
    for length in size.lengths:
        at = {
            name: min(batches[name, length], max(1, size.timed_tokens // length))
            for name in KINDS
            if batches[name, length] and length <= size.timed_tokens
        }
        if at:
            journal.row(
                {"what": "throughput", "length": length},
                partial(throughput, get_program, at, length, size.rounds),
            )


ProgramFn = Callable[[str], Program]
"""Function from a model's name to its training step and parameters; it builds each model once."""


def build_program(size: Size, name: str) -> Program:
    kind = KINDS[name]
    return training_step(build(kind, size.num_layers, size.features), kind.form)


def memory(get_program: ProgramFn, name: str, length: int, budget: float) -> dict[str, Any]:
    """Bytes of a step of one sequence, and the greatest batch within the budget."""
    step, params = get_program(name)

    def needed(batch: int) -> int:
        x = jax.ShapeDtypeStruct((batch, length, 16), jnp.float32)
        return compile_program(step, (params, x))[1]["total_bytes"]

    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    one = needed(1)
    batch = greatest_batch(needed, one, 2 * weights, budget)
    jax.clear_caches()
    return {"total_bytes": one, "batch": batch}


def greatest_batch(
    needed: Callable[[int], int], one: int, fixed: int, budget: float, tries: int = 2
) -> int:
    """The greatest batch within the budget, to a few percent; 0 if not even one fits.

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


def throughput(
    get_program: ProgramFn, batches: dict[str, int], length: int, rounds: int
) -> dict[str, Any]:
    """Tokens a second, the models in turns."""
    calls = {}
    for name, batch in batches.items():
        step, params = get_program(name)
        x = observations(batch, length, 16)
        compiled, _ = compile_program(step, (params, x))
        calls[name] = partial(compiled, params, x)
    times = run_in_turns(calls, (), rounds)
    jax.clear_caches()
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


def needed_bytes(rows: Rows, name: str) -> Points:
    """Bytes of a step of one sequence, by length."""
    return [(row["length"], row["total_bytes"]) for row in _memory(rows, name)]


def max_tokens(rows: Rows, name: str) -> Points:
    """Most tokens a step, by length."""
    return [(row["length"], row["length"] * row["batch"]) for row in _memory(rows, name)]


def _memory(rows: Rows, name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["what"] == "memory" and row["model"] == name]


def token_times(rows: Rows, name: str) -> dict[int, Range]:
    """Milliseconds a token, by length."""
    timed = [row for row in rows if row["what"] == "throughput" and name in row["models"]]
    facts = {row["length"]: row["models"][name] for row in timed}
    return {n: Range.of(f["milliseconds"]).per(f["batch"] * n) for n, f in facts.items()}


def against_both(judge: Callable[[Rows, str], Verdict]) -> Judge:
    """Against SA in blocks, which decides comparisons, and the paper's SA."""
    return lambda rows: with_note(judge(rows, BLOCKS), judge(rows, PRINTED))


def against_printed(judge: Callable[[Rows, str], Verdict]) -> Judge:
    """Of the paper's SA, which decides what the paper says of it; SA in blocks is a note."""
    return lambda rows: with_note(judge(rows, PRINTED), judge(rows, BLOCKS))


def linear_memory(rows: Rows) -> Verdict:
    curves = {name: needed_bytes(rows, name) for name in SERIES}
    powers = (f"{name} grows as L^{exponent(curve):.2f}" for name, curve in curves.items())
    return Verdict(combine(grows(c, 1) for c in curves.values()), ", ".join(powers))


def quadratic_memory(rows: Rows, name: str) -> Verdict:
    curve = needed_bytes(rows, name)
    return Verdict(grows(curve, 2), f"{name} grows as L^{exponent(curve):.2f}")


def exponential_memory(rows: Rows, name: str) -> Verdict:
    """The longest sequence needs no less than an exponential growth gives."""
    growth_ratio = exponential_excess(needed_bytes(rows, name))
    text = f"exponential growth would reach {growth_ratio:.2g} times what {name} needs"
    return Verdict(no_more_bytes([growth_ratio]).under(EXPONENTIAL), text)


def less_memory(rows: Rows, other: str) -> Verdict:
    """Memory at the longest sequence, against another model."""
    length, theirs = needed_bytes(rows, other)[-1]
    ratios = [theirs / dict(needed_bytes(rows, name))[length] for name in SERIES]
    text = f"{other} needs {span(ratios)} times as much at L = {length:,}"
    return Verdict(more_bytes(ratios), text)


def more_tokens(rows: Rows, other: str) -> Verdict:
    """At every length; where the other does not fit, any are more."""
    theirs = dict(max_tokens(rows, other))
    ratios = [
        tokens / theirs[n] if theirs[n] else math.inf
        for name in SERIES
        for n, tokens in max_tokens(rows, name)
        if tokens
    ]
    without = [n for n, tokens in theirs.items() if not tokens]
    none = f", which does not fit at L = {without[0]:,}" if without else ""
    ratios_text = span(ratio for ratio in ratios if ratio < math.inf)
    return Verdict(more_counts(ratios), f"{ratios_text} times as many as {other}{none}")


OF_SHORTER = "of the maximum at shorter L"


def fewer(rows: Rows, name: str) -> float:
    """How many times fewer tokens a step the longest L takes than the best of the shorter ones."""
    *before, last = (y for _, y in max_tokens(rows, name))
    if not before:
        raise NotMeasuredError("one length alone was measured")
    return max(before) / last if last else math.inf


def slower(rows: Rows, name: str) -> Range:
    """How many times longer a token takes at the longest L than at the best of the shorter ones."""
    *before, last = token_times(rows, name).values()
    if not before:
        raise NotMeasuredError("one length alone was timed")
    return last.over(min(before))


def keeps_tokens(rows: Rows) -> Verdict:
    """EA-series takes as many tokens a step."""
    ratios = {name: fewer(rows, name) for name in SERIES}
    ratios_text = ", ".join(f"{name} {100 / ratio:.0f} %" for name, ratio in ratios.items())
    return Verdict(no_more_counts(ratios.values()), f"{ratios_text} {OF_SHORTER}")


def keeps_throughput(rows: Rows) -> Verdict:
    """EA-series takes as long for a token."""
    ratios = {name: slower(rows, name) for name in SERIES}
    ratios_text = ", ".join(f"{name} {100 / ratio.middle:.0f} %" for name, ratio in ratios.items())
    return Verdict(no_more(ratios.values()), f"{ratios_text} {OF_SHORTER}")


def fewer_tokens(rows: Rows, name: str) -> Verdict:
    ratio = fewer(rows, name)
    return Verdict(more_counts([ratio]), f"{name} {100 / ratio:.0f} % {OF_SHORTER}")


def falling_throughput(rows: Rows, name: str) -> Verdict:
    ratio = slower(rows, name)
    return Verdict(more([ratio]), f"{name} {100 / ratio.middle:.0f} % {OF_SHORTER}")


def faster(rows: Rows, other: str) -> Verdict:
    """Tokens a second at every length."""
    theirs = token_times(rows, other)
    ratios = [
        theirs[n].over(ours)
        for name in SERIES
        for n, ours in token_times(rows, name).items()
        if n in theirs
    ]
    return Verdict(more(ratios), f"{span(ratios)} times that of {other}")


def more_pronounced(rows: Rows, other: str) -> Verdict:
    """The longer the sequences the larger the lead, in throughput and in memory."""
    theirs, ours = token_times(rows, other), token_times(rows, "EA-6")
    speed = [theirs[n].over(ours[n]) for n in ours if n in theirs]
    memory = dict(needed_bytes(rows, other))
    bytes_ = [memory[n] / y for n, y in needed_bytes(rows, "EA-6") if n in memory]
    if len(speed) < 2 or len(bytes_) < 2:
        raise NotMeasuredError("one length alone was measured")
    rises = speed[-1].over(speed[0]), bytes_[-1] / bytes_[0]
    text = f"EA-6's lead over {other} grows {rises[0].middle:.2g} times in tokens/s, "
    text += f"{rises[1]:.2g} in memory"
    return Verdict(combine([more(rises[:1]), more_bytes(rises[1:])]), text)


FIGURE = "Element-wise attention, figure 4"
STATEMENTS = (
    Statement(
        f"{FIGURE}, and table 1",
        "training memory of EA-series grows linearly with L",
        linear_memory,
    ),
    Statement(
        f"{FIGURE}, and table 1",
        "SA's training memory grows quadratically",
        against_printed(quadratic_memory),
    ),
    Statement(
        f"{FIGURE}, in the text",
        "SA's training memory grows exponentially, in the paper's words",
        against_printed(exponential_memory),
    ),
    Statement(
        FIGURE,
        "EA-series needs much less memory than SA for long sequences",
        against_both(less_memory),
    ),
    Statement(
        FIGURE, "EA-series processes more tokens per step than SA", against_both(more_tokens)
    ),
    Statement(FIGURE, "EA-series' tokens per step stay constant as L grows", keeps_tokens),
    Statement(FIGURE, "SA's tokens per step decrease as L grows", against_printed(fewer_tokens)),
    Statement(FIGURE, "EA-series has a much higher throughput than SA", against_both(faster)),
    Statement(
        f"{FIGURE}, and table 1",
        "EA-series keeps its throughput as L grows",
        keeps_throughput,
    ),
    Statement(FIGURE, "SA's throughput falls as L grows", against_printed(falling_throughput)),
    Statement(
        "Element-wise attention, introduction",
        "the advantage in training grows with L",
        against_both(more_pronounced),
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


def plot(rows: Rows) -> Any:
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

    plot_lines(left, lines("total_bytes", 1e-9), xlabel="L", ylabel="training memory, GB, batch 1")
    plot_lines(middle, lines("batch", 1), xlabel="L", ylabel="greatest batch in the budget")
    speeds = {
        name: [
            (r["length"], r["models"][name]["tokens_per_second"])
            for r in rows
            if r["what"] == "throughput" and name in r["models"]
        ]
        for name in KINDS
    }
    plot_lines(right, speeds, xlabel="L", ylabel="tokens/s")
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
    plot=plot,
    statements=STATEMENTS,
    left_out={
        "cpu": "10 of BERT-base's 12 layers, a budget of 80 GB, timed steps of more than 2,048 "
        "tokens: for lack of time and memory",
        "paper": "nothing; the paper names neither its lengths nor whether its models are causal: "
        "ours are",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
