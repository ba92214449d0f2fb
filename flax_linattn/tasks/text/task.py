"""The task of language models on text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checks import format_count
from flax_linattn.data.texts import Corpus, TokenWindows
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.run import DATA_SPEC_FILE, read_data_spec
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.tasks.task import DataSummary, Report, Task
from flax_linattn.tasks.text import baselines
from flax_linattn.tasks.text.data import TextSpec, describe, load, make_batches, read_test
from flax_linattn.tasks.text.evaluate import (
    carries_state,
    loss_fn,
    report_values,
    score_carried,
    score_windows,
)
from flax_linattn.tasks.text.generate import (
    TextGenerator,
    generate_batch,
    load_prompt,
    save_prompt,
)
from flax_linattn.tasks.text.options import TextConfig, TextOptions, TextStreamOptions
from flax_linattn.tasks.text.stream import TextStream

NUM_COMPARED_TOKENS = 300
"""Number of tokens for which the stream is compared with the parallel model."""


class TextTask(TextOptions, Task[TextConfig, Corpus, TextSpec]):
    """Trains a language model on text."""

    DataSpec = TextSpec
    splits_time: ClassVar[bool] = True

    def load(self, config: TextConfig) -> Corpus:
        """Loads the text; its tokens are cached in a file unless they are its bytes."""
        folder = config.data.tokenizer
        if folder is None or not (folder / DATA_SPEC_FILE).is_file():
            return load(config)
        spec = read_data_spec(folder, self)
        assert isinstance(spec, TextSpec)
        return load(config, spec.make_tokenizer())

    def describe(self, data: Corpus, config: TextConfig) -> TextSpec:
        """Makes the data spec: tokenizer and checksum."""
        return describe(data)

    def about_data(self, data: Corpus, config: TextConfig) -> DataSummary:
        """Describes the sizes of the text and its tokenizer."""
        sizes = ", ".join(
            f"{len(part):,} {name}"
            for name, part in (
                ("training", data.train),
                ("validation", data.validation),
                ("test", data.test),
            )
        )
        tokenizer, notes = data.tokenizer, list(data.notes)
        for name, part, limit in (
            ("validation", data.validation, config.data.validation_tokens),
            ("test", data.test, config.data.test_tokens),
        ):
            if len(part) > limit:
                used = f"the first {format_count(limit, 'token')} of {len(part):,}"
                notes.append(f"the {name} text is cut: {used} are used")
        return DataSummary(
            f"{data.name}: {sizes} tokens ({tokenizer.kind}, vocabulary of "
            f"{tokenizer.num_tokens:,})",
            notes,
        )

    def batches(
        self, data: Corpus, config: TextConfig, data_spec: TextSpec, sequence_shards: int
    ) -> training.Splits:
        """Makes batches of windows of the text."""
        return make_batches(data, config, sequence_shards)

    def model(
        self,
        config: TextConfig,
        data_spec: TextSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.LanguageModel:
        """Builds the ``models.LanguageModel`` of a run."""
        return models.LanguageModel(
            data_spec.num_tokens,
            tied=config.model.tied,
            position=config.model.position,
            layers=config.layers.map_mechanisms(placement.mechanism),
            max_length=config.data.context,  # of learned positions, and of AFT's biases
            rngs=nnx.Rngs(config.seed),
        )

    def objective(
        self, config: TextConfig, data_spec: TextSpec, steps_per_epoch: int
    ) -> training.Objective:
        """Makes the objective: the cross-entropy of the next token, which selects parameters."""
        return training.Objective(
            loss_fn,
            config.fit.make_optimizer(steps_per_epoch),
            tokens_per_example=config.data.context,
        )

    def test_batches(self, run: Run, file: Path | None) -> TokenWindows:
        """Makes windows of the run's test text, or of another file."""
        return read_test(run, file)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports bits per byte, calibration, and accuracy by position and distance."""
        assert isinstance(batches, TokenWindows)
        print(f"testing on {len(batches.tokens):,} tokens", file=sys.stderr)
        return Report(
            report_values(run, batches),
            tables=("positions", "calibration", "copies"),
            baselines=baselines.BASELINES,
        )

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Computes the bits per byte of compressors and byte frequencies on the same text."""
        assert isinstance(batches, TokenWindows)
        print("compressing the test text, for the baselines", file=sys.stderr)
        return baselines.test_baselines(run, batches.tokens)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares the logits of the stream and of the parallel model on the first test tokens."""
        assert isinstance(batches, TokenWindows)
        length = NUM_COMPARED_TOKENS if carries_state(run) else batches.length
        return stream_difference(run.model, np.asarray(batches.tokens[None, :length], np.int32))

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """Scores the test text, or another file: one row for each document or line."""
        windows = read_test(run, file)
        score = score_carried if carries_state(run) else score_windows
        bits = score(run, windows).bits
        tokenizer, tokens = run.data_spec.make_tokenizer(), np.asarray(windows.tokens)
        if run.data_spec.has_documents:
            ends = np.flatnonzero(tokens[1:] == tokenizer.begin)
        else:
            texts = [tokenizer.decode([token]) for token in range(run.data_spec.num_tokens)]
            is_end = np.array([b"\n" in text for text in texts])
            ends = np.flatnonzero(is_end[tokens[1:]]) + 1
        starts = np.unique(np.concatenate([[0], ends[ends < len(bits)]]))
        totals = np.add.reduceat(bits.astype(np.float64), starts)
        stops = [*(starts[1:] + 1), len(tokens)]
        firsts = [0, *(starts[1:] + 1)]
        pieces = [tokenizer.decode(tokens[a:b]) for a, b in zip(firsts, stops, strict=True)]
        num_bytes = np.array([max(len(piece), 1) for piece in pieces])
        unit = "document" if run.data_spec.has_documents else "line"
        columns = (np.arange(len(starts)) + 1, num_bytes, totals, totals / num_bytes)
        return make_table((unit, "bytes", "bits", "bits_per_byte"), columns)

    def generate(
        self, run: Run, prompt: str | bytes, *, state: Path | None = None, **options: Any
    ) -> TextGenerator:
        """Continues a prompt; see ``TextGenerator`` for the options."""
        prompt_state = None if state is None else load_prompt(state, run)
        return TextGenerator(run, prompt, prompt_state=prompt_state, **options)

    def generate_batch(self, run: Run, prompts: Sequence[str | bytes], **options: Any) -> list[str]:
        """Continues several prompts in one batch; see ``generate_batch``."""
        return generate_batch(run, prompts, **options)

    def save_prompt(self, path: Path, run: Run, generator: TextGenerator) -> int:
        """Saves the state after the text of a generator; returns the size of the file."""
        save_prompt(path, run, generator.prompt_state)
        return path.stat().st_size

    def stream(self, run: Run, options: TextStreamOptions) -> TextStream:
        """Makes a stream that scores text."""
        return TextStream(run, max_length=options.max_length)
