"""Trained models of sequences: tested, by length too, and compared with simple methods."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_linattn import training
from flax_linattn.tasks.classify import baselines as vectors
from flax_linattn.tasks.classify.loss import make_label_loss
from flax_linattn.tasks.classify.metrics import run_values
from flax_linattn.tasks.classify.tokens.baselines import FirstToken, NaiveBayes, examples, some
from flax_linattn.tasks.classify.tokens.model import logits_of
from flax_linattn.tasks.classify.tokens.sources.drawn import DrawnSource
from flax_linattn.tasks.classify.tokens.sources.source import Source, open_source
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streamed import stream_difference
from flax_linattn.tasks.yardsticks import Yardsticks, at_hand

YARDSTICKS = Yardsticks(
    "accuracy",
    ("constant", "first_token", "naive_bayes", "nearest_neighbour", "ridge"),
    larger_is_better=True,
)


def test_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Accuracy, figures of each class, confusions, and accuracy at further lengths."""
    values = run_values(run, batches, logits_of)
    lengths = length_table(run)
    return {**values, "lengths": lengths} if lengths else values


def length_table(run: Run) -> list[dict[str, Any]]:
    """Accuracy on fresh examples of exactly each length that the options ask for."""
    options = run.config.data
    if not options.test_lengths:
        return []
    source = open_source(options)
    assert isinstance(source, DrawnSource)
    rows = []
    for length in options.test_lengths:
        batches = source.at_length(run.config, length)
        tested = training.evaluate(run.model, make_label_loss(logits_of), batches)
        rows.append(
            {
                "length": length,
                "accuracy": tested["accuracy"],
                "loss": tested["loss"],
                "trained_on": options.min_length <= length <= options.max_length,
            }
        )
    return rows


def yardstick_values(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Of always the test's most frequent class, and of methods that learn, where there are data.

    Of tokens these are naive Bayes and the first token, of grey pixels the nearest neighbour and a
    ridge.
    """
    tested = list(examples(batches))
    num_classes = len(run.problem.classes)
    labels = np.array([example.label for example in tested])
    judged = vectors.Judged(labels, num_classes)
    train = at_hand(partial(_train_batches, run))
    if train is None:
        return judged.figures
    judged.figures["num_train"] = vectors.num_examples(train)
    if run.problem.letters == "grey":
        pixels = [vectors.as_vectors(part, "tokens") for part in (train, batches)]
        for name, found in vectors.predict(*pixels).items():
            judged.add(name, found)
        return judged.figures
    sequences = [example.tokens for example in tested]
    bayes = NaiveBayes(some(examples(train)), num_classes)
    first = FirstToken(some(examples(train)), run.problem.alphabet.num_tokens, num_classes)
    for name, fitted in (("naive_bayes", bayes), ("first_token", first)):
        judged.add(name, vectors.Predicted(fitted.predict(sequences), fitted.num_fitted))
    return judged.figures


def _train_batches(run: Run) -> training.BatchSource:
    source = open_source(run.config.data) if run.data is None else run.data
    check_same(source, run)
    packs = run.config.data.padding == "packed"
    config = run.config.replace(padding="masked") if packs else run.config
    batches: training.BatchSource = source.splits(config, 1).train
    return batches


def check_same(source: Source, run: Run) -> None:
    """Refuses data that are not those that a run was trained on.

    Raises:
        ValueError: they have changed.
    """
    if source.checksum(run.config) != run.problem.checksum:
        raise ValueError(
            f"the data of the run have changed since ({run.problem.dataset}), or this version of "
            "NumPy or of the library draws others."
        )


def stream_error(run: Run, batches: training.BatchSource) -> dict[str, Any]:
    """Of the logits of the first example that is as long as its batch."""
    batch = batches.batch(0)
    lengths = batch["mask"].sum(axis=1) if "mask" in batch else [batch["tokens"].shape[1]]
    row = int(np.argmax(lengths))
    tokens = batch["tokens"][row : row + 1, : lengths[row]]
    return stream_difference(run.model, jnp.asarray(tokens, jnp.int32), every_step=True)


def draw_lengths(rows: Sequence[dict[str, Any]], path: Any) -> None:
    """Draws accuracy against length to a PNG file."""
    from flax_linattn.tasks.figures import new_figure, save_figure

    canvas = new_figure(6, 3.6)
    axes = canvas.subplots()
    lengths = [row["length"] for row in rows]
    axes.plot(lengths, [100 * row["accuracy"] for row in rows], marker="o", linewidth=2)
    trained = [row["length"] for row in rows if row["trained_on"]]
    if trained:
        axes.axvspan(min(trained), max(trained), color="0.92", label="lengths of training")
        axes.legend()
    axes.set(xlabel="tokens", ylabel="accuracy, %", ylim=(0, 100))
    save_figure(canvas, path)
