"""Windows of a run's series, and the model's forecasts from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError
from flax_linattn.data.series.transforms import FarValueError
from flax_linattn.data.tables.time_index import continue_index
from flax_linattn.tasks.forecast.model import forecast_windows
from flax_linattn.tasks.forecast.options import ForecastConfig
from flax_linattn.tasks.forecast.panel import SeriesPanel, count_series, read_run_series, row_notes
from flax_linattn.tasks.forecast.spec import PARTS, ForecastSpec
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array


def standardize(series: data.TimeSeries, data_spec: ForecastSpec) -> dict[str, NDArray]:
    """The arrays of a series that a model receives.

    ``values``, float32 [T, inputs]: the channels, in which a missing value repeats the last known
    one, or the training mean if there is none; after them the circles of the calendar. ``known``,
    bool [T, inputs], if any value is missing. ``missing``, float32 [T, inputs], 1 = missing, for a
    model with missing-value flags. ``time_features``, if the model receives any.
    """
    filled = series.fill_forward(data_spec.standardizer.mean)
    try:
        (values,) = data_spec.standardizer.apply([filled.values], series.channels)
    except FarValueError as far:
        raise ValueError(f"{series.name}, {series.place(far.step)}: {far}") from None
    values, missing = values.astype(np.float32), np.isnan(series.values)
    if data_spec.calendar:
        assert series.times is not None
        circles = data.calendar_circles(series.times, data_spec.calendar)
        values = np.concatenate([values, circles], axis=1)
        missing = np.concatenate([missing, np.zeros(circles.shape, np.bool_)], axis=1)
    arrays: dict[str, NDArray] = {"values": values}
    if series.num_missing:
        arrays["known"] = ~missing
    if data_spec.missing_flags:
        arrays["missing"] = missing.astype(np.float32)
    if data_spec.time_features:
        assert series.times is not None and data_spec.freq is not None
        arrays["time_features"], _ = data.calendar_features(series.times, data_spec.freq)
    return arrays


class PanelWindows(data.Windows):
    """Windows of the series of a panel, each scaled by its own training rows; see ``stack``.

    The rows of ``parts``, in which horizons lie, are counted from the first row of each series.
    """

    def __init__(
        self,
        data_specs: Sequence[ForecastSpec],
        arrays: dict[str, NDArray],
        parts: Sequence[range],
        config: ForecastConfig,
        *,
        seed: int | None = None,
        stride: int = 1,
        begins: Sequence[int] = (0,),
    ) -> None:
        self.data_specs, self.parts = tuple(data_specs), tuple(parts)
        super().__init__(
            arrays,
            [range(b + part.start, b + part.stop) for b, part in zip(begins, parts, strict=True)],
            context_length=config.data.context_length,
            horizon=config.data.horizon,
            stride=stride,
            batch_size=config.fit.batch_size,
            seed=seed,
            begins=begins,
        )


def stack(
    series: Sequence[data.TimeSeries], data_specs: Sequence[ForecastSpec]
) -> tuple[dict[str, NDArray], list[int]]:
    """Concatenates the standardized arrays of series; also returns the first row of each."""
    of_each = [standardize(one, own) for one, own in zip(series, data_specs, strict=True)]
    if any("known" in arrays for arrays in of_each):
        for arrays in of_each:
            arrays.setdefault("known", np.ones(arrays["values"].shape, np.bool_))
    joined = {name: np.concatenate([a[name] for a in of_each]) for name in of_each[0]}
    begins = np.cumsum([0, *(one.num_steps for one in series)])[:-1]
    return joined, begins.tolist()


def part_windows(
    panel: SeriesPanel,
    config: ForecastConfig,
    data_spec: ForecastSpec,
    parts: Sequence[str] = PARTS,
) -> Iterator[PanelWindows]:
    """Windows whose horizons lie in each part; training windows come in random order."""
    data_specs = [data_spec.select_series(one.name) for one in panel.series]
    arrays, begins = stack(panel.series, data_specs)
    for part in parts:
        rows = [split[PARTS.index(part)] for split in panel.splits]
        seed = config.seed if part == "training" else None
        stride = config.data.stride if part == "training" else 1
        yield PanelWindows(
            data_specs, arrays, rows, config, seed=seed, stride=stride, begins=begins
        )


def file_windows(run: Run, file: Path) -> PanelWindows:
    """Windows of all rows of another file.

    A series of the run has its training scale. An unknown series is scaled by its first
    ``context_length`` rows, which no window forecasts.
    """
    series, length = read_run_series(run, file), run.config.data.context_length
    data_specs = [run.data_spec.for_series(one, length) for one in series]
    arrays, begins = stack(series, data_specs)
    rows = [range(one.num_steps) for one in series]
    return PanelWindows(data_specs, arrays, rows, run.config, begins=begins)


def validation_windows(run: Run, windows: PanelWindows) -> PanelWindows | None:
    """The windows of a run's validation rows, for the series of its test windows.

    None if the given windows are from another file instead of the run's test rows.
    """
    splits = [data_spec.parts for data_spec in windows.data_specs]
    if windows.parts != tuple(split.test for split in splits):
        return None
    return PanelWindows(
        windows.data_specs,
        windows.arrays,
        [split.validation for split in splits],
        run.config,
        begins=windows.begins,
    )


class WindowBatch(NamedTuple):
    """A batch of windows [B, L + H, ...] with their true values; padding windows come last.

    ``last`` [B] is the last row of each context, ``owners`` [B] the index of the series, and
    ``truth`` [N, H, targets] the true values of the N real windows, NaN where not known.
    """

    arrays: dict[str, NDArray]
    last: NDArray[np.int64]
    owners: NDArray[np.int64]
    truth: NDArray


def with_truth(run: Run, windows: data.Windows) -> Iterator[WindowBatch]:
    """Iterates over all batches of windows in the order of time, with their true values."""
    length, targets = run.config.data.context_length, list(run.data_spec.targets)
    firsts = range(0, windows.num_examples, windows.batch_size)
    for first, batch in zip(firsts, windows, strict=True):
        real = batch["weight"] > 0
        truth = batch["values"][real][:, length:, targets]
        if "known" in batch:
            truth = np.where(batch["known"][real][:, length:, targets], truth, np.nan)
        examples = slice(first, first + len(real))
        missing = (0, len(real) - len(truth))
        last = np.pad(windows.starts[examples], missing, "edge") + length - 1
        yield WindowBatch(batch, last, np.pad(windows.owners[examples], missing, "edge"), truth)


Forecast = Callable[[WindowBatch], NDArray]
"""Forecasts [B, H, targets] of a batch of windows, on standardized values."""


def model_forecast(run: Run) -> Forecast:
    """The forecasts of a run's model from windows."""
    forecast = compile_forecast(run)
    return lambda batch: np.asarray(forecast(batch.arrays))


