"""The settings of one training run."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from flax_linattn.checks import at_least


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How long to train, what to select by, and what to save.

    Args:
        epochs: Passes over the training batches.
        patience: Stop after this many epochs in a row without a better validation metric;
            None trains all epochs. A tie counts as better, as in the Time-Series-Library.
        monitor: The validation metric that selects the best parameters, such as "loss" or
            "accuracy": "loss", or a name that the loss function reports.
        monitor_mode: "min" if a smaller value of ``monitor`` is better, "max" if a larger one is.
        seed: Seeds what the training step draws (dropout): step ``n`` uses
            ``fold_in(key(seed), n)``.
        checkpoint_every_steps: None saves at the end of each epoch. A number saves whenever that
            many more steps are done, at each new best epoch, and at the end.
        keep_latest: How many of the newest checkpoints stay on disk, beside the best.
        max_skipped_steps: How many updates may be left out, in the whole run, because the loss, a
            gradient or a parameter was not finite; the next one ends the run.
        loss_scale: The first factor of the loss, such as 2.0**15, for models that compute in
            float16; it is halved, and the update left out, when gradients overflow, and doubled
            after 2,000 steps without. None for other dtypes.

    Raises:
        ValueError: If a setting is out of range.

    Example:
        >>> FitConfig(epochs=20, patience=5, monitor="accuracy", monitor_mode="max").keep_latest
        2
    """

    epochs: int
    patience: int | None = None
    monitor: str = "loss"
    monitor_mode: Literal["min", "max"] = "min"
    seed: int = 0
    checkpoint_every_steps: int | None = None
    keep_latest: int = 2
    max_skipped_steps: int = 0
    loss_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "checkpoint_every_steps", "keep_latest"):
            value = getattr(self, name)
            optional = name in ("patience", "checkpoint_every_steps")
            if value is None and optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(
                    f"FitConfig.{name} must be a whole number of 1 or more"
                    f"{' (or None)' if optional else ''}, got {value!r}."
                )
        if self.monitor_mode not in ("min", "max"):
            raise ValueError(
                f"FitConfig.monitor_mode must be 'min' or 'max', got {self.monitor_mode!r}: "
                "'min' for a loss, 'max' for an accuracy."
            )
        at_least(0, max_skipped_steps=self.max_skipped_steps)
        if self.loss_scale is not None and not 1 <= self.loss_scale < math.inf:
            raise ValueError(
                f"FitConfig.loss_scale must be at least 1 and finite, or None, got "
                f"{self.loss_scale!r}."
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"FitConfig.seed must be in [0, 2**32), got {self.seed!r}.")
