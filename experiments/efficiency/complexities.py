"""Element-wise attention, table 1: operations of each attention by length, channels and order.

    python -m experiments.efficiency.complexities

Nothing is timed: operations are counted in the programs as JAX traces them, of one sequence, one
head of D channels, not causal, as in the equations that table 1 summarizes.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.efficiency.counts import work
from experiments.measured import Measured, Rows
from experiments.rules import exponent, grows
from experiments.statements import Judge, Statement
from experiments.verdicts import Verdict, combine, rows_with
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

TRAINING, STEP = "loss and gradients", "a step"
SA, LA, AFT, EA = "softmax", "linear", "aft", "elementwise_series"
TAYLOR = "taylorshift"
ORDER = "order"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the counts at one scale: L, D or the order varies, the others are fixed."""

    lengths: tuple[int, ...] = (256, 512, 1024)
    dims: tuple[int, ...] = (64, 128, 256)
    small_dims: tuple[int, ...] = (5, 10, 20)
    """D for polynomials of dot products of order 4: more channels have too many features."""
    orders: tuple[int, ...] = (8, 16, 32)
    """Orders of EA-series."""
    length: int = 256
    dim: int = 32
    order: int = 6
    cache_length: int = 256
    """Tokens in the cache of a step."""


FORMS = {SA: "auto", LA: "auto", AFT: "auto", EA: "auto", TAYLOR: "efficient"}


def measure(size: Size, journal: Journal) -> None:
    fixed = {"length": size.length, "dim": size.dim, ORDER: size.order}
    for name in (SA, LA, AFT, EA):
        variants = [{"length": n} for n in size.lengths] + [{"dim": n} for n in size.dims]
        variants += [{ORDER: n} for n in size.orders] if name == EA else []
        add(journal, TRAINING, name, fixed, variants)
    for order in (2, 4):
        of_order = {**fixed, ORDER: order}
        dims = [{"dim": n} for n in (size.dims if order == 2 else size.small_dims)]
        add(journal, TRAINING, TAYLOR, of_order, dims)
    for name in (SA, LA, EA):
        variants = [{"dim": n} for n in size.dims]
        variants += [
            {"length": n} for n in (size.cache_length, 2 * size.cache_length, 4 * size.cache_length)
        ]
        variants += [{ORDER: n} for n in size.orders] if name == EA else []
        add(journal, STEP, name, {**fixed, "length": size.cache_length}, variants)


def add(
    journal: Journal, what: str, name: str, fixed: dict[str, int], variants: list[dict[str, int]]
) -> None:
    """Adds a row for each variant of the fixed sizes; each names what varies."""
    for variant in variants:
        (varies,) = variant
        key = {"what": what, "mechanism": name, "varies": varies, **fixed, **variant}
        journal.row(key, partial(count, what, name, **{**fixed, **variant}))


def count(what: str, name: str, *, length: int, dim: int, order: int) -> dict[str, Any]:
    """Counts the operations of a mechanism's program."""
    options = {"order": order} if name in (EA, TAYLOR) else {}
    mechanism = ops.get_mechanism(name, **options)
    if what == STEP:
        token = jax.ShapeDtypeStruct((1, 1, dim), jnp.float32)
        own = {"max_length": length} if not mechanism.capabilities.constant_memory else {}
        state = jax.eval_shape(lambda: mechanism.init_state(1, 1, dim, dim, **own))
        return {"operations": work(jax.make_jaxpr(mechanism.step)(*[token] * 3, state).jaxpr)}
    tokens = jax.ShapeDtypeStruct((1, length, 1, dim), jnp.float32)
    bias = (jax.ShapeDtypeStruct((length, length), jnp.float32),) if name == AFT else ()

    def loss(q: Array, k: Array, v: Array, *position_bias: Array) -> Array:
        parameters = dict(zip(("position_bias",), position_bias, strict=False))
        y = mechanism.attend(q, k, v, is_causal=False, form=FORMS[name], **parameters)
        return jnp.sum(jnp.square(y))

    program = jax.grad(loss, argnums=(0, 1, 2))
    return {"operations": work(jax.make_jaxpr(program)(*[tokens] * 3, *bias).jaxpr)}


