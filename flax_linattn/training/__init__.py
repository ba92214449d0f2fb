"""Training: ``fit``, the compiled step, and checkpoints from which a run resumes exactly.

A *run* is one model's training; a run folder holds the checkpoints, metrics and results of one, or
of several that are trained at once. A *session* is one call of ``fit`` that trains a folder, of
which it may take several. A *step* is one update of the *parameters*, which are the model's
``nnx.Param`` variables and nothing else; an *epoch* is one pass over the training batches; a
*period* is what lies between two validations. A *split* is a part of the data, and the *placement*
where arrays live.

====================  ==========================================================================
module                what it does
====================  ==========================================================================
``fit``               prepares the folder and the state, trains, and reads the best parameters
``trainer``           the session, and its loop: steps, validations, checkpoints, signals
``step``              the compiled steps: gradients, update, what happens to numbers that are
                      not finite, evaluation
``checkpointer``      checkpoints on disk: written, verified, restored
====================  ==========================================================================

Beside these, ``state`` is what a step updates on the devices, ``history`` what the host knows, and
``placement`` where arrays live.
"""

from flax_linattn.checkpoint.arrays import CorruptCheckpointError
from flax_linattn.training.batches import BatchSource, Splits
from flax_linattn.training.checkpointer import Checkpoint, list_checkpoints
from flax_linattn.training.fit import FitResult, fit
from flax_linattn.training.objective import (
    FitConfig,
    LossFn,
    Objective,
    Validate,
    pinball_loss,
    smoothed_cross_entropy,
)
from flax_linattn.training.optimizers import (
    OptimizerOptions,
    decays,
    lamb,
    make_optimizer,
    make_schedule,
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
from flax_linattn.training.validation import NonFiniteLossError, evaluate

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
    "decays",
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
    "pinball_loss",
    "read_runs",
    "reciprocal_sqrt",
    "smoothed_cross_entropy",
    "start_process",
    "warmup_cosine",
]
