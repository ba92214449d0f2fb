"""Labelled texts as bytes: folders of files, pairs, batches."""

from flax_linattn.data.texts.batches import (
    PackedTextBatches,
    TextBatches,
    pack_texts,
    taylorshift_bytes,
)
from flax_linattn.data.texts.pairs import TextPairs, load_pairs
from flax_linattn.data.texts.texts import LabelledTexts, load_texts

__all__ = [
    "LabelledTexts",
    "PackedTextBatches",
    "TextBatches",
    "TextPairs",
    "load_pairs",
    "load_texts",
    "pack_texts",
    "taylorshift_bytes",
]
