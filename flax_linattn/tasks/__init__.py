"""Tasks: what ties data, model, loss and metrics together; a folder each, listed in the registry.

Runs of every task are trained by ``train``, tested by ``evaluate_run``, asked by ``predict_run``,
streamed by ``stream_run`` and loaded by ``load_run``, or ``load_runs`` where a folder holds many.
"""

from flax_linattn.registry import get_task, list_tasks, register_task
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.evaluate import evaluate_run
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.options import Config, FitOptions, ModelOptions, Options
from flax_linattn.tasks.predict import predict_run
from flax_linattn.tasks.run import load_run, load_runs
from flax_linattn.tasks.spec import DataSpec, Run
from flax_linattn.tasks.stream import stream_run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.tasks.task import Report, Task
from flax_linattn.tasks.train import train

__all__ = [
    "Baselines",
    "Config",
    "DataSpec",
    "FitOptions",
    "InitRun",
    "ModelOptions",
    "Options",
    "Report",
    "Run",
    "Streaming",
    "Task",
    "evaluate_run",
    "get_task",
    "list_tasks",
    "load_run",
    "load_runs",
    "predict_run",
    "register_task",
    "stream_run",
    "train",
]
