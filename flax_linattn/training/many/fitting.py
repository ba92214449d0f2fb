"""Training many runs of one model at once."""

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
from flax_linattn.training.batches import Splits
from flax_linattn.training.config import FitConfig
from flax_linattn.training.evaluation import metric_names
from flax_linattn.training.fitting import check_batches, how_to_go_on
from flax_linattn.training.loader import Loader
from flax_linattn.training.many.placed import StackedBatches, place_runs
from flax_linattn.training.many.record import ManyRecord
from flax_linattn.training.many.results import RunResult, read_best, results_of
from flax_linattn.training.many.state import ManyState
from flax_linattn.training.many.steps import make_many_evaluation, make_many_step
from flax_linattn.training.many.trainer import ManyTrainer
from flax_linattn.training.many.validation import ManyValidation
from flax_linattn.training.objective import Objective
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.processes import announce, check_same, on_main, together
from flax_linattn.training.session import Session
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.start import go_on, take_folder
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.validation import check_monitor

Hyperparameters = Sequence[Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class ManyResult:
    """What finished runs came to.

    Args:
        runs: Each of them.
        epochs: Finished passes over the training batches.
        steps: Training steps done.
        history: The lines of metrics.jsonl, one dict for each validation: means over the runs, and
            under "runs" each metric as a list of one value a run, None of a run that has ended.
    """

    runs: tuple[RunResult, ...]
    epochs: int
    steps: int
    history: tuple[dict[str, Any], ...]


def fit_many(
    models: Sequence[nnx.Module],
    objective: Objective,
    splits: Splits | Sequence[Splits],
    *,
    config: FitConfig,
    session: Session,
    hyperparameters: Hyperparameters | None = None,
) -> ManyResult:
    """Trains many runs of one model at once, and leaves the best parameters in each model.

    The runs differ in their initial parameters, in their batches, in what they draw, and where
    asked in hyperparameters of the optimizer; all are one program. Several devices split the runs,
    and each takes its own in groups, see ``Parallel.runs_at_once``. Run r computes what ``fit``
    does with the seed ``config.seed + r``, to rounding. Validations, checkpoints, resuming and
    signals are those of ``fit``, but for these:

    - The best parameters are kept in the checkpoints, each run's own; ``load_run`` reads them.
    - ``patience`` counts for each run; one that runs out of it stays as it is.
    - A run whose numbers become NaN or infinite ends alone: its result names the step, and its
      model gets the best parameters before, if there was a validation. If all do before their
      first, it is an error.

    Args:
        models: One for each run, alike but for the values of their variables.
        objective: As in ``fit``. Its ``validate`` is called for one run after another.
        splits: The batches, of each run or of all; of equal shapes in each step.
        config: As in ``fit``.
        session: As in ``fit``, in one process. Devices split runs: a mesh has no axis but "data".
        hyperparameters: For each run, values of hyperparameters of an optimizer that
            ``optax.inject_hyperparams`` made, such as ``{"learning_rate": 0.1}``.

    Returns:
        What each run came to, and the history.

    Raises:
        ValueError: As ``fit``; or runs that are not alike, or as many of each.
        TypeError: As ``fit``.
        FileNotFoundError: If there is nothing to resume.
        NonFiniteLossError: If all runs became NaN or infinite before they were validated.
        OSError: If a checkpoint cannot be written.
        Interrupted: After a SIGINT or SIGTERM, with the runs saved.

    Example:
        >>> import tempfile, jax.numpy as jnp, numpy as np, optax
        >>> from flax_linattn.data import Batches
        >>> x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean((model(batch["x"]) - batch["y"]) ** 2), {}
        >>> batches = [Batches({"x": x, "y": 3 * x}, batch_size=4, seed=s) for s in range(2)]
        >>> models = [nnx.Linear(1, 1, rngs=nnx.Rngs(s)) for s in range(2)]
        >>> rates = [{"learning_rate": 0.5}, {"learning_rate": 0.1}]
        >>> sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     result = fit_many(models, Objective(loss_fn, sgd), [Splits(b, b) for b in batches],
        ...                       config=FitConfig(epochs=9), hyperparameters=rates,
        ...                       session=Session(run_dir, progress=False))
        >>> [round(float(model.kernel[0, 0]), 2) for model in models]
        [3.0, 2.87]
        >>> result.runs[0].best_value < result.runs[1].best_value
        True
    """
    num_runs = len(models)
    of_runs = [splits] * num_runs if isinstance(splits, Splits) else list(splits)
    _check_numbers(num_runs, splits=of_runs, hyperparameters=hyperparameters)
    for parts in of_runs:
        check_batches(parts)
    with ExitStack() as ends:
        ends.enter_context(together(partial(how_to_go_on, session.run_dir)))
        with StopRequest() as stop:
            trainer = _start(
                models, objective, of_runs, config, session, hyperparameters, stop, ends
            )
            trainer.train()
        _, best = read_best(models[0], session.run_dir)
    record = trainer.record
    for model, variables in zip(models, best, strict=True):
        nnx.update(model, *variables)
    return ManyResult(
        runs=results_of(record.runs),
        epochs=record.epochs_done,
        steps=trainer.step,
        history=tuple(record.history),
    )


def _start(
    models: Sequence[nnx.Module],
    objective: Objective,
    splits: Sequence[Splits],
    config: FitConfig,
    session: Session,
    hyperparameters: Hyperparameters | None,
    stop: StopRequest,
    ends: ExitStack,
) -> ManyTrainer:
    """As ``start.start``, for many runs."""
    run_dir, num_runs = Path(session.run_dir), len(models)
    parallel = Parallel() if session.parallel is None else session.parallel
    sources = (
        StackedBatches([parts.train for parts in splits]),
        StackedBatches([parts.validation for parts in splits]),
    )
    first = [splits[0].train.batch(0), splits[0].validation.batch(0)]
    batch_size = len(next(iter(first[0].values())))
    placement, alone = place_runs(parallel, num_runs, batch_size)
    graphdef, states = _split_models(models)
    names = metric_names(models[0], objective.loss, first[1])
    if objective.validate is None:
        check_monitor(objective, names)
    check_same(
        lambda: {
            "FitConfig": config,
            "monitor": (objective.monitor, objective.mode),
            "parallel": parallel,
            "numbers of batches": tuple(map(len, sources)),
            "shapes of batches": [{n: np.shape(x) for n, x in b.items()} for b in first],
            "values of parameters": [fingerprint(model) for model in models],
            "hyperparameters": hyperparameters,
        }
    )
    take_folder(session, ends)
    state = ManyState.stack(
        [
            _with_hyperparameters(
                TrainState.create(*variables, objective.optimizer, names, config.loss_scale),
                None if hyperparameters is None else hyperparameters[r],
            )
            for r, variables in enumerate(states)
        ]
    )
    state = placement.state(state)
    record = begun = ManyRecord.begin(
        config, objective, len(sources[0]), batch_size, hyperparameters or [{}] * num_runs
    )
    if session.resume:
        state, restored = go_on(run_dir, state, begun)
        record = ManyRecord.of(restored)
    on_main(partial(record.write_metrics, run_dir))
    announce(f"Then start all processes again with the option resume: {run_dir}.")
    return ManyTrainer(
        objective=objective,
        config=config,
        session=session,
        graphdef=graphdef,
        loader=Loader(sources[0], placement, num_runs),
        train_step=make_many_step(
            graphdef,
            objective.loss,
            objective.optimizer,
            config.seed,
            num_runs,
            placement,
            alone,
            config.max_skipped_steps,
        ),
        validation=ManyValidation(
            objective,
            graphdef,
            Loader(sources[1], placement, num_runs, whole=True),
            make_many_evaluation(graphdef, objective.loss, placement),
        ),
        state=state,
        record=record,
        step=state.steps_done,
        stop=stop,
    )


def _check_numbers(num_runs: int, **given: Sequence[Any] | None) -> None:
    if num_runs < 1:
        raise ValueError("expected a model for each run, got none.")
    for name, values in given.items():
        if values is not None and len(values) != num_runs:
            raise ValueError(
                f"expected {name} of each of the {num_runs} runs that there are models of, got "
                f"{len(values)}."
            )


def _split_models(
    models: Sequence[nnx.Module],
) -> tuple[nnx.GraphDef[Any], list[tuple[nnx.State, nnx.State]]]:
    """The structure that all models have, and the variables of each."""
    graphdef, *first = split_model(models[0])
    states = [(first[0], first[1])]
    shapes = jax.tree.map(jnp.shape, first)
    for r, model in enumerate(models[1:], start=1):
        other, *variables = split_model(model)
        if other != graphdef or jax.tree.map(jnp.shape, variables) != shapes:
            raise ValueError(
                f"the models of runs 0 and {r} have other structures, shapes or settings; runs "
                "may differ in the values of their variables alone."
            )
        states.append((variables[0], variables[1]))
    return graphdef, states


def _with_hyperparameters(state: TrainState, values: Mapping[str, float] | None) -> TrainState:
    if not values:
        return state
    scheduled = {
        name
        for _, schedules in optax.tree.get_all_with_path(state.opt_state, "hyperparams_states")
        for name in schedules
    }
    opt_state = state.opt_state
    for name, value in values.items():
        if name in scheduled:
            raise OptionError(
                f"the optimizer's {name} follows a schedule, which would not keep {value}; make "
                "the optimizer with a number instead.",
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
