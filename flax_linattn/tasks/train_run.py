"""Training a run of any task."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx

from flax_linattn import inference, training
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.compilation import cached_programs
from flax_linattn.registry import get_task
from flax_linattn.tasks.config_file import read_config, write_config
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
    read_data_spec,
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
"""Initial loss scale of a run in float16."""


def train(
    task: str | Task[Any, Any, Any],
    config: Config,
    session: training.Session | str | Path,
    *,
    init_run: InitRun | Run | str | Path | None = None,
) -> dict[str, Any]:
    """Trains a model, selects its parameters, tests it, and writes all results to a run folder.

    The option ``runs`` trains several seeds at once: run r has the model, the order of the batches
    and the dropout of ``config.run_config(r)``. All runs share the data of ``config``, including
    the validation split.

    Args:
        task: A task, or its name.
        config: Options of the run, of the task's ``Config``.
        session: Run folder, devices, and whether to resume; a path is ``Session(path)``. The folder
            gets config.json, data_spec.json, metrics.jsonl, checkpoints, learning_curve.png,
            test.json and the task's figures.
        init_run: A run to start from, or its folder; ``InitRun`` has further options. The model
            options must equal the options of that run, as in
            ``load_run(folder).config.replace(csv="new.csv")``; data and training may differ.

    Returns:
        The values of ``test.json``, such as metrics of the selected parameters and how they were
        selected; for several seeds, means, standard deviations and ``runs``, a row for each.

    Raises:
        ValueError: If options or data are invalid, the run folder is in use, or the options differ
            from the run to resume.
        FileNotFoundError: If a data file is missing, or, with ``resume``, the run.
        training.NonFiniteLossError: If the loss is not finite; with several seeds, if all of them
            fail.
        training.Interrupted: If the process received a signal; the run was saved.
        TypeError: If ``config`` belongs to another task.
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
    is_tested: bool = True,
) -> Report:
    """Trains a run like ``train``, and returns its tables and figures too.

    A run that is not tested has no test.json; its report holds "best_values", the best validation
    of each run, None for a run that failed.
    """
    task = get_task(task) if isinstance(task, str) else task
    if not isinstance(config, task.Config):
        raise TypeError(
            f"the task {task.name!r} needs a config such as {task.Config.__name__}.of(epochs=3), "
            f"got {type(config).__name__}."
        )
    config, run_dir = config.resolve(), Path(session.run_dir)
    parallel = training.Parallel() if session.parallel is None else session.parallel
    devices = _place(parallel, config)
    task.check(config, devices.run_placement)
    check_same_in_processes(config.to_json)
    on_main(partial(check_run_dir, run_dir, task, config, resume=session.resume))
    with ExitStack() as ends:
        # Lock an existing run at once; a new folder is created only after all other checks.
        if max_over_processes(is_main() and session.lock_file.exists()):
            ends.enter_context(session.holding())
        return _train(task, config, session, devices, InitRun.of(init_run), is_tested)


