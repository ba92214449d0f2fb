"""Labelled texts as bytes: folders of files, pairs, batches."""

from flax_linattn.data.texts.bytes import TextBatches, taylorshift_bytes
from flax_linattn.data.texts.load import load_texts
from flax_linattn.data.texts.pairs import TextPairs, load_pairs
from flax_linattn.data.texts.texts import LabelledTexts, pack_texts

__all__ = [
    "LabelledTexts",
    "TextBatches",
    "TextPairs",
    "load_pairs",
    "load_texts",
    "pack_texts",
    "taylorshift_bytes",
]
