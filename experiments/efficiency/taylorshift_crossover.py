"""Where TaylorShift's efficient form overtakes its direct one, forward, in float32.

    python -m experiments.efficiency.taylorshift_crossover

Both forms are timed in turns in one process; the figures are medians. The crossing is where a
straight line through the logarithms of the neighbouring ratios is 1. The paper's N0 counts
operations with all d^2 products; our features are the d (d + 1) / 2 different ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.provenance import commit
from flax_linattn import ops

HERE = Path(__file__).parent
COMMAND = "python -m experiments.efficiency.taylorshift_crossover"
HEADS = 8
LENGTHS = {
    16: (128, 256, 512, 1024, 2048),
    32: (256, 512, 1024, 2048, 4096),
    64: (1024, 2048, 4096, 8192),
}


def seconds(function: Any, arguments: Any) -> float:
    """One call, from start to result."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def ratio(dim: int, length: int, is_causal: bool, rounds: int) -> dict[str, Any]:
    """Medians of both forms, in turns; the ratio is above 1 where the efficient form is faster."""
    mechanism = ops.get_mechanism("taylorshift")
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, length, HEADS, dim))

    def of_form(form: str) -> Any:
        return jax.jit(lambda q, k, v: mechanism.attend(q, k, v, is_causal=is_causal, form=form))

    forms = {form: of_form(form) for form in ("direct", "efficient")}
    for function in forms.values():
        seconds(function, (q, k, v))
    times: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, function in forms.items():
            times[form].append(seconds(function, (q, k, v)))
    medians = {form: statistics.median(values) for form, values in times.items()}
    return {
        "dim": dim,
        "length": length,
        "causal": is_causal,
        "milliseconds": {form: 1e3 * value for form, value in medians.items()},
        "ratio": medians["direct"] / medians["efficient"],
    }


def crossing(rows: list[dict[str, Any]]) -> float | None:
    """The length of equal speed, None if it lies outside what was measured."""
    lengths = np.log([row["length"] for row in rows])
    ratios = np.log([row["ratio"] for row in rows])
    for i in range(len(rows) - 1):
        if ratios[i] < 0 <= ratios[i + 1]:
            share = -ratios[i] / (ratios[i + 1] - ratios[i])
            return float(np.exp(lengths[i] + share * (lengths[i + 1] - lengths[i])))
    return None


def main() -> None:
    """Measures and writes taylorshift_crossover.json and .md beside this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    rows, crossings = [], []
    for dim, lengths in LENGTHS.items():
        for is_causal in (False, True):
            measured = [ratio(dim, n, is_causal, options.rounds) for n in lengths]
            for row in measured:
                print(row, flush=True)
            rows += measured
            crossings.append({"dim": dim, "causal": is_causal, "crossing": crossing(measured)})
    device = jax.devices()[0]
    results = {
        "command": COMMAND,
        "commit": commit(),
        "device": f"{device.platform}, {device.device_kind}",
        "crossings": crossings,
        "rows": rows,
    }
    (options.output / "taylorshift_crossover.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = ["| d | N0 (paper) | not causal | causal |", "|---|---|---|---|"]
    for dim in LENGTHS:
        found = {c["causal"]: c["crossing"] for c in crossings if c["dim"] == dim}
        cells = [f"{x:.0f}" if (x := found[c]) else "outside" for c in (False, True)]
        lines.append(f"| {dim} | {ops.taylorshift_n0(dim)} | {' | '.join(cells)} |")
    (options.output / "taylorshift_crossover.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
