"""Time of a step with a key/value cache, relative to NumPy's products and to a copy.

    python -m experiments.efficiency.cache

Steps with 1,000 tokens in the cache, of one sequence and of 16, and with a full cache of 10,000;
the new token is included. Each step is compared with the same attention in NumPy, which appends
nothing; with a copy of the keys of the cached tokens, which moves as many bytes as a step reads,
or half as many where a half-full cache is read at once; with itself; with a step that reads all
slots at once; and with our step without donation of the state, which copies the state. All
programs of a row run in turns in one process, each with its own cache, always at the same length.
Times are CPU times of all threads.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import Measured, Rows
from experiments.rules import Range
from flax_linattn import ops
from flax_linattn.bench import Journal, baselines, compile_program, inputs, run_in_turns, spread
from flax_linattn.bench.comparison import OURS
from flax_linattn.bench.report import markdown, number
from flax_linattn.bench.timing import normal
from flax_linattn.typing import Array

MECHANISMS = ("softmax", "expressive", "forgetting", "elementwise", "aft")
NUMPY, COPY, REPEAT = "NumPy", "copy", "the same step again"
ALL_SLOTS, NOT_DONATED = "all slots at once", "state not donated"
PEERS = (NUMPY, COPY, REPEAT, ALL_SLOTS, NOT_DONATED)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names; for full caches also softmax with a window of all cached tokens.
        caches: for each row, the numbers of sequences, of cached tokens and of slots.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    caches: tuple[tuple[int, int, int], ...] = (
        *((1, 1000, 1000), (1, 1000, 2000), (1, 1000, 10_000), (1, 10_000, 10_000)),
        *((16, 1000, 1000), (16, 1000, 2000)),
    )
    num_heads: int = 8
    dim: int = 64
    rounds: int = 31
    seconds: float = 12.0


def measure(size: Size, journal: Journal) -> None:
    for batch, held, slots in size.caches:
        windows = (f"softmax:window={held}",) if held == slots else ()
        for name in (*size.mechanisms, *windows):
            key = {"mechanism": name, "batch": batch, "held": held, "slots": slots}
            journal.row(key, partial(steps, size, **key))


def steps(size: Size, mechanism: str, batch: int, held: int, slots: int) -> dict[str, Any]:
    """Costs of a step and of its peers, by program."""
    one = ops.get_mechanism(mechanism)
    shape = {"num_heads": size.num_heads, "dim": size.dim}
    arrays = inputs(one, 1, batch_size=batch, **shape)
    cached = inputs(one, held, batch_size=batch, **shape)
    state = one.init_state(batch, size.num_heads, size.dim, size.dim, slots)
    key, value = normal(state.key.shape, state.value.shape)
    length = jnp.full_like(state.length, held - 1)
    state = dataclasses.replace(state, key=key, value=value, length=length)
    results: dict[str, dict[str, Any]] = {NUMPY: {}, COPY: {}, REPEAT: {}}
    programs = peers(one, cached)
    for which, way in ((OURS, one), (ALL_SLOTS, at_once(one)), (NOT_DONATED, one)):
        donated = which != NOT_DONATED
        call, facts = make_step(way, jax.tree.map(jnp.copy, state), arrays, donated=donated)
        programs[which], results[which] = call, facts
    programs[REPEAT] = programs[OURS]
    times = run_in_turns(programs, (), size.rounds, size.seconds, time.process_time)
    for program, values in times.items():
        results[program]["milliseconds"] = spread(values)
    return {"results": results}


def peers(one: ops.Mechanism, cached: list[Array]) -> dict[str, Callable[[], Any]]:
    """The same attention in NumPy on contiguous heads, and a copy of its keys."""
    channelwise = one.capabilities.channelwise
    q, k, v = (np.asarray(x if channelwise else jnp.swapaxes(x, 1, 2)) for x in cached[:3])
    q = q[:, -1:] if channelwise else np.ascontiguousarray(q[:, :, -1:].swapaxes(2, 3))
    k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
    decay = np.zeros(k.shape[:3], k.dtype)
    copied = np.empty_like(k)

    def step() -> Any:
        if channelwise:
            score = k if one.name == "aft" else -((q - k) ** 2)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            return (weight * v).sum(axis=1) / weight.sum(axis=1)
        score = np.matmul(k, q)[..., 0] * k.shape[-1] ** -0.5
        if one.name == "forgetting":
            score = score + decay
        if one.name == "expressive":
            weight = score * score / (1 + score * score)
        else:
            weight = np.exp(score - score.max(axis=-1, keepdims=True))
        y = np.matmul(weight[:, :, None], v)[:, :, 0]
        return y / weight.sum(axis=-1, keepdims=True)

    return {NUMPY: step, COPY: lambda: np.copyto(copied, k)}


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
    heads = ["mechanism", "sequences", "tokens in the cache", "slots", "CPU ms per step"]
    heads += ["temporary MB", *(f"x {peer}" for peer in PEERS[:2])]
    heads += [f"{peer}: relative time" for peer in PEERS[2:]]
    lines = []
    for row in rows:
        results = row["results"]
        took = {which: Range.of(result["milliseconds"]) for which, result in results.items()}
        ours = took[OURS].middle
        cells = [row["mechanism"], *(f"{row[name]:,}" for name in ("batch", "held", "slots"))]
        cells += [took[OURS].text(), number(results[OURS]["temporary_bytes"] / 1e6)]
        cells += [number(ours / took[peer].middle) for peer in PEERS[:2]]
        lines.append(cells + [number(took[peer].middle / ours) for peer in PEERS[2:]])
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
