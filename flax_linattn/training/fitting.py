"""Training a model, from the first step or from the last checkpoint."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

from flax import nnx

from flax_linattn.training.batches import Splits
from flax_linattn.training.checkpoint.folder import list_checkpoints
from flax_linattn.training.checkpoint.read import load_best
from flax_linattn.training.config import FitConfig
from flax_linattn.training.objective import Objective
from flax_linattn.training.processes import together
from flax_linattn.training.session import Session
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.start import start


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a finished run came to.

    Args:
        best_epoch: The epoch of the selected parameters, counted from 1.
        best_step: The training steps done then.
        best_value: Their monitored validation metric.
        best_checkpoint: The folder they were read from.
        epochs: Finished passes over the training batches.
        steps: Training steps done.
        stopped_early: Whether patience ran out before the last step.
        history: The lines of metrics.jsonl, one dict for each validation.
    """

    best_epoch: int
    best_step: int
    best_value: float
    best_checkpoint: Path
    epochs: int
    steps: int
    stopped_early: bool
    history: tuple[dict[str, Any], ...]


def fit(
    model: nnx.Module,
    objective: Objective,
    splits: Splits,
    *,
    config: FitConfig,
    session: Session,
) -> FitResult:
    """Trains a model, and leaves the best parameters in it.

    After each epoch, or every ``config.validate_every`` steps, the model is validated, and a line
    is added to ``metrics.jsonl`` in the run folder. The parameters with the best monitored
    validation metric are selected; a tie counts as better, so that of equal ones the last are
    selected and patience starts anew (as in the Time-Series-Library's ``EarlyStopping``).
    Checkpoints hold everything that the rest of the run depends on: with ``resume=True`` a run goes
    on from the newest one that is intact, also in the middle of an epoch, and ends in the same bits
    as if it had never stopped. A finished run goes on, too, if it is given more epochs or steps; a
    validation after its former last step, where there would have been none, stays in the history.

    SIGINT (Ctrl-C) and SIGTERM let the current step finish, save a checkpoint and raise
    ``Interrupted``. If training fails or is interrupted, the model passed in is left as it was.

    Args:
        model: The model. Only its ``nnx.Param`` variables are trained; what its forward pass does
            to other variables (batch statistics) is kept.
        objective: Loss, optimizer, and what selects the best parameters.
        splits: The batches to train on and to validate by.
        config: Length, validations and saving.
        session: The run folder, and how to train in it.

    Returns:
        The selected step, its value and the history.

    Raises:
        ValueError: If there are no batches, the monitored metric is not reported, or by the loss
            function and ``validate`` both, the run folder holds a run and ``resume`` is False, the
            run to resume is a different one, another process works in the folder, or processes were
            given different things.
        TypeError: If a source of batches is none, or ``validate`` returns no numbers.
        FileNotFoundError: If there is nothing to resume.
        NonFiniteLossError: If the loss, a gradient, a parameter or the monitored metric becomes NaN
            or infinite.
        OSError: If a checkpoint cannot be written.
        LostProcessError: If another process of the run is lost, or could not write.
        Interrupted: After a SIGINT or SIGTERM, with the run saved.

    Example:
        >>> import tempfile, jax.numpy as jnp, numpy as np, optax
        >>> from flax_linattn.data import Batches
        >>> x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
        >>> batches = Batches({"x": x, "y": 3 * x}, batch_size=4, seed=0)
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean((model(batch["x"]) - batch["y"]) ** 2), {}
        >>> def slope(model, step):
        ...     return {"slope_error": abs(float(model.kernel[0, 0]) - 3)}
        >>> objective = Objective(loss_fn, optax.sgd(0.5), monitor="slope_error", validate=slope)
        >>> objective = Objective(loss_fn, optax.sgd(0.5), monitor="slope_error", validate=slope)
        >>> model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     result = fit(model, objective, Splits(batches, batches),
        ...                  config=FitConfig(epochs=9), session=Session(run_dir, progress=False))
        >>> result.epochs, result.steps, round(float(model.kernel[0, 0]), 2)
        (9, 36, 3.0)
    """
    check_batches(splits)
    with ExitStack() as ends:
        ends.enter_context(together(partial(how_to_go_on, session.run_dir)))
        with StopRequest() as stop:
            trainer = start(model, objective, splits, config, session, stop, ends)
            trainer.train()
        best_checkpoint = load_best(model, session.run_dir)
    record = trainer.record
    return FitResult(
        best_epoch=cast(int, record.best_epoch),
        best_step=cast(int, record.best_step),
        best_value=cast(float, record.best_value),
        best_checkpoint=best_checkpoint,
        epochs=record.epochs_done,
        steps=trainer.step,
        stopped_early=record.validated_steps < config.total_steps(len(splits.train)),
        history=tuple(record.history),
    )


def check_batches(splits: Splits) -> None:
    """Refuses what is no source of batches, or has none."""
    sources = splits.train, splits.validation
    for source in sources:
        if not hasattr(source, "batch") or not hasattr(source, "__len__"):
            raise TypeError(
                "expected batches with len() and batch(step), such as data.Batches, got "
                f"{type(source).__name__}; data.IteratorBatches makes them of a generator."
            )
    if not all(map(len, sources)):
        raise ValueError(
            f"There are {len(splits.train)} training and {len(splits.validation)} validation "
            "batches; both must have at least one. Check the data set and its split."
        )


def how_to_go_on(run_dir: str | Path) -> str:
    """What to do after a process of several was lost."""
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        return "Nothing was saved yet: start all processes again."
    last = checkpoints[-1].path
    return f"Start all processes again with the option resume, to go on from {last}."
