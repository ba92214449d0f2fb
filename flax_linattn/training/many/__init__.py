"""Many runs of one model at once: stacked, in one compiled program."""

from flax_linattn.training.many.fitting import ManyResult, fit_many
from flax_linattn.training.many.results import (
    RunResult,
    best_run,
    load_run,
    load_runs,
    read_runs,
)

__all__ = [
    "ManyResult",
    "RunResult",
    "best_run",
    "fit_many",
    "load_run",
    "load_runs",
    "read_runs",
]
