"""Several short texts in one row of bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import at_least
from flax_linattn.data.batching import ALL_ROWS, Batches
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


class PackedTextBatches:
    """Batches of rows that several texts share without padding, to train on.

    Beside "tokens", "mask" and "segment_ids" they have "labels", int32 [B, T], and "weight",
    float32 [B, T], which is 1 at the last byte of each text, where a model has seen all of it.

    Args:
        texts: What to pack.
        batch_size: B.
        length: Bytes of a row, T; longer texts are cut.
        seed: Each epoch has its own order of the rows, drawn from it.

    Example:
        >>> texts = LabelledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32), (b"ab", b"c"))
        >>> batch = PackedTextBatches(texts, 1, 4, seed=0).batch(0)
        >>> batch["weight"].sum(), batch["labels"][batch["weight"] > 0].tolist()
        (np.float32(2.0), [1, 0])
    """

    def __init__(self, texts: LabelledTexts, batch_size: int, length: int, *, seed: int) -> None:
        packed = pack_texts(texts, length)
        of_row = packed.pop("segment_labels")
        mask, ids = packed["mask"], packed["segment_ids"]
        following = np.where(mask, ids, -1)[:, 1:]
        ends = mask.copy()
        ends[:, :-1] &= following != ids[:, :-1]
        labels = np.take_along_axis(of_row, np.where(mask, ids, 0), axis=1)
        self._batches = Batches(
            {**packed, "labels": np.maximum(labels, 0), "ends": ends}, batch_size, seed=seed
        )

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self._batches)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs, or some of its rows."""
        batch = self._batches.batch(step, rows)
        batch["weight"] = batch.pop("ends") * batch["weight"][:, None]
        return batch
