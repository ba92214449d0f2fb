"""Several short texts in one row of bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import at_least
from flax_linattn.data.packing import pack
from flax_linattn.data.texts.texts import LabelledTexts


def pack_texts(texts: LabelledTexts, length: int) -> dict[str, NDArray]:
    """Packs texts into rows of one length, for ``data.Batches``; see ``data.pack``.

    Args:
        texts: What to pack, each in one row; of longer ones the beginning is taken.
        length: Bytes of a row, T.

    Returns:
        "tokens", int32 ``[N, T]``, the bytes, and 0 where there is none; "mask", bool ``[N, T]``;
        "segment_ids", int32 ``[N, T]``, the number of a text in its row; "segment_labels", int32
        ``[N, S]``, the label of each, and -1 where a row has fewer texts than S.

    Raises:
        OptionError: The length is below 1.
        ValueError: There are no texts.

    Example:
        >>> texts = LabelledTexts("toy", ("neg", "pos"), np.array([1, 0, 1], np.int32),
        ...                       (b"abc", b"abcdefg", b"ab"))
        >>> packed = pack_texts(texts, 5)
        >>> packed["segment_ids"].tolist(), packed["segment_labels"].tolist()
        ([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], [[0, -1], [1, 1]])
    """
    at_least(1, length=length)
    tokens = [np.frombuffer(text[:length], np.uint8).astype(np.int32) for text in texts.texts]
    packed = pack({"tokens": tokens}, length)
    ids = packed.arrays["segment_ids"]
    labels = np.full((len(ids), 1 + int(ids.max())), -1, np.int32)
    rows, places = np.nonzero(packed.arrays["mask"])
    labels[rows, ids[rows, places]] = texts.labels[packed.sequence[rows, places]]
    return {**packed.arrays, "segment_labels": labels}