def compile_forecast(run: Run) -> Callable[[dict[str, NDArray]], Array]:
    """A compiled function from the arrays of a batch to its forecasts [B, H, targets]."""
    outputs = compile_outputs(run)
    return (lambda batch: outputs(batch)[..., 0]) if run.config.model.levels else outputs


def compile_outputs(run: Run) -> Callable[[dict[str, NDArray]], Array]:
    """As ``compile_forecast``, with quantiles [B, H, targets, 1 + Q] for a run that has them."""
    return partial(_outputs, *nnx.split(run.model), run.config.data.context_length)


@partial(jax.jit, static_argnums=(0, 2))  # compiled once for many runs
def _outputs(
    graphdef: nnx.GraphDef[Any], variables: Any, context_length: int, batch: dict[str, Array]
) -> Array:
    model = nnx.merge(graphdef, variables)
    return forecast_windows(model, batch, context_length, jnp.array([context_length - 1]))[:, 0]


class HorizonForecast(NamedTuple):
    """A forecast of the rows after a series, in its units: float64 [H, targets, 1 + Q].

    The mean comes first, then any quantiles. The index is None if a single row has no frequency.
    """

    row_index: pd.Index | None
    values: NDArray[np.float64]


def rows_after(run: Run, series: data.TimeSeries) -> pd.Index | None:
    """The index of the horizon after a series; None if a single row has no frequency."""
    options, data_spec = run.config.data, run.data_spec
    freq = data_spec.freq if options.freq else data_spec.infer_freq(series)
    if series.times is not None and freq is None:
        return None
    return continue_index(series.index, freq, options.horizon)


def forecast_each(
    run: Run,
    series: Sequence[data.TimeSeries],
    future: Sequence[Mapping[str, NDArray[np.float64]]] | None = None,
) -> tuple[dict[int, HorizonForecast], str]:
    """The forecasts after each series, by its position, and a note on excluded series, or "".

    Series with fewer rows than the context length are excluded, unless all series are that short.
    A series that the run does not know is scaled by all its rows.
    """
    length = run.config.data.context_length
    short = [one.name for one in series if one.num_steps < length]
    note = ""
    if short := short if len(short) < len(series) else []:
        note = (
            f"no forecast for {count_series(short)}, because a forecast needs {length} rows (the "
            "context length)"
        )
    ahead = {}
    for place, one in enumerate(series):
        if one.num_steps >= length or not short:
            own = run._replace(data_spec=run.data_spec.for_series(one))
            ahead[place] = forecast_after(own, one, None if future is None else future[place])
    return ahead, note


