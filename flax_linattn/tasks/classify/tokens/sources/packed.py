"""Several texts in a row, to train on without padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.data.batching import ALL_ROWS
from flax_linattn.data.texts import LabelledTexts, pack_texts


class PackedBatches:
    """Batches of rows of packed texts, in an order of each epoch's own.

    Beside "tokens", "mask" and "segment_ids" they have "labels", int32 [B, T], and "weight",
    float32 [B, T], which is 1 at the last byte of each text, where a model has seen all of it.

    Args:
        texts: what to pack.
        batch_size: B.
        length: T; longer texts are cut.
        seed: of the orders.

    Example:
        >>> texts = LabelledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32), (b"ab", b"c"))
        >>> batch = PackedBatches(texts, 1, 4, seed=0).batch(0)
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
        self._batches = data.Batches(
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
