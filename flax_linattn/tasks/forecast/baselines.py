"""Baselines of a forecaster: the last value, the last season, a ridge, and what is added to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, models
from flax_linattn.tasks.forecast.model import Model
from flax_linattn.tasks.forecast.panel import SeriesPanel, own_panel
from flax_linattn.tasks.forecast.spec import PARTS, ForecastSpec
from flax_linattn.tasks.forecast.windows import Forecast, compile_forecast, part_windows, with_truth
from flax_linattn.tasks.spec import Run

MAX_PRODUCTS = 10**11
"""Limit on multiplications to fit the map: some ten seconds of a core."""
MAX_INPUT = 1024
"""Limit on the rows of its input; of a longer one the last rows."""
BLOCK = 2**23
"""Limit on the numbers that are made float64 at once."""
STRENGTHS = np.logspace(-4, 1, 11)
"""Of the ridge, in mean eigenvalues of its Gram matrix."""
ROUNDS = 100
"""Of least squares with bounds: a few are enough for two columns that are not nearly the same."""


def seasonal_naive(
    values: NDArray,
    last: NDArray[np.int64],
    horizon: int,
    season: int,
    first: NDArray[np.int64] | int = 0,
) -> NDArray:
    """Repeats the last season; with a season of one row, the last observation.

    Where the series begins too late to know the season, the last observation is repeated.

    Args:
        values: the series [T, C].
        last: the last row of each context [N].
        horizon: H.
        season: rows of a season.
        first: the first row of the series of each context [N].

    Returns:
        Forecasts [N, H, C].

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


class Ridge(NamedTuple):
    """One linear map of a channel's past to its future, for all channels, fitted by ridge.

    The last value of a window is subtracted before, and added again after, as in NLinear (Zeng et
    al., Are Transformers Effective for Time Series Forecasting?, 2023).

    Attributes:
        kernel: the map [L, H], float64.
        num_windows: windows of one channel that it was fitted on.
        num_there: windows of one channel that there were.
    """

    kernel: NDArray[np.float64]
    num_windows: int
    num_there: int

    def __call__(self, context: NDArray) -> NDArray[np.float64]:
        """Forecasts [N, H, C] from contexts [N, rows, C]."""
        last = context[:, -1:].astype(np.float64)
        past = context[:, -len(self.kernel) :] - last
        return np.einsum("nlc,lh->nhc", past, self.kernel, optimize=True) + last


def fit_ridge(
    values: NDArray,
    train: Sequence[range],
    validation: Sequence[range],
    input_length: int,
    horizon: int,
    begins: Sequence[int] = (0,),
) -> Ridge:
    """Fits the map to all windows of the training rows and all channels.

    Its strength is that of the least square error on windows of the validation rows. Where there
    are so many windows that it would take long, it learns from every second, third, ...

    Args:
        values: the series [T, C], one after the other, as the model receives them: standardized,
            missing values filled.
        train: of each series, the rows that the windows' horizons lie in.
        validation: likewise, those that choose the strength.
        input_length: rows of the model's context.
        horizon: rows to forecast.
        begins: the first row of each series.

    Raises:
        ValueError: there is no window of these rows.

    Example:
        >>> wave = np.sin(np.arange(200.0) / 3)[:, None]
        >>> ridge = fit_ridge(wave, [range(120)], [range(120, 160)], 12, 4)
        >>> bool(np.abs(ridge(wave[None, 160:172]) - wave[172:176]).max() < 0.01)
        True
    """
    length = min(input_length, MAX_INPUT)
    gram, cross, _, *counts = _products(values, train, begins, input_length, length, horizon)
    val_gram, val_cross, val_square, *_ = _products(
        values, validation, begins, input_length, length, horizon
    )
    eigenvalues, vectors = np.linalg.eigh(gram)
    projected = vectors.T @ cross
    unit = max(np.trace(gram) / length, np.finfo(np.float64).tiny)

    def kernel(strength: float) -> NDArray[np.float64]:
        shrunk = projected / (np.maximum(eigenvalues, 0) + strength * unit)[:, None]
        return vectors @ shrunk

    def error(candidate: NDArray) -> float:
        return val_square - float(np.sum(candidate * (2 * val_cross - val_gram @ candidate)))

    return Ridge(min(map(kernel, STRENGTHS), key=error), *counts)


class _Products(NamedTuple):
    gram: NDArray[np.float64]  # [L, L], of the past with itself
    cross: NDArray[np.float64]  # [L, H], of past and future
    square: float  # of the future
    num_windows: int  # of a channel, that were taken
    num_there: int


