"""Training a run of any task."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx

from flax_linattn import inference, training
from flax_linattn.registry import get_task
from flax_linattn.tasks.files import write_json
from flax_linattn.tasks.options import Config
from flax_linattn.tasks.run import (
    TEST_FILE,
    check_model,
    check_run_dir,
    check_same_data,
    keep_problem,
    read_problem,
    write_config,
)
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report, Task
from flax_linattn.training.processes import check_same, check_shared, is_main, on_main

LOSS_SCALE = 2.0**15
"""The first loss scale of a run in float16."""


def train(
    task: str | Task[Any, Any, Any], config: Config, session: training.Session | str | Path
) -> dict[str, Any]:
    """Trains, selects and tests a model; everything goes to the run folder.

    Args:
        task: a task, or its name.
        config: the run's options, of the task's ``Config``.
        session: where and how: the run folder, devices, whether to resume. The folder gets
            config.json, problem.json, metrics.jsonl, checkpoints, learning_curve.png, test.json
            and the task's figures. A path alone is ``Session(path)``.

    Returns:
        What test.json holds: the metrics of the selected parameters, and how they were selected.

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: a data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came; the run was saved.
        TypeError: options of another task.
    """
    if isinstance(session, (str, Path)):
        session = training.Session(session)
    return dict(train_report(task, config, session).values)


def train_report(
    task: str | Task[Any, Any, Any], config: Config, session: training.Session
) -> Report:
    """As ``train``, with what of the values is a table."""
    task = get_task(task) if isinstance(task, str) else task
    if not isinstance(config, task.Config):
        raise TypeError(
            f"the task {task.name!r} takes a {task.Config.__name__}, such as "
            f"{task.Config.__name__}.of(epochs=3), got {type(config).__name__}."
        )
    config, run_dir = config.resolve(), Path(session.run_dir)
    parallel = training.Parallel() if session.parallel is None else session.parallel
    placement = parallel.place(config.fit.batch_size)
    task.check(config, placement)
    check_same(config.to_json)
    on_main(partial(check_run_dir, run_dir, task, config, resume=session.resume))
    data = task.load(config)
    if session.resume:
        check_shared(run_dir)
        kept = read_problem(run_dir, task)
        data = task.as_kept(data, config, kept)
        check_same_data(run_dir, kept, task.describe(data, config))
        problem = kept  # an older version may have scaled otherwise: its parameters go with these
        check_model(run_dir, task, config, problem)
    else:
        problem = task.describe(data, config)
    model = task.model(config, problem, placement)
    splits = task.batches(data, config, problem, placement.spans)
    test_batches = splits.test
    if test_batches is None:
        raise ValueError(f"the task {task.name!r} gives no batches to test on (Splits.test).")
    if is_main():
        for note in task.notes(data):
            print(f"note: {note}", file=sys.stderr)
        if session.progress:
            print(task.about_data(data, config), file=sys.stderr)
            _print_summary(model, task.observation(problem))
            print(f"on {placement}", file=sys.stderr)

    def begin() -> None:
        check_run_dir(run_dir, task, config, resume=session.resume)  # as it is by now
        keep_problem(run_dir, problem)
        write_config(run_dir, task, config)
        (run_dir / TEST_FILE).unlink(missing_ok=True)  # of fewer steps, on resume

    with session.holding():
        on_main(begin)
        result = training.fit(
            model,
            task.objective(config, problem, len(splits.train)),
            splits,
            config=_fit_config(config),
            session=session,
        )
        tested = task.test(Run(task, config, problem, model, data), test_batches)
        seconds = sum(line["seconds"] for line in result.history)
        values = {
            **tested.judged,
            "best_epoch": result.best_epoch,
            "epochs": result.epochs,
            "train_seconds": round(seconds, 1),
        }
        report = dataclasses.replace(tested, values=values)
        on_main(partial(_write_results, run_dir, report))
    return report


def _write_results(run_dir: Path, report: Report) -> None:
    write_json(run_dir / TEST_FILE, dict(report.values))
    if training.learning_curve(run_dir) is not None:
        for name, draw in report.figures.items():
            draw(run_dir / name)


def _fit_config(config: Config) -> training.FitConfig:
    fit = config.fit
    return training.FitConfig(
        epochs=None if fit.steps else fit.epochs,
        steps=fit.steps or None,
        validate_every=fit.validate_every or None,
        patience=fit.patience,
        seed=fit.seed,
        loss_scale=LOSS_SCALE if config.layers.dtype == "float16" else None,
    )


def _print_summary(model: nnx.Module, observation: Any) -> None:
    if observation is not None:
        print(inference.summarize(model, observation), file=sys.stderr)
