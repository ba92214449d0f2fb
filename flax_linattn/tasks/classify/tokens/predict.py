"""What a classifier of tokens says of sequences whose classes are not known."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, training
from flax_linattn.checks import OptionError
from flax_linattn.data.file_tree import ARCHIVES
from flax_linattn.data.texts import LabelledTexts, TextBatches, taylorshift_bytes
from flax_linattn.tasks.classify.predictions import class_table, probabilities_of
from flax_linattn.tasks.classify.tokens.model import logits_of
from flax_linattn.tasks.classify.tokens.sources import read_test
from flax_linattn.tasks.files import open_lines
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run


def predict(run: Run, file: Path | None) -> Table:
    """A row a sequence: of lines as a stream reads them, a blank line between two sequences.

    A folder or an archive, or a file of labels and expressions, is one to test on, whose labels do
    not count.

    Raises:
        ValueError: a line that spells no tokens, or a sequence that the model cannot take.
        FileNotFoundError: there is no such file.
    """
    if file is None or file.is_dir() or file.name.lower().endswith((".tsv", *ARCHIVES)):
        batches = read_test(run, file)
    else:
        batches = _batches(run, file)
    return class_table(probabilities_of(run.model, batches, logits_of), run.problem.classes)


def _batches(run: Run, file: Path) -> training.BatchSource:
    problem, options = run.problem, run.config.data
    with open_lines(file) as (lines, name):
        tokens = list(problem.alphabet.parse(lines, name))
    groups = itertools.groupby(tokens, key=lambda token: token is None)
    sequences = [np.array(list(own), np.int32) for between, own in groups if not between]
    if not sequences:
        raise OptionError(f"{file}: expected sequences of tokens, got none.", "test_file")
    if problem.letters == "bytes":
        texts = tuple(sequence.astype(np.uint8).tobytes() for sequence in sequences)
        if options.as_python:
            texts = tuple(map(taylorshift_bytes, texts))
        return TextBatches(
            LabelledTexts(str(file), problem.classes, np.zeros(len(texts), np.int32), texts),
            run.config.fit.batch_size,
            max_length=options.max_length,
            seed=None,
            padding="symbol" if options.padding == "symbol" else "masked",
        )
    _check_lengths(run, file, sequences)
    size = min(run.config.fit.batch_size, len(sequences))
    longest = max(map(len, sequences))
    return data.RaggedBatches({"tokens": sequences}, size, lengths=[longest], seed=None)


def _check_lengths(run: Run, file: Path, sequences: list[NDArray]) -> None:
    problem = run.problem
    lengths = [len(sequence) for sequence in sequences]
    if problem.letters == "grey" and set(lengths) != {problem.max_length}:
        raise OptionError(
            f"{file}: expected {problem.max_length:,} grey values of each image, got "
            f"{min(lengths):,} to {max(lengths):,}; a blank line ends an image.",
            "test_file",
        )
    if run.config.model.position == "learned" and max(lengths) > problem.max_length:
        raise OptionError(
            f"{file}: a sequence has {max(lengths):,} tokens, and the run's model positions for "
            f"{problem.max_length:,}; give shorter ones, or train with sinusoidal positions.",
            "test_file",
        )
