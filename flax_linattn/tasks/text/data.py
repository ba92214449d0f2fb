"""Text of a run: loading, batches and data spec."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.data.texts import Corpus, Tokenizer, TokenWindows, load_corpus, make_tokenizer
from flax_linattn.data.texts.corpus import (
    TextSource,
    is_text_table,
    token_folder,
    write_tokens,
)
from flax_linattn.data.texts.tokenizers import KINDS
from flax_linattn.data.texts.windows import forget_pages
from flax_linattn.tasks.spec import DataSpec, Run, omit_if_empty
from flax_linattn.tasks.text.options import TextConfig

_BLOCK = 2**20


@dataclasses.dataclass(frozen=True)
class TextSpec(DataSpec):
    """Metadata of a text, saved in the run folder.

    Attributes:
        dataset: Name of the file or folder.
        tokenizer: Kind of the tokenizer.
        num_tokens: Vocabulary size, including special tokens.
        has_documents: Whether the text has documents, each of which begins with a special token.
        checksum: Checksum of the tokens.
        tokenizer_data: Serialized tokenizer; see ``data.texts.make_tokenizer``.
    """

    dataset: str
    tokenizer: str
    num_tokens: int
    has_documents: bool
    checksum: str
    tokenizer_data: str = omit_if_empty("")
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "has_documents", "checksum")

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """Makes the spec for a continued run, which needs the same tokenizer."""
        if (self.tokenizer, self.tokenizer_data) != (previous.tokenizer, previous.tokenizer_data):
            raise OptionError(
                f"expected the tokenizer of the run to continue ({previous.tokenizer}, "
                f"{previous.num_tokens:,} tokens), got another ({self.tokenizer}, "
                f"{self.num_tokens:,} tokens); pass the folder of that run as tokenizer=..., and "
                "vocabulary=0.",
                "tokenizer",
                "vocabulary",
            )
        return super().continue_from(previous, refit_scales=refit_scales)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one token of a stream."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    @property
    def begin(self) -> int | None:
        """Token that begins each document; None for a single text."""
        return self.make_tokenizer().begin if self.has_documents else None

    def make_tokenizer(self) -> Tokenizer:
        """Makes the tokenizer of the run."""
        return make_tokenizer(self.tokenizer, self.tokenizer_data)

    def check(self) -> None:
        """Checks the types and sizes of the values that were read from the run folder."""
        super().check()
        check_choice(KINDS, tokenizer=self.tokenizer)
        check_integers(2, 2**31 - 1, num_tokens=self.num_tokens)
        if (known := self.make_tokenizer().num_tokens) != self.num_tokens:
            raise ValueError(
                f"expected num_tokens {known} as in the tokenizer, got {self.num_tokens}."
            )


def load(config: TextConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """Loads the text of a run, with the tokenizer of its options or of the trained run."""
    options = config.data
    if options.file is None:
        raise OptionError(
            "expected a text to train on, got none; pass file=..., a text file, a .jsonl or "
            ".parquet table, or a folder of texts.",
            "file",
        )
    return load_corpus(
        options.file,
        column=options.column,
        tokenizer=options.tokenizer if tokenizer is None else tokenizer,
        vocabulary=options.vocabulary,
        ratios=options.ratios,
    )


def describe(corpus: Corpus) -> TextSpec:
    """Makes the data spec of a text."""
    return TextSpec(
        dataset=corpus.name,
        tokenizer=corpus.tokenizer.kind,
        num_tokens=corpus.tokenizer.num_tokens,
        has_documents=corpus.has_documents,
        checksum=compute_checksum((corpus.train, corpus.validation, corpus.test)),
        tokenizer_data=corpus.tokenizer.data,
    )


def compute_checksum(parts: Iterable[NDArray[np.integer]]) -> str:
    """Checksum of tokens and their dtypes, read block by block."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part.dtype.str}".encode())
        for start in range(0, len(part), _BLOCK):
            digest.update(part[start : start + _BLOCK].tobytes())
            forget_pages(part)
    return digest.hexdigest()


def make_batches(corpus: Corpus, config: TextConfig, sequence_shards: int = 1) -> training.Splits:
    """Makes batches of windows; training windows are in random order, others in text order.

    Raises:
        OptionError: If the training text is too short, or devices cannot split the context.
    """
    context, num_train = config.data.context, len(corpus.train)
    if context % sequence_shards:
        raise OptionError(
            f"expected a context that {sequence_shards} devices can split evenly, got {context}; "
            f"choose a multiple of {sequence_shards}, or remove seq from the mesh.",
            "context",
            "mesh",
        )
    if num_train <= context:
        raise OptionError(
            f"expected a training text longer than the context of {context} tokens, got "
            f"{num_train:,} tokens; pass a longer text, or a smaller context.",
            "file",
            "context",
        )
    begin = corpus.tokenizer.begin if corpus.has_documents else None
    size = config.fit.batch_size

    def windows(
        tokens: NDArray[np.integer], seed: int | None, max_tokens: int | None
    ) -> TokenWindows:
        return TokenWindows(
            tokens, size, length=context, begin=begin, seed=seed, max_tokens=max_tokens
        )

    return training.Splits(
        windows(corpus.train, config.seed, None),
        windows(corpus.validation, None, config.data.validation_tokens),
        windows(corpus.test, None, config.data.test_tokens),
    )


def read_test(run: Run, file: Path | None) -> TokenWindows:
    """Makes windows of the run's test text, or of another file, with the run's tokenizer."""
    config, spec = run.config, run.data_spec
    if file is None:
        corpus = load(config, spec.make_tokenizer())
        if describe(corpus).checksum != spec.checksum:
            raise ValueError(
                f"the data of the run have changed since training: {config.data.file}; restore "
                "the file, or test another one."
            )
        tokens = corpus.test
    else:
        column = config.data.column if is_text_table(file) else None
        source = TextSource(file, column, has_documents=spec.has_documents)
        tokens = write_tokens(source, spec.make_tokenizer(), token_folder())
        if len(tokens) < 2:
            raise OptionError(
                f"expected a text of at least 2 tokens in {file}, got {len(tokens)}.", "test_file"
            )
        if len(tokens) > (limit := config.data.test_tokens):
            used = f"only the first {limit:,} of {len(tokens):,} tokens are used"
            print(f"note: {file}: {used} (test_tokens of the run)", file=sys.stderr)
    return TokenWindows(
        tokens,
        config.fit.batch_size,
        length=config.data.context,
        begin=spec.begin,
        seed=None,
        max_tokens=config.data.test_tokens,
    )
