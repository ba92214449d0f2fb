"""Objectives and lengths of training: losses, ``Objective`` and ``FitConfig``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.training.metrics import Metrics
from flax_linattn.typing import Array


def smoothed_cross_entropy(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """Cross-entropy with label smoothing (Szegedy et al., 2016).

    Args:
        logits: Float array of shape [..., classes].
        labels: Class indices, an integer array of shape [...], or class probabilities, a float
            array of shape [..., classes], as for mixed examples.
        smoothing: From 0 to 1; a target is ``(1 - smoothing) * label + smoothing / classes``.

    Returns:
        The loss of each example in nats, a float array of shape [...].

    Raises:
        ValueError: If the shapes do not match, or ``smoothing`` is out of range.

    Example:
        >>> logits = jnp.array([[2.0, 0.0]])
        >>> smoothed_cross_entropy(logits, jnp.array([0]), 0.1).round(4)
        Array([0.2269], dtype=float32)
        >>> smoothed_cross_entropy(logits, jnp.array([[0.95, 0.05]])).round(4)
        Array([0.2269], dtype=float32)
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be from 0 to 1, such as 0.1, got {smoothing}.")
    are_indices = jnp.issubdtype(labels.dtype, jnp.integer)
    expected = logits.shape[:-1] if are_indices else logits.shape
    if labels.shape != expected:
        raise ValueError(
            f"expected labels of shape {expected} for logits of shape {logits.shape} and labels of "
            f"dtype {labels.dtype}, got {labels.shape}; pass class indices, int [...], or class "
            "probabilities, float [..., classes]."
        )
    if are_indices and not smoothing:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if are_indices:
        labels = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(labels, smoothing))


def chunked_cross_entropy(
    read: Callable[[Array], Array],
    features: Array,
    labels: Array,
    *,
    chunk_size: int,
    smoothing: float = 0.0,
) -> Array:
    """Cross-entropy of every token, without the logits of all tokens in memory.

    It equals ``smoothed_cross_entropy(read(features), labels, smoothing)`` to rounding, as do its
    gradients. Logits exist for ``B * chunk_size`` tokens at a time; the backward pass computes them
    again, one chunk after another. On a CPU, the loss and gradients of a linear head with
    V = 32,768, B = 4, T = 512 and C = 256 took 71 MB of temporary memory with ``chunk_size=32``
    instead of 537 MB, in 1.0 to 1.2 times the time.

    Args:
        read: Function from features ``[B, c, C]`` to logits ``[B, c, V]``, such as the method
            ``read`` of ``models.LanguageModel``. It may use parameters, and maps each token on its
            own.
        features: Float array of shape [B, T, C], such as ``model.backbone(tokens)``.
        labels: Class indices, an integer array of shape [B, T], such as the next tokens.
        chunk_size: Number of positions of every sequence in a chunk. Devices that share a batch
            keep their own sequences.
        smoothing: Label smoothing, see ``smoothed_cross_entropy``.

    Returns:
        The loss of each token in nats, a float array of shape [B, T].

    Raises:
        ValueError: If the shapes do not match, or an option is out of range.
        TypeError: If the labels are not integers, or ``chunk_size`` is none.

    Example:
        >>> kernel = jnp.array([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])
        >>> h, labels = jnp.ones((1, 5, 2)), jnp.array([[0, 1, 2, 1, 0]])
        >>> chunked_cross_entropy(lambda h: h @ kernel, h, labels, chunk_size=2).round(2)
        Array([[1.35, 0.35, 3.35, 0.35, 1.35]], dtype=float32)
    """
    check_integers(1, chunk_size=chunk_size)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"labels must be class indices, an integer array [B, T], got {labels.dtype}."
        )
    if features.ndim != 3 or labels.shape != features.shape[:2]:
        raise ValueError(
            "expected features [B, T, C] and labels [B, T], got the shapes "
            f"{features.shape} and {labels.shape}."
        )

    def losses(chunk: tuple[Array, Array]) -> Array:
        return smoothed_cross_entropy(read(chunk[0]), chunk[1], smoothing)

    batch, length = labels.shape
    size = min(chunk_size, length)
    if size == length:
        return losses((features, labels))

    def split(x: Array) -> Array:
        """[B, T, ...] -> [chunks, B, size, ...], with zeros at the end of the last chunk."""
        padding = [(0, 0), (0, -length % size), *[(0, 0)] * (x.ndim - 2)]
        return jnp.moveaxis(jnp.pad(x, padding).reshape(batch, -1, size, *x.shape[2:]), 1, 0)

    # Without the checkpoint, the loop would store the logits of every chunk for its gradient.
    rematerialized = jax.checkpoint(losses, prevent_cse=False)
    chunks = jax.lax.map(rematerialized, (split(features), split(labels)))
    return jnp.moveaxis(chunks, 0, 1).reshape(batch, -1)[:, :length]


