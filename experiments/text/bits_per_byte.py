"""Bits per byte of every causal mechanism and of hybrid stacks on movie reviews.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.text.bits_per_byte

Models of about equal size (narrower feed-forward layers make up for the parameters of gates) read
the same bytes in the same order, with three seeds each, and are tested by separate windows and with
the state carried over each review. Compressors that have read training reviews are the baselines.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from experiments.experiment import DATA_FOLDER, data_folder
from experiments.intervals import Interval, interval, mean_text, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.rules import above
from experiments.sequences.data_sets import DATA_SETS, IMDB
from experiments.statements import Judge, Statement
from experiments.verdicts import Rule, Verdict, combine, rows_with
from flax_linattn import inference, models, tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.options import mechanisms_by_direction
from flax_linattn.tasks.text import TextConfig
from flax_linattn.tasks.text.task import TextTask

SOFTMAX = "softmax"
HYBRIDS = {
    "gated_delta, softmax 3:1": ("gated_delta", "gated_delta", "gated_delta", "softmax"),
    "softmax in a window, aaren": ("softmax:window=64", "aaren") * 2,
    "gated_delta, softmax in a window": ("gated_delta", "softmax:window=64") * 2,
}
"""LayerMechanisms of each of four layers, by the name of the stack."""
LayerMechanisms = str | tuple[str, ...]
"""LayerMechanisms of all layers, or one mechanism per layer."""
WINDOW_BITS = "test_window_bits_per_byte"
BASELINES = ("ppmd", "xz", "zstd", "gzip", "unigram")
STATED = "2026-11-30T12:40:00+00:00"
LAGS = Rule(
    "A model lags behind softmax attention on text if the 95 % confidence interval of its "
    "bits per byte minus softmax attention's (paired by seed, by Student's t over seeds) lies "
    "above 0, and does not if it lies below. All seeds share one text; the interval does not cover "
    "its choice.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    mechanisms: tuple[str, ...] = tuple(
        name for name in mechanisms_by_direction(is_causal=True) if name != "aft"
    )
    hybrids: tuple[str, ...] = tuple(HYBRIDS)
    features: int = 64
    hidden_features: int = 192
    """Width for softmax; that of others is chosen so that they have about as many parameters."""
    num_layers: int = 4
    num_heads: int = 2
    context: int = 256
    batch_size: int = 4
    steps: int = 600
    learning_rate: float = 0.004
    seeds: int = 3
    test_tokens: int = 2**15


def make_config(size: Size, mechanism: LayerMechanisms, hidden: int) -> TextConfig:
    """The options of a model and its training.

    Raises:
        ValueError: If there is no folder of data sets.
    """
    folder, name = data_folder(), DATA_SETS[IMDB].file
    if folder is None or name is None:
        raise ValueError(f"set {DATA_FOLDER} to the folder of the data sets.")
    config = TextConfig.of(
        file=folder / name,
        mechanism=mechanism,
        features=size.features,
        hidden_features=hidden,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        output_norm=None,
        context=size.context,
        batch_size=size.batch_size,
        steps=size.steps,
        validate_every=size.steps,
        validation_tokens=2**14,
        test_tokens=size.test_tokens,
        learning_rate=size.learning_rate,
        runs=size.seeds,
    )
    assert isinstance(config, TextConfig)
    return config


def abstract_model(size: Size, mechanism: LayerMechanisms, hidden: int) -> models.LanguageModel:
    """The model of a size, as shapes and dtypes without values."""
    layers = make_config(size, mechanism, hidden).layers
    return nnx.eval_shape(lambda: models.LanguageModel(257, layers=layers, rngs=nnx.Rngs(0)))


def num_parameters(size: Size, mechanism: LayerMechanisms, hidden: int) -> int:
    """Number of parameters of a model."""
    params = nnx.state(abstract_model(size, mechanism, hidden), nnx.Param)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def count_state_bytes(size: Size, mechanism: LayerMechanisms, hidden: int) -> int:
    """Size of a model's state in bytes, after one window if the state grows."""
    model = abstract_model(size, mechanism, hidden)
    length = None if model.backbone.constant_memory else size.context
    return inference.state_bytes(jax.eval_shape(lambda: model.init_state(1, length)))


def equal_hidden(size: Size, mechanism: LayerMechanisms) -> int:
    """Width of the feed-forward layers at which a model is about as large as the softmax model."""
    want = num_parameters(size, SOFTMAX, size.hidden_features)
    widths = range(8, 2 * size.hidden_features, 8)
    return min(widths, key=lambda width: abs(num_parameters(size, mechanism, width) - want))


class ModelTask(TextTask):
    """The task with the accuracy of near copies, and without baselines: all models share them."""

    def test(self, run: tasks.Run, batches: training.BatchSource) -> tasks.Report:
        report = super().test(run, batches)
        copies = near_copies(report.values["copies"], run.config.data.context)
        return dataclasses.replace(report, values={**report.values, "test_near_copies": copies})

    def test_baselines(self, run: tasks.Run, batches: training.BatchSource) -> dict[str, Any]:
        return {}


def measure(size: Size, journal: Journal) -> None:
    journal.row({"model": "baselines"}, partial(measure_baselines, size))
    for name in (*size.mechanisms, *size.hybrids):
        journal.row({"model": name}, partial(train, size, HYBRIDS.get(name, name)))


def measure_baselines(size: Size) -> dict[str, Any]:
    """Bits per byte of the compressors."""
    config, task = make_config(size, SOFTMAX, size.hidden_features), TextTask()
    spec = task.describe(task.load(config), config)
    run = tasks.Run(task, config, spec, None)
    return task.test_baselines(run, task.test_batches(run, None))


