"""The task of classifying token sequences."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models, training
from flax_linattn.checks import OptionError
from flax_linattn.data.files.file_tree import ARCHIVES
from flax_linattn.data.sets.catalog import IMAGES, TEXTS, Entry
from flax_linattn.data.texts import LabeledTexts, TextBatches, taylorshift_bytes
from flax_linattn.tasks.classify.baselines import (
    BaselinePredictions,
    Vectors,
    baseline_values,
    first_token,
    iterate_sequences,
    naive_bayes,
    read_vectors,
    take_tokens,
)
from flax_linattn.tasks.classify.class_stream import ClassStream
from flax_linattn.tasks.classify.figures import plot_lengths
from flax_linattn.tasks.classify.label_task import SourceTask
from flax_linattn.tasks.classify.metrics import make_label_loss
from flax_linattn.tasks.classify.tokens.data import (
    GeneratedTokens,
    SequenceSpec,
    TokenSource,
    expression_batches,
    open_source,
)
from flax_linattn.tasks.classify.tokens.options import (
    FETCHED,
    SequenceConfig,
    SequenceOptions,
    SequenceStreamOptions,
)
from flax_linattn.tasks.lines import open_lines
from flax_linattn.tasks.options import check_direction
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.tasks.task import Report
from flax_linattn.typing import Array


class SequenceStream(ClassStream[int]):
    """Predicts class probabilities after each token."""

    unit = "token"
    advice = "pooling mean or last"
    remedy: ClassVar[Mapping[str, Any]] = {"pooling": "mean"}

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Parses tokens; yields None where a new sequence begins."""
        return self._run.data_spec.alphabet.parse(lines)

    @property
    def comments(self) -> bool:
        """Whether lines may be comments: not in texts, whose bytes are all tokens."""
        return self._run.data_spec.alphabet.comments

    def interface(self) -> dict[str, Any]:
        """Describes the tokens and the classes."""
        tokens = {"kind": "token", "count": self._run.data_spec.alphabet.num_tokens}
        return {"inputs": [tokens], "outputs": self.class_outputs()}

    def _input(self, observation: int) -> NDArray:
        return np.array([observation], np.int32)


