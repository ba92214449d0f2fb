"""Tasks: what ties data, model, loss and metrics together."""

from flax_linattn.tasks.classify import (
    ClassifyConfig,
    ClassifyProblem,
    ClassifyRun,
    build_model,
    evaluate_run,
    load_run,
    train_classifier,
)

__all__ = [
    "ClassifyConfig",
    "ClassifyProblem",
    "ClassifyRun",
    "build_model",
    "evaluate_run",
    "load_run",
    "train_classifier",
]