def _train(
    task: Task[Any, Any, Any],
    config: Config,
    session: training.Session,
    devices: training.Placement,
    init_run: InitRun | None,
    is_tested: bool,
) -> Report:
    """Trains a run on the given devices, and tests it if asked to."""
    run_dir = Path(session.run_dir)
    resumed = run_dir if session.resume else None
    runs, splits, init, notes = _prepare(
        task, config, init_run, placement=devices.run_placement, resumed=resumed
    )
    _, config, data_spec, first, data, _ = runs[0]
    test_batches = splits[0].test
    if test_batches is None and is_tested:
        raise ValueError("the data have no test part; pass test data, or choose another split.")
    if not is_tested and not nnx.state(first, nnx.Param):
        raise OptionError(
            "the model has no parameters to train, and therefore no validation by which trials "
            "can be compared; choose another model.",
            "model",
        )
    about = task.about_data(data, config)
    if is_main():
        for note in (*about.notes, *notes):
            print(f"note: {note}", file=sys.stderr)
        if session.progress:
            if init is not None:
                print(init.about, file=sys.stderr)
            print(about.text, file=sys.stderr)
            _print_summary(first, data_spec.observation)
            if len(runs) > 1:
                print(f"{len(runs)} runs, seeds {config.seeds}", file=sys.stderr)
            print(f"on {devices}", file=sys.stderr)

    def begin() -> None:
        check_run_dir(run_dir, task, config, resume=session.resume)  # it may have changed
        write_data_spec(run_dir, data_spec)
        write_config(run_dir, task, config)
        if init is not None:
            init.write(run_dir)
        (run_dir / TEST_FILE).unlink(missing_ok=True)  # outdated when a run is resumed

    with session.holding():
        on_main(begin)
        objective = task.objective(config, data_spec, len(splits[0].train))
        result = training.fit(
            [run.model for run in runs] if len(runs) > 1 else first,
            objective,
            splits if len(runs) > 1 else splits[0],
            config=fit_config(config, len(splits[0].train)),
            session=session,
            opt_state=None if init is None else init.opt_state(objective.optimizer, first),
        )
        results = zip(runs, result.runs, strict=True)
        runs = [run for run, trained in results if trained.best_step is not None]
        begin_calibration = time.perf_counter()
        for run in runs:
            calibration = calibrate(run_dir, run, splits[0])
            if calibration is not None and session.progress and is_main():
                prefix = "" if run.seed_index is None else f"run {run.seed_index}: "
                print(f"note: {prefix}{calibration}", file=sys.stderr)
        seconds = time.perf_counter() - begin_calibration
        if test_batches is None or not is_tested:
            return Report({"best_values": [run.best_value for run in result.runs]})
        tested = report_on(run_dir, runs, test_batches)
        seconds += sum(line["seconds"] for line in result.history)
        values = {
            **tested.all_values,
            **_length(result, config),
            "train_seconds": round(seconds, 1),
            **({"data_notes": list(about.notes)} if about.notes else {}),
        }
        report = dataclasses.replace(tested, values=values)
        on_main(partial(_write_results, run_dir, report))
    return report


def _prepare(
    task: Task[Any, Any, Any],
    config: Config,
    init_run: InitRun | None,
    *,
    data: Any = None,
    placement: training.Placement = training.ONE_DEVICE,
    resumed: Path | None = None,
) -> tuple[list[Run], list[training.Splits], Initializer | None, list[str]]:
    """Makes runs with new models, their batches, the initializer, if any, and notes.

    Loads the data unless given, and lets them choose options, unless a run is resumed.
    """
    init = None
    if resumed is not None:
        config = config.with_auto_options(read_config(resumed, task))
    elif init_run is not None:
        init = Initializer(init_run, task, config)
        config = init.config
    if data is None:
        data = _load(task, config, None if init is None else init_run)
    notes: list[str] = []
    if resumed is None and isinstance(task, Choosing):
        config, choices = task.choose(data, config)
        notes += choices
    data_spec = task.describe(data, config)
    if init is not None:
        data_spec = init.spec(data_spec)
    if resumed is not None:
        check_shared_folder(resumed)
        stored = read_data_spec(resumed, task)
        if check_resumed(resumed, init_run) and stored.checksum == data_spec.checksum:
            data_spec = data_spec.continue_from(stored)
        check_same_data(resumed, stored, data_spec)
        data_spec = stored  # the last bits of computed scales may differ on another machine
        check_model(resumed, task, config, data_spec)
    configs = [config.run_config(index) for index in range(config.fit.runs)]
    models = [task.model(of_run, data_spec, placement) for of_run in configs]
    shards = placement.sequence_shards
    splits = [task.batches(data, of_run, data_spec, shards) for of_run in configs]
    if isinstance(task, Calibrating):
        task.begin(models, splits[0], config, data_spec)
    if init is not None:
        init.fill(models)
        notes += init.notes
    indices = [None] if len(models) == 1 else range(len(models))
    parts = zip(models, indices, strict=True)
    runs = [Run(task, config, data_spec, model, data, index) for model, index in parts]
    return runs, splits, init, notes


