"""Training on data that are at hand, by the same task, model, objective and loop as from files."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flax_linattn import training
from flax_linattn.tasks.calibration import calibrate
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.protocols import Calibrating
from flax_linattn.tasks.run import check_run_dir, keep_problem, write_config
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Task
from flax_linattn.tasks.train import fit_config


def fit_data(
    task: Task[Any, Any, Any], config: Config, data: Any, run_dir: str | Path | None = None
) -> Run:
    """Trains a model and selects its parameters, on one device; nothing is tested.

    Args:
        task: whose model it is.
        config: the run's options; those that name files are only kept.
        data: as ``task.load`` gives them.
        run_dir: a folder for the run, which the commands then know; default a temporary one, of
            which nothing stays.

    Returns:
        The run, with the data in it.

    Raises:
        ValueError: options or data that do not fit; the folder holds a run.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came.
    """
    task.check(config, training.ONE_DEVICE)
    problem = task.describe(data, config)
    model = task.model(config, problem)
    splits = task.batches(data, config, problem, training.ONE_DEVICE.spans)
    if isinstance(task, Calibrating):
        task.begin([model], splits, config, problem)
    objective = task.objective(config, problem, len(splits.train))
    with ExitStack() as ends:
        if run_dir is None:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(run_dir)
            check_run_dir(folder, task, config, resume=False)
        session = training.Session(folder, progress=False, parallel=training.Parallel("none"))
        ends.enter_context(session.holding())
        keep_problem(folder, problem)
        write_config(folder, task, config)
        training.fit(model, objective, splits, config=fit_config(config), session=session)
        run = Run(task, config, problem, model, data)
        calibrate(folder, run, splits.validation)
    return run