class SequenceTask(SequenceOptions, SourceTask[SequenceConfig, SequenceSpec]):
    """The task of classifying long token sequences: expressions, bytes or pixels."""

    DataSpec = SequenceSpec
    kinds = (TEXTS, IMAGES)
    baseline_names = ("constant", "first_token", "naive_bayes", "nearest_neighbor", "ridge")

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Returns the folder of the files as an option, by its name in ``FETCHED`` if any."""
        (folder,) = {file.parent for file in files}
        names = {Path("data", entry_name): name for name, entry_name in FETCHED.items()}
        return {"data": names.get(folder, str(folder))}

    def check(self, config: SequenceConfig, placement: training.Placement) -> None:
        """Checks the direction of the mechanism, and that the model can be split in time."""
        if placement.sequence_shards > 1 and config.model.pooling == "class":
            raise OptionError(
                "a class token adds a token, so sequences cannot be split over devices; choose "
                "pooling='mean' or pooling='last', or remove seq from the mesh.",
                "pooling",
                "mesh",
            )
        if placement.sequence_shards > 1 and config.model.embedding == "conv":
            raise OptionError(
                "convolutions need tokens of other devices; choose another embedding, or remove "
                "seq from the mesh.",
                "embedding",
                "mesh",
            )
        causal = config.model.causal
        check_direction(config, causal, causal=not causal)

    def load(self, config: SequenceConfig) -> TokenSource:
        """Reads sequences from files, or generates them."""
        return open_source(config.data, config.fit.runs)

    def with_file(self, config: SequenceConfig, file: Path) -> SequenceConfig:
        """Returns the options with another folder or archive of texts or images."""
        return config.replace(data=str(file))

    def baseline_config(self, config: SequenceConfig) -> SequenceConfig:
        """Returns the options without packing, so that each text has its own row."""
        return config.replace(padding="masked") if config.data.padding == "packed" else config

    def model(
        self,
        config: SequenceConfig,
        data_spec: SequenceSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.SequenceClassifier:
        """Makes a ``models.SequenceClassifier`` on embedded tokens."""
        options, rngs = config.model, nnx.Rngs(config.seed)
        backbone = models.Backbone(
            _embedding(config, data_spec, rngs),
            config.layers.map_mechanisms(placement.mechanism),
            is_causal=options.causal,
            max_length=data_spec.max_length,
            class_token=options.pooling == "class",
            rngs=rngs,
        )
        return models.SequenceClassifier(
            backbone,
            len(data_spec.classes),
            pooling=options.pooling,
            head_activation="none",
            rngs=rngs,
        )

    @staticmethod
    def compute_logits(model: Any, batch: dict[str, Array], dropout_key: Array | None) -> Array:
        """Computes the logits of padded sequences, or of each token of packed sequences."""
        logits: Array = model(
            batch["tokens"].astype(jnp.int32),  # pixels are uint8
            mask=batch.get("mask"),
            segment_ids=batch.get("segment_ids"),
            dropout_key=dropout_key,
        )
        return logits

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Makes batches of the run's own test data, or of another folder, archive or file."""
        if file is not None and run.data_spec.letters == "listops":
            return expression_batches(file, run.config, run.data_spec)
        return super().test_batches(run, file)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports metrics, metrics of each class, and accuracy at ``test_lengths``."""
        report, options = super().test(run, batches), run.config.data
        if not options.test_lengths:
            return report
        source, rows = GeneratedTokens(options), []
        for length in options.test_lengths:
            fresh = source.at_length(run.config, length)
            tested = training.evaluate(run.model, make_label_loss(self.compute_logits), fresh)
            rows.append(
                {
                    "length": length,
                    "accuracy": tested["accuracy"],
                    "loss": tested["loss"],
                    "trained_on": options.min_length <= length <= options.max_length,
                }
            )
        return dataclasses.replace(
            report,
            values={**report.values, "lengths": rows},
            tables=(*report.tables, "lengths"),
            figures={**report.figures, "lengths.png": partial(plot_lengths, rows)},
        )

    def vectors(self, batches: training.BatchSource) -> Vectors:
        """Reads sequences of pixels as vectors."""
        return read_vectors(batches, "tokens")

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Tests the most frequent class, naive Bayes and the first token; pixels as images."""
        data_spec = run.data_spec
        if data_spec.letters == "gray":
            return super().test_baselines(run, batches)
        sequences, labels = zip(*iterate_sequences(batches), strict=True)
        sizes = data_spec.alphabet.num_tokens, len(data_spec.classes)

        def predict(train: training.BatchSource) -> dict[str, BaselinePredictions]:
            return {
                "naive_bayes": naive_bayes(
                    take_tokens(iterate_sequences(train)), sequences, sizes[1]
                ),
                "first_token": first_token(
                    take_tokens(iterate_sequences(train)), sequences, *sizes
                ),
            }

        return baseline_values(
            np.array(labels), sizes[1], partial(self.train_batches, run), predict
        )

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares the logits of the longest sequence of the first batch."""
        batch = batches.batch(0)
        lengths = batch["mask"].sum(axis=1) if "mask" in batch else [batch["tokens"].shape[1]]
        row = int(np.argmax(lengths))
        tokens = batch["tokens"][row : row + 1, : lengths[row]]
        return stream_difference(run.model, jnp.asarray(tokens, jnp.int32), every_step=True)

    def predict_batches(
        self, run: Run, file: Path | None
    ) -> tuple[training.BatchSource, Sequence[str] | None]:
        """Makes batches of the lines of a file, with a blank line between two sequences.

        A folder, an archive or a file of labels and expressions is read as test data, without its
        labels.
        """
        if file is None or file.is_dir() or file.name.lower().endswith((".tsv", *ARCHIVES)):
            return self.test_batches(run, file), None
        return _line_batches(run, file), None

    def stream(self, run: Run, options: SequenceStreamOptions) -> SequenceStream:
        """Makes a stream of class probabilities after each token."""
        return SequenceStream(run, max_length=options.max_length)


def _embedding(config: SequenceConfig, data_spec: SequenceSpec, rngs: nnx.Rngs) -> models.Embedding:
    options, layers = config.model, config.layers
    tokens, features = data_spec.alphabet.num_tokens, layers.features
    how: dict[str, Any] = {
        "position": options.position,
        "max_length": data_spec.max_length,
        "dtype": layers.compute_dtype,
        "rngs": rngs,
    }
    if options.embedding == "conv":
        how["padding"] = "causal" if options.causal else "same"
        return models.ConvTokenEmbedding(tokens, features, **how)
    if options.embedding == "linear":
        return models.LinearTokenEmbedding(tokens, features, **how)
    return models.TokenEmbedding(tokens, features, **how)


def _line_batches(run: Run, file: Path) -> training.BatchSource:
    """Makes batches of the sequences of a text file; tokens of every alphabet fit in bytes."""
    data_spec, options = run.data_spec, run.config.data
    comments = data_spec.alphabet.comments
    with open_lines(file, exact=not comments) as rows:
        tokens = rows.parse(data_spec.alphabet.parse, comments=comments)
        groups = itertools.groupby(tokens, key=lambda token: token is None)
        texts = tuple(bytes(own) for between, own in groups if not between)
    if not texts:
        raise OptionError(
            f"expected sequences of tokens in {file}, got an empty file.", "test_file"
        )
    lengths = [len(text) for text in texts]
    if data_spec.letters == "gray" and set(lengths) != {data_spec.max_length}:
        raise OptionError(
            f"expected {data_spec.max_length:,} gray values per image in {file}, got "
            f"{min(lengths):,} to {max(lengths):,}; separate images by a blank line.",
            "test_file",
        )
    is_cut = data_spec.letters == "bytes"
    if (
        not is_cut
        and run.config.model.position == "learned"
        and max(lengths) > data_spec.max_length
    ):
        raise OptionError(
            f"{file} has a sequence of {max(lengths):,} tokens, but the model has positions for "
            f"{data_spec.max_length:,}; pass shorter ones, or train with position='sinusoidal'.",
            "test_file",
        )
    if options.as_python:
        texts = tuple(map(taylorshift_bytes, texts))
    return TextBatches(
        LabeledTexts(str(file), data_spec.classes, np.zeros(len(texts), np.int32), texts),
        min(run.config.fit.batch_size, len(texts)),
        max_length=options.max_length if is_cut else max(lengths),
        seed=None,
        padding="symbol" if options.padding == "symbol" else "masked",
    )
