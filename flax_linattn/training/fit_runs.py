"""``fit``: trains one model, or several runs of it at once, from the start or a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError
from flax_linattn.training.batches import Loader, Splits, StackedBatches, check_batches
from flax_linattn.training.checkpointer import BestInMemory, list_checkpoints
from flax_linattn.training.history import History
from flax_linattn.training.objective import FitConfig, Objective
from flax_linattn.training.placement import Parallel
from flax_linattn.training.processes import (
    check_same_in_processes,
    check_shared_folder,
    lost_process_errors,
    on_main,
    warn_of_lost_processes,
)
from flax_linattn.training.results import (
    RunResult,
    best_index,
    load_best,
    read_best,
    run_results,
)
from flax_linattn.training.resume import check_folder, restore
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import make_evaluation_step, make_train_step
from flax_linattn.training.trainer import Session, Trainer
from flax_linattn.training.validation import Validation, check_monitor, metric_names

Hyperparameters = Sequence[Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The result of a finished training.

    Args:
        runs: The result of each run; one entry for a single model.
        best_run: The index of the run with the best monitored value; the first one in a tie.
        best_checkpoint: The folder that the selected parameters were read from; None for a session
            without checkpoints.
        epochs: Number of finished passes over the training batches.
        steps: Number of training steps done.
        stopped_early: Whether training ended before the last step.
        history: The lines of metrics.jsonl, one dict for each validation. For several runs the
            metrics are means over them, and "runs" holds lists with a value for each run, None for
            a run that has ended.
    """

    runs: tuple[RunResult, ...]
    best_run: int
    best_checkpoint: Path | None
    epochs: int
    steps: int
    stopped_early: bool
    history: tuple[dict[str, Any], ...]

    @property
    def best_epoch(self) -> int:
        """The epoch of the selected parameters of the best run, counted from 1."""
        epoch = self.runs[self.best_run].best_epoch
        assert epoch is not None
        return epoch

    @property
    def best_step(self) -> int:
        """Number of training steps at the best validation of the best run."""
        step = self.runs[self.best_run].best_step
        assert step is not None
        return step

    @property
    def best_value(self) -> float:
        """The monitored validation metric of the selected parameters of the best run."""
        value = self.runs[self.best_run].best_value
        assert value is not None
        return value


