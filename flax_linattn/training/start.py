"""The beginning of a session: a new run, or one that goes on."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn.checkpoint.arrays import CorruptCheckpointError, fingerprint
from flax_linattn.training.batches import Splits
from flax_linattn.training.checkpoint.folder import (
    check_folder,
    list_checkpoints,
    read_progress,
)
from flax_linattn.training.checkpoint.read import restore_latest, set_aside_damaged
from flax_linattn.training.config import FitConfig
from flax_linattn.training.evaluation import make_evaluation_step, metric_names
from flax_linattn.training.loader import Loader
from flax_linattn.training.objective import Objective
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.processes import announce, check_same, check_shared, on_main
from flax_linattn.training.record import RunRecord
from flax_linattn.training.session import Session
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import Saved, TrainState, split_model
from flax_linattn.training.train_step import make_train_step
from flax_linattn.training.trainer import Trainer
from flax_linattn.training.validation import Validation, check_monitor

S = TypeVar("S", bound=Saved)


def start(
    model: nnx.Module,
    objective: Objective,
    splits: Splits,
    config: FitConfig,
    session: Session,
    stop: StopRequest,
    ends: ExitStack,
) -> Trainer:
    """Makes the run folder ready, or reads it, and compiles nothing yet.

    Args:
        model: As in ``fit``.
        objective: As in ``fit``.
        splits: As in ``fit``.
        config: As in ``fit``.
        session: As in ``fit``.
        stop: Whether a signal came.
        ends: Until its end the run folder is held.

    Raises:
        ValueError: As ``fit``.
        FileNotFoundError: If there is nothing to resume.
    """
    run_dir = Path(session.run_dir)
    parallel = Parallel() if session.parallel is None else session.parallel
    sources = splits.train, splits.validation
    first = [source.batch(0) for source in sources]
    check_same(
        lambda: {
            "FitConfig": config,
            "monitor": (objective.monitor, objective.mode),
            "parallel": parallel,
            "numbers of batches": tuple(map(len, sources)),
            "shapes of batches": [{n: np.shape(x) for n, x in b.items()} for b in first],
            "shapes of parameters": jax.tree.map(jnp.shape, nnx.state(model)),
            "values of parameters": fingerprint(model),
        }
    )
    sizes = [len(next(iter(batch.values()))) for batch in first]
    placement = parallel.place(*sizes)
    names = metric_names(model, objective.loss, first[1])
    if objective.validate is None:  # else its names are known after the first validation
        check_monitor(objective, names)
    take_folder(session, ends)
    graphdef, params, model_state = split_model(model)
    state = placement.state(
        TrainState.create(params, model_state, objective.optimizer, names, config.loss_scale)
    )
    record = begun = RunRecord.start(config, objective, len(splits.train), sizes[0])
    if session.resume:
        state, record = go_on(run_dir, state, begun)
    on_main(partial(record.write_metrics, run_dir))
    announce(f"Then start all processes again with the option resume: {run_dir}.")
    return Trainer(
        objective=objective,
        config=config,
        session=session,
        graphdef=graphdef,
        loader=Loader(splits.train, placement, sizes[0]),
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
            Loader(splits.validation, placement, sizes[1], whole=True),
            make_evaluation_step(graphdef, objective.loss, placement),
        ),
        state=state,
        record=record,
        step=state.steps_done,
        stop=stop,
    )


def take_folder(session: Session, ends: ExitStack) -> None:
    """Holds the run folder until the end, if a session may train in it.

    Raises:
        ValueError: It may not.
        FileNotFoundError: There is nothing to resume.
    """
    check = partial(check_folder, session.run_dir, resume=session.resume)
    on_main(check)
    ends.enter_context(session.holding())
    on_main(check)  # as it is by now
    check_shared(Path(session.run_dir))


def go_on(run_dir: Path, state: S, begun: RunRecord) -> tuple[S, RunRecord]:
    """The state and the record of the newest checkpoint that is intact.

    Args:
        run_dir: The run folder.
        state: One of the same structure.
        begun: The record that a new run would have: it has to be the same run.

    Raises:
        ValueError: It is another run, or no checkpoint can be read.
    """
    on_main(partial(set_aside_damaged, run_dir))
    for newest in list_checkpoints(run_dir)[-1:]:  # before arrays of other shapes are read
        with suppress(CorruptCheckpointError):  # none is intact, which is told below
            RunRecord(**read_progress(newest.path)["record"]).check_same_runs(begun)
    state, record = restore_latest(run_dir, state)
    record.check_same_run(begun)
    return state, record
