"""Largest errors of every mechanism, form and dtype against the float64 reference.

    python -m experiments.accuracy.errors

Inputs are normal numbers rounded to the dtype; the reference computes with the same rounded
inputs in float64, over 48 rows spread over the sequence (all rows where a mechanism needs the
whole sequence). An error is the largest difference over the largest magnitude of the expected
array; gradients are those of a random weighting of the compared rows' outputs. Causal where the
mechanism is, otherwise not. The parallel form, which holds the weights or the states of all
tokens at once, is left out beyond T = 4,096. Rows that are done are kept; the tables are written
beside this file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.store import renamed
from flax_linattn import ops
from flax_linattn.bench.provenance import commit
from flax_linattn.ops.contract.masks import visible_rows

HERE = Path(__file__).parent
COMMAND = "python -m experiments.accuracy.errors"
LENGTHS = (1000, 16000)
HEADS, DIM, ROWS = 2, 8, 48
ONE_BLOCK = 4096
HALF = ("bfloat16", "float16")


def make_inputs(mechanism: ops.Mechanism, length: int, dtype: str) -> tuple[Any, Any, Any]:
    """q, k, v: normal numbers rounded to ``dtype``."""
    rng = np.random.default_rng(0)
    shape = (1, length, HEADS, DIM)
    q_shape = (HEADS, DIM) if mechanism.capabilities.learned_query else shape
    q, k, v = (jnp.asarray(rng.normal(size=s), dtype) for s in (q_shape, shape, shape))
    return q, k, v


def values_and_gradients(function: Any, inputs: Any, weights: np.ndarray) -> Any:
    """The compared rows, and the gradients of their weighted sum."""

    @jax.jit
    def run(inputs: Any) -> Any:
        y, pull = jax.vjp(function, *inputs)
        return y, pull(jnp.asarray(weights, y.dtype))

    return jax.tree.map(lambda a: np.asarray(a, np.float64), run(inputs))


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest expected magnitude."""
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def measure(name: str, length: int) -> list[dict[str, Any]]:
    """All forms and dtypes of one mechanism at one length."""
    mechanism = ops.get_mechanism(name)
    can = mechanism.capabilities
    index = np.unique(np.linspace(0, length - 1, ROWS).astype(int))
    weights = np.random.default_rng(1).normal(size=(1, len(index), HEADS, DIM))

    def by_reference(q: Any, k: Any, v: Any) -> Any:
        if not can.recurrent:
            return mechanism.reference(q, k, v)[:, index]
        visible = visible_rows(jnp.asarray(index), length, is_causal=can.causal)
        rows = q if can.learned_query else q[:, index]
        return mechanism._reference(rows, k, v, visible, {})

    wanted: dict[str, Any] = {}
    rows = []
    for dtype, form in cases(mechanism, length):
        with jax.enable_x64(True):
            inputs = make_inputs(mechanism, length, dtype)
            if dtype not in wanted:
                exact = [x.astype(jnp.float64) for x in inputs]
                wanted[dtype] = values_and_gradients(by_reference, exact, weights)

            def by_form(q: Any, k: Any, v: Any, form: str = form) -> Any:
                return mechanism.attend(q, k, v, is_causal=can.causal, form=form)[:, index]

            got = values_and_gradients(by_form, inputs, weights)
        (y, gradients), (want, want_gradients) = got, wanted[dtype]
        row = {
            "mechanism": name,
            "length": length,
            "dtype": dtype,
            "form": form,
            "commit": commit(),
            "output": error(y, want),
            "gradient": max(map(error, gradients, want_gradients)),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def cases(mechanism: ops.Mechanism, length: int) -> list[tuple[str, str]]:
    """(dtype, form): every form in float64 and float32, ``auto`` in half precision."""
    forms = [
        form
        for form in mechanism.capabilities.forms
        if not (form == "parallel" and mechanism.capabilities.recurrent and length > ONE_BLOCK)
        and form != "efficient"  # the paper's name of TaylorShift's chunked form
    ]
    return [(d, f) for d in ("float64", "float32") for f in forms] + [(d, "auto") for d in HALF]


def table(rows: list[dict[str, Any]], length: int) -> str:
    """One line a mechanism and form: errors of outputs / of gradients."""
    dtypes = ("float64", "float32", *HALF)
    lines = [
        f"| mechanism | form | {' | '.join(dtypes)} |",
        "|---|---|" + "---|" * len(dtypes),
    ]
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["length"] == length:
            cell = f"{row['output']:.1e} / {row['gradient']:.1e}"
            shown.setdefault((row["mechanism"], row["form"]), {})[row["dtype"]] = cell
    for (name, form), cells in shown.items():
        columns = " | ".join(cells.get(dtype, "-") for dtype in dtypes)
        lines.append(f"| {name} | {form} | {columns} |")
    return "\n".join(lines)


def main() -> None:
    """Measures what is missing and writes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    path = options.output / "results.json"
    results = json.loads(path.read_text(), object_hook=renamed) if path.exists() else {"rows": []}
    rows = results["rows"]
    for length in LENGTHS:
        for name in ops.list_mechanisms():
            if any(r["mechanism"] == name and r["length"] == length for r in rows):
                continue
            rows += measure(name, length)
            results["command"] = COMMAND
            path.write_text(json.dumps(results, indent=1) + "\n")
    order = ops.list_mechanisms()
    rows.sort(key=lambda row: (row["length"], order.index(row["mechanism"])))
    path.write_text(json.dumps(results, indent=1) + "\n")
    for length in LENGTHS:
        (options.output / f"results-{length}.md").write_text(table(rows, length) + "\n")


if __name__ == "__main__":
    main()
