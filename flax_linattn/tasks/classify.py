"""Time-series classification: JapaneseVowels, or a .ts/.arff pair of the user's own."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference, models, ops, training
from flax_linattn.tasks.classify_metrics import class_figures, confusion, draw_confusion
from flax_linattn.tasks.runs import (
    RunConfig,
    as_name,
    checksum,
    keep_problem,
    reading_problem,
    write_json,
)
from flax_linattn.training.processes import is_main, on_main
from flax_linattn.typing import Array

LOSS_SCALE = 2.0**15
"""The first loss scale of a run in float16."""


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(RunConfig):
    """Everything that a classification run depends on; the defaults are Time-Series-Library's.

    Attributes:
        train_file: a .ts or .arff file (.gz and .xz too); default the embedded
            JapaneseVowels.
        test_file: the test file that belongs to it.
        mechanism: the attention mechanism, by name; its hyperparameters may follow, as in
            elementwise_series:order=2.
        protocol: "honest" selects on a stratified share of the training data and standardises
            by the training data. "tslib" is as Time-Series-Library published: it SELECTS ON
            THE TEST SET and standardises each set by itself, so its accuracies are optimistic.
        features: width of the model.
        num_layers: transformer blocks.
        num_heads: attention heads.
        hidden_features: width of the feed-forward layers.
        dropout_rate: share of features dropped in training.
        norm: LayerNorm before ("pre") or after ("post") each sublayer's residual.
        pooling: "mean", "last" or "flatten"; "auto" is "mean" for honest, "flatten" for tslib.
        embedding: "causal" (streams) or "circular"; "auto" is "causal" for honest,
            "circular" for tslib.
        padding: whether attention sees the padding of shorter sequences ("seen") or not
            ("masked"); "auto" is "masked" for honest, "seen" for tslib.
        causal: whether attention sees only the past.
        epochs: most passes over the training data.
        patience: epochs without improvement before stopping.
        batch_size: sequences a step.
        buckets: lengths to pad to, each for an equal share of the sequences; a batch holds those of
            one. Less padding is computed, and the model compiled once for each.
        learning_rate: of RAdam.
        schedule: "constant", or "steps": after every fifth epoch e the rate becomes
            learning_rate * 0.5**(e - 1), as Time-Series-Library had it at the time of the
            Aaren paper; "auto" is "constant" for honest, "steps" for tslib.
        clip_norm: largest global norm of the gradients.
        validation_fraction: share of the training data held out by the honest protocol.
        dtype: of the computation; parameters, sums and losses stay float32. float16 is trained
            with a loss scale.
        remat: what training keeps of a block for its gradient: all ("none"), the results of matrix
            products ("dots") or its input ("blocks").
        seed: of initialisation, order and dropout.
    """

    task: ClassVar[str] = "classify"

    train_file: Path | None = None
    test_file: Path | None = None
    mechanism: str = "aaren"
    protocol: Literal["honest", "tslib"] = "honest"
    features: int = 128
    num_layers: int = 3
    num_heads: int = 8
    hidden_features: int = 256
    dropout_rate: float = 0.1
    norm: Literal["pre", "post"] = "post"
    pooling: Literal["auto", "mean", "last", "flatten"] = "auto"
    embedding: Literal["auto", "causal", "circular"] = "auto"
    padding: Literal["auto", "masked", "seen"] = "auto"
    causal: bool = True
    epochs: int = 100
    patience: int = 10
    batch_size: int = 16
    buckets: int = 1
    learning_rate: float = 1e-3
    schedule: Literal["auto", "constant", "steps"] = "auto"
    clip_norm: float = 4.0
    validation_fraction: float = 0.2
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    remat: Literal["none", "dots", "blocks"] = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.train_file is None) != (self.test_file is None):
            raise ValueError("give both train_file and test_file, or neither for JapaneseVowels.")
        if self.train_file is not None and self.train_file == self.test_file:
            raise ValueError(f"train_file and test_file are the same file, {self.train_file}.")
        super().__post_init__()
        for name in ("epochs", "batch_size", "buckets", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}.")
        chosen = self._chosen
        if self.buckets > 1 and (
            chosen["pooling"] == "flatten"
            or chosen["embedding"] == "circular"
            or chosen["padding"] == "seen"
        ):
            raise ValueError(
                "buckets need a model whose parameters and results do not depend on the padding: "
                "pooling mean or last, embedding causal and padding masked."
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        dataset = "japanese-vowels" if self.train_file is None else self.train_file.name
        return as_name(dataset.split(".")[0], self.mechanism, self.protocol, self.seed)

    def resolve(self) -> ClassifyConfig:
        """Makes paths absolute and replaces "auto" by what the protocol stands for."""
        return dataclasses.replace(super().resolve(), **self._chosen)

    @property
    def _chosen(self) -> dict[str, Any]:
        """What the protocol stands for where an option is "auto"."""
        honest = self.protocol == "honest"
        defaults = {
            "pooling": "mean" if honest else "flatten",
            "embedding": "causal" if honest else "circular",
            "padding": "masked" if honest else "seen",
            "schedule": "constant" if honest else "steps",
        }
        return {
            name: default if getattr(self, name) == "auto" else getattr(self, name)
            for name, default in defaults.items()
        }


@dataclasses.dataclass(frozen=True)
class ClassifyProblem:
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        channels: names of the observed channels.
        classes: names of the classes, in the order of the logits.
        lengths: lengths that sequences are padded to; the longest is that of all data.
        standardizer: mean and standard deviation a channel.
        checksum: of the training data ("train") and the test data ("test").
    """

    dataset: str
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    lengths: tuple[int, ...]
    standardizer: data.Standardizer
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def max_length(self) -> int:
        """The longest sequence of training and test data."""
        return self.lengths[-1]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassifyProblem:
        """Back from ``to_json``."""
        return cls(
            dataset=values["dataset"],
            channels=tuple(values["channels"]),
            classes=tuple(values["classes"]),
            lengths=tuple(values["lengths"]),
            standardizer=data.Standardizer.from_json(json.dumps(values["standardizer"])),
            checksum=values["checksum"],
        )


