"""Options of a forecasting run that its data choose: season, context, patches, maps and stride."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flax_linattn.models.layers import Layers
from flax_linattn.tasks.forecast.options import MIN_CONTEXT, ForecastConfig
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.ridge import MAX_INPUT, MIN_GAIN, fit_ridge
from flax_linattn.tasks.forecast.spec import ForecastSpec, describe
from flax_linattn.tasks.forecast.windows import stack

MULTIPLES = (1, 2, 4, 7, 14, 21)
"""Candidate context lengths, in seasons."""
PATCHES = 8
"""Number of patches of a context if ``patch_length`` is automatic."""
DEFAULT_SEASON = 24
"""Season in rows if none is known, or none fits into a context."""
MIN_CORRELATION = 0.3
"""Minimum autocorrelation at the lag of a season."""
OPERATIONS_PER_SECOND = 10**10
"""Assumed floating-point operations per second of training on one busy core."""


def choose(panel: SeriesPanel, config: ForecastConfig) -> tuple[ForecastConfig, list[str]]:
    """Replaces automatic options by numbers chosen from the data, and returns notes on them.

    - ``season`` is a lag of high autocorrelation in the training rows, if the frequency of the rows
      implies no season.
    - ``context_length`` is the shortest multiple of the season whose ridge has a validation error
      within 1 % of the smallest.
    - ``patch_length`` is an eighth of the context, so that a longer context has no more tokens.
    - ``ridge_maps`` come from ``fit_ridge``.
    - ``stride`` skips training windows if all of them would take longer than the time limit; the
      windows of long series overlap, and are nearly the same.
    """
    if not config.auto_options:
        return config, []
    data_spec = describe(panel, config)
    arrays, begins = stack(
        panel.series, [data_spec.select_series(one.name) for one in panel.series]
    )
    values = arrays["values"][:, list(data_spec.targets)]
    train, validation = (
        [
            range(begin + split[part].start, begin + split[part].stop)
            for begin, split in zip(begins, panel.splits, strict=True)
        ]
        for part in range(2)
    )
    notes: list[str] = []
    season = config.data.season or data_spec.season
    if config.data.season == 0 and season == 1:
        season = seasonal_lag([values[rows.start : rows.stop] for rows in train])
    config = config.replace(season=season)
    if config.data.context_length == 0:
        length = _best_context(values, train, validation, begins, config, season)
        config = config.replace(context_length=length)
        notes.append(f"context_length={length} was chosen on the validation rows (season {season})")
    length, horizon = config.data.context_length, config.data.horizon
    if config.model.patch_length == 0:
        config = config.replace(patch_length=max(MIN_CONTEXT, length // PATCHES))
    if config.model.ridge_maps == "auto":
        ridge = fit_ridge(values, train, validation, length, horizon, begins, "auto")
        config = config.replace(ridge_maps=ridge.maps)
    if config.data.stride == 0:
        counts = [max(len(rows) - length - horizon + 1, 0) for rows in train]
        stride = _affordable_stride(sum(counts), data_spec, config)
        config = config.replace(stride=stride)
        if stride > 1:
            notes.append(
                f"training uses one window in {stride} to end within the time limit of "
                f"{config.fit.time_limit:g} s; stride=1 uses all windows"
            )
    return config, notes


def seasonal_lag(rows: Sequence[NDArray]) -> int:
    """The season as a lag of high mean autocorrelation over series [T, C]; 1 if there is none.

    The season is the shortest lag at a peak of at least four fifths of the highest peak, since a
    multiple of a season correlates, too. Autocorrelation is that of first differences, which a
    trend does not hide.

    Example:
        >>> seasonal_lag([np.sin(2 * np.pi * np.arange(300.0) / 12)[:, None]])
        12
        >>> seasonal_lag([np.random.default_rng(0).normal(size=(300, 1))])
        1
    """
    max_lag = min(MAX_INPUT // 2, max((len(one) - 1 for one in rows), default=0) // 3)
    total, weight = np.zeros(max_lag + 2), 0
    for one in rows:
        changes = np.diff(one.astype(np.float64), axis=0)
        changes -= changes.mean(axis=0) if len(changes) else 0.0
        if len(changes) < 3 * max_lag or not changes.any():
            continue
        size = 2 ** math.ceil(math.log2(2 * len(changes)))
        power = np.square(np.abs(np.fft.rfft(changes, size, axis=0)))
        products = np.fft.irfft(power, size, axis=0)[: max_lag + 2]
        changing = products[0] > 0
        total += np.sum(products[:, changing] / products[0, changing], axis=1)
        weight += int(changing.sum())
    if max_lag < 3 or not weight:
        return 1
    mean = total / weight
    inner = mean[1:-1]
    peaks = (inner > mean[:-2]) & (inner >= mean[2:]) & (inner >= MIN_CORRELATION)
    peaks[0] = False  # lag 1
    if not peaks.any():
        return 1
    return 1 + int(np.argmax(peaks & (inner >= 0.8 * inner[peaks].max())))


def context_candidates(season: int, max_length: int) -> list[int]:
    """Context lengths to compare: multiples of a season up to ``max_length``.

    Example:
        >>> context_candidates(24, 400), context_candidates(7, 100), context_candidates(1440, 400)
        ([24, 48, 96, 168, 336], [28, 49, 98], [24, 48, 96, 168, 336])
    """
    base = season if 1 < season <= min(max_length, MAX_INPUT) else DEFAULT_SEASON
    lengths = [base * multiple for multiple in MULTIPLES]
    return [length for length in lengths if MIN_CONTEXT <= length <= min(max_length, MAX_INPUT)]


def _best_context(
    values: NDArray,
    train: Sequence[range],
    validation: Sequence[range],
    begins: Sequence[int],
    config: ForecastConfig,
    season: int,
) -> int:
    """The shortest context whose ridge is within ``MIN_GAIN`` of the best on validation rows."""
    horizon = config.data.horizon
    # A series with windows of a short context must not lose them, and a third of the training
    # rows leaves at least twice as many windows as the map has rows.
    usable = [len(rows) for rows in train if len(rows) > MIN_CONTEXT + horizon]
    lengths = context_candidates(season, (min(usable) - horizon) // 3) if usable else []
    if not lengths:
        shortest = min((len(rows) - horizon for rows in train if len(rows) > horizon), default=1)
        return max(1, min(MIN_CONTEXT, shortest // 2))
    errors = [
        fit_ridge(values, train, validation, length, horizon, begins).validation_error
        for length in lengths
    ]
    enough = (1 + MIN_GAIN) * min(errors)
    return next(length for length, error in zip(lengths, errors, strict=True) if error <= enough)


def _affordable_stride(num_windows: int, data_spec: ForecastSpec, config: ForecastConfig) -> int:
    """The smallest stride whose training takes about half of the time limit.

    It depends on sizes alone, so that the same options train on the same windows anywhere.
    """
    fit, limit = config.fit, config.fit.time_limit
    if not limit or fit.by_steps:
        return 1
    tokens, patch = config.data.context_length, config.model.patch_length
    if config.model.model == "patch":
        tokens = len(data_spec.targets) * -(-tokens // patch)
    operations = fit.epochs * fit.runs * num_windows * tokens * _operations(config.layers)
    max_stride = max(1, num_windows // fit.batch_size)
    return min(max_stride, max(1, math.ceil(operations / (limit / 2 * OPERATIONS_PER_SECOND))))


def _operations(layers: Layers) -> int:
    """Floating-point operations to train on one token: six for each weight of the layers."""
    hidden = layers.hidden_features or 4 * layers.features
    return 6 * layers.num_layers * layers.features * (4 * layers.features + 2 * hidden)
