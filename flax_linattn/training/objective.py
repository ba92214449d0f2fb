"""What a model is trained for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import optax

from flax_linattn.checks import OptionError
from flax_linattn.training.metrics import Metrics

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
