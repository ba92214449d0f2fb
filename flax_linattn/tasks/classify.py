"""Time-series classification: JapaneseVowels, or a .ts/.arff pair of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import data, inference, training
from flax_linattn.tasks.classify_config import ClassifyConfig
from flax_linattn.tasks.classify_data import (
    ClassifyProblem,
    checksum_of,
    complete,
    lengths_of,
    load_data,
    make_batches,
)
from flax_linattn.tasks.classify_evaluate import evaluate_classifier
from flax_linattn.tasks.classify_metrics import draw_confusion
from flax_linattn.tasks.classify_model import build_classifier, classification_loss, make_optimizer
from flax_linattn.tasks.runs import keep_problem, write_json
from flax_linattn.training.processes import is_main, on_main

LOSS_SCALE = 2.0**15
"""The first loss scale of a run in float16."""


def train_classifier(
    config: ClassifyConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    parallel: training.Parallel | None = None,
    trackers: Sequence[training.Tracker] = (),
    profile_steps: int = 0,
) -> dict[str, Any]:
    """Trains, selects and tests a classifier; everything goes to the run folder.

    Args:
        config: the run's options.
        run_dir: the run folder: config.json, problem.json, metrics.jsonl, checkpoints,
            learning_curve.png, test.json, confusion.png.
        resume: go on where the run in that folder stopped.
        progress: show a progress bar.
        parallel: the devices, and what is split over them; default all that divide the batch.
        trackers: take in the run's numbers, see ``training.fit``.
        profile_steps: how many steps to trace, see ``training.fit``.

    Returns:
        What test.json holds: the test metrics of the selected parameters, how they were selected,
        the accuracy of always answering the most frequent class of the test data
        (``constant_accuracy``), the counts of test examples by class and prediction
        (``confusion``) and the figures of each class (``classes``).

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: a data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came; the run was saved.
    """
    config = config.resolve()
    honest = config.protocol == "honest"
    parallel = training.Parallel() if parallel is None else parallel
    placement = parallel.place(config.batch_size)
    if placement.spans > 1 and (config.embedding == "circular" or config.padding == "seen"):
        raise ValueError(
            "sequences are padded to be split over devices, which a circular embedding and an "
            "attention that sees the padding would notice; use --embedding causal and --padding "
            "masked, or leave seq out of the mesh."
        )
    config.check_run_dir(run_dir, resume)
    loaded = load_data(config)
    train, test = map(complete, loaded)
    if honest:
        kept, held_out = data.stratified_split(
            train.labels, config.validation_fraction, config.seed
        )
        fitted, validation = train.subset(kept), train.subset(held_out)
    else:
        fitted, validation = train, test
    problem = ClassifyProblem(
        dataset=train.name,
        channels=train.channels,
        classes=train.classes,
        lengths=lengths_of(fitted, train, test, config.buckets),
        standardizer=data.Standardizer.fit(fitted.series),
        checksum=dict(zip(("train", "test"), map(checksum_of, loaded), strict=True)),
    )
    model = build_classifier(config, problem, placement)
    batches = partial(make_batches, config=config, problem=problem, spans=placement.spans)
    if progress and is_main():
        print(_about(*loaded), file=sys.stderr)
        observation = jax.ShapeDtypeStruct((1, len(problem.channels)), jnp.float32)
        print(inference.summarize(model, observation), f"\non {placement}", file=sys.stderr)
    train_batches = batches(fitted, seed=config.seed)

    def write_options() -> None:
        keep_problem(run_dir, problem.to_json(), resume)
        config.write(run_dir)

    on_main(write_options)
    # Time-Series-Library's early stopping watches the accuracy; on a small held-out share the
    # loss tells more.
    result = training.fit(
        model,
        training.Objective(
            classification_loss,
            make_optimizer(config, len(train_batches)),
            monitor="loss" if honest else "accuracy",
            mode="min" if honest else "max",
        ),
        training.Splits(train_batches, batches(validation, seed=None)),
        config=training.FitConfig(
            epochs=config.epochs,
            patience=config.patience,
            seed=config.seed,
            loss_scale=LOSS_SCALE if config.dtype == "float16" else None,
        ),
        session=training.Session(run_dir, resume, progress, parallel, trackers, profile_steps),
    )
    tested = evaluate_classifier(model, batches(test, seed=None), problem)
    report = {
        "dataset": problem.dataset,
        "mechanism": config.mechanism,
        "protocol": config.protocol,
        "selected_on": "validation share of the training data"
        if honest
        else "TEST SET (as Time-Series-Library)",
        "best_epoch": result.best_epoch,
        "num_test": test.num_examples,
        **tested,
    }
    on_main(partial(write_json, run_dir / "test.json", report))
    if is_main() and training.learning_curve(run_dir) is not None:
        counts = np.array(report["confusion"])
        draw_confusion(counts, problem.classes, run_dir / "confusion.png")
    return report


def _about(train: data.TimeSeriesDataset, test: data.TimeSeriesDataset) -> str:
    """A few lines on the data."""
    lengths = np.concatenate([train.lengths, test.lengths])
    names = ", ".join(train.classes[:10]) + (", ..." if len(train.classes) > 10 else "")
    missing = sum(int(np.isnan(x).sum()) for x in (*train.series, *test.series))
    note = f"\nnote: missing values, interpolated over time: {missing}" if missing else ""
    return (
        f"{train.name}: {train.num_examples} sequences to train and {test.num_examples} to test, "
        f"{train.num_channels} channels, {lengths.min()} to {lengths.max()} steps\n"
        f"{len(train.classes)} classes: {names}{note}"
    )
