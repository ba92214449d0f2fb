"""The patch model's linear map as a ridge, and how much of what is learned is added to it."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, models
from flax_linattn.tasks.forecast.evaluate import compile_forecast, with_truth
from flax_linattn.tasks.forecast.model import Model
from flax_linattn.tasks.forecast.problem import ForecastProblem
from flax_linattn.tasks.forecast.yardsticks import fit_ridge
from flax_linattn.tasks.run_types import Run

ROUNDS = 100
"""Of least squares with bounds: a few are enough for two columns that are not nearly the same."""


def set_to_ridge(
    models_: Sequence[Model],
    train: data.Windows,
    validation: data.Windows,
    problem: ForecastProblem,
) -> None:
    """Sets the linear maps of new models to the ridge of their training rows.

    Args:
        models_: patch forecasters with a linear map.
        train: windows of the training rows, all of which it is fitted on, whatever their stride.
        validation: those that choose its strength.
        problem: what was learned of the data.
    """
    own = [model for model in models_ if isinstance(model, models.PatchForecaster)]
    horizon, context = own[0].horizon, own[0].context
    values = train.arrays["values"][:, list(problem.targets)]
    ridge = fit_ridge(values, train.rows, validation.rows, context, horizon, train.begins)
    kernel = np.zeros((context, horizon), np.float32)
    kernel[context - len(ridge.kernel) :] = ridge.kernel
    for model in own:
        assert model.linear_map is not None
        model.linear_map.kernel[...] = jnp.asarray(kernel, model.linear_map.kernel.dtype)


def best_shares(run: Run, validation: data.Windows) -> list[float]:
    """How much of what was learned beside a ridge has the least squared error on validation rows.

    The least squares of truth - linear path on what the attention adds, and on what is added of
    the columns that are known for the horizon, if there are any: one number each for all steps and
    channels, kept between 0 and 1. What does not hold on other rows has 0.

    Args:
        run: whose model adds to a fixed linear map, by whatever shares.
        validation: windows that its parameters were not trained on.

    Returns:
        One for each of ``shares_of``.
    """
    number = len(shares_of(run.model))
    of_linear, *of_each = (
        compile_forecast(_with_shares(run, shares))
        for shares in np.eye(number + 1, number, k=-1).tolist()
    )
    gram, product = np.zeros((number, number)), np.zeros(number)
    for batch, _, truth in with_truth(run, validation):
        linear = np.asarray(of_linear(batch), np.float64)[: len(truth)]
        known = ~np.isnan(truth)
        added = (
            np.stack([np.asarray(f(batch), np.float64)[: len(truth)][known] for f in of_each])
            - linear[known]
        )
        product += added @ (truth - linear)[known]
        gram += added @ added.T
    return least_squares(gram, product).tolist()


def least_squares(gram: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights between 0 and 1 of least squares, by one after the other.

    Args:
        gram: A'A [N, N].
        product: A'b [N].

    Returns:
        float64 [N]; 0 where a column of A is 0.

    Example:
        >>> least_squares(np.eye(3), np.array([-1.0, 0.25, 4.0])).tolist()
        [0.0, 0.25, 1.0]
    """
    weights = np.zeros(len(product))
    for _ in range(ROUNDS):
        for which, own in enumerate(np.diag(gram)):
            rest = product[which] - gram[which] @ weights + own * weights[which]
            weights[which] = np.clip(rest / own, 0, 1) if own else 0.0
    return weights


def shares_of(model: Model) -> list[models.Correction]:
    """Of the attention, and of the columns known for the horizon where there are any."""
    assert isinstance(model, models.PatchForecaster) and model.share is not None
    return [model.share, *([] if model.known_share is None else [model.known_share])]


def about_shares(shares: Sequence[float]) -> str:
    """What the validation rows chose, for those who saw the errors of training.

    Example:
        >>> about_shares([0.25])
        'the validation rows chose to add 0.25 of the attention to the ridge: the lines above ...'
    """
    of_each = zip(shares, ("the attention", "what the known columns tell"), strict=False)
    added = " and ".join(f"{share:.3g} of {what}" for share, what in of_each)
    return (
        f"the validation rows chose to add {added} to the ridge: the lines above have the errors "
        "with all of it, the report those with that share"
    )


def set_shares(model: Model, shares: Sequence[float]) -> None:
    """Sets those of ``shares_of``."""
    for own, share in zip(shares_of(model), shares, strict=True):
        own[...] = jnp.asarray(share, jnp.float32)


def _with_shares(run: Run, shares: Sequence[float]) -> Run:
    model = nnx.clone(run.model)
    set_shares(model, shares)
    return run._replace(model=model)