def power(rows: Rows, what: str, name: str, varies: str, **fixed: Any) -> list[tuple[float, float]]:
    """Operations of a program by the size that varies."""
    wanted = f"{name}, {what}, by {varies}"
    own = rows_with(rows, wanted, what=what, mechanism=name, varies=varies, **fixed)
    return [(row[varies], row["operations"]) for row in own]


LETTERS = {"length": "L", "dim": "D", ORDER: "t"}


def exponent_text(points: list[tuple[float, float]]) -> str:
    """The exponent with two decimals, and never "-0.00"."""
    return f"{round(exponent(points), 2) + 0.0:.2f}"


def costs(what: str, name: str, **powers: int) -> Judge:
    """The verdict on "its operations grow as these powers"."""

    def judge(rows: Rows) -> Verdict:
        of_all = {varies: power(rows, what, name, varies) for varies in powers}
        words = [grows(of_all[varies], p) for varies, p in powers.items()]
        texts = [f"{LETTERS[v]}^{exponent_text(points)}" for v, points in of_all.items()]
        return Verdict(combine(words), f"counted: {', '.join(texts)}")

    return judge


def judge_products(rows: Rows) -> Verdict:
    """The verdict on polynomials of dot products, with t as the order and as the terms.

    Only order 2 decides: at order 4 no D is possible that is so large that the highest power
    dominates.
    """
    of_2, of_4 = (power(rows, TRAINING, TAYLOR, "dim", order=order) for order in (2, 4))
    by_order, by_terms = grows(of_2, 2), grows(of_2, 3)
    slopes = " and ".join(f"D^{exponent(pair):.2f}" for pair in itertools.pairwise(of_4))
    return Verdict(
        combine([by_order, by_terms]),
        f"counted: D^{exponent_text(of_2)} at order 2, which has 3 terms, because each of the D^2 "
        f"features has D values: {by_order} with t as the order, {by_terms} with t as the number "
        f"of terms; at order 4 the exponent still changes at D = {of_4[-1][0]} ({slopes}), so it "
        "is not judged",
    )


def table(rows: Rows, size: Size) -> str:
    """One line per program, mechanism and varying size."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        order = row[ORDER] if row["mechanism"] == TAYLOR else None
        groups.setdefault((row["what"], row["mechanism"], order, row["varies"]), []).append(row)
    lines = []
    for (what, name, order, varies), own in groups.items():
        points = [(row[varies], row["operations"]) for row in own]
        label = f"`{name}`" + (f", order {order}" if order else "")
        counted = ", ".join(f"{n:,}: {number(y)}" for n, y in points)
        lines.append([what, label, LETTERS[varies], counted, exponent_text(points)])
    return markdown(["program", "attention", "varies", "operations", "exponent"], lines)


WHERE = "Element-wise attention, table 1"

EXPERIMENT = Measured(
    module="experiments.efficiency.complexities",
    about="element-wise attention, table 1: complexities in training and inference",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(WHERE, "SA takes O(L^2 D) operations", costs(TRAINING, SA, length=2, dim=1)),
        Statement(WHERE, "LA takes O(L D^2) operations", costs(TRAINING, LA, length=1, dim=2)),
        Statement(WHERE, "AFT takes O(L^2 D) operations", costs(TRAINING, AFT, length=2, dim=1)),
        Statement(
            WHERE,
            "EA-series takes O(t L D) operations",
            costs(TRAINING, EA, length=1, dim=1, order=1),
        ),
        Statement(WHERE, "a step of SA takes O(L D) operations", costs(STEP, SA, length=1, dim=1)),
        Statement(WHERE, "a step of LA takes O(D^2) operations", costs(STEP, LA, length=0, dim=2)),
        Statement(
            WHERE,
            "a step of EA-series takes O(t D) operations",
            costs(STEP, EA, length=0, dim=1, order=1),
        ),
        Statement(
            "Element-wise attention, section 3.4",
            "Taylor polynomials of dot products take O(L D^t) operations",
            judge_products,
            stated="2026-11-29T23:05:00+00:00",
        ),
    ),
    is_deterministic=True,
    left_out={
        "": "a step of AFT, whose position biases have as many rows as its cache; D below 64, "
        "where lower powers still count: in a trial with D of 16 to 64 a step of LA grew as D^1.75"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
