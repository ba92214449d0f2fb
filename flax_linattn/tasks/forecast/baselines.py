"""Baselines of a forecaster: last value, last season, ridge, and the attention added to it."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, models
from flax_linattn.tasks.forecast.model import Model
from flax_linattn.tasks.forecast.options import RidgeMaps
from flax_linattn.tasks.forecast.panel import SeriesPanel, own_panel
from flax_linattn.tasks.forecast.ridge import Ridge, fit_ridge
from flax_linattn.tasks.forecast.spec import PARTS, ForecastSpec
from flax_linattn.tasks.forecast.windows import Forecast, compile_forecast, part_windows, with_truth
from flax_linattn.tasks.spec import Run

FOLDS = 8
"""Parts of the validation rows, each of which chooses the weight of the attention."""
ROUNDS = 100
"""Rounds of coordinate descent; a few are enough for two columns that are not nearly collinear."""


def seasonal_naive(
    values: NDArray,
    last: NDArray[np.int64],
    horizon: int,
    season: int,
    first: NDArray[np.int64] | int = 0,
) -> NDArray:
    """Forecasts [N, H, C] that repeat the last season of values [T, C] up to rows ``last`` [N].

    If a series, which begins at row ``first`` [N], has no such row, its last observation is
    repeated.

    Example:
        >>> values = np.arange(5.0)[:, None]
        >>> seasonal_naive(values, np.array([3]), 3, season=2).ravel().tolist()
        [2.0, 3.0, 2.0]
        >>> seasonal_naive(values, np.array([3]), 3, season=1).ravel().tolist()
        [3.0, 3.0, 3.0]
    """
    ahead = np.arange(1, horizon + 1)
    row = last[:, None] + ahead - season * -(-ahead // season)
    return values[np.where(row >= np.reshape(first, (-1, 1)), row, last[:, None])]


def fitted_ridge(run: Run, panel: SeriesPanel | None = None) -> Ridge:
    """The ridge of a run's training rows, with strengths and maps chosen on the validation rows."""
    panel = own_panel(run) if panel is None else panel
    train, validation = part_windows(panel, run.config, run.data_spec, PARTS[:2])
    return fit_windows_ridge(train, validation, run.data_spec)


def fit_windows_ridge(
    train: data.Windows, validation: data.Windows, data_spec: ForecastSpec, maps: RidgeMaps = "auto"
) -> Ridge:
    """The ridge of the targets in training rows, whatever the stride of their windows."""
    values = train.arrays["values"][:, list(data_spec.targets)]
    rows = train.rows, validation.rows
    return fit_ridge(values, *rows, train.context_length, train.horizon, train.begins, maps)


def baseline_forecasts(
    run: Run, windows: data.Windows, ridge: Ridge | None = None
) -> dict[str, Forecast]:
    """The forecasts of the baselines by name, for windows of the same series as these."""
    options, targets = run.config.data, list(run.data_spec.targets)
    values, begins = windows.arrays["values"][:, targets], np.array(windows.begins)

    def repeated(season: int) -> Forecast:
        return lambda batch: seasonal_naive(
            values, batch.last, options.horizon, season, begins[batch.owners]
        )

    forecasts = {
        "naive": repeated(1),
        "seasonal_naive": repeated(options.season or run.data_spec.season),
    }
    if ridge is not None:
        forecasts["ridge"] = ridge_forecast(run, ridge)
    return forecasts


def ridge_forecast(run: Run, ridge: Ridge) -> Forecast:
    """The forecasts of a ridge from windows of a run."""
    length, targets = run.config.data.context_length, list(run.data_spec.targets)
    return lambda batch: ridge(batch.arrays["values"][:, :length, targets])


def set_to_ridge(models_: Sequence[Model], ridge: Ridge) -> None:
    """Sets the linear maps of new patch forecasters to a ridge."""
    for model in models_:
        assert isinstance(model, models.PatchForecaster) and model.linear_map is not None
        kernel = np.zeros(model.linear_map.kernel.shape, np.float32)
        kernel[..., model.context - ridge.kernel.shape[-2] :, :] = ridge.kernel
        model.linear_map.kernel[...] = jnp.asarray(kernel, model.linear_map.kernel.dtype)


