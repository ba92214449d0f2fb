"""Cost of causality for NaN and infinity: attention with and without the replacement of tokens.

    python -m experiments.efficiency.non_finite

The programs without replacement are the same programs, traced while the functions that replace
tokens and mark outputs do nothing. Both run in turns in one process, and times are CPU times of the
process.

As in a layer, matrices map queries, keys, values and outputs. Without these matrices, the check for
NaN would be the only matrix product of the program, and XLA for CPUs would compile all loops after
the first product differently. elementwise_series then seems to take 40 % longer to train, which is
not the case in a layer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax

from experiments.efficiency.programs import each_pass, in_turns
from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal, inputs, prepare, spread
from flax_linattn.bench.comparison import FORWARD, PASSES, TRAINING, mechanism
from flax_linattn.bench.report import markdown, number
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.non_finite import NonFinite
from flax_linattn.typing import Array

WITH, WITHOUT = "with", "without"
CAUSAL = [name for name in ops.list_mechanisms() if ops.get_mechanism(name).capabilities.causal]


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names.
        shapes: B and T.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
    """

    mechanisms: tuple[str, ...] = tuple(CAUSAL)
    shapes: tuple[tuple[int, int], ...] = ((4, 512), (1, 4096))
    num_heads: int = 4
    dim: int = 16
    rounds: int = 31
    seconds: float = 3.0


def measure(size: Size, journal: Journal) -> None:
    each_pass(size, journal, costs)


def costs(size: Size, name: str, batch_size: int, length: int, which: str) -> dict[str, Any]:
    """Times and memory of both programs, and the ratios of their times in each round."""
    run = partial(layer, mechanism(name, is_causal=True))
    one, sizes = ops.get_mechanism(name), {"num_heads": size.num_heads, "dim": size.dim}
    arrays = inputs(one, length, batch_size=batch_size, **sizes)
    programs = {WITH: PASSES[which](run), WITHOUT: PASSES[which](partial(unguarded, run))}
    compiled = prepare(programs, arrays)
    calls = {name: partial(program, *arrays) for name, program in compiled.programs.items()}
    times = in_turns(calls, size.rounds, size.seconds)
    ratios = [a / b for a, b in zip(times[WITH], times[WITHOUT], strict=True)]
    return {
        "milliseconds": {name: spread(each) for name, each in times.items()},
        "megabytes": {name: x["temporary_bytes"] / 1e6 for name, x in compiled.facts.items()},
        "quartiles": statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios,
    }


def layer(run: Callable[..., Array], *arrays: Array) -> Array:
    """Calls ``run`` between projections of each head, here by one fixed orthogonal matrix."""
    kernel = jax.random.orthogonal(jax.random.key(0), arrays[2].shape[-1])
    heads = arrays[2].shape[-2:]
    return run(*(x @ kernel if x.shape[-2:] == heads else x for x in arrays)) @ kernel


def unguarded(run: Callable[..., Any], *arrays: Any) -> Any:
    """Calls ``run`` without the replacement."""
    with replace_nothing():
        return run(*arrays)


@contextlib.contextmanager
def replace_nothing() -> Iterator[None]:
    """Traces attention that replaces and marks nothing."""

    def unchanged(one: Mechanism, call: Any) -> tuple[Any, NonFinite]:
        return call, NonFinite.nowhere(call, one.capabilities)

    with contextlib.ExitStack() as stack:
        for kind in (Mechanism, ops.StreamingMechanism):
            stack.enter_context(mock.patch.object(kind, "_replace_non_finite", unchanged))
        first = mock.patch.object(NonFinite, "poison_outputs", lambda _, y, attended: y)
        stack.enter_context(first)
        yield


def table(rows: Rows, size: Size) -> str:
    columns = [(*shape, which) for which in (FORWARD, TRAINING) for shape in size.shapes]
    by_cell = {
        (row["mechanism"], row["batch_size"], row["tokens"], row["pass"]): row for row in rows
    }
    heads = ["mechanism", *(f"{which}, {b} x {t:,}" for b, t, which in columns)]
    lines = [
        [name, *(_cell(by_cell[name, *column]) for column in columns)] for name in size.mechanisms
    ]
    return markdown(heads, lines)


def _cell(row: dict[str, Any]) -> str:
    """Milliseconds without and with, and the extra time with its quartiles over the rounds."""
    low, middle, high = (f"{100 * (ratio - 1):+.0f}" for ratio in row["quartiles"])
    before, after = (number(row["milliseconds"][name]["median"]) for name in (WITHOUT, WITH))
    return f"{before} to {after} ms: {middle} % ({low} to {high})"


EXPERIMENT = Measured(
    module="experiments.efficiency.non_finite",
    about="the papers do not mention NaN",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
