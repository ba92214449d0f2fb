"""Training: the compiled step, ``fit``, and checkpoints from which a run resumes exactly.

A *run* is what a run folder holds: checkpoints, metrics and results. A *session* is one call of
``fit`` that trains it, of which it may take several. A *step* is one update of the *parameters*,
which are the model's ``nnx.Param`` variables and nothing else; an *epoch* is one pass over the
training batches; a *period* is what lies between two validations. A *split* is a part of the data,
and the *placement* where arrays live.
"""

from flax_linattn.training.batches import BatchSource, Splits
from flax_linattn.training.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    list_checkpoints,
    load_best,
    load_checkpoint,
)
from flax_linattn.training.config import FitConfig
from flax_linattn.training.diagnosis import NonFiniteLossError
from flax_linattn.training.evaluation import evaluate, make_evaluation_step
from flax_linattn.training.fitting import FitResult, fit
from flax_linattn.training.losses import pinball_loss, smoothed_cross_entropy
from flax_linattn.training.many import (
    ManyResult,
    RunResult,
    best_run,
    fit_many,
    load_run,
    load_runs,
    read_runs,
)
from flax_linattn.training.objective import LossFn, Objective, Validate
from flax_linattn.training.optimizers import decays, lamb
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.processes import LostProcessError, is_main, start_process
from flax_linattn.training.report import learning_curve
from flax_linattn.training.schedules import reciprocal_sqrt, warmup_cosine
from flax_linattn.training.session import Session
from flax_linattn.training.signals import Interrupted
from flax_linattn.training.state import TrainState
from flax_linattn.training.trackers import JsonLines, TensorBoard, Tracker
from flax_linattn.training.train_step import make_train_step

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
    "ManyResult",
    "NonFiniteLossError",
    "Objective",
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
    "decays",
    "evaluate",
    "fit",
    "fit_many",
    "is_main",
    "lamb",
    "learning_curve",
    "list_checkpoints",
    "load_best",
    "load_checkpoint",
    "load_run",
    "load_runs",
    "make_evaluation_step",
    "make_train_step",
    "pinball_loss",
    "read_runs",
    "reciprocal_sqrt",
    "smoothed_cross_entropy",
    "start_process",
    "warmup_cosine",
]