def forecast_after(
    run: Run, series: data.TimeSeries, future: Mapping[str, NDArray[np.float64]] | None = None
) -> HorizonForecast:
    """The forecast from the last row of a series that has the data spec of the run.

    ``future`` has the known future covariates, float64 [H] by name; a static one that is missing
    repeats its last value. By default the last H rows of the series hold them.
    """
    data_spec, options = run.data_spec, run.config.data
    length, horizon = options.context_length, options.horizon
    whole = series  # with the rows of the horizon
    if data_spec.known_future and future is None:
        series = _observed(data_spec, whole, horizon)
    stop = series.num_steps
    if stop < length:
        raise OptionError(
            f"{series.name}: expected at least {length} rows (the context length of the run), got "
            f"{stop}; add earlier rows, or continue a stream from a saved state.",
            "test_file",
        )
    index = rows_after(run, series)
    if whole is series:
        whole = _extended(series, index, horizon)
        if future is not None:
            filled = series.fill_forward(data_spec.standardizer.mean).values[-1]
            for which in data_spec.known_future:
                ahead = future.get(series.channels[which], filled[which])
                whole.values[stop:, which] = ahead
    rows, names = slice(stop - length, stop + horizon), ("values", "missing", "time_features")
    arrays = standardize(whole, data_spec)
    batch = {name: arrays[name][None, rows] for name in names if name in arrays}
    (outputs,) = np.asarray(compile_outputs(run)(batch), np.float64)
    if np.isnan(outputs).any():
        raise ValueError(
            f"{series.name}: the forecast is NaN, because the model overflows or its parameters "
            "hold NaN; check the values of the series, or train the run again."
        )
    values = data_spec.in_units(outputs)
    return HorizonForecast(index, values if values.ndim == 3 else values[..., None])


def context_notes(run: Run, series: data.TimeSeries, has_horizon: bool = True) -> list[str]:
    """Notes on the context of the forecast after a series, and on the rows of the horizon.

    Args:
        run: The trained run.
        series: Series of the history.
        has_horizon: Whether the last rows of the series hold known future covariates, if the run
            has any.
    """
    data_spec, options = run.data_spec, run.config.data
    has_horizon = has_horizon and bool(data_spec.known_future)
    observed = _observed(data_spec, series, options.horizon) if has_horizon else series
    stop = observed.num_steps
    horizon = series.values[stop:][: options.horizon]
    missing = [
        data_spec.channels[which]
        for which in data_spec.known_future
        if which not in data_spec.static and np.isnan(horizon[:, which]).any()
    ]
    notes = row_notes(observed, max(stop - options.context_length, 0))
    return [*notes, *horizon_notes({name: [series.name] for name in missing})]


def horizon_notes(missing: Mapping[str, Sequence[str]], of_panel: bool = False) -> list[str]:
    """Notes on known future covariates with missing values in the horizon of some series."""
    return [
        f"{name!r} has missing values in the horizon"
        + (f" of {count_series(series)}" if of_panel else "")
        + ", which are replaced by the last known value"
        for name, series in missing.items()
    ]


def num_observed(series: data.TimeSeries, targets: Sequence[int]) -> int:
    """Number of rows up to the last one with a value of a target."""
    observed = ~np.isnan(series.values[:, list(targets)]).all(axis=1)
    return int(np.flatnonzero(observed)[-1]) + 1 if observed.any() else 0


def _observed(data_spec: ForecastSpec, series: data.TimeSeries, horizon: int) -> data.TimeSeries:
    """The rows before the horizon, whose own rows hold only known future covariates."""
    stop = num_observed(series, data_spec.targets)
    if series.num_steps - stop < horizon:
        names = ", ".join(data_spec.channels[which] for which in data_spec.known_future)
        raise OptionError(
            f"{series.name}: expected {horizon} rows of the horizon at the end, with values of "
            f"{names} and empty cells of {', '.join(data_spec.target_names)}, got "
            f"{series.num_steps - stop}; add these rows.",
            "test_file",
        )
    return series.take(slice(stop))


def _extended(series: data.TimeSeries, index: pd.Index | None, horizon: int) -> data.TimeSeries:
    """Appends the rows of the horizon to a series, with missing values."""
    values = np.concatenate([series.values, np.full((horizon, len(series.channels)), np.nan)])
    if index is not None:
        index = series.index.append(index)
    return dataclasses.replace(series, values=values, index=index, lines=None)
