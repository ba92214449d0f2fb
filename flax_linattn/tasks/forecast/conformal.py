"""Quantiles corrected by the errors on held-out rows: conformal prediction.

Where windows were exchangeable, a corrected level would hold in the mean over calibration sets,
whatever the model. Those of a time series are not: neighbours overlap, and what comes later may
differ. Nor are they quite new to the model: validation rows chose its epoch, and the share of the
attention beside a ridge. So it is a correction, and no guarantee.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.forecast.evaluate import Forecast, compile_outputs, with_truth
from flax_linattn.tasks.run_types import Run

MOST = 2**26
"""Most errors that are looked at; of more every second window, every third, ..."""


def offsets(errors: NDArray, level: float) -> NDArray:
    """What to add to forecasts so that a share of truths, the level, lies below.

    Of n errors and one to come that is exchangeable with them, the latter is at most the one of
    rank ceil((n + 1) level) with a probability of at least the level; a level below one half is
    taken from above so: Romano, Patterson and Candes, "Conformalized Quantile Regression", 2019,
    theorem 2, which corrects the two ends of an interval by themselves. Departure: where there are
    too few errors for such a rank, the outermost one stands in place of infinity.

    Args:
        errors: float [n, ...], truth - forecast; NaN = not known.
        level: between 0 and 1.

    Returns:
        float [...]; 0 where no error is known.

    Example:
        >>> errors = np.arange(1.0, 10.0)
        >>> [float(offsets(errors, level)) for level in (0.1, 0.5, 0.9, 0.99)]
        [1.0, 5.0, 9.0, 9.0]
    """
    count = np.sum(~np.isnan(errors), axis=0)
    beyond = max(level, 1 - level)
    rank = np.ceil((count + 1) * beyond - 1e-9).astype(np.int64)
    rank = rank if level >= 0.5 else count + 1 - rank
    place = np.clip(rank, 1, np.maximum(count, 1)) - 1
    ordered = np.sort(errors, axis=0)  # NaN comes last
    found = np.take_along_axis(ordered, place[None], axis=0)[0]
    return np.where(count > 0, found, 0.0)


def errors_on(
    run: Run,
    windows: data.Windows,
    forecast: Forecast,
) -> NDArray[np.float32]:
    """Truth - forecast [n, H, targets, Q] on windows; NaN where the truth is not known.

    Args:
        run: the run.
        windows: of its series.
        forecast: gives [B, H, targets, Q] of a batch and the last row that each window knows.
    """
    found, first, stride = [], 0, 1
    for batch, last, truth in with_truth(run, windows):
        errors = truth[..., None] - forecast(batch, last)[: len(truth)]
        stride = -(-windows.num_examples * errors[0].size // MOST)
        found.append(errors[-first % stride :: stride].astype(np.float32))
        first += len(truth)
    return np.concatenate(found)


def corrections(run: Run, windows: data.Windows) -> NDArray[np.float32]:
    """What calibration on windows adds to a run's quantiles: [H, targets, Q].

    Each level of each step and target by itself, on standardised values.

    Args:
        run: a run with quantiles.
        windows: of rows that it was not trained on.
    """
    outputs = compile_outputs(run)
    errors = errors_on(run, windows, lambda batch, _: np.asarray(outputs(batch))[..., 1:])
    levels = run.config.model.levels
    of_each = [offsets(errors[..., which], level) for which, level in enumerate(levels)]
    return np.stack(of_each, axis=-1).astype(np.float32)
