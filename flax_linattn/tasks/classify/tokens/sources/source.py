"""What all sources of sequences have, and which one options name."""

from __future__ import annotations

import abc
import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify.archives import data_path, holds_texts
from flax_linattn.tasks.classify.tokens.alphabets import Alphabet
from flax_linattn.tasks.classify.tokens.options import DRAWN, FETCHED, SequenceConfig, SequenceData
from flax_linattn.tasks.classify.tokens.problem import SequenceProblem
from flax_linattn.tasks.run_types import Run


class Source(abc.ABC):
    """Sequences of tokens with their classes.

    Batches have "tokens", int32 [B, T], "mask", bool [B, T], and "labels", int32 [B].

    Attributes:
        alphabet: what the tokens stand for.
        name: of the data.
        classes: their names, in the order of the labels.
        max_length: tokens of the longest sequence.
    """

    alphabet: Alphabet
    name: str
    classes: tuple[str, ...]
    max_length: int

    @abc.abstractmethod
    def splits(self, config: SequenceConfig, spans: int) -> training.Splits:
        """Batches to train, validate and test on, of lengths that are multiples of ``spans``."""

    @abc.abstractmethod
    def checksum(self, config: SequenceConfig) -> str:
        """Of the data."""

    @abc.abstractmethod
    def about(self, config: SequenceConfig) -> str:
        """What there is, in a line or two."""

    @property
    def notes(self) -> Sequence[str]:
        """What deserves a second look."""
        return ()


def open_source(options: SequenceData) -> Source:
    """The source that options name.

    Raises:
        ValueError: a damaged file, or one of another kind.
        FileNotFoundError: there is nothing.
    """
    from flax_linattn.tasks.classify.tokens.sources.drawn import DrawnSource
    from flax_linattn.tasks.classify.tokens.sources.pixels import PixelsSource
    from flax_linattn.tasks.classify.tokens.sources.texts import TextsSource

    if options.data in DRAWN:
        return DrawnSource(options)
    path = options.path
    if not path.exists():
        if path.name in FETCHED.values() and path.parent.name == "data":
            name = path.name
            raise FileNotFoundError(
                f"expected the files of {name} in the folder {path}, found nothing there; fetch "
                f"them first (flax-linattn data fetch {name}), or give the path of your own."
            )
        known = {name.lower(): name for name in (*DRAWN, *FETCHED)}
        near = difflib.get_close_matches(path.name.lower(), known, 1)
        if near and not path.suffix:  # a slip in a name, rather than a path
            raise OptionError(
                f"expected a folder or an archive of data at {path}, found none; did you mean "
                f"{known[near[0]]!r}?",
                "data",
            )
        raise FileNotFoundError(f"expected a folder or an archive of data at {path}, found none.")
    return TextsSource(options) if holds_texts(data_path(path)) else PixelsSource(options)


def read_test(run: Run, file: Path | None) -> training.BatchSource:
    """Batches of a run's own test data, or of others of the same alphabet and classes.

    Args:
        run: the run.
        file: of texts or images, a folder or an archive; of ListOps a file of labels and
            expressions, such as the official ones.

    Raises:
        ValueError: the file does not fit the run; the run's own data have changed.
        FileNotFoundError: there is no such file.
    """
    from flax_linattn.tasks.classify.tokens.sources.expressions import expression_batches

    problem, options = run.problem, run.config.data
    if file is None:
        source = open_source(options) if run.data is None else run.data
        if source.checksum(run.config) != problem.checksum:
            raise OptionError(
                f"the data of the run have changed since ({problem.dataset}), or this version of "
                "NumPy or of the library draws others; give other data to test on.",
                "test_file",
            )
    elif problem.letters == "listops":
        return expression_batches(file, run.config, problem)
    else:
        source = open_source(dataclasses.replace(options, data=str(file)))
        ours, theirs = _kind(problem), _kind(source)
        if ours != theirs:
            raise ValueError(
                f"{file} holds {theirs}, and the run was trained on {ours}; give data of the same "
                "problem."
            )
    test = source.splits(run.config, 1).test
    assert test is not None
    return test


def _kind(data: SequenceProblem | Source) -> str:
    letters = data.letters if isinstance(data, SequenceProblem) else data.alphabet.name
    return f"{letters} of the classes {', '.join(data.classes)}"
