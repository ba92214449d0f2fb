"""Options of language models on text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import OptionError, check_integers, quote
from flax_linattn.models.layers import Layers
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import (
    Config,
    FitOptions,
    ModelOptions,
    Options,
    TaskOptions,
    mechanism_name,
)
from flax_linattn.training.optimizer_options import OptimizerOptions

TEXT_LAYERS = Layers(
    features=128,
    num_layers=3,
    num_heads=4,
    hidden_features=352,
    mechanism="gated_delta",
    norm="pre",
    norm_type="rms",
    activation="swiglu",
    use_bias=False,
    dropout_rate=0.0,
    short_conv=4,
    output_norm="rms",
)
"""Default layers: a Gated DeltaNet that is small enough to train on a CPU."""


@dataclasses.dataclass(frozen=True)
class TextData(Options):
    """Text, its tokens and its split.

    Attributes:
        file: Text file (also .gz, .xz or .bz2), .jsonl or .parquet table with a document in each
            row, or folder or archive with a document in each file.
        column: Column of the documents in a table. Default: text.
        tokenizer: Tokenizer file: a tokenizer.json of the Hugging Face tokenizers library, or a
            SentencePiece model; or the folder of a text run, to use its tokenizer. Default: bytes.
        vocabulary: Vocabulary size of a byte-level BPE tokenizer to train on the training text, at
            least 257; 0 trains no tokenizer.
        split: Relative sizes of the training, validation and test text, in the order of the file.
            Files of a folder are split at random, unless folders or files are named train and
            test.
        context: Number of tokens of a training window.
        validation_tokens: Maximum number of tokens of the validation text to use.
        test_tokens: Maximum number of tokens of the test text to use.
    """

    file: Path | None = None
    column: str | None = None
    tokenizer: Path | None = None
    vocabulary: int = 0
    split: str = "90/5/5"
    context: int = 256
    validation_tokens: int = 2**17
    test_tokens: int = 2**20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(2, 2**20, context=self.context)
        check_integers(2, validation_tokens=self.validation_tokens, test_tokens=self.test_tokens)
        if self.vocabulary:
            check_integers(257, 2**20, vocabulary=self.vocabulary)
        if self.tokenizer is not None and self.vocabulary:
            raise OptionError(
                "tokenizer=... and vocabulary=... cannot be combined; remove one.",
                "tokenizer",
                "vocabulary",
            )
        self.ratios  # noqa: B018  (raises)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Relative sizes of the training, validation and test text."""
        parts = self.split.split("/")
        try:
            train, validation, test = map(float, parts)
        except ValueError:
            train = validation = test = 0.0
        if not all(0 < size < float("inf") for size in (train, validation, test)):
            raise OptionError(
                "expected split as three numbers above 0, such as 90/5/5, got "
                f"{quote(self.split)}.",
                "split",
            )
        return train, validation, test


@dataclasses.dataclass(frozen=True)
class TextModel(ModelOptions):
    """Options of the language model, a ``models.LanguageModel``.

    Attributes:
        layers: Transformer blocks of the backbone.
        position: Positional encoding of the tokens. A learned encoding limits texts to ``context``
            tokens, also in streams and generation.
        tied: Compute the logits with the token embeddings (weight tying).
    """

    layers: Layers = TEXT_LAYERS
    position: Literal["none", "sinusoidal", "learned"] = "none"
    tied: bool = True


@dataclasses.dataclass(frozen=True)
class TextFit(FitOptions):
    """Training options; an epoch is one pass over all windows of the training text."""

    epochs: int = 1
    steps: int = 2000
    validate_every: int = 200
    patience: int = 10**6
    batch_size: int = 8
    optimizer: OptimizerOptions = OptimizerOptions(
        "adamw",
        learning_rate=3e-3,
        schedule="cosine",
        weight_decay=0.1,
        clip_norm=1.0,
        beta2=0.95,
    )


@dataclasses.dataclass(frozen=True)
class TextConfig(Config):
    """Options of a language model on text."""

    main_options = ("file", "tokenizer", "context", "steps", "batch_size", *Config.main_options)
    data: TextData = TextData()
    model: TextModel = TextModel()
    fit: TextFit = TextFit()

    @property
    def name(self) -> str:
        """Default name of the run folder."""
        file = self.data.file
        text = "text" if file is None else file.name.partition(".")[0] or "text"
        return make_file_name(text, mechanism_name(self.layers), self.seeds)


@dataclasses.dataclass(frozen=True)
class TextStreamOptions:
    """Options of a stream of text.

    Every line is text, including blank lines and lines that begin with "#".

    Attributes:
        max_length: Maximum number of tokens, for mechanisms with a cache. Default: the context
            length.
    """

    max_length: int | None = None


class TextOptions(TaskOptions):
    """The options of language models."""

    name = "text"
    Config = TextConfig
    StreamOptions = TextStreamOptions
    is_causal = True
