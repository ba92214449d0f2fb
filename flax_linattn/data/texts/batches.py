"""Batches of texts with bytes as tokens, padded or packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import MAX_SEED, OptionError, check_choice, check_integers
from flax_linattn.data.batches.batches import ALL_ROWS, Batches, LengthBatches
from flax_linattn.data.batches.packing import pack
from flax_linattn.data.texts.texts import LabeledTexts

CROPS = ("prefix", "random")
PADDINGS = ("masked", "symbol")


def taylorshift_bytes(text: bytes) -> bytes:
    r"""Converts a text as TaylorShift's public code reads it: as Python prints bytes.

    That code applies ``str`` to the bytes of a line, so every sample begins with ``b'`` or ``b"``
    and ends with that quotation mark, and bytes that are not printable ASCII become backslash
    escapes: a line break is the two bytes ``\n``, an "e" with an accent the eight bytes
    ``\xc3\xa9``. It is only needed to reproduce the protocol.

    Args:
        text: Any bytes.

    Returns:
        ASCII, at least three bytes longer.

    Example:
        >>> taylorshift_bytes("café\n".encode()), taylorshift_bytes(b"it's")
        (b"b'caf\\xc3\\xa9\\n'", b'b"it\'s"')
    """
    return repr(text).encode("ascii")


class TextBatches(LengthBatches):
    """Batches of the bytes of texts; an epoch contains every text exactly once.

    See ``ExampleBatches``: a batch is a pure function of its step. It holds "tokens", int32
    ``[B, T]``, the bytes from 0 to 255, padded by 0; "mask", bool ``[B, T]``; "labels", int32
    ``[B]``; "weight", float32 ``[B]``.

    Args:
        texts: Texts of the batches.
        batch_size: Number B of examples of a batch.
        max_length: Maximum number of bytes of a row; longer texts are cut.
        seed: As in ``LengthBatches``.
        crop: Part of a longer text to use: "prefix" (its beginning), or "random" (a part whose
            start is sampled uniformly from the seed, the epoch and the example).
        padding: "masked" sets the mask to False at padding; "symbol" sets it to True everywhere, so
            that 0 is a symbol like the others.
        lengths: Lengths as in ``LengthBatches``. Default: ``max_length`` for all batches.

    Raises:
        OptionError: If an option is unknown or out of range, or two conflict: a random crop without
            a seed, or padding by a symbol with several lengths.
        ValueError: If there are no texts.

    Example:
        >>> texts = LabeledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32),
        ...                       (b"abc", b"abcdefg"))
        >>> batch = TextBatches(texts, 2, max_length=5, seed=None).batch(0)
        >>> batch["tokens"].tolist(), batch["mask"].sum(1).tolist(), batch["labels"].tolist()
        ([[97, 98, 99, 0, 0], [97, 98, 99, 100, 101]], [3, 5], [1, 0])
    """

    def __init__(
        self,
        texts: LabeledTexts,
        batch_size: int,
        *,
        max_length: int,
        seed: int | None,
        crop: Literal["prefix", "random"] = "prefix",
        padding: Literal["masked", "symbol"] = "masked",
        lengths: Sequence[int] | None = None,
    ) -> None:
        check_integers(1, max_length=max_length)
        check_integers(0, MAX_SEED, seed=seed)
        check_choice(CROPS, crop=crop)
        check_choice(PADDINGS, padding=padding)
        if crop == "random" and seed is None:
            raise OptionError("a random crop is drawn from the seed; give one.", "crop", "seed")
        if padding == "symbol" and lengths is not None:
            raise OptionError(
                "padding by a symbol is what a model sees of it, so that it takes one length, not "
                "several; leave lengths out, or mask it.",
                "padding",
                "lengths",
            )
        sizes = np.minimum(texts.lengths, max_length)
        lengths = [max_length] if lengths is None else lengths
        super().__init__(sizes, batch_size, lengths=lengths, seed=seed)
        self.texts, self.max_length = texts, max_length
        self.crop, self.padding = crop, padding

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        length = self._length(examples)
        tokens = np.zeros((len(examples), length), np.int32)
        for row, example in zip(tokens, examples.tolist(), strict=True):
            size, begin = int(self.sizes[example]), self._begin(epoch, example)
            row[:size] = np.frombuffer(self.texts.texts[example], np.uint8, size, begin)
        mask = np.ones(tokens.shape, np.bool_)
        if self.padding == "masked":
            mask = np.arange(length) < self.sizes[examples][:, None]
        return {"tokens": tokens, "mask": mask, "labels": self.texts.labels[examples]}

    def _begin(self, epoch: int, example: int) -> int:
        """Returns the first byte to use, sampled independently for each example and epoch."""
        spare = len(self.texts.texts[example]) - self.max_length
        if self.crop == "prefix" or self.seed is None or spare <= 0:
            return 0
        rng = np.random.default_rng([self.seed, epoch, example])
        return int(rng.integers(spare + 1))


class PackedTextBatches:
    """Batches of rows with several packed texts, for training; see ``data.pack``.

    A batch has "tokens", "mask", "segment_ids", "labels", int32 [B, T], and "weight", float32
    [B, T], which is 1 at the last byte of each text, where a model has received all of it.

    Args:
        texts: Texts to pack.
        batch_size: Number B of rows of a batch.
        length: Number T of bytes of a row; longer texts are cut.
        seed: Random seed of the order of the rows in each epoch.

    Example:
        >>> texts = LabeledTexts("toy", ("neg", "pos"), np.array([1, 0], np.int32), (b"ab", b"c"))
        >>> batch = PackedTextBatches(texts, 1, 4, seed=0).batch(0)
        >>> batch["weight"].sum(), batch["labels"][batch["weight"] > 0].tolist()
        (np.float32(2.0), [1, 0])
    """

    def __init__(self, texts: LabeledTexts, batch_size: int, length: int, *, seed: int) -> None:
        check_integers(1, length=length)
        tokens = [np.frombuffer(text[:length], np.uint8).astype(np.int32) for text in texts.texts]
        packed = pack({"tokens": tokens}, length)
        mask, ids = packed.arrays["mask"], packed.arrays["segment_ids"]
        ends = mask.copy()
        ends[:, :-1] &= np.where(mask, ids, -1)[:, 1:] != ids[:, :-1]
        labels = np.where(mask, texts.labels[packed.sequence], 0)
        arrays = {**packed.arrays, "labels": labels, "ends": ends}
        self._batches = Batches(arrays, batch_size, seed=seed)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self._batches)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs, or some rows of it."""
        batch = self._batches.batch(step, rows)
        batch["weight"] = batch.pop("ends") * batch["weight"][:, None]
        return batch
