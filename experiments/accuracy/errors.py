"""Largest errors of every mechanism, form and dtype compared with the float64 reference.

    python -m experiments.accuracy.errors

Inputs are normal numbers, and gates of newly initialized layers, rounded to the dtype. The
reference computes with the same rounded inputs in float64, for 48 rows spread over the sequence
(all rows if the mechanism needs the whole sequence or is a recurrence). An error is the largest
difference divided by the largest magnitude of the expected array. Gradients are of a random linear
combination of the compared outputs. Mechanisms are causal if they can be.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import Measured, Rows
from flax_linattn import ops
from flax_linattn.bench import Journal, inputs
from flax_linattn.bench.report import markdown
from flax_linattn.ops.contract.masks import visible_rows

ROWS = 48
"""Positions of the sequence that are compared."""
ONE_BLOCK = 4096
HALF = ("bfloat16", "float16")
PAIR_DECAYS = ("rwkv",)
"""Mechanisms without per-token inputs whose reference also sums decays over all pairs of tokens."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    mechanisms: tuple[str, ...] = ()
    """Default all."""
    lengths: tuple[int, ...] = (1000, 4000)
    gated: int = 1000
    """Maximum length for mechanisms with per-token inputs, and for ``PAIR_DECAYS``."""
    heads: int = 2
    dim: int = 8


def measure(size: Size, journal: Journal) -> None:
    for length in size.lengths:
        for name in size.mechanisms or ops.list_mechanisms():
            decays = ops.get_mechanism(name).token_arguments or name in PAIR_DECAYS
            if length > size.gated and decays:
                continue
            key = {"length": length, "mechanism": name}
            journal.row(key, partial(measure_mechanism, size, name, length))


def make_inputs(size: Size, mechanism: ops.Mechanism, length: int, dtype: str) -> list[Any]:
    """q, k, v and gates, rounded to ``dtype``."""
    made = inputs(mechanism, length, num_heads=size.heads, dim=size.dim)
    return [x.astype(dtype) for x in made]


def values_and_gradients(function: Any, inputs: Any, weights: np.ndarray) -> Any:
    """The compared rows, and the gradients of their weighted sum."""

    @jax.jit
    def both(inputs: Any) -> Any:
        y, pull = jax.vjp(function, *inputs)
        return y, pull(jnp.asarray(weights, y.dtype))

    return jax.tree.map(lambda a: np.asarray(a, np.float64), both(inputs))


def error(ours: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected magnitude; over 1 where nothing is expected."""
    return float(np.max(np.abs(ours - expected)) / (np.max(np.abs(expected)) or 1))


def measure_mechanism(size: Size, name: str, length: int) -> dict[str, Any]:
    """All forms and dtypes of one mechanism at one length."""
    mechanism = ops.get_mechanism(name)
    can = mechanism.capabilities
    index = np.unique(np.linspace(0, length - 1, ROWS).astype(int))
    weights = np.random.default_rng(1).normal(size=(1, len(index), size.heads, size.dim))

    names = [argument.name for argument in mechanism.token_arguments]

    def by_reference(q: Any, k: Any, v: Any, *gates: Any) -> Any:
        own = dict(zip(names, gates, strict=True))
        recurrence = can.constant_memory and not can.noncausal
        if recurrence or not can.recurrent:
            return mechanism.reference(q, k, v, is_causal=recurrence, **own)[:, index]
        visible = visible_rows(jnp.asarray(index), length, is_causal=can.causal)
        rows = q if can.learned_query else q[:, index]
        return mechanism._reference(rows, k, v, visible, own)

    exact: dict[str, Any] = {}
    errors = []
    for dtype, form in cases(mechanism, length):
        with jax.enable_x64(True):
            given = make_inputs(size, mechanism, length, dtype)
            if dtype not in exact:
                wide = [x.astype(jnp.float64) for x in given]
                exact[dtype] = values_and_gradients(by_reference, wide, weights)

            def by_form(q: Any, k: Any, v: Any, *gates: Any, form: str = form) -> Any:
                own = dict(zip(names, gates, strict=True))
                y = mechanism.attend(q, k, v, is_causal=can.causal, form=form, **own)
                return y[:, index]

            ours = values_and_gradients(by_form, given, weights)
        (y, gradients), (expected, expected_gradients) = ours, exact[dtype]
        gradient = max(map(error, gradients, expected_gradients))
        errors.append(
            {"dtype": dtype, "form": form, "output": error(y, expected), "gradient": gradient}
        )
    return {"cases": errors}


def cases(mechanism: ops.Mechanism, length: int) -> list[tuple[str, str]]:
    """(dtype, form): every form in float64 and float32, ``auto`` in half precision."""
    forms = [
        form
        for form in mechanism.capabilities.forms
        if not (form == "parallel" and mechanism.capabilities.recurrent and length > ONE_BLOCK)
        and form != "efficient"  # the paper's name of TaylorShift's chunked form
    ]
    return [(d, f) for d in ("float64", "float32") for f in forms] + [(d, "auto") for d in HALF]


def table(rows: Rows, size: Size) -> str:
    """For each length a line a mechanism and form: errors of outputs / of gradients."""
    parts = [_max_errors(rows, dtype) for dtype in ("float64", "float32", *HALF)]
    for length in size.lengths:
        chosen = {row["mechanism"]: row["cases"] for row in rows if row["length"] == length}
        parts += [f"At {length:,} tokens:", _length_table(chosen)]
    return "\n\n".join(filter(None, parts))


def _max_errors(rows: Rows, dtype: str) -> str:
    """A sentence on the largest errors of a dtype."""
    cases = [{**row, **case} for row in rows for case in row["cases"] if case["dtype"] == dtype]
    texts = []
    for what in ("output", "gradient"):
        worst = max(cases, key=lambda case: case[what], default=None)
        if worst is not None:
            place = f"{worst['mechanism']}, {worst['form']}, {worst['length']:,} tokens"
            texts.append(f"{what} {worst[what]:.0e} ({place})")
    return f"Largest in {dtype}: {'; '.join(texts)}." if texts else ""


def _length_table(cases_by_mechanism: dict[str, list[dict[str, Any]]]) -> str:
    dtypes = ("float64", "float32", *HALF)
    lines = []
    for name, cases in cases_by_mechanism.items():
        for form in dict.fromkeys(case["form"] for case in cases):
            cells = {
                case["dtype"]: f"{case['output']:.1e} / {case['gradient']:.1e}"
                for case in cases
                if case["form"] == form
            }
            lines.append([name, form, *(cells.get(dtype, "-") for dtype in dtypes)])
    return markdown(["mechanism", "form", *dtypes], lines)


EXPERIMENT = Measured(
    module="experiments.accuracy.errors",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={
        "": "mechanisms with gates or decays beyond 1,000 tokens, because their references sum "
        "decays over all pairs of tokens; longer sequences: at 16,000 tokens the float64 reference "
        "of a mechanism whose weights differ by channel takes 12 minutes, and that of "
        "bidirectional_aaren 48 GB"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
