"""Labeled texts as bytes: readers of folders, and batches."""

from flax_linattn.data.texts.batches import (
    PackedTextBatches,
    TextBatches,
    taylorshift_bytes,
)
from flax_linattn.data.texts.texts import LabeledTexts, load_texts

__all__ = [
    "LabeledTexts",
    "PackedTextBatches",
    "TextBatches",
    "load_texts",
    "taylorshift_bytes",
]
