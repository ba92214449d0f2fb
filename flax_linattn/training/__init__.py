"""Training: the compiled step, the loop, and checkpoints from which a run resumes exactly."""

from flax_linattn.training.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    list_checkpoints,
    load_best,
    load_checkpoint,
)
from flax_linattn.training.config import FitConfig
from flax_linattn.training.loop import FitResult, NonFiniteLossError, fit
from flax_linattn.training.report import learning_curve
from flax_linattn.training.signals import Interrupted
from flax_linattn.training.state import TrainState
from flax_linattn.training.step import (
    BatchSource,
    LossFn,
    evaluate,
    make_evaluation_step,
    make_train_step,
)

__all__ = [
    "BatchSource",
    "Checkpoint",
    "CorruptCheckpointError",
    "FitConfig",
    "FitResult",
    "Interrupted",
    "LossFn",
    "NonFiniteLossError",
    "TrainState",
    "evaluate",
    "fit",
    "learning_curve",
    "list_checkpoints",
    "load_best",
    "load_checkpoint",
    "make_evaluation_step",
    "make_train_step",
]
