"""A labelled collection of texts, as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.data.labels import LabelledExamples, check_classes, check_labels


@dataclass(frozen=True, eq=False)
class LabelledTexts(LabelledExamples):
    """Labelled texts, each the bytes of a file, of its own length.

    Attributes:
        name: The data set's name.
        classes: The class names, in the order of ``data.labels.in_order``, or in that of text.
        labels: int32 ``[N]``, indices into ``classes``.
        texts: N texts of at least a byte.
        notes: What is to be known about them.

    Raises:
        ValueError: The parts do not fit together.
        TypeError: A text is no bytes.

    Example:
        >>> texts = LabelledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32),
        ...                       (b"good", b"not so good"))
        >>> texts.num_examples, texts.lengths.tolist()
        (2, [4, 11])
    """

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    texts: tuple[bytes, ...]
    notes: tuple[str, ...] = ()
    _examples: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.texts), self.classes)
        check_classes(self.classes)
        for index, text in enumerate(self.texts):
            if not isinstance(text, bytes):
                raise TypeError(
                    f"expected text {index} as bytes, got {type(text).__name__}; encode it, say by "
                    'text.encode("utf-8")'
                )
            if not text:
                raise ValueError(
                    f"expected texts of at least a byte, got none in text {index}; drop it"
                )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each text, int64 ``[N]``."""
        return np.array([len(text) for text in self.texts], np.int64)

    def map(self, change: Callable[[bytes], bytes]) -> LabelledTexts:
        """Returns the same examples with every text changed, such as by ``taylorshift_bytes``.

        Example:
            >>> texts = LabelledTexts("toy", ("a",), np.zeros(1, np.int32), (b"Good",))
            >>> texts.map(bytes.lower).texts
            (b'good',)
        """
        return replace(self, texts=tuple(change(text) for text in self.texts))
