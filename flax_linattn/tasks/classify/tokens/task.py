"""The task of sequences of tokens, as the commands see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import models, ops, training
from flax_linattn.checks import OptionError
from flax_linattn.data.catalog import IMAGES, TEXTS, Entry
from flax_linattn.tasks.classify.figures import draw_confusion
from flax_linattn.tasks.classify.recipe import label_objective
from flax_linattn.tasks.classify.tokens import evaluate
from flax_linattn.tasks.classify.tokens.model import build_model, logits_of
from flax_linattn.tasks.classify.tokens.options import FETCHED, SequenceConfig
from flax_linattn.tasks.classify.tokens.predict import predict
from flax_linattn.tasks.classify.tokens.presets import PRESETS
from flax_linattn.tasks.classify.tokens.problem import SequenceProblem
from flax_linattn.tasks.classify.tokens.sources import Source, open_source, read_test
from flax_linattn.tasks.classify.tokens.stream import SequenceStream, SequenceStreamOptions
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report, Task


class SequenceTask(Task[SequenceConfig, Source, SequenceProblem]):
    """Classes of long sequences of tokens: expressions, bytes, pixels."""

    name = "sequence"
    Config = SequenceConfig
    Problem = SequenceProblem
    StreamOptions = SequenceStreamOptions
    presets: ClassVar[Mapping[str, Any]] = PRESETS
    kinds = (TEXTS, IMAGES)

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """The name that stands for the folder of the files, or the folder."""
        (folder,) = {file.parent for file in files}
        names = {Path("data", of_entry): name for name, of_entry in FETCHED.items()}
        return {"data": names.get(folder, str(folder))}

    def check(self, config: SequenceConfig, placement: training.Placement) -> None:
        """A mechanism has the direction that is asked for; a class token takes one device in time.

        Raises:
            ValueError: they do not go together.
        """
        if placement.spans > 1 and config.model.pooling == "class":
            raise OptionError(
                "a class token makes sequences longer by one, which does not go over devices; "
                "choose pooling mean or last, or leave seq out of the mesh.",
                "pooling",
                "mesh",
            )
        if placement.spans > 1 and config.model.embedding == "conv":
            raise OptionError(
                "convolutions see tokens of other devices; choose another embedding, or leave seq "
                "out of the mesh.",
                "embedding",
                "mesh",
            )
        for mechanism in config.layers.mechanisms:
            able = mechanism.capabilities
            if not (able.causal if config.model.causal else able.noncausal):
                kind = "causal" if config.model.causal else "non-causal"
                those = [
                    name
                    for name in self.mechanisms()
                    if getattr(ops.get_mechanism(name).capabilities, kind.replace("-", ""))
                ]
                raise OptionError(
                    f"{mechanism.name!r} has no {kind} form; choose one of {', '.join(those)}.",
                    "mechanism",
                    causal=not config.model.causal,
                )

    def load(self, config: SequenceConfig) -> Source:
        """Files, or what draws."""
        return open_source(config.data)

    def describe(self, data: Source, config: SequenceConfig) -> SequenceProblem:
        """Names, lengths, a checksum."""
        return SequenceProblem(
            dataset=data.name,
            letters=data.alphabet.name,
            classes=data.classes,
            max_length=data.max_length,
            checksum=data.checksum(config),
        )

    def about_data(self, data: Source, config: SequenceConfig) -> str:
        """Sizes and classes."""
        return data.about(config)

    def notes(self, data: Source) -> Sequence[str]:
        """Of the files."""
        return data.notes

    def batches(
        self, data: Source, config: SequenceConfig, problem: SequenceProblem, spans: int
    ) -> training.Splits:
        """Padded sequences."""
        return data.splits(config, spans)

    def model(
        self,
        config: SequenceConfig,
        problem: SequenceProblem,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.SequenceClassifier:
        """A ``models.SequenceClassifier``."""
        return build_model(config, problem, placement)

    def objective(
        self, config: SequenceConfig, problem: SequenceProblem, steps_per_epoch: int
    ) -> training.Objective:
        """Cross-entropy; selected by accuracy."""
        return label_objective(logits_of, config.fit, steps_per_epoch)

    def observation(self, problem: SequenceProblem) -> jax.ShapeDtypeStruct:
        """A token."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """The run's own, or those of another file or folder of its kind."""
        return read_test(run, file)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Accuracy, figures of each class, accuracy against length."""
        values = evaluate.test_values(run, batches)
        figures = {
            "confusion.png": partial(
                draw_confusion, np.array(values["confusion"]), run.problem.classes
            )
        }
        tables = ["classes"]
        if "lengths" in values:
            tables.append("lengths")
            figures["lengths.png"] = partial(evaluate.draw_lengths, values["lengths"])
        return Report(values, tables, figures, evaluate.YARDSTICKS)

    def yardsticks(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """The most frequent class, naive Bayes, the first token; of pixels, neighbour and ridge."""
        return evaluate.yardstick_values(run, batches)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of logits, over one sequence."""
        return evaluate.stream_error(run, batches) if run.model.streams else {}

    def predict(self, run: Run, file: Path | None) -> Table:
        """The class of each sequence."""
        return predict(run, file)

    def stream(self, run: Run, options: SequenceStreamOptions) -> SequenceStream:
        """Class probabilities after each token."""
        return SequenceStream(run, max_length=options.max_length)
