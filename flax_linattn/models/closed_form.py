"""Fits that need no gradient descent: ridge classifiers, and weights of logits on held-out data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # which loads its parts on first use
from numpy.typing import NDArray

RIDGE_STRENGTHS = np.logspace(-4, 4, 17)
"""Regularization strengths of the ridge, in units of the mean eigenvalue of its Gram matrix."""
BLOCK_ROWS = 4096
"""Rows of which squares are held at once; a fit holds two copies of the features besides them."""
MAX_WEIGHT = 1e3
"""Maximum weight of logits; logits that are always right have no finite best weight."""

Labels = NDArray[np.integer]


class RidgeFit(NamedTuple):
    """A linear classifier: the scores of features x are ``x @ kernel + bias``.

    Attributes:
        kernel: Weights float64 [F, K].
        bias: Bias float64 [K].
        held_out_scores: Scores float64 [N, K] of each training example by the classifier that is
            fitted to all others.
    """

    kernel: NDArray[np.float64]
    bias: NDArray[np.float64]
    held_out_scores: NDArray[np.float64]


def fit_ridge(
    x: NDArray, labels: Labels, num_classes: int, example_weights: NDArray | None = None
) -> RidgeFit:
    """Fits ridge regression to targets 1 (the class) and -1 (other classes).

    The regularization strength minimizes the leave-one-out error, which follows from one eigenvalue
    problem of the smaller Gram matrix (Golub, Heath and Wahba, "Generalized Cross-Validation as a
    Method for Choosing a Good Ridge Parameter", 1979).

    Args:
        x: Features [N, F].
        labels: Classes [N], from 0.
        num_classes: Number of classes K.
        example_weights: Positive weights [N] of the squared errors; default 1.

    Example:
        >>> x = np.array([[0.0], [1.0], [4.0], [5.0]])
        >>> fit = fit_ridge(x, np.array([0, 0, 1, 1]), 2)
        >>> np.argmax(np.array([[2.0], [3.0]]) @ fit.kernel + fit.bias, axis=1).tolist()
        [0, 1]
    """
    weights = np.ones(len(x)) if example_weights is None else np.asarray(example_weights, float)
    weights = weights / weights.mean()
    root = np.sqrt(weights)[:, None]
    targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    middle = np.average(x, axis=0, weights=weights).astype(np.float64)
    mean = np.average(targets, axis=0, weights=weights)
    centered, residual = x - middle, root * (targets - mean)
    centered *= root
    # SVD of the features from the smaller side: centered = vectors * sqrt(values) * V^T.
    is_wide = x.shape[1] > len(x)
    values, vectors = _eigen(centered @ centered.T if is_wide else centered.T @ centered)
    if not len(values):
        values, vectors = np.ones(1), np.zeros((len(x) if is_wide else x.shape[1], 1))
    if not is_wide:
        vectors = centered @ vectors
        vectors /= np.sqrt(values)
    projected = vectors.T @ residual
    strengths = RIDGE_STRENGTHS * values.sum() / min(x.shape)
    shrinkage = values[:, None] / (values[:, None] + strengths)
    blocks = np.array_split(vectors, -(-len(vectors) // BLOCK_ROWS))
    leverage = np.concatenate([np.square(block) @ shrinkage for block in blocks])
    leverage += weights[:, None] / len(x)  # of the mean

    def leave_one_out(index: int) -> NDArray[np.float64]:
        left = np.maximum(1 - leverage[:, index, None], np.finfo(np.float64).eps)
        return (residual - vectors @ (shrinkage[:, index, None] * projected)) / left

    best = min(range(len(strengths)), key=lambda i: float(np.mean(np.square(leave_one_out(i)))))
    kernel = centered.T @ (vectors @ (projected / (values + strengths[best])[:, None]))
    held_out = targets - leave_one_out(best) / root
    return RidgeFit(kernel, mean - middle @ kernel, held_out)


def fit_weights(logits: NDArray, labels: Labels) -> NDArray[np.float64]:
    """Fits non-negative weights [M] of the logits of M classifiers to held-out examples.

    The weighted sum of the logits has the smallest mean cross-entropy. A single weight is the
    inverse of a temperature (Guo et al., "On Calibration of Modern Neural Networks", 2017). As in
    Platt's scaling, the target of a class is (N + 1) / (N + 2) instead of 1, so that a few examples
    that are all classified correctly give no certainty.

    Args:
        logits: Logits of held-out examples, float [M, N, K].
        labels: Classes [N].

    Example:
        >>> right, noise = np.eye(2), np.array([[0.0, 1.0], [0.0, 1.0]])
        >>> fit_weights(np.stack([right, noise]), np.array([0, 1])).round(2).tolist()
        [1.1, 0.0]
    """
    count, num_classes = logits.shape[1:]
    rest = 1 / (count + 2) / max(num_classes - 1, 1)
    targets = np.full((count, num_classes), rest)
    targets[np.arange(count), labels] = 1 - rest * (num_classes - 1)
    spread = logits - logits.mean(axis=-1, keepdims=True)  # what softmax depends on
    scale = float(np.std(spread))
    if not scale > np.finfo(np.float32).eps * (1 + float(np.abs(logits).max())):
        return np.zeros(len(logits))

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        log_p = scipy.special.log_softmax(np.tensordot(weights / scale, logits, 1), axis=-1)
        slope = np.einsum("nk,mnk->m", np.exp(log_p) - targets, logits) / (count * scale)
        return -float(np.sum(targets * log_p)) / count, slope

    start = np.full(len(logits), 1 / len(logits))
    bounds = [(0.0, MAX_WEIGHT)] * len(logits)
    best = scipy.optimize.minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return np.asarray(best.x / scale)


def cross_entropy(logits: NDArray, labels: Labels) -> NDArray[np.float64]:
    """Cross-entropy [N] of logits [N, K]."""
    log_p = scipy.special.log_softmax(logits, axis=-1)
    return -np.take_along_axis(log_p, np.asarray(labels, np.int64)[:, None], axis=-1)[:, 0]


def _eigen(gram: NDArray) -> tuple[NDArray, NDArray]:
    """Eigenvalues above the rounding error, and their eigenvectors."""
    values, vectors = np.linalg.eigh(gram)
    nonzero = values > max(values[-1], 0.0) * len(gram) * np.finfo(np.float64).eps
    return values[nonzero], vectors[:, nonzero]
