"""The task of classifying time series."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference, models, training
from flax_linattn.checks import OptionError
from flax_linattn.data.sets.catalog import SEQUENCES, Entry
from flax_linattn.tasks.classify.baselines import Vectors
from flax_linattn.tasks.classify.figures import plot_earliness
from flax_linattn.tasks.classify.label_task import LabelTask
from flax_linattn.tasks.classify.metrics import LogitsFn, predict_probabilities
from flax_linattn.tasks.classify.series.data import (
    ClassifySpec,
    SeriesSource,
    check_channels,
    check_values,
    complete,
    load_data,
    load_test,
    load_train,
    make_batches,
)
from flax_linattn.tasks.classify.series.early import (
    compute_logits,
    early_values,
    fit_closed_form,
    stream_error,
)
from flax_linattn.tasks.classify.series.options import (
    ClassifyConfig,
    ClassifyOptions,
    ClassifyStreamOptions,
)
from flax_linattn.tasks.classify.series.stream import ClassifyStream
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Report
from flax_linattn.typing import Array

LATENT_MECHANISM = "softmax"
"""Mechanism of the attention among latents."""

Classifier: TypeAlias = (
    models.SequenceClassifier | models.PerceiverReader | models.MiniRocketClassifier
)


class ClassifyTask(ClassifyOptions, LabelTask[ClassifyConfig, ClassifySpec]):
    """The task of classifying time series."""

    DataSpec = ClassifySpec
    kinds = (SEQUENCES,)
    selections: ClassVar[Mapping[str, str]] = {
        "validation": "validation part of the training data",
        "test": "TEST SET (as Time-Series-Library)",
    }

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Returns the training and test files as options."""
        return dict(zip(("train_file", "test_file"), files, strict=True))

    def check(self, config: ClassifyConfig, placement: training.Placement) -> None:
        """Raises OptionError for options that the model or the devices do not support."""
        if config.model.model == "closed-form":
            config.check_closed_form()
        if placement.sequence_shards > 1 and config.model.sees_padding:
            raise OptionError(
                "splitting sequences over devices pads them, which changes the results of a "
                "circular embedding and of attention to padding; use embedding='causal' and "
                "padding='masked', or remove seq from the mesh.",
                "embedding",
                "padding",
                "mesh",
            )

    @classmethod
    def trained_logits(cls) -> LogitsFn:
        """Function that computes the logits of the attention alone, without the linear maps."""
        return _attention_logits

    def load(self, config: ClassifyConfig) -> SeriesSource:
        """Loads the series, and holds out a validation part."""
        return SeriesSource(*load_data(config.data), config)

    def model(
        self,
        config: ClassifyConfig,
        data_spec: ClassifySpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> Classifier:
        """Makes the model: attention, MiniRocket features with linear maps, or both.

        Attention is a ``models.SequenceClassifier``, or a ``models.PerceiverReader`` for latents.
        """
        kind, attention = config.model.model, None
        if kind != "closed-form":
            attention = self._attention(config, data_spec, placement)
            if kind == "attention":
                return attention
        return models.MiniRocketClassifier(
            len(data_spec.channels),
            len(data_spec.classes),
            data_spec.series_length or data_spec.max_length,
            num_features=config.model.num_features,
            num_prefixes=config.model.num_prefixes,
            attention=attention,
            rngs=nnx.Rngs(config.seed),
        )

    def _attention(
        self, config: ClassifyConfig, data_spec: ClassifySpec, placement: training.Placement
    ) -> models.SequenceClassifier | models.PerceiverReader:
        model = config.model
        layers, rngs = config.layers.map_mechanisms(placement.mechanism), nnx.Rngs(config.seed)
        if model.latents is not None:
            if len(set(layers.mechanisms)) > 1:
                raise OptionError(
                    "latents need a single mechanism, got several.", "mechanism", "latents"
                )
            return models.PerceiverReader(
                len(data_spec.channels),
                len(data_spec.classes),
                num_latents=model.latents,
                reads_by=layers.mechanisms[0],
                layers=dataclasses.replace(layers, mechanism=LATENT_MECHANISM),
                max_length=data_spec.max_length,
                rngs=rngs,
            )
        return models.SequenceClassifier(
            len(data_spec.channels),
            len(data_spec.classes),
            pooling=model.pooling,
            max_length=data_spec.max_length,
            is_causal=model.causal,
            embedding_padding=model.embedding,
            attends_to_padding=model.padding == "seen",
            layers=layers,
            rngs=rngs,
        )

    compute_logits = staticmethod(compute_logits)

    def begin(
        self,
        models: Sequence[Classifier],
        splits: training.Splits,
        config: ClassifyConfig,
        data_spec: ClassifySpec,
    ) -> None:
        """Sets nothing: the closed-form part is fitted after training."""

    def is_calibrated(self, config: ClassifyConfig) -> bool:
        """Whether the model has a closed-form part."""
        return config.model.model != "attention"

    def calibrate(self, run: Run, splits: training.Splits) -> str | None:
        """Fits the closed-form part, and the weight of the attention."""
        assert isinstance(splits.train, data.BucketBatches)
        assert isinstance(splits.validation, data.BucketBatches)
        return fit_closed_form(run, splits.train, splits.validation)

    def monitor(self, config: ClassifyConfig) -> str:
        """Name of the metric that selects the parameters.

        Time-Series-Library monitors the accuracy. On a small validation part the loss is less
        noisy.
        """
        return "accuracy" if config.data.select_on == "test" else "loss"

    def test_batches(self, run: Run, file: Path | None) -> data.BucketBatches:
        """Makes batches of the test sequences, with missing values interpolated."""
        return make_batches(complete(load_test(run, file)), run.config, run.data_spec, seed=None)

    def train_batches(self, run: Run) -> data.BucketBatches:
        """Makes batches of all training sequences, including the validation part."""
        return make_batches(complete(load_train(run)), run.config, run.data_spec, seed=None)

    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Reads padded sequences as vectors of values."""
        assert isinstance(batches, data.BucketBatches)
        return Vectors(batches.arrays["values"], batches.arrays["labels"])

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports metrics, metrics of each class, and the confusion matrix."""
        report = super().test(run, batches)
        kind = run.config.model.model
        values: dict[str, Any] = {"dataset": run.data_spec.dataset, "model": kind}
        if kind == "closed-form":
            values |= {**report.values, "selected_on": "training data, leave-one-out"}
        else:
            values |= {"mechanism": run.config.label, **report.values}
        if not run.model.streams:
            return dataclasses.replace(report, values=values)
        assert isinstance(batches, data.BucketBatches)
        values |= early_values(run, batches)
        return dataclasses.replace(
            report,
            values=values,
            tables=(*report.tables, "accuracy_by_fraction"),
            figures={**report.figures, "earliness.png": partial(plot_earliness, values)},
        )

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares class probabilities over all steps of all sequences, or at prefix lengths."""
        assert isinstance(batches, data.BucketBatches)
        if isinstance(run.model, models.MiniRocketClassifier):
            return stream_error(run.model, batches)
        errors = partial(_stream_errors, *nnx.split(run.model))
        max_error, steps = 0.0, 0
        for index in range(len(batches)):
            batch = batches.batch(index)
            real = batch["mask"] & (batch["weight"] > 0)[:, None]
            # Unlike max(), np.maximum keeps NaN.
            max_error = float(np.maximum(max_error, jnp.max(errors({**batch, "mask": real}))))
            steps += int(real.sum())
        return {"stream_max_error": max_error, "stream_steps": steps}

    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Makes batches of the sequences to predict; labels are ignored, and may all be "?"."""
        given = load_test(run) if file is None else data.load_dataset(file)
        if file is not None:
            check_values(file, given)
        return _unlabeled(run, given), None

    def stream(self, run: Run, options: ClassifyStreamOptions) -> ClassifyStream:
        """Makes a stream of class probabilities after each observation."""
        return ClassifyStream(
            run,
            sequence=options.sequence,
            threshold=options.threshold,
            max_length=options.max_length,
        )


def predict_proba(run: Run, dataset: data.TimeSeriesDataset) -> NDArray[np.float32]:
    """Predicts class probabilities, float32 [N, classes].

    Args:
        run: The trained run.
        dataset: Sequences with the channels of the run, in their order; labels are ignored.

    Raises:
        ValueError: If the number of channels differs, or a sequence is too long for the model.
    """
    return predict_probabilities(run.model, _unlabeled(run, dataset), compute_logits)


def _unlabeled(run: Run, dataset: data.TimeSeriesDataset) -> data.BucketBatches:
    check_channels(run, dataset)
    labels = np.zeros_like(dataset.labels)
    unknown = dataclasses.replace(dataset, labels=labels, classes=run.data_spec.classes)
    return make_batches(complete(unknown), run.config, run.data_spec, seed=None)


def _attention_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
    attention = model.attention if isinstance(model, models.MiniRocketClassifier) else model
    if attention is None:  # fitted after training, which only needs a finite loss
        return jnp.zeros((len(batch["labels"]), model.num_classes))
    return compute_logits(attention, batch, dropout_key)


@partial(jax.jit, static_argnums=0)  # compiled once for many runs
def _stream_errors(graphdef: nnx.GraphDef[Any], variables: Any, batch: dict[str, Array]) -> Array:
    model = nnx.merge(graphdef, variables)
    x, mask = batch["values"], batch["mask"]
    parallel = jax.nn.softmax(model(x, mask=mask, every_step=True))
    streamed = jax.nn.softmax(inference.unroll(model, x, mask))
    return jnp.where(mask[:, :, None], jnp.abs(parallel - streamed), 0.0)