def train(size: Size, mechanism: LayerMechanisms) -> dict[str, Any]:
    """Trains all seeds of a model at once, and tests them."""
    hidden = equal_hidden(size, mechanism)
    config = make_config(size, mechanism, hidden)
    with tempfile.TemporaryDirectory() as folder:
        session = training.Session(Path(folder, "run"), progress=False)
        values = tasks.train(ModelTask(), config, session)
    names = ("test_bits_per_byte", WINDOW_BITS, "test_near_copies")
    return {
        "parameters": num_parameters(size, mechanism, hidden),
        "state_bytes": count_state_bytes(size, mechanism, hidden),
        "carries_state": values["carries_state"],
        **{name: [run[name] for run in values["runs"]] for name in names},
        "train_seconds": values["train_seconds"],
    }


def near_copies(copies: Sequence[Mapping[str, Any]], context: int) -> float:
    """Accuracy on bytes that repeat a passage less than half a window back."""
    near = [row for row in copies if 2 * row["distance_from"] <= context // 2]
    right = sum(row["tokens"] * row["accuracy"] for row in near)
    return float(right / sum(row["tokens"] for row in near))


def minus_softmax(rows: Rows, model: str) -> Interval | None:
    """Interval over seeds of a model's bits per byte minus softmax attention's."""
    both = [rows_with(rows, model=name)[0][WINDOW_BITS] for name in (model, SOFTMAX)]
    return interval(paired_differences(*(dict(enumerate(values)) for values in both)))


def judge_lag(*names: str) -> Judge:
    """The verdict on whether each of the models lags behind softmax attention."""

    def judge(rows: Rows) -> Verdict:
        differences = {name: minus_softmax(rows, name) for name in names}
        word = combine([above(each, 0, LAGS) for each in differences.values()])
        each = ", ".join(f"{name} {text(of, 3)}" for name, of in differences.items())
        return Verdict(word, f"bits per byte more than softmax attention: {each}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """A line for each model, the best first, and a line for each baseline."""
    lines = []
    trained = [row for row in rows if row["model"] != "baselines"]
    for row in sorted(trained, key=lambda row: sum(row[WINDOW_BITS])):
        carried = mean_text(row["test_bits_per_byte"], 3) if row["carries_state"] else "-"
        lines.append(
            [
                row["model"],
                f"{row['parameters']:,}",
                f"{row['state_bytes']:,}",
                mean_text(row[WINDOW_BITS], 3),
                "-" if row["model"] == SOFTMAX else text(minus_softmax(rows, row["model"]), 3),
                carried,
                mean_text([100 * value for value in row["test_near_copies"]], 1),
            ]
        )
    header = ["model", "parameters", "bytes of state", "bits per byte, windows"]
    header += ["minus softmax (95 %)", "bits per byte, state carried", "copies, %"]
    (compressed,) = rows_with(rows, "the baselines", model="baselines")
    others = [
        [baseline, f"{compressed[f'{baseline}_bits_per_byte']:.3f}"]
        for baseline in BASELINES
        if f"{baseline}_bits_per_byte" in compressed
    ]
    recounted = {row["state_bytes_commit"] for row in trained if "state_bytes_commit" in row}
    later = f" (of some models by the later commit {', '.join(recounted)})" if recounted else ""
    return "\n\n".join(
        [
            markdown(header, lines),
            markdown(["baseline", "bits per byte"], others),
            f"Reviews of IMDB as bytes, {size.steps:,} steps of {size.batch_size} windows of "
            f"{size.context} bytes; {size.num_layers} blocks of {size.features} features, a short "
            "convolution of 4 bytes in each, no positions; AdamW. Mean and standard deviation over "
            f"{size.seeds} seeds. A state that grows is counted after a window{later}. "
            "Copies: accuracy "
            "on bytes that continue a passage of 8 bytes whose last occurrence is less than "
            f"{size.context // 2} bytes before.",
        ]
    )


def plot(rows: Rows) -> Any:
    """Bits per byte and accuracy of copies against the bytes of the state."""
    figure = import_figure()(figsize=(13, 6), layout="constrained")
    measures = {
        "bits per byte, separate windows": WINDOW_BITS,
        "accuracy on near copies": "test_near_copies",
    }
    for axes, (label, name) in zip(figure.subplots(1, 2), measures.items(), strict=True):
        trained = [row for row in rows if row["model"] != "baselines"]
        for number, row in enumerate(sorted(trained, key=lambda row: sum(row[WINDOW_BITS]))):
            marker = "s" if row["model"] in HYBRIDS else "o" if row["carries_state"] else "X"
            axes.errorbar(
                row["state_bytes"], statistics.mean(row[name]), statistics.stdev(row[name]),
                fmt=marker, color=f"C{number % 10}", markersize=5 + 4 * (number // 10),
                fillstyle="none" if number // 10 else "full", label=row["model"],
            )  # fmt: skip
        axes.set(xscale="log", xlabel="bytes of the state", ylabel=label)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle(
        "circle: constant state; cross: cache, counted after a window; square: hybrid stack",
        fontsize=10,
    )
    return figure


EXPERIMENT = Measured(
    module="experiments.text.bits_per_byte",
    needs_data=True,
    extras="plots,text",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=tuple(
        Statement(
            "Element-wise attention, introduction",
            f"{claim}, in bits per byte of text",
            judge_lag(*names),
            stated=STATED,
        )
        for claim, names in (
            ("linear attention lags behind softmax attention", ("linear",)),
            ("linear RNNs (RWKV, retention) are inferior to attention", ("rwkv", "retention")),
            (
                "state-space models (gated linear attention) are inferior to attention",
                ("gated_linear",),
            ),
        )
    ),
    left_out={
        "": "larger models, more text, and a learning rate for each mechanism, for lack of time; "
        "aft, whose learned biases of 256 x 256 positions have more parameters than a whole model"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