def fit(
    model: nnx.Module | Sequence[nnx.Module],
    objective: Objective,
    splits: Splits | Sequence[Splits],
    *,
    config: FitConfig,
    session: Session,
    hyperparameters: Hyperparameters | None = None,
    opt_state: Any = None,
) -> FitResult:
    """Trains a model, or several runs of it at once, and loads the best parameters.

    After each epoch, or every ``config.validate_every`` steps, the model is validated, and a line
    is added to ``metrics.jsonl`` in the run folder. The parameters with the best monitored
    validation metric are selected and left in the model. A tie counts as better: the later
    parameters are selected, and patience starts again (as in the Time-Series-Library's
    ``EarlyStopping``).

    Checkpoints hold everything that the rest of the run depends on. With ``resume=True`` a run
    continues from the newest intact checkpoint, also in the middle of an epoch, and ends with the
    same bits as an uninterrupted run. A finished run continues if it is given more epochs or steps;
    the additional validation after its former last step stays in the history.

    SIGINT (Ctrl-C) and SIGTERM let the current step finish, save a checkpoint and raise
    ``Interrupted``. If training fails or is interrupted, the model passed in is not changed.

    A sequence of models is trained as one program with an axis of runs. Runs differ in their
    initial parameters, batches, random numbers and, if given, hyperparameters of the optimizer.
    Several devices share the runs, and each trains its own in groups, see
    ``Parallel.runs_at_once``. Run r computes the same as a single model with the seed
    ``config.seed + r``, to rounding. Differences from a single model:

    - Each checkpoint holds the best parameters of every run; ``load_run`` reads them.
    - ``patience`` counts for each run; a run that is out of patience no longer changes.
    - A run whose numbers become NaN or infinite ends alone: its result names the step, and its
      model gets the previous best parameters, if there was a validation. It is an error only if
      all runs fail before their first validation.

    Args:
        model: The model, or one model for each run, which may differ only in the values of their
            variables. Only ``nnx.Param`` variables are trained; changes that the forward pass makes
            to other variables (batch statistics) are kept.
        objective: Loss, optimizer, and the metric that selects the best parameters. ``validate`` is
            called for one run after another.
        splits: Training and validation batches; for several runs, one ``Splits`` for all or for
            each, with batches of equal shapes.
        config: Length of training, validations and checkpoints.
        session: The run folder, and how to train in it. Several runs need a single process, and a
            mesh with no axis other than "data".
        hyperparameters: For each of several runs, hyperparameters of an optimizer made by
            ``optax.inject_hyperparams``, such as ``{"learning_rate": 0.1}``.
        opt_state: The optimizer's state before the first step, such as that of another run
            (``load_opt_state``). Default: a new state.

    Returns:
        The selected step of each run, its value, and the history.

    Raises:
        ValueError: If there are no batches; the monitored metric is not reported, or is reported by
            both the loss function and ``validate``; the run folder holds a run and ``resume`` is
            False; the run to resume has other settings; another process works in the folder;
            processes have different settings; or the numbers or structures of models, splits and
            hyperparameters do not match.
        TypeError: If a source of batches is invalid, or ``validate`` does not return numbers.
        FileNotFoundError: If there is no checkpoint to resume from.
        NonFiniteLossError: If the loss, a gradient, a parameter or the monitored metric becomes NaN
            or infinite; for several runs, if all of them do before their first validation.
        OSError: If a checkpoint cannot be written.
        LostProcessError: If another process of the run is lost, or could not write.
        Interrupted: If the process received SIGINT or SIGTERM; the run was saved, unless
            ``session.checkpoints`` is False.

    Example:
        >>> import tempfile, jax.numpy as jnp, numpy as np, optax
        >>> from flax_linattn.data import Batches
        >>> x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
        >>> batches = [Batches({"x": x, "y": 3 * x}, batch_size=4, seed=s) for s in range(2)]
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean((model(batch["x"]) - batch["y"]) ** 2), {}
        >>> def slope(model, step):
        ...     return {"slope_error": abs(float(model.kernel[0, 0]) - 3)}
        >>> objective = Objective(loss_fn, optax.sgd(0.5), monitor="slope_error", validate=slope)
        >>> model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     result = fit(model, objective, Splits(batches[0], batches[0]),
        ...                  config=FitConfig(epochs=9), session=Session(run_dir, progress=False))
        >>> result.epochs, result.steps, round(float(model.kernel[0, 0]), 2)
        (9, 36, 3.0)

        Two runs that differ in initial parameters, batches and learning rate:

        >>> models = [nnx.Linear(1, 1, rngs=nnx.Rngs(s)) for s in range(2)]
        >>> rates = [{"learning_rate": 0.5}, {"learning_rate": 0.1}]
        >>> sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     result = fit(models, Objective(loss_fn, sgd), [Splits(b, b) for b in batches],
        ...                  config=FitConfig(epochs=9), hyperparameters=rates,
        ...                  session=Session(run_dir, progress=False))
        >>> [round(float(model.kernel[0, 0]), 2) for model in models]
        [3.0, 2.87]
        >>> result.runs[0].best_value < result.runs[1].best_value
        True
    """
    is_stacked = not isinstance(model, nnx.Module)
    models = [model] if isinstance(model, nnx.Module) else list(model)
    run_splits = [splits] * len(models) if isinstance(splits, Splits) else list(splits)
    if not is_stacked and hyperparameters is not None:
        raise ValueError(
            "hyperparameters are for several runs, but there is one model; pass a list of models, "
            "or make the optimizer with these hyperparameters."
        )
    _check_lengths(len(models), splits=run_splits, hyperparameters=hyperparameters)
    for parts in run_splits:
        check_batches(parts)
    with ExitStack() as ends:
        ends.enter_context(lost_process_errors(partial(resume_advice, session.run_dir)))
        with StopRequest() as stop:
            given = (hyperparameters or [{}] * len(models)) if is_stacked else None
            trainer = make_trainer(
                models, objective, run_splits, config, session, given, stop, ends, opt_state
            )
            trainer.train()
        best_checkpoint = None
        if isinstance(trainer.checkpointer, BestInMemory):
            nnx.update(models[0], *_place_like(models[0], trainer.checkpointer.variables))
        elif is_stacked:
            best_checkpoint, _, best = read_best(models[0], session.run_dir)
        else:
            best_checkpoint = load_best(models[0], session.run_dir)
    if is_stacked:
        for run, variables in zip(models, best, strict=True):
            nnx.update(run, *variables)
    history = trainer.history
    selected = best_index(history)
    assert selected is not None
    return FitResult(
        runs=run_results(history, config.patience),
        best_run=selected,
        best_checkpoint=best_checkpoint,
        epochs=history.epochs_done,
        steps=trainer.step,
        stopped_early=history.validated_steps < config.total_steps(len(run_splits[0].train)),
        history=tuple(history.lines),
    )


