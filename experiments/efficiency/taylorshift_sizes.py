"""How large the intermediate results of efficient TaylorShift become.

    python -m experiments.efficiency.taylorshift_sizes

TaylorShift paper, table 1 and figure 5: queries, keys and values uniform on the unit sphere, in
float64. The paper calls the sizes mean vector norms and does not say of which vectors; the
definitions here (below the table) are those that come nearest to its formulas.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import draw_lines, import_figure
from flax_linattn.bench.report import markdown, number

FORMULAS = {
    "A_mod": lambda n, d: (n + 1) / d**0.5,
    "(Q K^T)^2 V": lambda n, d: n / d,
    "Q K^T V": lambda n, d: n**0.5 * (4 * d + 1) / (4 * d),
    "Y_denom": lambda n, d: n * (d + 2) / (2 * d),
    "Y": lambda n, d: (d / n) ** 0.5,
}


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    dims: tuple[int, ...] = (8, 16, 32, 64)
    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    samples: int = 16


def sphere(rng: np.random.Generator, length: int, dim: int) -> NDArray:
    x = rng.normal(size=(length, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def intermediates(rng: np.random.Generator, length: int, dim: int) -> dict[str, float]:
    """The sizes for one sample of queries, keys and values."""
    q, k, v = (sphere(rng, length, dim) for _ in range(3))
    with_ones = np.concatenate([np.ones((length, 1)), v], axis=1)
    wide = dim**0.5 * v  # entries of variance 1
    x = q @ k.T
    weight = 1 + x + x**2 / 2
    box = (k[:, :, None] * k[:, None, :]).reshape(length, -1)

    def mean_norm(rows: NDArray) -> float:
        return float(np.linalg.norm(rows, axis=1).mean())

    denominator = weight.sum(axis=1)
    return {
        "A_mod": float(np.linalg.norm(box.T @ with_ones)),
        "(Q K^T)^2 V": mean_norm(x**2 @ with_ones),
        "Q K^T V": mean_norm(x @ wide),
        "Y_denom": float(denominator.mean()),
        "Y": mean_norm(weight @ wide / denominator[:, None]),
    }


def measure(size: Size, journal: Journal) -> None:
    for dim in size.dims:
        for length in size.lengths:
            journal.row({"dim": dim, "length": length}, partial(mean, size, length, dim))


def mean(size: Size, length: int, dim: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    samples = [intermediates(rng, length, dim) for _ in range(size.samples)]
    return {"sizes": {name: float(np.mean([s[name] for s in samples])) for name in FORMULAS}}


def table(rows: Rows, size: Size) -> str:
    longest = [row for row in rows if row["length"] == max(size.lengths)]
    heads = ["expression", *(f"d = {row['dim']}: paper / ours" for row in longest)]
    lines = [
        [
            name,
            *(
                f"{number(formula(row['length'], row['dim']))} / {number(row['sizes'][name])}"
                for row in longest
            ),
        ]
        for name, formula in FORMULAS.items()
    ]
    return (
        f"At N = {max(size.lengths):,}:\n\n{markdown(heads, lines)}\n\n"
        "A_mod: Frobenius norm, V with a column of ones; (Q K^T)^2 V: mean norm of a row, "
        "likewise; Q K^T V and Y: mean norm of a row, V with entries of variance 1; Y_denom: its "
        "mean, which comes out as N (2 d + 1) / (2 d), as equation 1 has it on average: the "
        "printed N (d + 2) / (2 d) differs by a factor, not in how it grows with N."
    )


def draw(rows: Rows) -> Any:
    figure = import_figure()(figsize=(13, 3.2), layout="constrained")
    dims = list(dict.fromkeys(row["dim"] for row in rows))
    for axes, (name, formula) in zip(figure.subplots(1, 5), FORMULAS.items(), strict=True):
        lines = {
            f"d = {dim}": [(r["length"], r["sizes"][name]) for r in rows if r["dim"] == dim]
            for dim in dims
        }
        draw_lines(axes, lines, xlabel="N")
        for i, (dim, points) in enumerate(zip(dims, lines.values(), strict=True)):
            claimed = [(n, formula(n, dim)) for n, _ in points]
            axes.plot(*zip(*claimed, strict=True), color=f"C{i}", linestyle=":")
        axes.set_title(name, fontsize=10)
    axes.plot([], [], ":", color="0.4", label="paper's formula")
    axes.legend(fontsize=7)
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_sizes",
    about="TaylorShift, table 1 and figure 5: sizes as functions of N and d, right to 1 % for "
    "large N",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=(64, 256, 1024, 4096, 16384), samples=64),
    },
    measure=measure,
    table=table,
    draw=draw,
    left_out={
        "cpu": "the paper's 16,384 samples (16 here: each is a mean over N rows) and N above 4,096",
        "paper": "the paper's 16,384 samples (64 here: each is a mean over N rows) and N above "
        "16,384",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
