"""The settings of one training."""

from __future__ import annotations

import dataclasses
import math

from flax_linattn.checks import OptionError, at_least


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
        optional = ("epochs", "steps", "patience", "checkpoint_every_steps", "validate_every")
        for name in (*optional, "keep_latest"):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(
                    f"FitConfig.{name} must be a whole number of 1 or more"
                    f"{' (or None)' if name in optional else ''}, got {value!r}.",
                    name,
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