def best_attention_weights(run: Run, validation: data.Windows) -> list[float]:
    """Weights of the attention and of known future covariates with the least validation error.

    The validation windows are cut into ``FOLDS`` consecutive parts. In each part, least squares
    regress truth - ridge on the output of the attention, and on that of the known future
    covariates, if there are any: one weight between 0 and 1 each, for all steps and channels. The
    result is the mean over the parts. A fit to all windows at once may depend on a single unusual
    part, and then give a weight of 0 or 1 that later rows do not support.
    """
    number = len(attention_weights(run.model))
    linear_path, *with_attention = (
        compile_forecast(_with_weights(run, weights))
        for weights in np.eye(number + 1, number, k=-1).tolist()
    )
    folds = np.arange(validation.num_examples) * FOLDS // validation.num_examples
    gram, product = np.zeros((FOLDS, number, number)), np.zeros((FOLDS, number))
    is_known, first = np.zeros(FOLDS, np.bool_), 0
    for arrays, *_, truth in with_truth(run, validation):
        linear = np.asarray(linear_path(arrays), np.float64)[: len(truth)]
        added = np.stack([np.asarray(f(arrays), np.float64)[: len(truth)] for f in with_attention])
        added -= linear
        fold_numbers = folds[first : first + len(truth)]
        first += len(truth)
        for fold in np.unique(fold_numbers).tolist():
            known = ~np.isnan(truth) & (fold_numbers == fold)[:, None, None]
            own = added[:, known]
            product[fold] += own @ (truth - linear)[known]
            gram[fold] += own @ own.T
            is_known[fold] |= bool(known.any())
    weights = [bounded_lstsq(gram[fold], product[fold]) for fold in np.flatnonzero(is_known)]
    return np.mean(weights, axis=0).tolist() if weights else [0.0] * number


def bounded_lstsq(gram: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights [N] between 0 and 1 of least squares with A'A and A'b, by coordinate descent.

    The weight of a column of zeros is 0.

    Example:
        >>> bounded_lstsq(np.eye(3), np.array([-1.0, 0.25, 4.0])).tolist()
        [0.0, 0.25, 1.0]
    """
    weights = np.zeros(len(product))
    for _ in range(ROUNDS):
        for which, own in enumerate(np.diag(gram)):
            rest = product[which] - gram[which] @ weights + own * weights[which]
            weights[which] = np.clip(rest / own, 0, 1) if own else 0.0
    return weights


def attention_weights(model: Model) -> list[models.FittedVariable]:
    """The weights of the attention, and of known future covariates where there are any."""
    assert isinstance(model, models.PatchForecaster) and model.share is not None
    return [model.share, *([] if model.known_share is None else [model.known_share])]


def set_attention_weights(model: Model, weights: Sequence[float]) -> None:
    """Sets the weights that ``attention_weights`` returns."""
    for own, weight in zip(attention_weights(model), weights, strict=True):
        own[...] = jnp.asarray(weight, jnp.float32)


def describe_attention_weights(weights: Sequence[float]) -> str:
    """A sentence on the weights that the validation rows chose, printed after training.

    Example:
        >>> describe_attention_weights([0.25])
        'the validation rows set the weight of the attention to 0.25, where 0 is the ridge ...'
    """
    names = ("the weight of the attention", "that of the known future covariates")
    chosen = [f"{name} to {weight:.3g}" for name, weight in zip(names, weights, strict=False)]
    return (
        f"the validation rows set {' and '.join(chosen)}, where 0 is the ridge alone; the errors "
        "printed during training are those at weight 1"
    )


def _with_weights(run: Run, weights: Sequence[float]) -> Run:
    model = nnx.clone(run.model)
    set_attention_weights(model, weights)
    return run._replace(model=model)