def resume_advice(run_dir: str | Path) -> str:
    """Advice on how to continue after one of several processes was lost."""
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        return "No checkpoint was saved yet: start all processes again."
    newest = checkpoints[-1].path
    return f"Start all processes again with the resume option to continue from {newest}."


def make_trainer(
    models: Sequence[nnx.Module],
    objective: Objective,
    splits: Sequence[Splits],
    config: FitConfig,
    session: Session,
    hyperparameters: Hyperparameters | None,
    stop: StopRequest,
    ends: ExitStack,
    opt_state: Any = None,
) -> Trainer:
    """Prepares the run folder, or reads it, and returns the training loop; compiles nothing yet.

    ``hyperparameters`` is None for a single model, whose arrays have no axis of runs. The run
    folder is locked until ``ends`` closes. Raises the errors of ``fit``.
    """
    is_stacked = hyperparameters is not None
    run_dir, num_runs = Path(session.run_dir), len(models)
    parallel = Parallel() if session.parallel is None else session.parallel
    train, validation = splits[0].train, splits[0].validation
    first = [train.batch(0), validation.batch(0)]
    if is_stacked:
        train = StackedBatches([parts.train for parts in splits])
        validation = StackedBatches([parts.validation for parts in splits])
    check_same_in_processes(
        lambda: {
            "FitConfig": config,
            "monitor": (objective.monitor, objective.mode),
            "parallel": parallel,
            "numbers of batches": (len(train), len(validation)),
            "shapes of batches": [{n: np.shape(x) for n, x in b.items()} for b in first],
            "shapes of parameters": jax.tree.map(jnp.shape, nnx.state(models[0])),
            "values of parameters": [fingerprint(model) for model in models],
        }
    )
    batch_size, validation_size = (len(next(iter(batch.values()))) for batch in first)
    if is_stacked:
        placement = parallel.place(batch_size, num_runs=num_runs)
    else:
        placement = parallel.place(batch_size, validation_size)
    graphdef, variables = _split_models(models)
    names = metric_names(models[0], objective.loss, first[1])
    if objective.validate is None:  # else its names are known after the first validation
        check_monitor(objective, names)
    _take_folder(session, ends)
    states = [
        TrainState.create(*parts, objective.optimizer, names, config.loss_scale, opt_state)
        for parts in variables
    ]
    if hyperparameters is not None:
        pairs = zip(states, hyperparameters, strict=True)
        states = [TrainState.stack([_with_hyperparameters(*pair) for pair in pairs])]
    state = placement.state(states[0])
    history = History.start(config, objective, len(train), batch_size, hyperparameters)
    if session.resume:
        state, history = restore(run_dir, state, history)
    on_main(partial(history.write_metrics, run_dir))
    warn_of_lost_processes(f"Then start all processes again with the resume option: {run_dir}.")
    rows = (num_runs, num_runs) if is_stacked else (batch_size, validation_size)
    return Trainer(
        objective=objective,
        config=config,
        session=session,
        graphdef=graphdef,
        loader=Loader(train, placement, rows[0]),
        train_step=make_train_step(
            graphdef,
            objective.loss,
            objective.optimizer,
            config.seed,
            placement,
            config.max_skipped_steps,
        ),
        validation=Validation(
            objective,
            graphdef,
            Loader(validation, placement, rows[1], whole=True),
            make_evaluation_step(graphdef, objective.loss, placement),
        ),
        state=state,
        history=history,
        step=state.steps_done,
        stop=stop,
    )


