"""Labelled texts as bytes: folders of files, pairs, batches."""

from flax_linattn.data.texts.bytes import TextBatches, taylorshift_bytes
from flax_linattn.data.texts.load import load_texts
from flax_linattn.data.texts.packed import PackedTextBatches, pack_texts
from flax_linattn.data.texts.pairs import TextPairs, load_pairs
from flax_linattn.data.texts.texts import LabelledTexts

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