def _load(task: Task[Any, Any, Any], config: Config, init_run: InitRun | None) -> Any:
    """Loads the data; explains the error if a continued run has too few new rows."""
    try:
        return task.load(config)
    except TooFewRowsError as error:
        if init_run is None:
            raise
        raise TooFewRowsError(
            f"{error} A run that continues {init_run.name} is trained, validated and tested on "
            "these rows alone; append the new rows to the earlier rows in one file.",
            *error.options,
        ) from None


def _place(parallel: training.Parallel, config: Config) -> training.Placement:
    """Places one or several runs on the devices."""
    fit = config.fit
    if fit.runs > 1:
        return parallel.place(fit.batch_size, num_runs=fit.runs)
    if parallel.runs_at_once is not None:
        raise OptionError(
            f"runs_at_once={parallel.runs_at_once} needs several runs, got one; remove it, or set "
            "runs=....",
            "runs_at_once",
            "runs",
        )
    return parallel.place(fit.batch_size)


def _length(result: training.FitResult, config: Config) -> dict[str, int]:
    """Number of epochs (or steps) of the training and of the best parameters."""
    by_steps = config.fit.by_steps
    done = {"steps": result.steps} if by_steps else {"epochs": result.epochs}
    if len(result.runs) > 1:
        return done
    best = {"best_step": result.best_step} if by_steps else {"best_epoch": result.best_epoch}
    return best | done


def _write_results(run_dir: Path, report: Report) -> None:
    write_json(run_dir / TEST_FILE, dict(report.values))
    if training.learning_curve(run_dir) is not None:
        for name, plot in report.figures.items():
            plot(run_dir / name)
        for name, chart in report.charts.items():
            chart(report.values, run_dir / name)


def fit_config(config: Config, steps_per_epoch: int) -> training.FitConfig:
    """Makes the options of ``training.fit`` from the options of a run."""
    fit = config.fit
    min_patience = math.ceil(fit.patience_steps / (fit.validate_every or steps_per_epoch))
    return training.FitConfig(
        epochs=None if fit.steps else fit.epochs,
        steps=fit.steps or None,
        validate_every=fit.validate_every or None,
        patience=max(fit.patience, min_patience),
        seed=fit.seed,
        loss_scale=LOSS_SCALE if config.layers.dtype == "float16" else None,
        time_limit=fit.time_limit or None,
    )


def _print_summary(model: nnx.Module, observation: Any) -> None:
    if observation is not None:
        print(inference.summarize(model, observation), file=sys.stderr)


@cached_programs()
def fit_data(
    task: Task[Any, Any, Any],
    config: Config,
    data: Any,
    run_dir: str | Path | None = None,
    *,
    init_run: InitRun | Run | str | Path | None = None,
) -> Run:
    """Trains a model on data in memory and selects its parameters, on one device.

    Task, model, objective and loop are the same as in ``train``; nothing is tested. Without
    ``run_dir`` no checkpoint is written. Compiled programs are cached as in the commands.
    """
    task.check(config, training.ONE_DEVICE)
    check_integers(1, 1, runs=config.fit.runs)
    (run,), (splits,), init, notes = _prepare(task, config, InitRun.of(init_run), data=data)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    config, model = run.config, run.model
    objective = task.objective(config, run.data_spec, len(splits.train))
    opt_state = None if init is None else init.opt_state(objective.optimizer, model)
    with ExitStack() as ends:
        if run_dir is None:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(run_dir)
            check_run_dir(folder, task, config, resume=False)
        how: Any = {"parallel": training.Parallel("none"), "checkpoints": run_dir is not None}
        session = training.Session(folder, progress=False, **how)
        ends.enter_context(session.holding())
        write_data_spec(folder, run.data_spec)
        write_config(folder, task, config)
        if init is not None:
            init.write(folder)
        fit = fit_config(config, len(splits.train))
        training.fit(model, objective, splits, config=fit, session=session, opt_state=opt_state)
        calibrate(folder, run, splits)
    return run
