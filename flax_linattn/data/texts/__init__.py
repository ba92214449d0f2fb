"""Labelled texts as bytes: folders of files, and batches."""

from flax_linattn.data.texts.batches import (
    PackedTextBatches,
    TextBatches,
    taylorshift_bytes,
)
from flax_linattn.data.texts.texts import LabelledTexts, load_texts

__all__ = [
    "LabelledTexts",
    "PackedTextBatches",
    "TextBatches",
    "load_texts",
    "taylorshift_bytes",
]
