"""How encoders that tell classes are trained: TaylorShift's recipe, and Long Range Arena's."""

from __future__ import annotations

import dataclasses

from flax_linattn import training
from flax_linattn.checks import rate
from flax_linattn.tasks.classify.loss import LogitsFn, make_label_loss
from flax_linattn.tasks.options import FitOptions

RECIPE = training.OptimizerOptions(
    "lamb", schedule="cosine", warmup=0.05, last_rate=1e-5, weight_decay=1e-3
)
"""The optimizer, unless another is given."""


@dataclasses.dataclass(frozen=True)
class RecipeFit(FitOptions):
    """How the classifier is trained.

    Attributes:
        label_smoothing: share of the target that all classes divide among them.
    """

    optimizer: training.OptimizerOptions = RECIPE
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        rate(label_smoothing=self.label_smoothing)


def label_objective(
    logits_of: LogitsFn, fit: RecipeFit, steps_per_epoch: int
) -> training.Objective:
    """Cross-entropy by the recipe; selected by accuracy, as TaylorShift and Long Range Arena do."""
    return training.Objective(
        make_label_loss(logits_of, fit.label_smoothing),
        fit.make_optimizer(steps_per_epoch),
        monitor="accuracy",
        mode="max",
    )
