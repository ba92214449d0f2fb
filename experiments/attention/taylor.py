"""Accuracy of EA-series as an approximation of element-wise attention, by the scale of the inputs.

    python -m experiments.attention.taylor

Its polynomials are compared with e^x (element-wise attention paper, figure 3). The errors of its
outputs and weights, compared with exact element-wise attention, are measured on normal numbers and
on a real sequence (``sequence.py``).
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.attention.sequence import observations, project
from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.verdicts import FAILS, HOLDS, Rule, Verdict, Word
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

COLORS = {2: "tab:orange", 6: "tab:blue", 12: "tab:green"}
KEY_DIM = 16
NEAR = 0.01
NEARER = Rule(
    "Polynomials come near e^x around 0 if the relative error of the output with order 6 is "
    f"smaller than with order 2 at every std, and at the smallest std at most {NEAR:g}.",
    "2026-11-29T22:00:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    orders: tuple[int, ...] = (2, 6, 12)
    stds: tuple[float, ...] = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    """Of queries and keys."""


def measure(size: Size, journal: Journal) -> None:
    with jax.enable_x64(True):
        for name, arrays in sources().items():
            for scale in size.stds:
                for order in size.orders:
                    key = {"source": name, "scale": scale, "order": order}
                    journal.row(key, partial(errors, *arrays, scale, order))


def sources() -> dict[str, tuple[NDArray, NDArray, NDArray]]:
    """q, k and v [1, T, H, K] of standard deviation 1, by where they are from."""
    real = [x / x.std() for x in project(observations(), KEY_DIM)]
    normal = np.random.default_rng(0).normal(size=(3, 1, 64, 2, KEY_DIM))
    return {"normal": tuple(normal), "speech": tuple(real)}


def errors(q: NDArray, k: NDArray, v: NDArray, scale: float, order: int) -> dict[str, Any]:
    """Errors of causal EA-series, q and k times ``scale``, in float64.

    Returns:
        ``product``: root mean square of 2 q k. ``output``: that of the error of y over that
        of y. ``weights``: how much weight lies on the wrong tokens, the mean over queries and
        channels (0 to 1).
    """
    exact = ops.get_mechanism("elementwise")
    series = ops.get_mechanism("elementwise_series", order=order)
    q, k, v = (jnp.asarray(x) for x in (scale * q, scale * k, v))
    expected, y = (m.reference(q, k, v, is_causal=True) for m in (exact, series))
    moved = ops.weights(series, q, k, is_causal=True) - ops.weights(exact, q, k, is_causal=True)
    return {
        "product": float(jnp.sqrt(jnp.mean((2 * q[:, :, None] * k[:, None]) ** 2))),
        "output": float(jnp.sqrt(jnp.mean((y - expected) ** 2) / jnp.mean(expected**2))),
        "weights": float(jnp.mean(jnp.sum(jnp.abs(moved), axis=-1)) / 2),
    }


def judge_near(rows: Rows) -> Verdict:
    """The verdict on figure 3: order 6 is nearer to e^x than order 2, and both are near at 0."""
    by = {(row["source"], row["scale"], row["order"]): row["output"] for row in rows}
    nearer = [by[source, scale, 6] < error for (source, scale, n), error in by.items() if n == 2]
    min_scale = min(scale for _, scale, _ in by)
    at_0 = max(error for (_, scale, n), error in by.items() if scale == min_scale and n == 2)
    word = HOLDS if all(nearer) and at_0 <= NEAR else FAILS
    return Verdict(
        Word(word, NEARER),
        f"EA-6 is nearer in {sum(nearer)} of {len(nearer)} cases; EA-2 has an error of {at_0:.1g} "
        f"at a std of {min_scale:g}",
    )


def table(rows: Rows, size: Size) -> str:
    """One line per scale; for both sources the output's error and the weights'."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    heads = ["std"]
    for name in names:
        heads += [f"2 q k, {name}", *(f"EA-{order}" for order in size.orders)]
    lines = []
    for scale in size.stds:
        cells = {(r["source"], r["order"]): r for r in rows if r["scale"] == scale}
        line = [f"{scale:g}"]
        for name in names:
            line.append(f"{cells[name, size.orders[0]]['product']:.2g}")
            line += [
                f"{cell['output']:.1g} / {cell['weights']:.1g}"
                for cell in (cells[name, order] for order in size.orders)
            ]
        lines.append(line)
    return markdown(heads, lines)


def plot(rows: Rows) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
    plot_polynomials(left)
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    for source, line in (("normal", "-"), ("speech", "--")):
        for order, color in COLORS.items():
            error = [r["output"] for r in rows if (r["source"], r["order"]) == (source, order)]
            label = f"EA-{order}, {source}"
            right.plot(scales, error, line, color=color, marker=".", label=label)
    right.set(xscale="log", yscale="log", ylim=(1e-7, 2))
    right.set_xticks(scales, [f"{scale:g}" for scale in scales])
    right.minorticks_off()
    right.set(xlabel="standard deviation of q and k", ylabel="relative error of the output")
    right.set_title("causal EA-series against exact EA")
    right.grid(alpha=0.3)
    right.legend(fontsize=8, loc="lower right")
    return figure


def plot_polynomials(axis: Axes) -> None:
    """The paper's figure 3, and the odd order of its listing."""
    x = np.linspace(-4, 2, 241)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.plot(x, np.exp(x), color="black", label="$e^x$")
    for order, style in ((2, "-"), (6, "-"), (5, ":")):
        terms = [x**n / math.factorial(n) for n in range(order + 1)]
        color = COLORS.get(order, "tab:red")
        axis.plot(x, sum(terms), style, color=color, label=f"order {order}")
    axis.set(xlabel="x = 2 q k", title="polynomials for $e^x$", ylim=(-3.9, 7.6))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper center")


EXPERIMENT = Measured(
    module="experiments.attention.taylor",
    about="element-wise attention, figure 3: polynomials of even order come near e^x around 0",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            "Element-wise attention, section 3.2 and figure 3",
            "polynomials of even order come near e^x around 0, order 6 nearer than order 2",
            judge_near,
        ),
    ),
    left_out={"": "nothing"},
    is_deterministic=True,
)

if __name__ == "__main__":
    EXPERIMENT.main()
