"""Aaren's scan and its block-by-block form: dependent steps, operations and memory.

    python -m experiments.efficiency.aaren_scan

Nothing is timed. The depth of a program is the length of its longest chain of dependent operations.
On a machine with enough processors it determines the run time. It is counted in the program as JAX
traces it, for one sequence of N tokens. Two scans of the paper's operator are
counted next to this library's forms: that of Hillis and Steele, which the paper outlines, and
``jax.lax.associative_scan``, which is as deep as that of Ladner and Fischer (section 5 of the
paper). The memory of the block-by-block form is what the compiler plans.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.efficiency.counts import depth
from experiments.measured import Measured, Rows
from experiments.rules import EQUAL, TIE, exponent, grows, no_more_bytes
from experiments.statements import Judge, Statement
from experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Rule,
    Verdict,
    Word,
    combine,
    rows_with,
    with_note,
)
from flax_linattn import ops
from flax_linattn.bench import Journal, compile_program
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

DEPTH, BLOCK, WHOLE = "depth", "memory of a block", "memory of a whole sequence"
PARALLEL, RECURRENT, CHUNKED = "parallel", "recurrent", "chunked"
TRAINING = "parallel, with gradients"
PROGRAM_NOTE = (
    "; this counts the form `parallel`, differentiated by JAX. By default, training runs other "
    "programs, which were not counted: the form `recurrent` on CPUs, a custom gradient on "
    "accelerators"
)
HILLIS, FISCHER = "Hillis and Steele", "Ladner and Fischer"

STATED = "2026-11-29T21:40:00+00:00"
LOGARITHMIC = Rule(
    "The depth of a program is logarithmic in N if the last factor of 4 in N adds at most "
    f"{EQUAL:g} times as much depth as the one before, and not if it adds {TIE:g} times as much "
    "or more. A loop counts its body once per pass, as if no pass overlapped with the one before, "
    "so that depths of programs with loops are upper bounds; a sum over n numbers counts log2(n).",
    STATED,
)
STEPS = Rule(
    "A scan takes the stated number of steps if its longest chain of merges has that length at "
    "every measured N. Its computation is the number of merges; it agrees if merges divided by the "
    f"stated growth rise by at most {EQUAL:g} times from the second-largest N to the largest.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the counts at one scale."""

    lengths: tuple[int, ...] = (64, 256, 1024, 4096, 16_384)
    blocks: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    long: tuple[int, ...] = (16_384, 65_536, 262_144)
    """Tokens of the whole sequence that one program reads in blocks."""
    num_heads: int = 2
    dim: int = 32


def measure(size: Size, journal: Journal) -> None:
    for name in (PARALLEL, TRAINING, CHUNKED, RECURRENT):
        for length in size.lengths:
            key = {"what": DEPTH, "program": name, "length": length}
            journal.row(key, partial(program_depth, size, name, length))
    for name, scan in SCANS.items():
        for length in size.lengths:
            key = {"what": DEPTH, "program": name, "length": length}
            journal.row(key, partial(scan_steps, scan, length))
    for block in size.blocks:
        journal.row({"what": BLOCK, "block": block}, partial(block_memory, size, block))
        for length in size.long:
            key = {"what": WHOLE, "block": block, "length": length}
            journal.row(key, partial(whole_memory, size, block, length))


