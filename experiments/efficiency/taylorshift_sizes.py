"""Sizes of the intermediate results of efficient TaylorShift.

    python -m experiments.efficiency.taylorshift_sizes

TaylorShift paper, table 1 and figures 5 and 6, in float64. The recipe is that of the authors'
public code, because it gives the printed formulas and the recipe in the text does not: queries and
keys uniform on the unit sphere, V a column of ones and columns of normal numbers, the polynomial
x^2 + x / 2 + 1 / 2.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.measured import Measured, Rows
from experiments.rules import GROWTH, STATED, Points, exponent, grows
from experiments.statements import Judge, Statement
from experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    NotMeasuredError,
    Rule,
    Verdict,
    Word,
    combine,
)
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number

FORMULAS = {
    "A_mod": lambda n, d: (n + 1) / d**0.5,
    "(Q K^T)^2 V": lambda n, d: n / d,
    "Q K^T V": lambda n, d: n**0.5 * (4 * d + 1) / (4 * d),
    "Y_denom": lambda n, d: n * (d + 2) / (2 * d),
    "Y": lambda n, d: (d / n) ** 0.5,
}

TOLERANCE = 1.0
"""Per cent, the paper's own (appendix B.2)."""
LARGE = 4096
"""From here on N is large."""

RIGHT = Rule(
    f"A formula is right where, at the longest N ({LARGE:,} or more), ours lies within "
    f"{TOLERANCE:g} % of it with two standard errors to spare, and wrong where it lies as surely "
    "outside. The paper does not say which N is large: a formula that is outside, but whose error "
    "falls as 1/N over the last lengths, may be right yet, and is not decided.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    dims: tuple[int, ...] = (8, 16, 32, 64)
    lengths: tuple[int, ...] = (64, 256, 1024, 4096, 16384, 65536)
    samples: int = 256
    """Maximum number of samples of queries and keys."""
    tokens: int = 1 << 23
    """Maximum number of keys of a length: 128 samples of the longest, which decides, so that chance
    leaves less doubt there than the tolerance."""
    a_mods: int = 4
    """Samples for A_mod, which hardly differs from sample to sample."""
    queries: int = 64
    """A sample."""
    values: int = 128
    """Columns of V in a sample: several V where d is smaller."""


def sphere(rng: np.random.Generator, length: int, dim: int) -> NDArray:
    x = rng.normal(size=(length, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def intermediates(
    rng: np.random.Generator,
    length: int,
    dim: int,
    num_queries: int,
    num_values: int,
    *,
    with_a_mod: bool = True,
) -> NDArray:
    """The sizes for one sample of queries and keys, in the order of ``FORMULAS``.

    Means over samples of V, whose rows all queries share; NaN for A_mod if it is left out.
    """
    draws = max(1, num_values // dim)
    q, k = sphere(rng, num_queries, dim), sphere(rng, length, dim)
    v = rng.normal(size=(length, draws * dim))
    x = q @ k.T

    def times_v(weight: NDArray) -> tuple[NDArray, NDArray]:
        """Weights times the column of ones [Q, 1], and times the rest [Q, draws, dim]."""
        return weight.sum(axis=1, keepdims=True), (weight @ v).reshape(-1, draws, dim)

    def mean_norm(rows: NDArray, ones: NDArray | float = 0.0) -> float:
        return np.sqrt(np.square(rows).sum(axis=-1) + np.square(ones)).mean()

    squared, linear = times_v(x**2), times_v(x)
    denominator, y = times_v(x**2 + x / 2 + 0.5)
    return np.array(
        [
            np.linalg.norm(pair_products(k, v[:, :dim])) if with_a_mod else np.nan,
            mean_norm(squared[1], squared[0]),
            mean_norm(linear[1], linear[0]),
            denominator.mean(),
            mean_norm(y / denominator[:, None]),
        ]
    )


def pair_products(k: NDArray, v: NDArray, tokens: int = 1024) -> NDArray:
    """A_mod [d^2, d + 1]: products of all pairs of channels of k, transposed, times [1 | v]."""
    v = np.concatenate([np.ones((len(v), 1)), v], axis=1)
    parts = ((k[i : i + tokens], v[i : i + tokens]) for i in range(0, len(k), tokens))
    return sum((a[:, :, None] * a[:, None, :]).reshape(len(a), -1).T @ b for a, b in parts)


def measure(size: Size, journal: Journal) -> None:
    for dim in size.dims:
        for length in size.lengths:
            journal.row({"dim": dim, "length": length}, partial(mean, size, length, dim))


def mean(size: Size, length: int, dim: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sizes = (length, dim, size.queries, size.values)
    count = max(1, min(size.samples, size.tokens // length))
    samples = np.array(
        [intermediates(rng, *sizes, with_a_mod=i < size.a_mods) for i in range(count)]
    )
    number = np.isfinite(samples).sum(axis=0)
    error = np.nanstd(samples, axis=0) / np.sqrt(np.maximum(number - 1, 1))
    return {
        "sizes": dict(zip(FORMULAS, np.nanmean(samples, axis=0).tolist(), strict=True)),
        "errors": dict(zip(FORMULAS, error.tolist(), strict=True)),
    }


def error(row: dict[str, Any], name: str) -> float:
    """How far ours is above the formula, in percent of the formula."""
    return 100 * (row["sizes"][name] / FORMULAS[name](row["length"], row["dim"]) - 1)


def doubt(row: dict[str, Any], name: str) -> float:
    """Two standard errors of that, in percent."""
    return 200 * row["errors"][name] / FORMULAS[name](row["length"], row["dim"])


def judge_formula(name: str) -> Judge:
    """The judge of "the formula is right to 1 % for large N", for every d, at the longest N."""

    def judge(rows: Rows) -> Verdict:
        large = [row for row in rows if row["length"] >= LARGE]
        if not large:
            raise NotMeasuredError(f"nothing was measured from N = {LARGE:,} on")
        by_dim = {row["dim"]: [r for r in large if r["dim"] == row["dim"]] for row in large}
        decisions = {dim: decide(of_dim, name) for dim, of_dim in by_dim.items()}
        texts = (f"{ours} for d = {dim}{more}" for dim, (_, ours, more) in decisions.items())
        longest = f"at N = {large[-1]['length']:,}: {', '.join(texts)}"
        return Verdict(combine(word for word, _, _ in decisions.values()), longest)

    return judge


def decide(rows: Rows, name: str) -> tuple[Word, str, str]:
    """Whether the formula is right to 1 % at the longest N, whatever was sampled, for one d.

    Returns:
        The word, how far off it is, and what is to be added.
    """
    last = rows[-1]
    off, width = abs(error(last, name)), doubt(last, name)
    ours = f"{error(last, name):+.1f} ± {width:.1f} %"
    if off - width <= TOLERANCE:
        return Word(HOLDS if off + width <= TOLERANCE else OPEN, RIGHT), ours, ""
    left: Points = [(row["length"], abs(error(row, name))) for row in rows]
    if len(left) < 2 or grows(left, -1) != HOLDS:
        return Word(FAILS, RIGHT), ours, ""
    far = round(last["length"] * off / TOLERANCE, -3)
    more = f" (falls as N^{exponent(left):.2f}: {TOLERANCE:g} % at about N = {far:,.0f})"
    return Word(OPEN, RIGHT, GROWTH), ours, more


WHERE = "TaylorShift, table 1, figures 5 and 6"
STATEMENTS = tuple(
    Statement(
        WHERE,
        f"{name} is as large as its formula, to {TOLERANCE:g} % for large N",
        judge_formula(name),
    )
    for name in FORMULAS
)


def table(rows: Rows, size: Size) -> str:
    dims = list(dict.fromkeys(row["dim"] for row in rows))
    by_key = {(row["length"], row["dim"]): row for row in rows}
    longest = max(row["length"] for row in rows)
    heads = ["expression", *(f"d = {dim}: paper / ours" for dim in dims)]
    sizes = [
        [
            name,
            *(
                f"{number(formula(longest, d))} / {number(by_key[longest, d]['sizes'][name])}"
                for d in dims
            ),
        ]
        for name, formula in FORMULAS.items()
    ]
    off = [
        [f"{name}, d = {dim}", *(_off(by_key[n, dim], name) for n in size.lengths)]
        for name in FORMULAS
        for dim in dims
    ]
    lengths = (f"N = {length:,}" for length in size.lengths)
    return (
        f"At N = {longest:,}:\n\n{markdown(heads, sizes)}\n\n"
        "Ours above the formula, % of the formula, ± two standard errors:\n\n"
        f"{markdown(['', *lengths], off)}\n\n"
        "A_mod: Frobenius norm; (Q K^T)^2 V and Q K^T V: mean norm of a row, that of the column of "
        "ones included; Y_denom: its mean; Y: mean norm of a row without it. By equation 1, "
        "x^2 / 2 + x + 1, the mean of Y_denom is N (2 d + 1) / (2 d), not N (d + 2) / (2 d)."
    )


def _off(row: dict[str, Any], name: str) -> str:
    return f"{error(row, name):+.1f} ± {doubt(row, name):.1f}"


def plot(rows: Rows) -> Any:
    figure = import_figure()(figsize=(13, 3.2), layout="constrained")
    dims = list(dict.fromkeys(row["dim"] for row in rows))
    for axes, (name, formula) in zip(figure.subplots(1, 5), FORMULAS.items(), strict=True):
        lines = {
            f"d = {dim}": [(r["length"], r["sizes"][name]) for r in rows if r["dim"] == dim]
            for dim in dims
        }
        plot_lines(axes, lines, xlabel="N")
        for i, (dim, points) in enumerate(zip(dims, lines.values(), strict=True)):
            claimed = [(n, formula(n, dim)) for n, _ in points]
            axes.plot(*zip(*claimed, strict=True), color=f"C{i}", linestyle=":")
        axes.set_title(name, fontsize=10)
    axes.plot([], [], ":", color="0.4", label="paper's formula")
    axes.legend(fontsize=7)
    return figure


EXPERIMENT = Measured(
    module="experiments.efficiency.taylorshift_sizes",
    about="TaylorShift, table 1 and figures 5 and 6: sizes as functions of N and d",
    sizes={
        "cpu": Size(),
        "paper": Size(lengths=(*Size.lengths, 100_000), samples=4096, tokens=1 << 24),
    },
    measure=measure,
    table=table,
    plot=plot,
    statements=STATEMENTS,
    left_out={
        scale: "the paper's 16,384 samples (here the fewer the longer, each with several V)"
        for scale in ("cpu", "paper")
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
