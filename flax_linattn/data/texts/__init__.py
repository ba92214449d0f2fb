"""Texts: labeled texts as bytes for classifiers, and tokens of texts for language models."""

from flax_linattn.data.texts.batches import (
    PackedTextBatches,
    TextBatches,
    taylorshift_bytes,
)
from flax_linattn.data.texts.corpus import Corpus, TextSource, load_corpus, split_tokens
from flax_linattn.data.texts.texts import LabeledTexts, load_texts
from flax_linattn.data.texts.tokenizers import (
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
    train_tokenizer,
)
from flax_linattn.data.texts.windows import TokenWindows

__all__ = [
    "ByteTokenizer",
    "Corpus",
    "LabeledTexts",
    "PackedTextBatches",
    "TextBatches",
    "TextSource",
    "TokenWindows",
    "Tokenizer",
    "load_corpus",
    "load_texts",
    "load_tokenizer",
    "make_tokenizer",
    "split_tokens",
    "taylorshift_bytes",
    "train_tokenizer",
]