def arrays(size: Size, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The learned query, keys and values of one sequence."""
    heads = (size.num_heads, size.dim)
    shapes = (heads, (1, length, *heads), (1, length, *heads))
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def program_depth(size: Size, name: str, length: int) -> dict[str, Any]:
    """The depth of causal Aaren by a form, with gradients for ``TRAINING``."""
    mechanism = ops.get_mechanism("aaren")
    form = name.partition(",")[0]

    def attend(*qkv: Array) -> Array:
        y: Array = mechanism.attend(*qkv, is_causal=True, form=form)
        return y

    def loss(*qkv: Array) -> Array:
        return jnp.sum(jnp.square(attend(*qkv)))

    program: Any = jax.grad(loss, argnums=(0, 1, 2)) if name == TRAINING else attend
    return {"depth": depth(jax.make_jaxpr(program)(*arrays(size, length)).jaxpr)}


class Merges:
    """Counts merges of prefixes: the longest chain of merges by token, and all pairs."""

    def __init__(self) -> None:
        self.pairs = 0

    def __call__(self, a: list[int], b: list[int]) -> list[int]:
        self.pairs += len(a)
        return [1 + max(pair) for pair in zip(a, b, strict=True)]


def hillis_steele(merge: Merges, length: int) -> list[int]:
    """Algorithm 1 with strides 1, 2, 4, ...: every token merges the one a stride earlier."""
    steps, stride = [0] * length, 1
    while stride < length:
        steps = steps[:stride] + merge(steps[:-stride], steps[stride:])
        stride *= 2
    return steps


def ladner_fischer(merge: Merges, length: int) -> list[int]:
    """The recursion of ``jax.lax.associative_scan``: pairs, their prefixes, the other tokens."""

    def scan(steps: list[int]) -> list[int]:
        if len(steps) < 2:
            return steps
        odd = scan(merge(steps[:-1:2], steps[1::2]))
        even = [steps[0], *merge(odd[: len(steps[2::2])], steps[2::2])]
        return [x for pair in zip(even, odd, strict=False) for x in pair] + even[len(odd) :]

    return scan([0] * length)


SCANS: dict[str, Callable[[Merges, int], list[int]]] = {
    HILLIS: hillis_steele,
    FISCHER: ladner_fischer,
}


def scan_steps(scan: Callable[[Merges, int], list[int]], length: int) -> dict[str, Any]:
    """The longest chain of merges, and how many there are."""
    merge = Merges()
    return {"steps": max(scan(merge, length)), "pairs": merge.pairs}


def block_memory(size: Size, block: int) -> dict[str, Any]:
    """Memory of the program that updates the state (a, c, m) by one block."""
    mechanism = ops.get_mechanism("aaren", chunk_size=block)

    def update(q: Array, k: Array, v: Array, state: Any) -> Any:
        results = mechanism.attend(
            q, k, v, initial_state=state, return_state=True, form=CHUNKED, is_causal=False
        )
        return results[1]

    state = jax.eval_shape(lambda: mechanism.init_state(1, size.num_heads, size.dim, size.dim))
    return compile_program(update, (*arrays(size, block), state))[1]


def whole_memory(size: Size, block: int, length: int) -> dict[str, Any]:
    """Memory of one program that reads a whole sequence in blocks and returns the state."""
    mechanism = ops.get_mechanism("aaren", chunk_size=block)

    def last(q: Array, k: Array, v: Array) -> Any:
        return mechanism.attend(q, k, v, return_state=True, form=CHUNKED, is_causal=False)[1]

    return compile_program(last, arrays(size, length))[1]


def points(rows: Rows, program: str, name: str = "depth") -> list[tuple[float, float]]:
    """A number of a program by N."""
    own = rows_with(rows, program, what=DEPTH, program=program)
    return [(row["length"], row[name]) for row in own]


def logarithmic(program: str) -> Judge:
    """The verdict on "its depth grows with log2(N)"; the recurrent form's next to it."""

    def judge(rows: Rows) -> Verdict:
        depths = [y for _, y in points(rows, program)]
        added = [b - a for a, b in itertools.pairwise(depths)]
        ratio = added[-1] / added[-2]
        word = HOLDS if ratio <= EQUAL else FAILS if ratio >= TIE else OPEN
        forward = " the forward pass alone has" if program == TRAINING else ""
        (length, deepest), (_, loop) = points(rows, program)[-1], points(rows, RECURRENT)[-1]
        note = PROGRAM_NOTE if program == TRAINING else ""
        return Verdict(
            Word(word, LOGARITHMIC),
            f"depth of {number(deepest)} operations at N = {length:,}, {number(added[-1])} more "
            f"for each factor of 4; token by token,{forward} {number(loop)}{note}",
        )

    return judge


def judge_scan(program: str, steps: Callable[[float], float], *, has_log: bool) -> Judge:
    """The verdict on a scan's steps and computation, which grows as N, or as N log(N)."""

    def judge(rows: Rows) -> Verdict:
        of_steps = points(rows, program, "steps")
        as_said = all(y == steps(math.log2(n)) for n, y in of_steps)
        pairs = points(rows, program, "pairs")
        ratios = [y / (n * (math.log2(n) if has_log else 1)) for n, y in pairs]
        flat = Word(HOLDS if ratios[-1] <= EQUAL * ratios[-2] else FAILS, STEPS)
        words = [Word(HOLDS if as_said else FAILS, STEPS), flat, grows(pairs, 1)]
        n, last = of_steps[-1]
        ours = f"{last:.0f} steps and {pairs[-1][1]:,.0f} merges for N = {n:,}"
        return Verdict(combine(words), ours)

    return judge


def judge_blocks(rows: Rows) -> Verdict:
    """The verdict on "in blocks of b tokens it takes memory proportional to b"."""
    by_block = [(r["block"], r["total_bytes"]) for r in rows_with(rows, BLOCK, what=BLOCK)]
    word = grows(by_block, 1)
    block, size = by_block[-1]
    update = Verdict(
        word,
        f"an update by b tokens takes memory that grows as b^{exponent(by_block):.2f} "
        f"({number(size / 1e6)} MB for b = {block:,}), whatever came before",
    )
    whole = [r for r in rows_with(rows, WHOLE, what=WHOLE) if r["block"] == by_block[0][0]]
    by_length = [(r["length"], r["temporary_bytes"]) for r in whole]
    ratio = by_length[-1][1] / by_length[0][1]
    one = Verdict(
        no_more_bytes([ratio]),
        "the memory of one program for all N tokens grows as "
        f"N^{exponent(by_length):.2f}, because it copies them",
    )
    return with_note(update, one)


def table(rows: Rows, size: Size) -> str:
    """Depths by N, steps and merges by N, memory by block."""
    lengths = [f"{n:,}" for n in size.lengths]
    names = (PARALLEL, TRAINING, CHUNKED, RECURRENT)
    depths = [[name, *(number(y) for _, y in points(rows, name))] for name in names]
    steps = []
    for name in SCANS:
        both = zip(points(rows, name, "steps"), points(rows, name, "pairs"), strict=True)
        steps.append([name, *(f"{a:.0f} / {b:,.0f}" for (_, a), (_, b) in both)])
    heads = ["block", "update by a block: total", *(f"N = {n:,}: temporary" for n in size.long)]
    lines = []
    for block in size.blocks:
        (own,) = rows_with(rows, what=BLOCK, block=block)
        whole = rows_with(rows, what=WHOLE, block=block)
        cells = [own["total_bytes"], *(row["temporary_bytes"] for row in whole)]
        lines.append([f"{block:,}", *(number(cell / 1e6) for cell in cells)])
    return "\n\n".join(
        [
            "Depth of causal Aaren, in operations:",
            markdown(["form", *(f"N = {n}" for n in lengths)], depths),
            "Scans of the paper's operator, steps / merges of two prefixes:",
            markdown(["scan", *(f"N = {n}" for n in lengths)], steps),
            "Planned memory of the state after a sequence, MB:",
            markdown(heads, lines),
        ]
    )


EXPERIMENT = Measured(
    module="experiments.efficiency.aaren_scan",
    about="Aaren, section 3.2 and appendix A: its scan, and attention block by block",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            "Aaren, abstract",
            "Aaren trains in parallel, as Transformers do: the depth grows as log2(N), not as N",
            logarithmic(TRAINING),
        ),
        Statement(
            "Aaren, section 3.2",
            "all outputs are computed in a depth of log2(N)",
            logarithmic(PARALLEL),
        ),
        Statement(
            "Aaren, section 5",
            "the scan of Hillis and Steele takes log2(N) steps and N log(N) operations",
            judge_scan(HILLIS, lambda log: log, has_log=True),
        ),
        Statement(
            "Aaren, section 5",
            "the scan of Ladner and Fischer takes 2 log2(N) - 2 steps and operations linear in N",
            judge_scan(FISCHER, lambda log: 2 * log - 2, has_log=False),
        ),
        Statement(
            "Aaren, appendix A",
            "in blocks of b tokens attention takes memory proportional to b",
            judge_blocks,
        ),
    ),
    is_deterministic=True,
    left_out={"": "machines with many processors, on which the depth determines the time"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
