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
from flax_linattn.training.parallel import ONE_DEVICE, Parallel, Placement
from flax_linattn.training.processes import LostProcessError, is_main, start_process
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
from flax_linattn.training.trackers import JsonLines, TensorBoard, Tracker

__all__ = [
    "ONE_DEVICE",
    "BatchSource",
    "Checkpoint",
    "CorruptCheckpointError",
    "FitConfig",
    "FitResult",
    "Interrupted",
    "JsonLines",
    "LossFn",
    "LostProcessError",
    "NonFiniteLossError",
    "Parallel",
    "Placement",
    "TensorBoard",
    "Tracker",
    "TrainState",
    "evaluate",
    "fit",
    "is_main",
    "learning_curve",
    "list_checkpoints",
    "load_best",
    "load_checkpoint",
    "make_evaluation_step",
    "make_train_step",
    "start_process",
]
