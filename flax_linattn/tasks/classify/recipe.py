"""How encoders that tell classes are trained: TaylorShift's recipe, and Long Range Arena's."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import optax

from flax_linattn import training
from flax_linattn.checks import OptionError, rate
from flax_linattn.tasks.classify.loss import LogitsFn, make_label_loss
from flax_linattn.tasks.options import FitOptions


@dataclasses.dataclass(frozen=True)
class RecipeFit(FitOptions):
    """How the classifier is trained.

    Attributes:
        optimizer: "lamb", as published, of gradients of a norm of at most 1; "fused_lamb", the same
            without bounds of the weights' norm, and without the trust ratio for biases and norms,
            as apex has it; or "adamw".
        schedule: of the learning rate behind the warm-up: "cosine" to ``last_rate`` at the end of
            all epochs; "reciprocal_sqrt", learning_rate / sqrt(step), as Long Range Arena has it;
            or "constant". A patience as large as the number of epochs lets a cosine get there.
        warmup: share of all steps in which the rate grows from about 0.
        last_rate: of the cosine.
        weight_decay: of all parameters but biases, norms and the like.
        beta2: decay of the optimizer's second moments.
        label_smoothing: share of the target that all classes divide among them.
    """

    optimizer: Literal["lamb", "fused_lamb", "adamw"] = "lamb"
    schedule: Literal["cosine", "reciprocal_sqrt", "constant"] = "cosine"
    warmup: float = 0.05
    last_rate: float = 1e-5
    weight_decay: float = 1e-3
    beta2: float = 0.999
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        rate(warmup=self.warmup, beta2=self.beta2, label_smoothing=self.label_smoothing)
        for name in ("last_rate", "weight_decay"):
            value = getattr(self, name)
            if not value >= 0:
                raise OptionError(f"{name} must be at least 0, got {value}.", name)
        if self.schedule == "reciprocal_sqrt" and not self.warmup:
            raise OptionError(
                "the schedule reciprocal_sqrt begins with a warm-up; give its share of the steps.",
                "warmup",
                "schedule",
            )


def label_objective(
    logits_of: LogitsFn, fit: RecipeFit, steps_per_epoch: int
) -> training.Objective:
    """Cross-entropy by the recipe; selected by accuracy, as TaylorShift and Long Range Arena do."""
    return training.Objective(
        make_label_loss(logits_of, fit.label_smoothing),
        make_optimizer(fit, steps_per_epoch),
        monitor="accuracy",
        mode="max",
    )


def make_optimizer(fit: RecipeFit, steps_per_epoch: int) -> optax.GradientTransformation:
    """The optimizer with its learning rate at each step."""
    rate = _schedule(fit, fit.steps or fit.epochs * steps_per_epoch)
    if fit.optimizer != "adamw":
        fused: dict[str, Any] = {"largest_norm": None, "always_adapt": False, "eps": 1e-7}
        how = fused if fit.optimizer == "fused_lamb" else {}
        return training.lamb(rate, b2=fit.beta2, weight_decay=fit.weight_decay, **how)
    decay = {"weight_decay": fit.weight_decay, "mask": training.decays}
    return optax.adamw(rate, b2=fit.beta2, **decay)


def _schedule(fit: RecipeFit, steps: int) -> optax.Schedule | float:
    warmup = int(fit.warmup * steps)
    if fit.schedule == "cosine":
        return training.warmup_cosine(
            fit.learning_rate, steps, warmup_steps=warmup, last=fit.last_rate
        )
    if fit.schedule == "reciprocal_sqrt":
        return training.reciprocal_sqrt(fit.learning_rate, max(1, warmup))
    if not warmup:
        return fit.learning_rate
    return optax.linear_schedule(0.0, fit.learning_rate, warmup)
