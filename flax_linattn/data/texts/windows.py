"""Windows of tokens, with the next token of each as its target."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import check_integers
from flax_linattn.data.batches.batches import ExampleBatches


class TokenWindows(ExampleBatches):
    """Batches of windows of a text; an epoch contains every window exactly once.

    A batch holds "tokens" and "targets", the token after each, int32 ``[B, T]``; "mask", bool
    ``[B, T]``, True where there is a target; "segment_ids", int32 ``[B, T]``, if there are
    documents, whose tokens do not attend to each other; and "weight", float32 ``[B]``.

    With a seed, the first window of each epoch begins at a token that is sampled from the seed and
    the epoch, so that the window boundaries change; the tokens before it and after the last whole
    window are left out in this epoch. Without a seed the windows cover the text.

    Args:
        tokens: Tokens ``[N]``, at least 2; a memory-mapped array is read window by window.
        batch_size: Number B of windows of a batch.
        length: Number T of tokens of a window.
        begin: Token that begins each document; None for a single text.
        seed: Random seed of the order of the windows; None keeps the order of the text.
        max_tokens: Maximum number of tokens to use, from the first on. Default: all.

    Attributes:
        tokens: The used tokens.
        length: As given.
        begin: As given.

    Raises:
        ValueError: If a number is out of range, or there are fewer than 2 tokens.

    Example:
        >>> windows = TokenWindows(np.arange(6), 2, length=3, begin=None, seed=None)
        >>> batch = windows.batch(0)
        >>> batch["tokens"].tolist(), batch["targets"].tolist(), batch["mask"].sum(axis=1).tolist()
        ([[0, 1, 2], [3, 4, 0]], [[1, 2, 3], [4, 5, 0]], [3, 2])
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        *,
        length: int,
        begin: int | None,
        seed: int | None,
        max_tokens: int | None = None,
    ) -> None:
        check_integers(1, length=length)
        check_integers(2, max_tokens=max_tokens)
        self.tokens, self.length, self.begin = tokens[:max_tokens], length, begin
        num_targets = len(self.tokens) - 1
        self._num_spare = 0
        count = max(-(-num_targets // length), 0)
        if seed is not None and num_targets >= 2 * length:
            count = num_targets // length - 1
            self._num_spare = num_targets - count * length
        super().__init__(count, batch_size, seed=seed)

    def _take(self, epoch: int, examples: NDArray[np.int64]) -> dict[str, NDArray]:
        offset = 0
        if self._num_spare:
            rng = np.random.default_rng([self.seed or 0, epoch, 1])
            offset = int(rng.integers(self._num_spare + 1))
        shape = (len(examples), self.length + 1)
        tokens, sizes = np.zeros(shape, np.int32), np.zeros(shape[0], np.int64)
        for row, example in enumerate(examples.tolist()):
            start = offset + example * self.length
            window = self.tokens[start : start + self.length + 1]
            tokens[row, : len(window)], sizes[row] = window, len(window) - 1
        forget_pages(self.tokens)
        mask = np.arange(self.length) < sizes[:, None]
        inputs = np.where(mask, tokens[:, :-1], 0)
        batch = {"tokens": inputs, "targets": np.where(mask, tokens[:, 1:], 0), "mask": mask}
        if self.begin is not None:
            batch["segment_ids"] = np.cumsum(inputs == self.begin, axis=1, dtype=np.int32)
        return batch


def forget_pages(tokens: NDArray[np.integer]) -> None:
    """Releases the pages of a read-only memory map, which count as memory of the process.

    The operating system keeps them in its cache, so that they are read again without the disk.
    """
    if isinstance(tokens, np.memmap) and tokens.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        base: object = tokens
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)
