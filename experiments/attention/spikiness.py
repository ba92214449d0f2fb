"""Spikiness by mechanism: how much of its weight a query gives to few tokens.

    python -m experiments.attention.spikiness

The element-wise attention paper calls it spikiness if most weight goes to a few tokens. Two numbers
say how far the weights of 256 random keys are from equal ones: the largest weight, and the entropy.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.intervals import interval, text
from experiments.measured import Measured, Rows
from experiments.rules import above
from experiments.statements import Judge, Statement
from experiments.verdicts import Rule, Verdict, Word, combine, opposite, rows_with
from flax_linattn import ops
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

SOFTMAX, EXACT, LINEAR = "softmax", "elementwise", "linear"
EA_2, EA_6 = "elementwise_series:order=2", "elementwise_series:order=6"
HEDGEHOG = "taylor_features"
MIN_FRACTION = 0.5
SPIKINESS = Rule(
    "A mechanism keeps the spikiness of another if it has at least half of it: half of the "
    "largest weight's excess over an equal weight, and half of the entropy that its weights lack "
    "of equal ones (95 % confidence intervals of the ratios over seeds above 0.5), at each std of "
    "queries and keys. It loses it if both are less than half. (The largest weights were known "
    "from an earlier calculation. With a std of 1 alone, as it was stated on 2026-11-29 at 21:40 "
    "UTC, entropies were not; when the other stds were added, all numbers were.)",
    "2026-11-29T23:05:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    mechanisms: tuple[str, ...] = (SOFTMAX, EXACT, EA_6, EA_2, HEDGEHOG, LINEAR)
    stds: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Standard deviations of queries and keys; in a layer with layer normalization about 1."""
    queries: int = 64
    keys: int = 256
    num_heads: int = 2
    dim: int = 16
    seeds: int = 10


def measure(size: Size, journal: Journal) -> None:
    with jax.enable_x64(True):
        for std in size.stds:
            for name in size.mechanisms:
                for seed in range(size.seeds):
                    key = {"mechanism": name, "std": std, "seed": seed}
                    journal.row(key, partial(sharpness, size, name, std, seed))


def sharpness(size: Size, name: str, std: float, seed: int) -> dict[str, float]:
    """Means over queries, heads, and channels where each has weights of its own, in float64.

    Returns:
        ``largest`` weight, and ``missing_entropy``: log(keys) minus the entropy, in nats.
    """
    rng = np.random.default_rng(seed)
    q, k = (
        jnp.asarray(std * rng.normal(size=(1, n, size.num_heads, size.dim)))
        for n in (size.queries, size.keys)
    )
    weights = ops.weights(ops.get_mechanism(name), q, k)
    entropy = -jnp.sum(jnp.where(weights > 0, weights * jnp.log(weights), 0.0), axis=-1)
    return {
        "largest": float(jnp.mean(jnp.max(weights, axis=-1))),
        "missing_entropy": float(math.log(size.keys) - jnp.mean(entropy)),
    }


def numbers(rows: Rows, name: str, std: float) -> dict[str, list[float]]:
    """Both numbers by seed at a std of queries and keys; equal weights have 0.

    Raises:
        NotMeasuredError: there are none.
    """
    own = rows_with(rows, name, mechanism=name, std=std)
    equal = 1 / Size.keys
    return {
        "largest weight": [row["largest"] - equal for row in own],
        "entropy": [row["missing_entropy"] for row in own],
    }


def compare(rows: Rows, name: str, other: str) -> tuple[Word, str]:
    """The verdict on "it keeps the other's spikiness", and the ratios."""
    words, texts = [], []
    for std in dict.fromkeys(row["std"] for row in rows):
        theirs = numbers(rows, other, std)
        of_std = []
        for key, ours in numbers(rows, name, std).items():
            ratio = interval([a / b for a, b in zip(ours, theirs[key], strict=True)])
            words.append(above(ratio, MIN_FRACTION, SPIKINESS))
            of_std.append(f"{key} {text(ratio, 2).lstrip('+')}")
        texts.append(f"{', '.join(of_std)} (std {std:g})")
    return combine(words), f"{name} relative to {other}: {', '.join(texts)}"


def keeps(names: Sequence[str], other: str) -> Judge:
    """The verdict on "these keep the spikiness of another"."""

    def judge(rows: Rows) -> Verdict:
        words, texts = zip(*(compare(rows, name, other) for name in names), strict=True)
        return Verdict(combine(words), "; ".join(texts))

    return judge


def loses(name: str, other: str) -> Judge:
    """The verdict on "it loses the spikiness of another"."""

    def judge(rows: Rows) -> Verdict:
        word, ratios = compare(rows, name, other)
        return Verdict(opposite(word), ratios)

    return judge


def table(rows: Rows, size: Size) -> str:
    """One line per mechanism: largest weight and missing entropy at each std."""
    heads = ["mechanism"]
    heads += [f"std {std:g}: largest weight / missing entropy" for std in size.stds]
    lines = []
    for name in size.mechanisms:
        line = [f"`{name}`"]
        for std in size.stds:
            own = rows_with(rows, mechanism=name, std=std)
            means = (statistics.mean(r[key] for r in own) for key in ("largest", "missing_entropy"))
            line.append("{:.4f} / {:.3f}".format(*means))
        lines.append(line)
    equal = f"Equal weights have {1 / size.keys:.4f} / 0. Means over {size.seeds} seeds."
    return f"{markdown(heads, lines)}\n\n{equal}"


WHERE = "Element-wise attention, introduction and section 3.4"

EXPERIMENT = Measured(
    module="experiments.attention.spikiness",
    about="element-wise attention, introduction: spikiness, which the paper does not measure",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(WHERE, "linear attention loses the spikiness of SA", loses(LINEAR, SOFTMAX)),
        Statement(WHERE, "EA-series keeps the spikiness of SA", keeps((EA_2, EA_6), SOFTMAX)),
        Statement(
            WHERE,
            "the Taylor polynomial of EA-series keeps the spikiness of its exponential",
            keeps((EA_2, EA_6), EXACT),
        ),
        Statement(
            WHERE,
            "the Taylor polynomial of dot products keeps the spikiness of SA",
            keeps((HEDGEHOG,), SOFTMAX),
        ),
    ),
    left_out={
        "": "weights of trained layers, whose queries and keys may be larger; scales of the scores "
        "of softmax other than K**-0.5"
    },
    is_deterministic=True,
)

if __name__ == "__main__":
    EXPERIMENT.main()