class ClassifyRun(NamedTuple):
    """A trained run, loaded from its folder.

    Attributes:
        model: with the selected parameters.
        config: what the run was started with, resolved.
        problem: what it learned of the data.
    """

    model: models.SequenceClassifier
    config: ClassifyConfig
    problem: ClassifyProblem


def build_model(
    config: ClassifyConfig,
    problem: ClassifyProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> models.SequenceClassifier:
    """The freshly initialised model of a run.

    Args:
        config: the run's options.
        problem: what it learned of the data.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an option that the model does not take.
    """
    config = config.resolve()
    try:
        mechanism = ops.get_mechanism(config.mechanism)
    except TypeError as error:  # in a configuration a hyperparameter is a value
        raise ValueError(str(error)) from None
    return models.SequenceClassifier(
        len(problem.channels),
        len(problem.classes),
        features=config.features,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_features=config.hidden_features,
        mechanism=placement.mechanism(mechanism),
        pooling=config.pooling,  # type: ignore[arg-type]  # resolve() leaves no "auto"
        max_length=problem.max_length,
        dropout_rate=config.dropout_rate,
        is_causal=config.causal,
        norm=config.norm,
        embedding_padding=config.embedding,
        attends_to_padding=config.padding == "seen",
        dtype=None if config.dtype == "float32" else jnp.dtype(config.dtype),
        remat=config.remat,
        rngs=nnx.Rngs(config.seed),
    )


def classification_loss(
    model: models.SequenceClassifier, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean cross-entropy over the batch's real examples, and (sum, weight) of the metrics."""
    logits = model(batch["values"], mask=batch["mask"], dropout_key=dropout_key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    weight = batch["weight"]
    count = jnp.sum(weight)
    total = jnp.sum(losses * weight)
    hits = (jnp.argmax(logits, axis=-1) == batch["labels"]).astype(weight.dtype)
    return total / count, {"loss": (total, count), "accuracy": (jnp.sum(hits * weight), count)}


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
        the accuracy of always answering the most frequent class (``constant_accuracy``), the counts
        of test examples by class and prediction (``confusion``) and the figures of each class
        (``classes``).

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: a data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came; the run was saved.
    """
    config = config.resolve()
    parallel = training.Parallel() if parallel is None else parallel
    placement = parallel.place(config.batch_size)
    config.check_run_dir(run_dir, resume)
    loaded = _load_data(config)
    train, test = map(_complete, loaded)
    if config.protocol == "honest":
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
        lengths=_lengths(fitted, train, test, config.buckets),
        standardizer=data.Standardizer.fit(fitted.series),
        checksum=dict(zip(("train", "test"), map(_checksum, loaded), strict=True)),
    )
    model = build_model(config, problem, placement)
    batches = partial(make_batches, config=config, problem=problem, spans=placement.spans)
    if progress and is_main():
        print(_about(train, test), file=sys.stderr)
        observation = jax.ShapeDtypeStruct((1, len(problem.channels)), jnp.float32)
        print(inference.summarize(model, observation), f"\non {placement}", file=sys.stderr)
    train_batches = batches(fitted, seed=config.seed)
    if placement.spans > 1 and config.embedding == "circular":
        raise ValueError(
            "a circular embedding wraps around the end of the sequence, which cannot be padded to "
            "split it over devices; use --embedding causal, or leave seq out of the mesh."
        )

    def write_options() -> None:
        keep_problem(run_dir, problem.to_json(), resume)
        config.write(run_dir)

    on_main(write_options)
    # Time-Series-Library's early stopping watches the accuracy; on a small held-out share the
    # loss tells more.
    honest = config.protocol == "honest"
    result = training.fit(
        model,
        classification_loss,
        _optimizer(config, len(train_batches)),
        train_batches,
        batches(validation, seed=None),
        config=training.FitConfig(
            epochs=config.epochs,
            patience=config.patience,
            monitor="loss" if honest else "accuracy",
            monitor_mode="min" if honest else "max",
            seed=config.seed,
            loss_scale=LOSS_SCALE if config.dtype == "float16" else None,
        ),
        run_dir=run_dir,
        resume=resume,
        progress=progress,
        parallel=parallel,
        trackers=trackers,
        profile_steps=profile_steps,
    )
    tested = _test(model, batches(test, seed=None), problem)
    report = {
        "dataset": problem.dataset,
        "mechanism": config.mechanism,
        "protocol": config.protocol,
        "selected_on": "validation share of the training data"
        if config.protocol == "honest"
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
    return (
        f"{train.name}: {train.num_examples} sequences to train and {test.num_examples} to test, "
        f"{train.num_channels} channels, {lengths.min()} to {lengths.max()} steps\n"
        f"{len(train.classes)} classes: {names}"
    )


def _test(
    model: models.SequenceClassifier, batches: data.Batches, problem: ClassifyProblem
) -> dict[str, Any]:
    metrics = training.evaluate(model, classification_loss, batches)
    counts = confusion(model, batches)
    return {
        **{f"test_{name}": value for name, value in metrics.items()},
        "constant_accuracy": float(counts.sum(axis=1).max() / counts.sum()),
        "classes": class_figures(counts, problem.classes),
        "confusion": counts.tolist(),
    }


def load_run(run_dir: Path) -> ClassifyRun:
    """Loads a run's model with its selected parameters.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged.
    """
    config = ClassifyConfig.read(run_dir)
    with reading_problem(run_dir) as values:
        problem = ClassifyProblem.from_json(values)
    model = build_model(config, problem)
    training.load_best(model, run_dir)
    return ClassifyRun(model, config, problem)


def load_test(run: ClassifyRun, test_file: Path | None = None) -> data.TimeSeriesDataset:
    """A run's test data, or those of another file, on the run's classes.

    Raises:
        ValueError: other channels or classes than the run was trained on; the run's own file has
            changed.
        FileNotFoundError: the file is missing.
    """
    path = run.config.test_file if test_file is None else test_file
    if path is None:
        test = data.japanese_vowels()[1]
    else:
        test = data.load_dataset(path).with_classes(run.problem.classes)
    if test.num_channels != len(run.problem.channels):
        raise ValueError(
            f"{path} has {test.num_channels} channels, the run was trained on "
            f"{len(run.problem.channels)}; give a file of the same problem."
        )
    if test_file is None and _checksum(test) != run.problem.checksum["test"]:
        raise ValueError(
            f"the data of the run have changed since ({path}, {test.num_examples} sequences); give "
            "other data with --test-file."
        )
    return test


def evaluate_run(run_dir: Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run and, if its model streams, compares the stream with the parallel model.

    Args:
        run_dir: the run folder.
        test_file: other test data than the run's own.

    Returns:
        Test metrics, as ``train_classifier``; ``stream_max_error``, the largest difference between
        streamed and parallel class probabilities over all steps of all sequences, and the number of
        steps compared.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or data of another problem.
    """
    run = load_run(run_dir)
    test = _complete(load_test(run, test_file))
    batches = make_batches(test, run.config, run.problem, seed=None)
    report: dict[str, Any] = {
        "dataset": test.name,
        "mechanism": run.config.mechanism,
        "protocol": run.config.protocol,
        "num_test": test.num_examples,
    }
    report |= _test(run.model, batches, run.problem)
    if run.model.backbone.streams:
        report |= _compare_stream(run.model, batches)
    return report


def _compare_stream(model: models.SequenceClassifier, batches: data.Batches) -> dict[str, Any]:
    graphdef, variables = nnx.split(model)

    @jax.jit
    def errors(variables: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, variables)
        x, mask = batch["values"], batch["mask"]
        parallel = jax.nn.softmax(model(x, mask=mask, every_step=True))
        streamed = jax.nn.softmax(inference.unroll(model, x, mask))
        return jnp.where(mask[:, :, None], jnp.abs(parallel - streamed), 0.0)

    largest, steps = 0.0, 0
    for batch in batches:
        real = batch["mask"] & (batch["weight"] > 0)[:, None]
        largest = max(largest, float(jnp.max(errors(variables, {**batch, "mask": real}))))
        steps += int(real.sum())
    return {"stream_max_error": largest, "stream_steps": steps}


def _load_data(config: ClassifyConfig) -> tuple[data.TimeSeriesDataset, data.TimeSeriesDataset]:
    if config.train_file is None or config.test_file is None:
        return data.japanese_vowels()
    train = data.load_dataset(config.train_file)
    test = data.load_dataset(config.test_file).with_classes(train.classes)
    if train.num_channels != test.num_channels:
        raise ValueError(
            f"{config.train_file} has {train.num_channels} channels and {config.test_file} "
            f"{test.num_channels}; give two files of one problem."
        )
    return train, test


def _checksum(dataset: data.TimeSeriesDataset) -> str:
    return checksum([*dataset.series, dataset.labels])


def _complete(dataset: data.TimeSeriesDataset) -> data.TimeSeriesDataset:
    return dataclasses.replace(dataset, series=data.interpolate_missing(dataset.series))


def make_batches(
    dataset: data.TimeSeriesDataset,
    config: ClassifyConfig,
    problem: ClassifyProblem,
    *,
    seed: int | None,
    spans: int = 1,
) -> data.BucketBatches:
    """Batches whose length is a multiple of ``spans``, where the model allows it."""
    standardizer = problem.standardizer
    if config.protocol == "tslib":
        standardizer = data.Standardizer.fit(dataset.series)
    # Sequences of a file that came later may be longer.
    longest = max(problem.max_length, int(dataset.lengths.max()))
    lengths = [-(-length // spans) * spans for length in (*problem.lengths[:-1], longest)]
    series = standardizer.apply(dataset.series)
    if config.protocol == "tslib" and dataset.name == "EthanolConcentration":
        series = tuple(_scale_across_channels(values) for values in series)
    values, mask = data.pad(series, lengths[-1])
    arrays = {"values": values, "mask": mask, "labels": dataset.labels}
    return data.BucketBatches(arrays, config.batch_size, lengths=lengths, seed=seed)


def _scale_across_channels(values: NDArray) -> NDArray:
    """Time-Series-Library's for one data set: centred over time, scaled over channels, [T, C]."""
    centred = values - values.mean(axis=0)
    return centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)


def _lengths(
    fitted: data.TimeSeriesDataset,
    train: data.TimeSeriesDataset,
    test: data.TimeSeriesDataset,
    buckets: int,
) -> tuple[int, ...]:
    """Lengths for equal shares of the sequences to train on, and that of the longest of all."""
    shares = np.linspace(0, 1, buckets + 1)[1:-1]
    longest = int(max(train.lengths.max(), test.lengths.max()))
    return (*np.ceil(np.quantile(fitted.lengths, shares)).astype(int).tolist(), longest)


def _optimizer(config: ClassifyConfig, steps_per_epoch: int) -> optax.GradientTransformation:
    schedule: float | optax.Schedule = config.learning_rate
    if config.schedule == "steps":
        schedule = optax.join_schedules(
            [
                optax.constant_schedule(config.learning_rate * (0.5 ** (e - 1) if e else 1.0))
                for e in range(0, config.epochs + 1, 5)
            ],
            [e * steps_per_epoch for e in range(5, config.epochs + 1, 5)],
        )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.radam(schedule))
