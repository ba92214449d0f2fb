from flax_linattn.registry import get_task, list_tasks, register_task
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.evaluate import evaluate_run
from flax_linattn.tasks.export import export_run
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.options import Config, FitOptions, ModelOptions, Options
from flax_linattn.tasks.predict import predict_run
from flax_linattn.tasks.run import load_run, load_runs
from flax_linattn.tasks.spec import DataSpec, Run
from flax_linattn.tasks.stream import stream_run
from flax_linattn.tasks.streaming import Streaming
from flax_linattn.tasks.study import Range, tune
from flax_linattn.tasks.task import Report, Task
from flax_linattn.tasks.train_run import train

__all__ = [
    "Baselines",
    "Config",
    "DataSpec",
    "FitOptions",
    "InitRun",
    "ModelOptions",
    "Options",
    "Range",
    "Report",
    "Run",
    "Streaming",
    "Task",
    "evaluate_run",
    "export_run",
    "get_task",
    "list_tasks",
    "load_run",
    "load_runs",
    "predict_run",
    "register_task",
    "stream_run",
    "train",
    "tune",
]
