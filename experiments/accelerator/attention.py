"""Every form of every mechanism compared with softmax attention by XLA and by cuDNN.

    python -m experiments.accelerator.attention

One sequence, 8 heads of 64 channels, float32 (cuDNN: bfloat16), causal if the mechanism can be. All
programs are timed in turns in one process. The bandwidth bound is the time in which the device
moves all arguments and results once. The compute bound, for softmax attention only, is the time of
its matrix products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from experiments.accelerator import floor
from experiments.measured import Measured, Rows
from experiments.rules import Range
from flax_linattn import ops
from flax_linattn.bench import Comparison, Journal, against_baselines, memory_limit
from flax_linattn.bench.comparison import FORWARD, GATED, HEADS, OURS, PASSES, mechanism
from flax_linattn.bench.report import markdown, number

MECHANISMS = (
    "aaren",
    "elementwise",
    "elementwise_series:order=6",
    "taylorshift",
    "expressive",
    "expressive_quadratic",
    "linear",
    *GATED,
    "softmax",
)
SOFTMAX = "softmax attention ("
CUDNN = "cuDNN"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: with hyperparameters.
        lengths: T.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
        floor: of ``floor.Size``.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    lengths: tuple[int, ...] = (1024, 4096, 16384, 65536)
    rounds: int = 10
    seconds: float = 3.0
    floor: Mapping[str, int] = dataclasses.field(default_factory=dict)


def measure(size: Size, journal: Journal) -> None:
    at_best = floor.Size(**size.floor)
    journal.row({"what": "floor"}, lambda: {"a_second": floor.rates(at_best)})
    for spec in size.mechanisms:
        for length in size.lengths:
            for which in PASSES:
                key = {"mechanism": spec, "length": length, "pass": which}
                journal.row(key, partial(measure_length, size, spec, length, which))


def comparison(spec: str) -> Comparison:
    """A mechanism's ``auto`` against its forms and softmax attention."""
    base = against_baselines(spec)
    can = ops.get_mechanism(spec).capabilities
    attend = partial(mechanism, spec, is_causal=can.causal)
    forms = {f"form {form}": attend(form=form) for form in can.forms}
    softmax = {name: peer for name, peer in base.peers.items() if name.startswith(SOFTMAX)}
    return dataclasses.replace(base, peers={**forms, **softmax})


def measure_length(size: Size, spec: str, length: int, which: str) -> dict[str, Any]:
    compared = comparison(spec)
    # Ours multiplies in full precision; so must the peers.
    with jax.default_matmul_precision("highest"):
        prepared = compared.prepare(length, which, memory_limit())
        try:
            return compared.measure(prepared, length, size.rounds, size.seconds)
        except RuntimeError as error:  # it does not fit after all
            why = str(error).splitlines()[0][:120]
            return {"results": {n: {"not_run": why} | f for n, f in prepared.facts.items()}}


def bandwidth_fraction(result: dict[str, Any], rates: Mapping[str, float]) -> float:
    """Of a program's time, what it takes to move its arguments and results once."""
    moved = result["total_bytes"] - result["temporary_bytes"]
    return float(1e3 * moved / rates[floor.COPY] / result["milliseconds"]["median"])


def softmax_fraction(
    name: str, result: dict[str, Any], length: int, which: str, rates: Mapping[str, float]
) -> float:
    """Of a causal softmax attention's time, what its products take at best.

    Two products of the visible half of T x T forward, five backward.
    """
    products = 2 if which == FORWARD else 7
    operations = products * length**2 * HEADS * 64
    rate = rates[floor.BFLOAT16 if CUDNN in name else floor.FLOAT32]
    return float(1e3 * operations / rate / result["milliseconds"]["median"])


def table(rows: Rows, size: Size) -> str:
    rates = next(row["a_second"] for row in rows if row.get("what") == "floor")
    lines = []
    for row in rows:
        if "mechanism" not in row:
            continue
        for name, result in row["results"].items():
            program = "auto" if name == OURS else name.removeprefix("form ")
            line = [row["mechanism"], f"{row['length']:,}", row["pass"], program]
            lines.append([*line, *_cells(name, result, row, rates)])
    heads = ["mechanism", "T", "pass", "program", "ms (min - max)", "temporary MB"]
    heads += ["of the bandwidth's floor, %", "of the products' floor, %", "times auto"]
    bests = [
        [what, f"{number(rate / 1e9)} {'GB/s' if what == floor.COPY else 'GFLOP/s'}"]
        for what, rate in rates.items()
    ]
    return markdown(heads, lines) + "\n\n" + markdown(["the device at best", "rate"], bests)


def _cells(
    name: str, result: dict[str, Any], row: dict[str, Any], rates: Mapping[str, float]
) -> list[str]:
    memory = number(result["temporary_bytes"] / 1e6) if "temporary_bytes" in result else "-"
    if "milliseconds" not in result:
        return [result["not_run"], memory, "-", "-", "-"]
    time = Range.of(result["milliseconds"])
    ours = row["results"][OURS]
    causal = ops.get_mechanism(row["mechanism"]).capabilities.causal
    of_products = "-"
    if name.startswith(SOFTMAX) and causal:
        fraction = softmax_fraction(name, result, row["length"], row["pass"], rates)
        of_products = number(100 * fraction)
    ratio = "-"
    if "milliseconds" in ours:
        ratio = number(time.over(Range.of(ours["milliseconds"])).middle)
    return [
        time.text(),
        memory,
        number(100 * bandwidth_fraction(result, rates)),
        of_products,
        ratio,
    ]


EXPERIMENT = Measured(
    module="experiments.accelerator.attention",
    about="the papers time implementations of their own",
    sizes={"paper": Size()},
    measure=measure,
    table=table,
    left_out={"paper": "batches above 1; half precision of ours, which computes in float32"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