def _products(
    values: NDArray,
    rows: Sequence[range],
    begins: Sequence[int],
    input_length: int,
    length: int,
    horizon: int,
) -> _Products:
    """Sums over windows of the last ``length`` rows of input and the horizon."""
    gram, cross, square = np.zeros((length, length)), np.zeros((length, horizon)), 0.0
    spans = []
    for begin, part in zip(begins, rows, strict=True):
        first = max(part.start - input_length, begin) + input_length - length
        if part.stop - first >= length + horizon:
            spans.append((first, part.stop))
    counts = [stop - first - length - horizon + 1 for first, stop in spans]
    count = sum(counts)
    if not spans:
        rows_of = f"rows {rows[0].start} to {rows[0].stop - 1}" if len(rows) == 1 else "the rows"
        raise ValueError(
            f"{rows_of} have no window of input_length={input_length} "
            f"and horizon={horizon}; give more rows, or a shorter window."
        )
    stride = max(1, -(-(values.shape[1] * count * length * (length + horizon)) // MAX_PRODUCTS))
    for first, stop in spans:
        for past, future in _windows(values[first:stop], length, horizon, stride):
            gram += past.T @ past
            cross += past.T @ future
            square += float(np.sum(np.square(future)))
    taken = sum(len(range(0, windows, stride)) for windows in counts)
    return _Products(gram, cross, square, taken, count)


def _windows(
    values: NDArray, length: int, horizon: int, stride: int
) -> Iterator[tuple[NDArray, NDArray]]:
    """Past [N, L] and future [N, H] of windows of a channel, less their last known value."""
    height = max(1, BLOCK // (length + horizon))
    for channel in values.T:
        windows = np.lib.stride_tricks.sliding_window_view(channel, length + horizon)[::stride]
        for begin in range(0, len(windows), height):
            block = windows[begin : begin + height].astype(np.float64)
            block -= block[:, length - 1 : length].copy()
            yield block[:, :length], block[:, length:]


def fitted_ridge(run: Run, panel: SeriesPanel | None = None) -> Ridge:
    """The ridge of a run's training rows, its strength chosen on the validation rows.

    Args:
        run: the run.
        panel: its series; default read now, see ``own_panel``.
    """
    panel = own_panel(run) if panel is None else panel
    train, validation = part_windows(panel, run.config, run.problem, PARTS[:2])
    return ridge_of(train, validation, run.problem)


def ridge_of(train: data.Windows, validation: data.Windows, problem: ForecastSpec) -> Ridge:
    """The ridge of the targets in training rows, whatever the stride of their windows.

    Args:
        train: windows of the training rows.
        validation: those of the same series that choose its strength.
        problem: what was learned of the data.
    """
    values = train.arrays["values"][:, list(problem.targets)]
    rows = train.rows, validation.rows
    return fit_ridge(values, *rows, train.input_length, train.horizon, train.begins)


def baseline_forecasts(
    run: Run, windows: data.Windows, ridge: Ridge | None = None
) -> dict[str, Forecast]:
    """The forecasts of the baselines by name, for windows of the same series as these."""
    options, targets = run.config.data, list(run.problem.targets)
    values, begins = windows.arrays["values"][:, targets], np.array(windows.begins)

    def repeated(season: int) -> Forecast:
        return lambda batch: seasonal_naive(
            values, batch.last, options.horizon, season, begins[batch.owners]
        )

    forecasts = {
        "naive": repeated(1),
        "seasonal_naive": repeated(options.season or run.problem.season),
    }
    if ridge is not None:
        forecasts["ridge"] = ridge_forecast(run, ridge)
    return forecasts


def ridge_forecast(run: Run, ridge: Ridge) -> Forecast:
    """The forecasts of a ridge from windows of a run."""
    length, targets = run.config.data.input_length, list(run.problem.targets)
    return lambda batch: ridge(batch.arrays["values"][:, :length, targets])


def set_to_ridge(models_: Sequence[Model], ridge: Ridge) -> None:
    """Sets the linear maps of new patch forecasters to a ridge."""
    for model in models_:
        assert isinstance(model, models.PatchForecaster) and model.linear_map is not None
        kernel = np.zeros((model.context, model.horizon), np.float32)
        kernel[model.context - len(ridge.kernel) :] = ridge.kernel
        model.linear_map.kernel[...] = jnp.asarray(kernel, model.linear_map.kernel.dtype)


def best_shares(run: Run, validation: data.Windows) -> list[float]:
    """How much of what was learned beside a ridge has the least squared error on validation rows.

    The least squares of truth - linear path on what the attention adds, and on what known future
    covariates add, if there are any: one number each for all steps and channels, between 0 and 1.

    Args:
        run: whose model adds to a fixed linear map.
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
    for arrays, *_, truth in with_truth(run, validation):
        linear = np.asarray(of_linear(arrays), np.float64)[: len(truth)]
        known = ~np.isnan(truth)
        added = (
            np.stack([np.asarray(f(arrays), np.float64)[: len(truth)][known] for f in of_each])
            - linear[known]
        )
        product += added @ (truth - linear)[known]
        gram += added @ added.T
    return least_squares(gram, product).tolist()


def least_squares(gram: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights between 0 and 1 of least squares, by coordinate descent.

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
    """The weights of the attention, and of known future covariates where there are any."""
    assert isinstance(model, models.PatchForecaster) and model.share is not None
    return [model.share, *([] if model.known_share is None else [model.known_share])]


def set_shares(model: Model, shares: Sequence[float]) -> None:
    """Sets those of ``shares_of``."""
    for own, share in zip(shares_of(model), shares, strict=True):
        own[...] = jnp.asarray(share, jnp.float32)


def about_shares(shares: Sequence[float]) -> str:
    """What the validation rows chose, next to the errors that training printed.

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


def _with_shares(run: Run, shares: Sequence[float]) -> Run:
    model = nnx.clone(run.model)
    set_shares(model, shares)
    return run._replace(model=model)
