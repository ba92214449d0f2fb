"""Attention weights during training on N16T2 and N2T5.

    python -m experiments.synthetic.snapshots

The expressive-attention paper, figure 4, shows attention matrices of N2T5 and finds that attention
does not settle on the two symbols that determine the next one. Ours include N16T2, which models do
learn. Each attention has one run with the standard setting. Snapshots are of its initial
parameters, and of the parameters with the best validation within N epochs; weights are means over
the windows of a test series. The table also has the fraction of the gradient of the loss that
reaches the parameters of the scores.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.synthetic.learning_curves import Place, Size, make_config
from experiments.synthetic.rules import RIGHT
from experiments.synthetic.runs import Cell, make_runs, train_runs
from experiments.synthetic.search import load_setting
from experiments.verdicts import FAILS, HOLDS, NotMeasuredError, Rule, Verdict, Word, one_seed
from flax_linattn import models, ops, training
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.typing import Array

SETTLED = Rule(
    "Attention has settled on the two relevant symbols if the last token gives them more than "
    "half of its weight, averaged over windows, in runs that reached 100 %.",
    "2026-11-24T04:00:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Snapshots:
    """What is looked at, and when."""

    places: tuple[Place, ...] = (Place("nt", 16, 2, 32, runs=1), Place("nt", 2, 5, 16, runs=1))
    epochs: tuple[int, ...] = (0, 500, 2500)
    windows: int = 100


def measure(size: Snapshots, journal: Journal) -> None:
    for place in size.places:
        for mechanism in place.mechanisms:
            for epochs in size.epochs:
                key = {
                    "base": place.base,
                    "delay": place.delay,
                    "context": place.context,
                    "mechanism": mechanism,
                    "epochs": epochs,
                }
                journal.row(key, partial(look, size, place, mechanism, epochs))


def look(size: Snapshots, place: Place, mechanism: str, epochs: int) -> dict[str, Any]:
    """Trains one run, and averages its weights over windows."""
    setting = load_setting()
    one_place = Size((place,), epochs=max(epochs, 1), test=4)
    config = make_config(one_place, place, mechanism, setting)
    cells = [Cell(setting.learning_rate, setting.momentum, seed=0)]
    runs = make_runs(config, cells)
    if epochs:
        train_runs(runs, config, cells)
    test = runs.splits[0].test
    assert test is not None
    batch = test.batch(0)
    tokens = jnp.asarray(batch["tokens"][: size.windows])
    weights = np.asarray(head_weights(runs.models[0], tokens)).mean(axis=0)
    decide = [place.context - 1, place.context - 1 - place.delay]
    return {
        "test_accuracy": runs.test(0)["accuracy"],
        "on_deciding": float(weights[-1, decide].sum()),
        "score_gradient": score_gradient(runs.models[0], runs.objective.loss, batch),
        "weights": np.round(weights, 4).tolist(),
    }


def head_weights(model: models.WindowModel, tokens: Array) -> Array:
    """The weights [B, T, T] of the only head of a window model's only block."""
    backbone = model.backbone
    x, _ = backbone.input_embedding(tokens, positions=jnp.zeros(tokens.shape, int))
    block = backbone.blocks[0]
    x = block.attention_norm(x)
    attention = block.attention
    q, k = attention.query_projection(x), attention.key_projection(x)
    w = ops.weights(attention.mechanism, q[:, :, None], k[:, :, None], is_causal=True)
    return w[:, 0]


def score_gradient(model: models.WindowModel, loss: training.LossFn, batch: Any) -> float:
    """The norm of the gradient into queries and keys, by that into all parameters."""
    gradients = nnx.grad(lambda model: loss(model, batch, None)[0])(model)
    attention = gradients["backbone"]["blocks"][0]["attention"]
    scores = optax.global_norm([attention[f"{n}_projection"] for n in ("query", "key")])
    return float(scores / optax.global_norm(gradients))


def not_settled(rows: Rows) -> Verdict:
    last = [
        row
        for row in rows
        if row["epochs"] == max(row["epochs"] for row in rows) and row["test_accuracy"] >= RIGHT
    ]
    if not last:
        raise NotMeasuredError("no run that reached 100 %")
    max_weight = max(row["on_deciding"] for row in last)
    texts = "; ".join(
        f"N{row['base']}T{row['delay']} {row['mechanism']} {100 * row['on_deciding']:.0f} %"
        for row in last
    )
    word = one_seed(Word(FAILS if max_weight > 0.5 else HOLDS, SETTLED))
    return Verdict(word, f"one run: {texts}")


def table(rows: Rows, size: Snapshots) -> str:
    """The weight of the deciding symbols."""
    lines = [
        [
            f"N{row['base']}T{row['delay']}",
            str(row["context"]),
            f"`{row['mechanism']}`",
            f"{row['epochs']:,}",
            f"{row['test_accuracy']:.3f}",
            f"{row['on_deciding']:.3f}",
            f"{2 / row['context']:.3f}",
            f"{row['score_gradient']:.1e}",
        ]
        for row in rows
    ]
    header = [
        "task",
        "context",
        "attention",
        "best within epochs",
        "accuracy",
        "weight of the two",
        "if equal",
    ]
    header.append("fraction of the gradient")
    return (
        f"{markdown(header, lines)}\n\nOne run each, tested on 400 guesses; weights are means over "
        f"{size.windows} windows of one series."
    )


def plot(rows: Rows) -> Any:
    """Matrices, a line a task and attention, a column an epoch."""
    epochs = sorted({row["epochs"] for row in rows})
    kinds = list(dict.fromkeys((row["base"], row["delay"], row["mechanism"]) for row in rows))
    figure = import_figure()(figsize=(2.4 * len(epochs), 2.5 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(epochs), squeeze=False)
    for line, (base, delay, mechanism) in zip(axes, kinds, strict=True):
        for axis, epoch in zip(line, epochs, strict=True):
            for row in rows:
                if (row["base"], row["delay"], row["mechanism"], row["epochs"]) == (
                    base,
                    delay,
                    mechanism,
                    epoch,
                ):
                    axis.imshow(np.array(row["weights"]), vmin=0, vmax=0.5, cmap="magma_r")
                    axis.set_title(f"{epoch:,} epochs, {row['test_accuracy']:.2f}", fontsize=8)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(f"N{base}T{delay}\n{mechanism}", fontsize=8)
    return figure


EXPERIMENT = Measured(
    module="experiments.synthetic.snapshots",
    about="expressive attention, figure 4, the attention matrices",
    sizes={"": Snapshots()},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            "expressive attention, figure 4",
            "attention does not settle on the two relevant symbols",
            not_settled,
        ),
    ),
    left_out={
        "": "more runs, and the attention weights of tokens other than the last, because "
        "no rule was stated for it"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