def _take_folder(session: Session, ends: ExitStack) -> None:
    """Locks the run folder until ``ends`` closes, if the session may train in it."""
    check = partial(check_folder, session.run_dir, resume=session.resume)
    on_main(check)
    ends.enter_context(session.holding())
    on_main(check)  # again, now that no other session can change it
    check_shared_folder(Path(session.run_dir))


def _check_lengths(num_runs: int, **given: Sequence[Any] | None) -> None:
    """Raises if a sequence does not have an entry for each run."""
    if num_runs < 1:
        raise ValueError(
            "expected one model, or a list of a model for each run, got an empty list."
        )
    for name, values in given.items():
        if values is not None and len(values) != num_runs:
            raise ValueError(
                f"expected as many {name} as models, {num_runs}, got {len(values)}; pass one for "
                "each run."
            )


def _split_models(
    models: Sequence[nnx.Module],
) -> tuple[nnx.GraphDef[Any], list[tuple[nnx.State, nnx.State]]]:
    """The common structure of all models, and the variables of each."""
    graphdef, *first = split_model(models[0])
    states = [(first[0], first[1])]
    shapes = jax.tree.map(jnp.shape, first)
    for r, model in enumerate(models[1:], start=1):
        other, *variables = split_model(model)
        if other != graphdef or jax.tree.map(jnp.shape, variables) != shapes:
            raise ValueError(
                f"The models of runs 0 and {r} differ in structure, shapes or settings. Runs may "
                "differ only in the values of their variables; make all models alike."
            )
        states.append((variables[0], variables[1]))
    return graphdef, states


def _with_hyperparameters(state: TrainState, values: Mapping[str, float]) -> TrainState:
    """The state of a run with these hyperparameters in its optimizer's state."""
    scheduled = {
        name
        for _, schedules in optax.tree.get_all_with_path(state.opt_state, "hyperparams_states")
        for name in schedules
    }
    opt_state = state.opt_state
    for name, value in values.items():
        if name in scheduled:
            raise OptionError(
                f"the optimizer's {name} follows a schedule, which would override {value}; make "
                "the optimizer with a constant instead.",
                "hyperparameters",
            )
        try:
            opt_state = optax.tree.set(opt_state, **{name: jnp.float32(value)})
        except KeyError as error:
            raise OptionError(
                f"the optimizer has no hyperparameter {name!r}; make it with "
                "optax.inject_hyperparams, such as "
                "optax.inject_hyperparams(optax.sgd)(learning_rate=0.1).",
                "hyperparameters",
            ) from error
    return dataclasses.replace(state, opt_state=opt_state)


def _place_like(model: nnx.Module, variables: tuple[nnx.State, ...]) -> tuple[nnx.State, ...]:
    """Places variables, which training may have split over devices, where the model is."""
    _, *own = split_model(model)
    return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), variables, tuple(own))