def pinball_loss(truth: Array, quantiles: Array, levels: Sequence[float]) -> Array:
    """Pinball (quantile) loss (Koenker and Bassett, "Regression Quantiles", 1978).

    For a quantile of level p the loss is p * d if the truth is d above the quantile, and
    (1 - p) * d if it is d below. The true quantile has the smallest expected loss.

    Args:
        truth: Float array of shape [...].
        quantiles: Predicted quantiles, a float array of shape [..., Q].
        levels: The Q levels of the quantiles, each between 0 and 1.

    Returns:
        The loss of each quantile, a float array of shape [..., Q], at least 0.

    Raises:
        ValueError: If the shapes do not match.

    Example:
        >>> pinball_loss(jnp.array([2.0]), jnp.array([[1.0, 4.0]]), (0.25, 0.75))
        Array([[0.25, 0.5 ]], dtype=float32)
    """
    if quantiles.shape != (*truth.shape, len(levels)):
        raise ValueError(
            f"expected quantiles of shape {(*truth.shape, len(levels))} for a truth of shape "
            f"{truth.shape} and {len(levels)} levels, got {quantiles.shape}; their last axis holds "
            "one quantile for each level."
        )
    above = truth[..., None] - quantiles
    level = jnp.asarray(levels, above.dtype)
    return jnp.maximum(level * above, (level - 1) * above)


