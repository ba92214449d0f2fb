"""Time of a step with a key/value cache, by the number of cached tokens and the capacity.

    python -m experiments.efficiency.cache

Steps of one sequence with 1,000 tokens in the cache, and with a full cache; the new token is
included. Each step is compared with a step that reads all slots at once, as steps did before they
read blocks, and with our step without donation of the state, which copies the state. All programs
of a row run in turns in one process, each with its own cache, always at the same length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.measured import Measured, Rows
from experiments.rules import Range
from flax_linattn import ops
from flax_linattn.bench import Journal, baselines, compile_program, inputs, run_in_turns, spread
from flax_linattn.bench.comparisons import OURS
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

MECHANISMS = ("softmax", "expressive", "forgetting", "elementwise", "aft")
ALL_SLOTS, NOT_DONATED = "all slots at once", "state not donated"
FULL = "full"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names.
        held: tokens in a cache that is not full; the capacity of the smallest cache.
        max_lengths: slots of a cache.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    held: int = 1000
    max_lengths: tuple[int, ...] = (1000, 10_000, 100_000)
    num_heads: int = 8
    dim: int = 64
    rounds: int = 15
    seconds: float = 90.0


def measure(size: Size, journal: Journal) -> None:
    for name in size.mechanisms:
        for held in (str(size.held), FULL):
            key = {"mechanism": name, "held": held}
            journal.row(key, partial(steps, size, name, held))


def steps(size: Size, name: str, held: str) -> dict[str, Any]:
    """Costs of a step, by ``max_length`` and program."""
    one = ops.get_mechanism(name)
    arrays = inputs(one, 1, num_heads=size.num_heads, dim=size.dim)
    programs: dict[str, Callable[[], Array]] = {}
    results: dict[str, dict[str, Any]] = {}
    for capacity in size.max_lengths:
        length = capacity if held == FULL else size.held
        state = one.init_state(1, size.num_heads, size.dim, size.dim, capacity)
        state = dataclasses.replace(state, length=jnp.full_like(state.length, length - 1))
        results[str(capacity)] = {}
        for which, way in ((OURS, one), (ALL_SLOTS, at_once(one)), (NOT_DONATED, one)):
            donated = which != NOT_DONATED
            call, facts = make_step(way, jax.tree.map(jnp.copy, state), arrays, donated=donated)
            programs[f"{capacity} {which}"] = call
            results[str(capacity)][which] = facts
    times = run_in_turns(programs, (), size.rounds, size.seconds)
    for program, values in times.items():
        slots, _, which = program.partition(" ")
        results[slots][which]["milliseconds"] = spread(values)
    return {"results": results}


def at_once(mechanism: Any) -> ops.Mechanism:
    """The same one, whose steps read all slots."""

    @dataclasses.dataclass(frozen=True)
    class AtOnce(type(mechanism)):  # type: ignore[misc]
        block = 2**31

    fields = dataclasses.fields(mechanism)
    return AtOnce(**{each.name: getattr(mechanism, each.name) for each in fields})


def make_step(
    one: ops.Mechanism, state: Any, arrays: list[Array], *, donated: bool
) -> tuple[Callable[[], Array], dict[str, Any]]:
    """A function that takes in the last token again, and facts of its program."""
    q, k, v, gates = baselines.by_name(one, arrays)
    token = {name: x[:, 0] for name, x in {"k": k, "v": v, **gates}.items()}
    token["q"] = q if one.capabilities.learned_query else q[:, 0]

    def step(state: Any, token: dict[str, Array]) -> Any:
        y, after = one.step(state=state, **token)
        if not one.capabilities.constant_memory:  # a cache holds as many tokens as before
            after = dataclasses.replace(after, length=state.length)
        return y, after

    donate = {"donate_argnums": 0} if donated else {}
    compiled, facts = compile_program(step, (state, token), **donate)

    def take() -> Any:
        nonlocal state
        y, state = compiled(state, token)
        return y, state

    return take, facts


def table(rows: Rows, size: Size) -> str:
    min_capacity = min(size.max_lengths)
    heads = ["mechanism", "tokens in the cache", "max_length", "ms per step", "temporary MB"]
    heads += [
        f"relative to a cache of {min_capacity:,}",
        f"{ALL_SLOTS}: relative time",
        "temporary MB",
    ]
    heads += [f"{NOT_DONATED}: relative time"]
    lines = []
    for row in rows:
        unit = Range.of(row["results"][str(min_capacity)][OURS]["milliseconds"])
        for capacity, results in row["results"].items():
            took = {which: Range.of(result["milliseconds"]) for which, result in results.items()}
            memory = {which: number(x["temporary_bytes"] / 1e6) for which, x in results.items()}
            held = capacity if row["held"] == FULL else row["held"]
            lines.append(
                [
                    row["mechanism"],
                    f"{int(held):,}",
                    f"{int(capacity):,}",
                    took[OURS].text(),
                    memory[OURS],
                    took[OURS].over(unit).text(),
                    took[ALL_SLOTS].over(took[OURS]).text(),
                    memory[ALL_SLOTS],
                    took[NOT_DONATED].over(took[OURS]).text(),
                ]
            )
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.cache",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
