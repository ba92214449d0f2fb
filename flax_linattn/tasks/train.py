"""Training a run of any task."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx

from flax_linattn import inference, training
from flax_linattn.checks import OptionError
from flax_linattn.registry import get_task
from flax_linattn.tasks.evaluate import report_on
from flax_linattn.tasks.files import write_json
from flax_linattn.tasks.init_run import Initializer, InitRun, check_resumed
from flax_linattn.tasks.options import Config, TooFewRowsError
from flax_linattn.tasks.protocols import Calibrating, Choosing
from flax_linattn.tasks.run import (
    TEST_FILE,
    calibrate,
    check_model,
    check_run_dir,
    check_same_data,
    read_config,
    read_data_spec,
    write_config,
    write_data_spec,
)
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Report, Task
from flax_linattn.training.processes import (
    check_same_in_processes,
    check_shared_folder,
    is_main,
    max_over_processes,
    on_main,
)

LOSS_SCALE = 2.0**15
"""The first loss scale of a run in float16."""


def train(
    task: str | Task[Any, Any, Any],
    config: Config,
    session: training.Session | str | Path,
    *,
    init_run: InitRun | Run | str | Path | None = None,
) -> dict[str, Any]:
    """Trains, selects and tests a model; everything goes to the run folder.

    The option ``runs`` trains several seeds at once: run r has the model, the order of the batches
    and the dropout of ``config.run_config(r)``. The data are those of ``config`` for all of them,
    so that what its seed holds out for validation all runs hold out.

    Args:
        task: a task, or its name.
        config: the run's options, of the task's ``Config``.
        session: where and how: the run folder, devices, whether to resume. The folder gets
            config.json, data_spec.json, metrics.jsonl, checkpoints, learning_curve.png, test.json
            and the task's figures. A path alone is ``Session(path)``.
        init_run: a run whose parameters the new one starts from, or its folder; ``InitRun`` says
            what else is taken over. The options of the model are those of that run, as in
            ``load_run(folder).config.replace(csv="new.csv")``; data and training may differ.

    Returns:
        What test.json holds: the metrics of the selected parameters, and how they were selected;
        of several seeds means, standard deviations and ``runs``, a row for each.

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: a data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite; of several seeds that of all.
        training.Interrupted: a signal came; the run was saved.
        TypeError: options of another task.
    """
    if isinstance(session, (str, Path)):
        session = training.Session(session)
    return dict(train_report(task, config, session, init_run=init_run).values)


def train_report(
    task: str | Task[Any, Any, Any],
    config: Config,
    session: training.Session,
    *,
    init_run: InitRun | Run | str | Path | None = None,
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
    devices = _place(parallel, config)
    task.check(config, devices.run_placement)
    check_same_in_processes(config.to_json)
    on_main(partial(check_run_dir, run_dir, task, config, resume=session.resume))
    with ExitStack() as ends:
        # At once where a run was begun; a new folder is made when all else was checked.
        if max_over_processes(is_main() and session.lock_file.exists()):
            ends.enter_context(session.holding())
        return _train(task, config, session, devices, InitRun.of(init_run))


def _train(
    task: Task[Any, Any, Any],
    config: Config,
    session: training.Session,
    devices: training.Placement,
    init_run: InitRun | None,
) -> Report:
    """Trains and tests a run on the given devices."""
    run_dir, placement = Path(session.run_dir), devices.run_placement
    init = None
    if session.resume:
        config = config.with_auto_options(read_config(run_dir, task))
    elif init_run is not None:
        config = config.with_auto_options(init_run.read_config(task))
        init = Initializer(init_run, task, config)
    data = _load(task, config, None if session.resume else init_run)
    choices: Sequence[str] = ()
    if not session.resume and isinstance(task, Choosing):
        config, choices = task.choose(data, config)
    data_spec = task.describe(data, config)
    if init is not None:
        data_spec = init.spec(data_spec)
    if session.resume:
        check_shared_folder(run_dir)
        kept = read_data_spec(run_dir, task)
        if check_resumed(run_dir, init_run) and kept.checksum == data_spec.checksum:
            data_spec = data_spec.continue_from(kept)
        check_same_data(run_dir, kept, data_spec)
        data_spec = kept  # to the bit: another machine may compute other last bits of its scales
        check_model(run_dir, task, config, data_spec)
    of_runs = [config.run_config(index) for index in range(config.fit.runs)]
    models = [task.model(of_run, data_spec, placement) for of_run in of_runs]
    splits = [
        task.batches(data, of_run, data_spec, placement.sequence_shards) for of_run in of_runs
    ]
    test_batches = splits[0].test
    if test_batches is None:
        raise ValueError("the data have no test part; give test data, or another split.")
    if isinstance(task, Calibrating):
        task.begin(models, splits[0], config, data_spec)
    if init is not None:
        init.fill(models)
    about = task.about_data(data, config)
    if is_main():
        for note in (*about.notes, *choices, *(init.notes if init is not None else ())):
            print(f"note: {note}", file=sys.stderr)
        if session.progress:
            if init is not None:
                print(init.about, file=sys.stderr)
            print(about.text, file=sys.stderr)
            _print_summary(models[0], data_spec.observation)
            if len(models) > 1:
                print(f"{len(models)} runs, seeds {config.seeds}", file=sys.stderr)
            print(f"on {devices}", file=sys.stderr)

    def begin() -> None:
        check_run_dir(run_dir, task, config, resume=session.resume)  # as it is by now
        write_data_spec(run_dir, data_spec)
        write_config(run_dir, task, config)
        if init is not None:
            init.write(run_dir)
        (run_dir / TEST_FILE).unlink(missing_ok=True)  # of fewer steps, on resume

    with session.holding():
        on_main(begin)
        objective = task.objective(config, data_spec, len(splits[0].train))
        several = len(models) > 1
        result = training.fit(
            models if several else models[0],
            objective,
            splits if several else splits[0],
            config=fit_config(config),
            session=session,
            opt_state=None if init is None else init.opt_state(objective.optimizer, models[0]),
        )
        runs = [
            Run(task, config, data_spec, model, data, seed_index=index if several else None)
            for index, model in enumerate(models)
            if result.runs[index].best_step is not None
        ]
        for run in runs:
            if splits[0].validation is not None:
                calibration = calibrate(run_dir, run, splits[0].validation)
                if calibration is not None and session.progress and is_main():
                    of_run = "" if run.seed_index is None else f"run {run.seed_index}: "
                    print(f"note: {of_run}{calibration}", file=sys.stderr)
        tested = report_on(run_dir, runs, test_batches)
        seconds = sum(line["seconds"] for line in result.history)
        values = {
            **tested.judged,
            **_length(result, config),
            "train_seconds": round(seconds, 1),
            **({"data_notes": list(about.notes)} if about.notes else {}),
        }
        report = dataclasses.replace(tested, values=values)
        on_main(partial(_write_results, run_dir, report))
    return report


def _load(task: Task[Any, Any, Any], config: Config, init: InitRun | None) -> Any:
    """The data of a run; an error says where new rows alone are too few."""
    try:
        return task.load(config)
    except TooFewRowsError as error:
        if init is None:
            raise
        raise TooFewRowsError(
            f"{error} A run that continues {init.name} is trained, selected and tested on these "
            "rows alone: put the new rows after the earlier ones in one file.",
            *error.options,
        ) from None


def _place(parallel: training.Parallel, config: Config) -> training.Placement:
    """The devices of a training."""
    fit = config.fit
    if fit.runs > 1:
        return parallel.place(fit.batch_size, num_runs=fit.runs)
    if parallel.runs_at_once is not None:
        raise OptionError(
            f"runs_at_once={parallel.runs_at_once} is for several runs, but there is one; remove "
            "it, or train several.",
            "runs_at_once",
            "runs",
        )
    return parallel.place(fit.batch_size)


def _length(result: training.FitResult, config: Config) -> dict[str, int]:
    """How long was trained, and where the best was: in steps where passes do not tell it."""
    by_steps = config.fit.by_steps
    done = {"steps": result.steps} if by_steps else {"epochs": result.epochs}
    if len(result.runs) > 1:
        return done
    best = {"best_step": result.best_step} if by_steps else {"best_epoch": result.best_epoch}
    return best | done


def _write_results(run_dir: Path, report: Report) -> None:
    write_json(run_dir / TEST_FILE, dict(report.values))
    if training.learning_curve(run_dir) is not None:
        for name, draw in report.figures.items():
            draw(run_dir / name)
        for name, chart in report.charts.items():
            chart(report.values, run_dir / name)


def fit_config(config: Config) -> training.FitConfig:
    """How long a run is trained, and how it is validated."""
    fit = config.fit
    return training.FitConfig(
        epochs=None if fit.steps else fit.epochs,
        steps=fit.steps or None,
        validate_every=fit.validate_every or None,
        patience=fit.patience,
        seed=fit.seed,
        loss_scale=LOSS_SCALE if config.layers.dtype == "float16" else None,
        time_limit=fit.time_limit or None,
    )


def _print_summary(model: nnx.Module, observation: Any) -> None:
    if observation is not None:
        print(inference.summarize(model, observation), file=sys.stderr)


def fit_data(
    task: Task[Any, Any, Any],
    config: Config,
    data: Any,
    run_dir: str | Path | None = None,
    *,
    init_run: InitRun | Run | str | Path | None = None,
) -> Run:
    """Trains a model on data in memory and selects its parameters, on one device.

    Task, model, objective and loop are those of ``train``; nothing is tested.
    """
    task.check(config, training.ONE_DEVICE)
    given = InitRun.of(init_run)
    if given is not None:
        config = config.with_auto_options(given.read_config(task))
    init = None if given is None else Initializer(given, task, config)
    if isinstance(task, Choosing):
        config, choices = task.choose(data, config)
        for note in choices:
            print(f"note: {note}", file=sys.stderr)
    data_spec = task.describe(data, config)
    if init is not None:
        data_spec = init.spec(data_spec)
    model = task.model(config, data_spec)
    splits = task.batches(data, config, data_spec, training.ONE_DEVICE.sequence_shards)
    if isinstance(task, Calibrating):
        task.begin([model], splits, config, data_spec)
    objective = task.objective(config, data_spec, len(splits.train))
    opt_state = None
    if init is not None:
        init.fill([model])
        for note in init.notes:
            print(f"note: {note}", file=sys.stderr)
        opt_state = init.opt_state(objective.optimizer, model)
    with ExitStack() as ends:
        if run_dir is None:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(run_dir)
            check_run_dir(folder, task, config, resume=False)
        session = training.Session(folder, progress=False, parallel=training.Parallel("none"))
        ends.enter_context(session.holding())
        write_data_spec(folder, data_spec)
        write_config(folder, task, config)
        if init is not None:
            init.write(folder)
        how: dict[str, Any] = {"config": fit_config(config), "session": session}
        training.fit(model, objective, splits, opt_state=opt_state, **how)
        run = Run(task, config, data_spec, model, data)
        calibrate(folder, run, splits.validation)
    return run
