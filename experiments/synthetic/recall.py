"""Recall, copying, induction and parity, by every causal mechanism, by bytes of state.

    python -m experiments.synthetic.recall

None of the implemented papers measures this. Element-wise attention claims to keep softmax
attention's "spikiness" and not to compress history; the Aaren paper's appendix G suspects that a
learned query limits language models. The experiment tests both: a causal language model of two
blocks and one head answers questions about its sequence, once at equal width, and once at the width
at which the state of the stream has about as many bytes as that of every other model. Each has two
learning rates, and the one with the better mean over the seeds is selected on validation data.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.intervals import interval, mean_text, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.rules import above
from experiments.statements import Judge, Statement
from experiments.synthetic.mechanisms import TRAINED
from experiments.synthetic.runs import Cell, train_cells
from experiments.verdicts import Rule, Verdict, combine, opposite, rows_with
from flax_linattn import inference, models
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.synthetic import SyntheticConfig
from flax_linattn.tasks.synthetic.options import recall as preset

SOFTMAX = "softmax"
NEAR = 0.05
"""Of the accuracy: its standard error over a thousand sequences is 0.01 at most."""

AS_SOFTMAX = Rule(
    "A mechanism recalls as softmax attention does where, at equal width, the 95 % confidence "
    "interval of its test accuracy minus that of softmax attention, by Student's t over seeds, "
    f"lies above -{NEAR:g}. It does not where the interval lies below.",
    "2026-11-30T04:10:00+00:00",
)

WIDTHS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""From which the width of equal bytes is taken."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    tasks: tuple[tuple[str, int], ...] = (
        ("recall", 4),
        ("recall", 8),
        ("copying", 0),
        ("induction", 0),
        ("parity", 0),
    )
    """Rules, and pairs of recall: at equal width."""
    tasks_of_bytes: tuple[tuple[str, int], ...] = (("recall", 4), ("recall", 8))
    """At equal bytes."""
    symbols: int = 32
    length: int = 32
    width: int = 32
    state_bytes: int = 2048
    batch: int = 32
    learning_rates: tuple[float, ...] = (0.001, 0.003)
    seeds: int = 5
    """Number of seeds of recall at equal width, which has claims; all other tasks have one seed."""
    steps: int = 1000
    every: int = 200
    """Steps from one validation to the next."""
    validation: int = 2
    """Hundreds of sequences."""
    test: int = 10


def make_config(size: Size, mechanism: str, width: int, rules: str, pairs: int) -> SyntheticConfig:
    """A model, and what it is trained on."""
    config = preset(SyntheticConfig()).replace(
        rules=rules,
        base=size.symbols,
        context=size.length,
        features=width,
        mechanism=mechanism,
        batch_size=size.batch,
        epochs=size.steps,
        validate_every=size.every,
        validation_series=size.validation,
        test_series=size.test,
        **({"num_pairs": pairs} if pairs else {}),
    )
    assert isinstance(config, SyntheticConfig)
    return config


def block_state_bytes(size: Size, mechanism: str, width: int) -> int:
    """Of the state of the blocks, after a whole sequence."""
    config = make_config(size, mechanism, width, "copying", 0)

    def state() -> Any:
        model = models.Backbone(
            models.TokenEmbedding(size.symbols, width, rngs=nnx.Rngs(0)),
            config.layers,
            max_length=size.length,
            rngs=nnx.Rngs(0),
        )
        return model.init_state(1).layers

    return inference.state_bytes(jax.eval_shape(state))


def equal_width(size: Size, mechanism: str) -> int:
    """The width whose state is nearest to the bytes that all are to have."""
    return min(
        WIDTHS,
        key=lambda width: abs(np.log(block_state_bytes(size, mechanism, width) / size.state_bytes)),
    )


def measure(size: Size, journal: Journal) -> None:
    for mechanism in TRAINED:
        for equal, width, tasks in (
            ("width", size.width, size.tasks),
            ("bytes", equal_width(size, mechanism), size.tasks_of_bytes),
        ):
            for rules, pairs in tasks:
                key = {"rules": rules, "pairs": pairs, "mechanism": mechanism, "equal": equal}
                seeds = size.seeds if (equal, rules) == ("width", "recall") else 1
                config = make_config(size, mechanism, width, rules, pairs)
                journal.row(key, partial(train, size, config, seeds))


def train(size: Size, config: SyntheticConfig, seeds: int) -> dict[str, Any]:
    """All rates and seeds of a mechanism at once, and the rate chosen."""
    rates = size.learning_rates
    cells = [Cell(rate, 0.0, seed) for rate in rates for seed in range(seeds)]
    results = train_cells(config, cells)
    validated: dict[float, list[float]] = {rate: [] for rate in rates}
    for run in results["runs"]:
        validated[run["learning_rate"]].append(run["validation_accuracy"] or 0.0)
    return {
        "features": config.layers.features,
        "state_bytes": block_state_bytes(size, config.layers.mechanism, config.layers.features),
        "chosen_rate": max(rates, key=lambda rate: statistics.mean(validated[rate])),
        **results,
    }


def find_row(rows: Rows, mechanism: str, equal: str, rules: str, pairs: int = 0) -> dict[str, Any]:
    """What a mechanism came to.

    Raises:
        NotMeasuredError: it was not trained.
    """
    values = {"mechanism": mechanism, "equal": equal, "rules": rules, "pairs": pairs}
    return rows_with(rows, f"{mechanism} on {rules}", **values)[0]


def accuracies(row: dict[str, Any]) -> dict[int, float]:
    """The test accuracy at the chosen rate, by seed; 0 of a run that became NaN or infinite."""
    chosen = [run for run in row["runs"] if run["learning_rate"] == row["chosen_rate"]]
    return {run["seed"]: run["test_accuracy"] or 0.0 for run in chosen}


def recalls_as_softmax(mechanism: str, *, is_limit: bool = False) -> Judge:
    """The verdict over all numbers of pairs; with ``is_limit`` that on the opposite claim."""

    def judge(rows: Rows) -> Verdict:
        words, texts = [], []
        for pairs in sorted({row["pairs"] for row in rows if row["rules"] == "recall"}):
            own, softmax = (
                accuracies(find_row(rows, name, "width", "recall", pairs))
                for name in (mechanism, SOFTMAX)
            )
            difference = interval(paired_differences(own, softmax))
            words.append(above(difference, -NEAR, AS_SOFTMAX))
            means = [statistics.mean(of.values()) for of in (own, softmax)]
            texts.append(
                f"{pairs} pairs {means[0]:.2f} against {means[1]:.2f} ({text(difference, 2)})"
            )
        return Verdict(combine(map(opposite, words) if is_limit else words), "; ".join(texts))

    return judge


def task_title(rules: str, pairs: int) -> str:
    """The title of a task in tables."""
    return f"{rules}, {pairs} pairs" if pairs else rules


def table(rows: Rows, size: Size) -> str:
    """One line per mechanism, at equal width and at equal bytes."""
    parts = []
    kinds = (
        ("width", "At equal width", size.tasks),
        ("bytes", f"At about {size.state_bytes:,} bytes of state", size.tasks_of_bytes),
    )
    for equal, title, tasks in kinds:
        header = ["attention", "width", "bytes of state", *(task_title(*task) for task in tasks)]
        lines = []
        for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
            own = [find_row(rows, mechanism, equal, *task) for task in tasks]
            scores = [mean_text(list(accuracies(row).values()), 3) for row in own]
            width, state = own[0]["features"], own[0]["state_bytes"]
            lines.append([f"`{mechanism}`", str(width), f"{state:,}", *scores])
        parts += [f"{title}:", markdown(header, lines)]
    parts.append(
        f"Test accuracy after {size.steps:,} steps of {size.batch} sequences of {size.length} "
        f"tokens, {size.symbols} symbols, two blocks, one head, sinusoidal positions, Adam; the "
        f"learning rate ({', '.join(f'{rate:g}' for rate in size.learning_rates)}) and the step "
        f"chosen on validation data. Mean and standard deviation over {size.seeds} seeds; a "
        "number alone is of one seed. States that grow are counted after a whole sequence."
    )
    return "\n\n".join(parts)


def plot(rows: Rows) -> Any:
    """Accuracy of recall against bytes of state, a panel a number of pairs, a line a mechanism."""
    tasks = list(dict.fromkeys(row["pairs"] for row in rows if row["equal"] == "bytes"))
    figure = import_figure()(figsize=(4.2 * len(tasks) + 1.6, 3.8), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows))
    for axis, pairs in zip(axes, tasks, strict=True):
        for n, mechanism in enumerate(mechanisms):
            own = [
                find_row(rows, mechanism, equal, "recall", pairs) for equal in ("bytes", "width")
            ]
            axis.plot(
                [row["state_bytes"] for row in own],
                [statistics.mean(accuracies(row).values()) for row in own],
                color=f"C{n}",
                linewidth=0.8,
                marker="o",
                label=mechanism,
            )
        axis.set(title=task_title("recall", pairs), xscale="log", ylim=(0, 1.03))
        axis.set_xlabel("bytes of state")
    axes[0].set_ylabel("accuracy")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", frameon=False)
    return figure


EXPERIMENT = Measured(
    module="experiments.synthetic.recall",
    about="none measures it; element-wise attention, section 3, and Aaren, appendix G, speak of it",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            "element-wise attention, section 3.4",
            "element-wise attention keeps the spikiness of softmax attention (our reading: so it "
            "recalls as well)",
            recalls_as_softmax("elementwise"),
        ),
        Statement(
            "element-wise attention, section 3.4",
            "EA-series recalls as well as softmax attention, with a state of fixed size (our "
            "reading: the paper does not mention recall)",
            recalls_as_softmax("elementwise_series"),
        ),
        Statement(
            "Aaren, appendix G",
            "a learned query could limit large language models (our reading: it recalls less than "
            "softmax attention)",
            recalls_as_softmax("aaren", is_limit=True),
        ),
    ),
    left_out={
        "": "aft, performer and rfa; for lack of time, more seeds of other tasks and mechanisms, "
        "later mechanisms with gates and decays, and more pairs, steps and widths"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
