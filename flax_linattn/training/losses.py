"""Losses that optax does not have: of targets that are not certain, and of quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from flax_linattn.typing import Array


def smoothed_cross_entropy(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """Cross-entropy to the labels, of which all classes share ``smoothing`` (Szegedy et al., 2016).

    Args:
        logits: float [..., classes].
        labels: int [...], or, where examples are mixed, the probabilities of the classes, float
            [..., classes].
        smoothing: From 0 to 1: a target is ``(1 - smoothing) * label + smoothing / classes``.

    Returns:
        float [...], nats.

    Raises:
        ValueError: The shapes do not match, or the smoothing is out of range.

    Example:
        >>> logits = jnp.array([[2.0, 0.0]])
        >>> smoothed_cross_entropy(logits, jnp.array([0]), 0.1).round(4)
        Array([0.2269], dtype=float32)
        >>> smoothed_cross_entropy(logits, jnp.array([[0.95, 0.05]])).round(4)
        Array([0.2269], dtype=float32)
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected a smoothing from 0 to 1, got {smoothing}; 0.1 is usual")
    are_numbers = jnp.issubdtype(labels.dtype, jnp.integer)
    expected = logits.shape[:-1] if are_numbers else logits.shape
    if labels.shape != expected:
        raise ValueError(
            f"expected labels of shape {expected} for logits of shape {logits.shape} and labels of "
            f"dtype {labels.dtype}, got {labels.shape}; give whole numbers [...] or "
            "probabilities [..., classes]"
        )
    if are_numbers and not smoothing:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if are_numbers:
        labels = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(labels, smoothing))


def pinball_loss(truth: Array, quantiles: Array, levels: Sequence[float]) -> Array:
    """What a quantile costs (Koenker and Bassett, "Regression Quantiles", 1978).

    Of level p it is p * d where the truth is d above the quantile, and (1 - p) * d where it is d
    below; in the mean over truths the true quantile costs least.

    Args:
        truth: float [...].
        quantiles: float [..., Q].
        levels: of the quantiles, each between 0 and 1.

    Returns:
        float [..., Q], not negative.

    Raises:
        ValueError: The shapes do not match.

    Example:
        >>> pinball_loss(jnp.array([2.0]), jnp.array([[1.0, 4.0]]), (0.25, 0.75))
        Array([[0.25, 0.5 ]], dtype=float32)
    """
    if quantiles.shape != (*truth.shape, len(levels)):
        raise ValueError(
            f"expected quantiles of shape {(*truth.shape, len(levels))} for a truth of shape "
            f"{truth.shape} and {len(levels)} levels, got {quantiles.shape}"
        )
    above = truth[..., None] - quantiles
    level = jnp.asarray(levels, above.dtype)
    return jnp.maximum(level * above, (level - 1) * above)