#: (model, batch, dropout key or None to evaluate) -> (loss, metrics)
LossFn = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, Metrics]]
#: (model, training steps done) -> name -> number
Validate = Callable[[Any, int], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss, the optimizer, and the metric that selects the best parameters.

    Args:
        loss: ``(model, batch, dropout_key) -> (loss, metrics)``; the key is None in validation.
            The loss is a float32 scalar; ``metrics`` maps a name to (weighted sum, weight), float32
            scalars.
        optimizer: An optax gradient transformation.
        monitor: The validation metric that selects the best parameters: "loss", or a metric that
            the loss function or ``validate`` reports.
        mode: "min" if a smaller value of ``monitor`` is better, "max" if a larger one is.
        validate: ``(model, step) -> {name: number}``, for metrics that are not a mean over batches,
            such as returns in a simulator, or exact matches. It is called on the host after the
            validation batches, with a copy of the model after ``step`` training steps that is valid
            only during the call. It must be a pure function of (model, step), with random keys from
            ``fold_in(key, step)``, so that a resumed run gives the same bits. Its numbers must be
            finite; NaN means "no value", which the monitored metric must not be. All processes call
            it, so that it may use parameters that are sharded over their devices; the numbers of
            process 0 count. A signal takes effect after the call.
        tokens_per_example: Number of tokens in each training example, if batches have no "mask" to
            count them by. Progress then shows tokens per second and the time left, and the model
            FLOP utilization (MFU) on GPUs and TPUs with a known peak.

    Raises:
        ValueError: If ``mode`` is neither "min" nor "max", or ``tokens_per_example`` is below 1.

    Example:
        >>> Objective(lambda model, batch, key: ..., optax.sgd(0.1), "accuracy", "max").mode
        'max'
    """

    loss: LossFn
    optimizer: optax.GradientTransformation
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    validate: Validate | None = None
    tokens_per_example: int | None = None

    def __post_init__(self) -> None:
        check_integers(1, tokens_per_example=self.tokens_per_example)
        if self.mode not in ("min", "max"):
            raise OptionError(
                f"Objective.mode must be 'min' or 'max', got {self.mode!r}: 'min' for a loss, "
                "'max' for an accuracy.",
                "mode",
            )


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How long to train, how often to validate, and what to save.

    Args:
        epochs: Number of passes over the training batches. Pass either ``epochs`` or ``steps``.
        patience: Stop after this many validations in a row without a better monitored metric;
            None trains to the end. A tie counts as better, as in the Time-Series-Library.
        seed: Seed of the random numbers in training, such as dropout: step ``n`` uses
            ``fold_in(key(seed), n)``.
        checkpoint_every_steps: Number of training steps between checkpoints; each new best
            validation and the end of training are saved, too. None saves at each validation.
        keep_latest: Number of newest checkpoints to keep on disk, in addition to the best one.
        max_skipped_steps: Maximum number of updates in the whole run that are skipped because the
            loss, a gradient or a parameter is not finite; the next one ends the run.
        loss_scale: Initial loss scale, such as 2.0**15, for models that compute in float16. If the
            gradients overflow, it is halved and the update is skipped; after 2,000 steps without
            overflow it is doubled. None for other dtypes.
        steps: Number of training steps, which need not be whole epochs.
        validate_every: Number of training steps between validations; None validates after each
            epoch. One more validation follows the last step.
        time_limit: Seconds of training, excluding compilation and validations, after which training
            ends with a validation; None for no limit. Time before a resume counts. The clock is
            read every 20 steps.

    Raises:
        OptionError: If a setting is out of range, or ``epochs`` and ``steps`` are both given or
            both missing.
        TypeError: If a number of epochs or steps is not an integer.

    Example:
        >>> FitConfig(epochs=20, patience=5).total_steps(steps_per_epoch=17)
        340
        >>> FitConfig(steps=1000, validate_every=100).total_steps(steps_per_epoch=17)
        1000
    """

    epochs: int | None = None
    patience: int | None = None
    seed: int = 0
    checkpoint_every_steps: int | None = None
    keep_latest: int = 2
    max_skipped_steps: int = 0
    loss_scale: float | None = None
    steps: int | None = None
    validate_every: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_integers(
            1,
            epochs=self.epochs,
            steps=self.steps,
            patience=self.patience,
            checkpoint_every_steps=self.checkpoint_every_steps,
            validate_every=self.validate_every,
            keep_latest=self.keep_latest,
        )
        if (self.epochs is None) == (self.steps is None):
            both = "neither" if self.epochs is None else f"{self.epochs} and {self.steps}"
            raise OptionError(
                "FitConfig takes either epochs, the passes over the training batches, or steps, "
                f"the number of training steps; got {both}.",
                "epochs",
                "steps",
            )
        check_integers(0, max_skipped_steps=self.max_skipped_steps)
        if self.loss_scale is not None and not 1 <= self.loss_scale < math.inf:
            raise OptionError(
                f"FitConfig.loss_scale must be at least 1 and finite, or None, got "
                f"{self.loss_scale!r}.",
                "loss_scale",
            )
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise OptionError(
                "FitConfig.time_limit must be a number of seconds above 0, or None, got "
                f"{self.time_limit!r}.",
                "time_limit",
            )
        if not 0 <= self.seed < 2**32:
            raise OptionError(f"FitConfig.seed must be in [0, 2**32), got {self.seed!r}.", "seed")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Number of training steps for a given number of steps per epoch."""
        if self.epochs is None:
            assert self.steps is not None
            return self.steps
        return self.epochs * steps_per_epoch
