"""Which training examples select the parameters."""

from __future__ import annotations

from typing import TypeVar

from flax_linattn import data
from flax_linattn.data.images import LabelledImages
from flax_linattn.data.texts import LabelledTexts
from flax_linattn.tasks.classify.sources import ClassesData

Examples = TypeVar("Examples", LabelledImages, LabelledTexts)


def hold_out(train: Examples, test: Examples, options: ClassesData) -> tuple[Examples, Examples]:
    """What the parameters learn from, and what selects them: a stratified share, or the test."""
    if options.select_on == "test":
        return train, test
    kept, held = data.stratified_split(train.labels, options.validation_share, options.split_seed)
    return train.subset(kept), train.subset(held)
