"""What a model is trained for, and how long."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from flax_linattn.checks import OptionError, at_least
from flax_linattn.training.metrics import Metrics
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


#: (model, batch, dropout key or None to evaluate) -> (loss, metrics)
LossFn = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, Metrics]]
#: (model, training steps done) -> name -> number
Validate = Callable[[Any, int], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model is trained for, and which of its parameters are the best.

    Args:
        loss: ``(model, batch, dropout_key) -> (loss, metrics)``; with key None for validation.
            The loss is a float32 scalar; ``metrics`` maps a name to (weighted sum, weight), float32
            scalars.
        optimizer: An optax gradient transformation.
        monitor: The validation metric that selects the best parameters: "loss", a name that the
            loss function reports, or one that ``validate`` gives.
        mode: "min" if a smaller value of ``monitor`` is better, "max" if a larger one is.
        validate: ``(model, step) -> {name: number}``, for what a loss over batches cannot tell: a
            simulation, samples, exact matches. It is called on the host after the validation
            batches, with a copy of the model as it is after ``step`` training steps, which is
            good for the time of the call. Its numbers join the validation metrics. It has to be a
            pure function of (model, step), drawing from ``fold_in(key, step)`` and the like, so
            that a resumed run comes to the same bits. Numbers are finite; NaN says that there is
            none, as for any validation metric, and may not be the monitored one. Of several
            processes all call it, so that it may compute with parameters that are split over their
            devices, and the numbers of process 0 count. A signal waits for its end.

    Raises:
        ValueError: If ``mode`` is neither.

    Example:
        >>> Objective(lambda model, batch, key: ..., optax.sgd(0.1), "accuracy", "max").mode
        'max'
    """

    loss: LossFn
    optimizer: optax.GradientTransformation
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    validate: Validate | None = None

    def __post_init__(self) -> None:
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
        epochs: Passes over the training batches; or give ``steps``.
        patience: Stop after this many validations in a row without a better monitored metric;
            None trains to the end. A tie counts as better, as in the Time-Series-Library.
        seed: Seeds what the training step draws (dropout): step ``n`` uses
            ``fold_in(key(seed), n)``.
        checkpoint_every_steps: None saves at each validation. A number saves whenever that many
            more steps are done, at each new best validation, and at the end.
        keep_latest: How many of the newest checkpoints stay on disk, beside the best.
        max_skipped_steps: How many updates may be left out, in the whole run, because the loss, a
            gradient or a parameter was not finite; the next one ends the run.
        loss_scale: The first factor of the loss, such as 2.0**15, for models that compute in
            float16; it is halved, and the update left out, when gradients overflow, and doubled
            after 2,000 steps without. None for other dtypes.
        steps: Training steps in all, which need not be whole passes; in place of ``epochs``.
        validate_every: Training steps from one validation to the next; None validates after each
            pass. One more validation follows the last step.
        time_limit: Seconds of training, without validations, after which it ends with a
            validation; None = no limit. Time before a resume counts. The clock is read every 20
            steps.

    Raises:
        OptionError: If a setting is out of range, or not one of ``epochs`` and ``steps`` is given.
        TypeError: If a number of epochs or steps is no integer.

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
        at_least(
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
                "FitConfig takes either epochs, passes over the training batches, or steps, "
                f"training steps in all; got {both}.",
                "epochs",
                "steps",
            )
        at_least(0, max_skipped_steps=self.max_skipped_steps)
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
        """Training steps in all, where a pass has so many."""
        if self.epochs is None:
            assert self.steps is not None
            return self.steps
        return self.epochs * steps_per_epoch
