"""Splits of a training set."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def stratified_split(
    labels: ArrayLike, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits examples at random into training and validation, each class in proportion.

    The validation part has ``round(fraction * N)`` examples, shared among the classes in proportion
    to their sizes by largest remainder. Every class keeps at least one training example.

    Args:
        labels: int ``[N]``, the class of each example.
        fraction: The share of validation examples, between 0 and 1.
        seed: The same seed gives the same split.

    Returns:
        Training and validation indices, int64, each sorted.

    Raises:
        ValueError: ``labels`` or ``fraction`` is out of place, or the classes are too small for it.

    Example:
        >>> train, validation = stratified_split([0, 0, 0, 1, 1, 1], 1 / 3, seed=0)
        >>> len(train), np.array([0, 0, 0, 1, 1, 1])[validation].tolist()
        (4, [0, 1])
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"expected labels int [N], got {labels.dtype} {list(labels.shape)}; pass class indices"
        )
    if not 0 < fraction < 1:
        raise ValueError(
            f"expected a fraction between 0 and 1, both excluded, got {fraction}; choose, say, 0.2"
        )
    _, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    total = round(fraction * labels.size)
    if labels.size <= counts.size:
        raise ValueError(
            f"expected more examples than classes, so that some can be held out, got {labels.size} "
            f"of {counts.size} classes; give more examples"
        )
    if not 0 < total <= labels.size - counts.size:
        raise ValueError(
            f"expected 1 to {labels.size - counts.size} validation examples, so that each of the "
            f"{counts.size} classes keeps one for training, got {total} (fraction {fraction} of "
            f"{labels.size}); change the fraction or give more examples"
        )
    quotas = _share(counts, total)
    rng = np.random.default_rng(seed)
    of_classes = np.split(np.argsort(members, kind="stable"), np.cumsum(counts)[:-1])
    chosen = [
        rng.choice(examples, quota, replace=False)
        for examples, quota in zip(of_classes, quotas, strict=True)
    ]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(labels.size), validation), validation


def _share(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Shares ``total`` out in proportion to ``counts``, by largest remainder, less than each."""
    exact = counts * total / counts.sum()
    quotas = np.floor(exact).astype(np.int64)  # below each count, as total < N
    while (left := total - quotas.sum()) > 0:
        gain = np.where(quotas < counts - 1, exact - quotas, -np.inf)
        order = np.argsort(-gain, kind="stable")[:left]
        quotas[order[np.isfinite(gain[order])]] += 1
    return quotas
