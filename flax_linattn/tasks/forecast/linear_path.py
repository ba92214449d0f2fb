"""The patch model's linear map as a ridge, and how much the attention adds to it."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import data, models
from flax_linattn.tasks.forecast.evaluate import compile_forecast, with_truth
from flax_linattn.tasks.forecast.model import Model
from flax_linattn.tasks.forecast.problem import ForecastProblem
from flax_linattn.tasks.forecast.yardsticks import fit_ridge
from flax_linattn.tasks.run_types import Run


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


def best_share(run: Run, validation: data.Windows) -> float:
    """How much of what the attention adds has the least squared error on validation windows.

    The least squares of truth - linear path on what is added, one number for all steps and
    channels, kept between 0 and 1. Where the attention learned nothing that holds on other rows it
    is 0, and the forecast that of the ridge, and of the columns that are known for the horizon.

    Args:
        run: whose model adds to a fixed linear map, by whatever share.
        validation: windows that its parameters were not trained on.
    """
    of_linear, of_both = (compile_forecast(_with_share(run, share)) for share in (0.0, 1.0))
    product, square = 0.0, 0.0
    for batch, _, truth in with_truth(run, validation):
        linear = np.asarray(of_linear(batch), np.float64)[: len(truth)]
        added = np.asarray(of_both(batch), np.float64)[: len(truth)] - linear
        known = ~np.isnan(truth)
        product += float(np.sum(added * (truth - linear), where=known))
        square += float(np.sum(np.square(added), where=known))
    return float(np.clip(product / square, 0, 1)) if square else 0.0


def _with_share(run: Run, share: float) -> Run:
    model = nnx.clone(run.model)
    model.share[...] = jnp.asarray(share, jnp.float32)
    return run._replace(model=model)
