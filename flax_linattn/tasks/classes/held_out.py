"""Which training examples select the parameters."""

from __future__ import annotations

from typing import Protocol, TypeVar

from flax_linattn import data
from flax_linattn.data.images import LabelledImages
from flax_linattn.data.texts import LabelledTexts

Examples = TypeVar("Examples", LabelledImages, LabelledTexts)


class HeldOut(Protocol):
    """Options of what is held out."""

    @property
    def select_on(self) -> str:
        """Either "validation" or "test"."""

    @property
    def validation_share(self) -> float:
        """Share of the training data."""

    @property
    def split_seed(self) -> int:
        """Of which examples."""


def hold_out(train: Examples, test: Examples, options: HeldOut) -> tuple[Examples, Examples]:
    """What the parameters learn from, and what selects them: a stratified share, or the test."""
    if options.select_on == "test":
        return train, test
    kept, held = data.stratified_split(train.labels, options.validation_share, options.split_seed)
    return train.subset(kept), train.subset(held)
