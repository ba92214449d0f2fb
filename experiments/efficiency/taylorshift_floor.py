"""TaylorShift's step and prefill compared with the hardware roofline.

    python -m experiments.efficiency.taylorshift_floor

A step reads the state once and writes it once. Its lower bound is a program that adds 1 to an array
with as many bytes: in place if the state is donated, otherwise into a new array. A third program
only reads, as a product with a vector. A step with heads of one channel has almost no state, and
shows the time to launch its kernels. Prefill processes many tokens and also returns the state. Its
lower bound is one product of square matrices with as many operations as its products have. All
programs of a row run in turns in one process, the donated step twice, which shows the noise. Times
are CPU times of this process on one core, which exclude other processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.efficiency.cache import make_step
from experiments.efficiency.growth import in_turns, run_steps
from experiments.measured import Measured, Rows
from experiments.rules import Range
from flax_linattn import ops
from flax_linattn.bench import Journal, compile_program, inputs, normal, spread
from flax_linattn.bench.comparison import mechanism
from flax_linattn.bench.report import markdown, number
from flax_linattn.ops.engine.monomials import num_monomials

STEP, AGAIN, LAUNCH = "step", "step again", "step, one channel"
NOT_DONATED = "step, state not donated"
IN_PLACE, COPY, READ = "add in place", "add into a new array", "read"
PREFILL, PREFILL_AGAIN, PRODUCT = "prefill", "prefill again", "one product"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        rows: B, of steps.
        tokens: of prefill, one row.
        num_heads: H.
        dim: K and V.
        rounds: how often each program is timed.
        steps: that are timed at once, and waited for one by one.
    """

    rows: tuple[int, ...] = (1, 16)
    tokens: int = 8192
    num_heads: int = 2
    dim: int = 64
    rounds: int = 31
    steps: int = 20


def measure(size: Size, journal: Journal) -> None:
    for rows in size.rows:
        journal.row({"rows": rows}, partial(steps, size, rows))
    journal.row({"tokens": size.tokens}, partial(prefill, size))


def steps(size: Size, rows: int) -> dict[str, Any]:
    """Milliseconds of a step and its floors, and bytes of the state."""
    one = ops.get_mechanism("taylorshift")
    state = one.init_state(rows, size.num_heads, size.dim, size.dim)
    min_state = one.init_state(rows, size.num_heads, 1, 1)
    token = inputs(one, 1, batch_size=rows, num_heads=size.num_heads, dim=size.dim)
    scalar = inputs(one, 1, batch_size=rows, num_heads=size.num_heads, dim=1)
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    array = jnp.ones((state_bytes // (4 * size.dim), size.dim))

    donated, facts = make_step(one, jax.tree.map(jnp.copy, state), token, donated=True)
    calls = {
        STEP: donated,
        AGAIN: donated,
        NOT_DONATED: make_step(one, state, token, donated=False)[0],
        LAUNCH: make_step(one, min_state, scalar, donated=True)[0],
        IN_PLACE: make_adder(array + 0, donated=True),
        COPY: make_adder(array, donated=False),
        READ: partial(compile_program(jnp.matmul, (array, array[0]))[0], array, array[0]),
    }
    turns = {name: partial(run_steps, call, size.steps) for name, call in calls.items()}
    times = {
        name: spread([time / size.steps for time in values])
        for name, values in in_turns(turns, size.rounds).items()
    }
    temporary = facts["temporary_bytes"]
    return {"state_bytes": state_bytes, "temporary_bytes": temporary, "milliseconds": times}


def make_adder(array: jax.Array, *, donated: bool) -> Callable[[], jax.Array]:
    """A function that adds 1 to all of an array again."""
    donate = {"donate_argnums": 0} if donated else {}
    compiled, _ = compile_program(lambda x: x + 1, (array,), **donate)

    def take() -> jax.Array:
        nonlocal array
        array = compiled(array)
        return array

    return take


def prefill(size: Size) -> dict[str, Any]:
    """Milliseconds of prefill and of its floor, and the operations of their products."""
    one: Any = ops.get_mechanism("taylorshift")
    arrays = inputs(one, size.tokens, num_heads=size.num_heads, dim=size.dim)
    run = mechanism("taylorshift", is_causal=True, return_state=True)
    ours = partial(compile_program(run, arrays)[0], *arrays)
    operations = products(size, one.chunk_size)
    matrices = normal(*2 * [2 * [round((operations / 2) ** (1 / 3))]])
    product = partial(compile_program(jnp.matmul, matrices)[0], *matrices)
    programs = {PREFILL: ours, PREFILL_AGAIN: ours, PRODUCT: product}
    times = in_turns(programs, max(1, size.rounds // 3))
    milliseconds = {name: spread(values) for name, values in times.items()}
    return {"operations": operations, "milliseconds": milliseconds}


def products(size: Size, chunk: int) -> int:
    """Floating point operations of the products of causal chunks, one row.

    The features of keys times values make the state, the features of queries read it, and within a
    chunk all pairs have a weight.
    """
    features = num_monomials(size.dim, 2)
    a_token = 2 * features * size.dim + features + 2 * min(chunk, size.tokens) * size.dim
    return 2 * size.num_heads * size.tokens * a_token


def table(rows: Rows, size: Size) -> str:
    heads = ["rows", "state, MB", "program", "µs (min - max)", "relative to its floor", "its floor"]
    heads += ["relative to floor and read"]
    lines = []
    floors = {STEP: IN_PLACE, AGAIN: IN_PLACE, NOT_DONATED: COPY}
    for row in rows:
        if "rows" not in row:
            continue
        took = {name: Range.of(value) for name, value in row["milliseconds"].items()}
        for name, times in took.items():
            cells = [str(row["rows"]), number(row["state_bytes"] / 1e6), name]
            cells.append(Range(*(1e3 * x for x in times)).text())
            floor = floors.get(name)
            if floor is None:
                lines.append([*cells, "-", "-", "-"])
                continue
            twice = Range(*(a + b for a, b in zip(took[floor], took[READ], strict=True)))
            cells += [times.over(took[floor]).text(), floor, times.over(twice).text()]
            lines.append(cells)
    last = next(row for row in rows if "tokens" in row)
    took = {name: Range.of(value) for name, value in last["milliseconds"].items()}
    rates = [
        [
            name,
            times.text(),
            number(last["operations"] / times.middle / 1e6),
            times.over(took[PRODUCT]).text(),
        ]
        for name, times in took.items()
    ]
    titles = [f"{last['tokens']:,} tokens", "ms (min - max)", "GFLOP/s", "relative to one product"]
    return f"{markdown(heads, lines)}\n\n{markdown(titles, rates)}"


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_floor",
    about="the paper counts operations and numbers; it measures no floor",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator; other dimensions than d = 64"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
