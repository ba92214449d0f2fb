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

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import command
from experiments.measured import Rows
from experiments.pages import write_page
from experiments.store import renamed
from flax_linattn import ops
from flax_linattn.bench.journal import locked, write_json
from flax_linattn.bench.provenance import commit
from flax_linattn.bench.report import markdown
from flax_linattn.ops.contract.masks import visible_rows

FOLDER = Path(__file__).parent
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
    def both(inputs: Any) -> Any:
        y, pull = jax.vjp(function, *inputs)
        return y, pull(jnp.asarray(weights, y.dtype))

    return jax.tree.map(lambda a: np.asarray(a, np.float64), both(inputs))


def error(ours: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected magnitude."""
    return float(np.max(np.abs(ours - expected)) / np.max(np.abs(expected)))


def measure(name: str, length: int) -> Rows:
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

    exact: dict[str, Any] = {}
    rows = []
    for dtype, form in cases(mechanism, length):
        with jax.enable_x64(True):
            inputs = make_inputs(mechanism, length, dtype)
            if dtype not in exact:
                wide = [x.astype(jnp.float64) for x in inputs]
                exact[dtype] = values_and_gradients(by_reference, wide, weights)

            def by_form(q: Any, k: Any, v: Any, form: str = form) -> Any:
                return mechanism.attend(q, k, v, is_causal=can.causal, form=form)[:, index]

            ours = values_and_gradients(by_form, inputs, weights)
        (y, gradients), (expected, expected_gradients) = ours, exact[dtype]
        row = {
            "mechanism": name,
            "length": length,
            "dtype": dtype,
            "form": form,
            "commit": commit(),
            "output": error(y, expected),
            "gradient": max(map(error, gradients, expected_gradients)),
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


def table(rows: Rows, length: int) -> str:
    """One line a mechanism and form: errors of outputs / of gradients."""
    dtypes = ("float64", "float32", *HALF)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["length"] == length:
            cell = f"{row['output']:.1e} / {row['gradient']:.1e}"
            cells.setdefault((row["mechanism"], row["form"]), {})[row["dtype"]] = cell
    return markdown(
        ["mechanism", "form", *dtypes],
        [
            [name, form, *(by_dtype.get(dtype, "-") for dtype in dtypes)]
            for (name, form), by_dtype in cells.items()
        ],
    )


def main() -> None:
    """Measures what is missing and writes the tables."""
    about = (__doc__ or "").splitlines()[0]
    options = command.parser("experiments.accuracy.errors", about, FOLDER).parse_args()
    path = options.output / "results.json"
    with command.resumable():
        for length in LENGTHS:
            for name in ops.list_mechanisms():
                key = {"mechanism": name, "length": length}
                if not any(key.items() <= row.items() for row in read(path)):
                    add(path, measure(name, length))
    render(options.output)


def read(path: Path) -> Rows:
    """The stored rows, by length and mechanism."""
    rows = json.loads(path.read_text(), object_hook=renamed)["rows"] if path.exists() else []
    order = ops.list_mechanisms()
    return sorted(rows, key=lambda row: (row["length"], order.index(row["mechanism"])))


def add(path: Path, rows: Rows) -> None:
    """Stores further rows."""
    with locked(path):
        write_json(path, {"rows": [*read(path), *rows], "command": COMMAND})


def render(folder: Path = FOLDER) -> None:
    """Writes the page of each length."""
    rows = read(folder / "results.json")
    for length in LENGTHS:
        write_page(folder / f"results-{length}.md", [table(rows, length)])


if __name__ == "__main__":
    main()
