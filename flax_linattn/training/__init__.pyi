from flax_linattn.checkpoint.arrays import CorruptCheckpointError
from flax_linattn.training.batches import BatchSource, Splits
from flax_linattn.training.checkpointer import Checkpoint, list_checkpoints
from flax_linattn.training.fit_runs import FitResult, fit
from flax_linattn.training.non_finite import NonFiniteLossError
from flax_linattn.training.objective import (
    FitConfig,
    LossFn,
    Objective,
    Validate,
    chunked_cross_entropy,
    pinball_loss,
    smoothed_cross_entropy,
)
from flax_linattn.training.optimizer_options import OptimizerOptions
from flax_linattn.training.optimizers import (
    lamb,
    make_optimizer,
    make_schedule,
    muon,
    muon_dimension_numbers,
    weight_decay_mask,
)
from flax_linattn.training.placement import ONE_DEVICE, Parallel, Placement
from flax_linattn.training.processes import LostProcessError, is_main, start_process
from flax_linattn.training.progress import JsonLines, TensorBoard, Tracker, learning_curve
from flax_linattn.training.results import (
    RunResult,
    best_run,
    load_best,
    load_checkpoint,
    load_opt_state,
    load_run,
    load_runs,
    read_runs,
)
from flax_linattn.training.schedules import linear_warmup, reciprocal_sqrt, warmup_cosine
from flax_linattn.training.signals import Interrupted
from flax_linattn.training.state import TrainState
from flax_linattn.training.step import make_evaluation_step, make_train_step
from flax_linattn.training.trainer import Session
from flax_linattn.training.validation import evaluate

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
    "Objective",
    "OptimizerOptions",
    "Parallel",
    "Placement",
    "RunResult",
    "Session",
    "Splits",
    "TensorBoard",
    "Tracker",
    "TrainState",
    "Validate",
    "best_run",
    "chunked_cross_entropy",
    "evaluate",
    "fit",
    "is_main",
    "lamb",
    "learning_curve",
    "linear_warmup",
    "list_checkpoints",
    "load_best",
    "load_checkpoint",
    "load_opt_state",
    "load_run",
    "load_runs",
    "make_evaluation_step",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "muon",
    "muon_dimension_numbers",
    "pinball_loss",
    "read_runs",
    "reciprocal_sqrt",
    "smoothed_cross_entropy",
    "start_process",
    "warmup_cosine",
    "weight_decay_mask",
]
