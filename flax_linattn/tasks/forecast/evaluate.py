"""Trained forecasters: tested, and their streams compared with the parallel model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference
from flax_linattn.tasks.forecast.data import (
    checksum_of,
    load_data,
    make_windows,
    standardize,
    step_seconds,
)
from flax_linattn.tasks.forecast.metrics import Errors, seasonal_naive
from flax_linattn.tasks.forecast.model import predict
from flax_linattn.tasks.forecast.several import load_one_of
from flax_linattn.tasks.forecast.yardsticks import Ridge, fit_ridge
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.run import reading_data
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.yardsticks import Yardsticks
from flax_linattn.typing import Array


def ridge_alone(values: Mapping[str, Any]) -> str:
    """What a report has to say where calibration adds nothing of the attention to the ridge.

    Example:
        >>> ridge_alone({"attention_share": 0.0})
        "the attention adds nothing here: the forecasts are the ridge's"
        >>> ridge_alone({"attention_share": 0.3})
        ''
    """
    if values.get("attention_share") != 0:
        return ""
    known = " and what the known columns add" if values.get("known_share") else ""
    return f"the attention adds nothing here: the forecasts are the ridge's{known}"


YARDSTICKS = Yardsticks(
    "mse",
    ("naive", "seasonal_naive", "ridge"),
    title="MSE",
    num_train="num_train_windows",
    selected=("ridge",),
    remark=ridge_alone,
)

Forecast = Callable[[dict[str, NDArray], NDArray[np.int64]], NDArray]
"""Forecasts [N, H, targets] of windows [N, L + H, ...], and the last row that each knows [N]."""


def evaluate_forecaster(run: Run, windows: data.Windows) -> dict[str, Any]:
    """Tests a run on windows.

    Args:
        run: the run.
        windows: of the series scaled by the run's standardizer, in the order of time.

    Returns:
        With the option ``ridge`` ``attention_share``, how much of what the attention learned is
        added to the ridge, and ``known_share``, of what the known columns tell, where there are
        any. MSE, MAE and RMSE over all windows, steps and known targets, on
        standardised values and (``original_``) on those of the file. MSE and MAE on standardised
        values also as tables, ``by_step`` of the horizon and ``by_channel``, and as
        ``validation_mse`` and ``validation_mae`` of the run's validation rows, where the windows
        are of its test rows.
    """
    return facts_of(run, windows) | _evaluate({"test": model_forecast(run)}, run, windows)


def facts_of(run: Run, windows: data.Windows) -> dict[str, Any]:
    """What a report says of a run before its errors; see ``evaluate_forecaster``."""
    config, problem = run.config, run.problem
    channels = config.model.channel_mechanism
    return {
        "dataset": problem.dataset,
        "model": config.model.model,
        "mechanism": mechanism_name(config.layers),
        **({"channel_mechanism": channels} if channels else {}),
        "input_length": config.data.input_length,
        "horizon": config.data.horizon,
        "targets": ", ".join(problem.target_names),
        "num_test_windows": windows.num_examples,
        **_shares(run),
    }


def _shares(run: Run) -> dict[str, float]:
    """How much of what was learned is added to a ridge."""
    if not run.config.model.ridge:
        return {}
    shares = {"attention_share": run.model.share, "known_share": run.model.known_share}
    return {name: float(share[...]) for name, share in shares.items() if share is not None}


def evaluate_yardsticks(
    run: Run, windows: data.Windows, ridge: Ridge | None = None
) -> dict[str, Any]:
    """Errors of what a model has to beat, as ``evaluate_forecaster`` gives those of the model.

    Args:
        run: the run.
        windows: as there.
        ridge: that of the run's training rows, if at hand.

    Returns:
        Those of repeating the last observation ("naive") and the last season ("seasonal naive"),
        and of the ridge; on validation rows as ``<name>_validation_mse``.
    """
    report: dict[str, Any] = {}
    if ridge is not None:
        report["ridge_learned_from"] = ridge.num_windows
        report["num_train_windows"] = ridge.num_there
    return _evaluate(simple_forecasts(run, windows, ridge), run, windows) | report


def model_forecast(run: Run) -> Forecast:
    """The forecasts of a run's model from windows."""
    forecast = compile_forecast(run)
    return lambda batch, _: np.asarray(forecast(batch))


def simple_forecasts(
    run: Run, windows: data.Windows, ridge: Ridge | None = None
) -> dict[str, Forecast]:
    """The forecasts of the yardsticks by name, for windows of the same series as these."""
    options, targets = run.config.data, list(run.problem.targets)
    series = windows.arrays["values"][:, targets]

    def repeated(season: int) -> Forecast:
        return lambda _, last: seasonal_naive(series, last, options.horizon, season)

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
    return lambda batch, _: ridge(batch["values"][:, :length, targets])


def sum_errors(
    forecasts: Mapping[str, Forecast], run: Run, windows: data.Windows
) -> dict[str, Errors]:
    """The errors of forecasts, by their names, on standardised values.

    Args:
        forecasts: asked for all windows, in the order of time.
        run: the run.
        windows: of the series scaled by the run's standardizer, in the order of time.
    """
    errors = {name: Errors(len(run.problem.targets)) for name in forecasts}
    for batch, last, truth in with_truth(run, windows):
        for name, forecast in forecasts.items():
            errors[name].add(forecast(batch, last)[: len(truth)], truth)
    return errors


class Told(NamedTuple):
    """A batch of windows, and what came.

    Attributes:
        batch: the windows [B, L + H, ...], the real ones first.
        last: the last row that each knows [B].
        truth: the targets of the real ones [N, H, targets], NaN where they are not known.
    """

    batch: dict[str, NDArray]
    last: NDArray[np.int64]
    truth: NDArray


def with_truth(run: Run, windows: data.Windows) -> Iterator[Told]:
    """All batches of windows, in the order of time, with what came."""
    length, targets = run.config.data.input_length, list(run.problem.targets)
    for first, batch in zip(
        range(0, windows.num_examples, windows.batch_size), windows, strict=True
    ):
        real = batch["weight"] > 0
        truth = batch["values"][real][:, length:, targets]
        if "known" in batch:
            truth = np.where(batch["known"][real][:, length:, targets], truth, np.nan)
        starts = windows.starts[first : first + len(real)]
        last = np.pad(starts, (0, len(real) - len(starts)), "edge") + length - 1
        yield Told(batch, last, truth)


def _evaluate(forecasts: Mapping[str, Forecast], run: Run, windows: data.Windows) -> dict[str, Any]:
    """Errors by name and metric, tables, and the errors on validation rows."""
    errors = sum_errors(forecasts, run, windows)
    scale = run.problem.standardizer.std[list(run.problem.targets)]
    report: dict[str, Any] = {}
    for name, sums in errors.items():
        report |= {f"{name}_{key}": value for key, value in sums.metrics().items()}
        report |= {f"{name}_original_{k}": value for k, value in sums.metrics(scale).items()}
    held = validation_windows(run, windows)
    for name, sums in {} if held is None else sum_errors(forecasts, run, held).items():
        prefix = "" if name == "test" else f"{name}_"
        found = sums.metrics() if sums.num_known else {}
        report |= {f"{prefix}validation_{key}": found[key] for key in ("mse", "mae") if found}
    steps = range(1, run.config.data.horizon + 1)
    by_step = {name: sums.by_step() for name, sums in errors.items()}
    by_channel = {name: sums.by_channel() for name, sums in errors.items()}
    return report | {
        "by_step": _table("step", steps, by_step),
        "by_channel": _table("channel", run.problem.target_names, by_channel),
    }


def _table(
    what: str, keys: Iterable[Any], errors: Mapping[str, Mapping[str, NDArray]]
) -> list[dict[str, Any]]:
    """A row for each key: errors by name and metric."""
    columns = {
        f"{name}_{metric}": values.tolist()
        for name, metrics in errors.items()
        for metric, values in metrics.items()
    }
    return [
        {what: key, **{name: values[i] for name, values in columns.items()}}
        for i, key in enumerate(keys)
    ]


def validation_windows(run: Run, windows: data.Windows) -> data.Windows | None:
    """Those of the run's validation rows that select its parameters, in the same series.

    None where the windows are of another file: its rows are all tested from the first on, while
    those of a run's own test come after others.
    """
    _, validation, test = run.problem.split
    if windows.starts[0] + run.config.data.input_length != test[0]:
        return None
    stride = run.config.data.stride
    return make_windows(windows.arrays, run.config, range(*validation), seed=None, stride=stride)


def own_series(run: Run) -> data.TimeSeries:
    """The series that a run was trained and tested on.

    Raises:
        FileNotFoundError: the run's file is missing.
        ValueError: its rows have changed.
    """
    if run.data is not None:
        series: data.TimeSeries = run.data.series
        return series
    series, problem = load_series(run), run.problem
    if checksum_of(series, problem.split[-1][-1]) != problem.checksum:
        raise ValueError(f"the rows of {series.name} have changed since.")
    return series


def read_targets(run: Run) -> NDArray[np.float32]:
    """The targets [T, targets] of a run's rows, as the model sees them; see ``own_series``."""
    arrays = standardize(own_series(run), run.problem)
    return arrays["values"][:, list(run.problem.targets)]


def fitted_ridge(run: Run, targets: NDArray | None = None) -> Ridge:
    """The ridge of a run's training rows, its strength chosen on the validation rows.

    Args:
        run: the run.
        targets: of ``read_targets``; default read now.
    """
    targets = read_targets(run) if targets is None else targets
    train, validation, _ = (range(begin, end) for begin, end in run.problem.split)
    options = run.config.data
    return fit_ridge(targets, train, validation, options.input_length, options.horizon)


def compile_forecast(run: Run) -> Callable[[dict[str, NDArray]], Array]:
    """The forecasts [B, H, targets] of windows, as one compiled program."""
    outputs = compile_outputs(run)
    return (lambda batch: outputs(batch)[..., 0]) if run.config.model.levels else outputs


def compile_outputs(run: Run) -> Callable[[dict[str, NDArray]], Array]:
    """As ``compile_forecast``; of a run with quantiles these too, [B, H, targets, 1 + Q]."""
    return partial(_outputs, *nnx.split(run.model), run.config.data.input_length)


@partial(jax.jit, static_argnums=(0, 2))  # of many runs compiled once
def _outputs(
    graphdef: nnx.GraphDef[Any], variables: Any, input_length: int, batch: dict[str, Array]
) -> Array:
    model = nnx.merge(graphdef, variables)
    return predict(model, batch, input_length, jnp.array([input_length - 1]))[:, 0]


def load_series(run: Run, path: Path | None = None) -> data.TimeSeries:
    """A run's series, or another file's, with the run's channels.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a damaged file, or other channels or times than the run was trained on.
    """
    config = run.config if path is None else run.config.replace(csv=path)
    with reading_data(path is None):
        if config.data.several:
            series = load_one_of(config.data, run.problem)
        else:
            series = load_data(config.data, run.problem.channels)
            if config.data.csv is not None:  # for messages: which of many files of that name
                series = dataclasses.replace(series, name=str(config.data.csv))
    check_fits(run, series)
    return series


def check_fits(run: Run, series: data.TimeSeries) -> None:
    """Refuses a series of other times than a run was trained on.

    Raises:
        ValueError: its rows are further apart; or the run looks at times, and it has none, or has
            those of a clock where the run's are UTC, or the other way round.
    """
    told = tuple(dict.fromkeys((*run.problem.marks, *run.problem.calendar)))
    if told and series.times is None:
        raise ValueError(
            f"{series.name} has no times, from which the run took "
            f"{', '.join(told)}; give times in the first column."
        )
    if told and run.problem.utc is not None and series.utc != run.problem.utc:
        kinds = ("times with their offset from UTC", "times without an offset from UTC")
        expected_kind, got = kinds if run.problem.utc else kinds[::-1]
        raise ValueError(
            f"expected {expected_kind}, as those that the run was trained on, got {got} in "
            f"{series.name}; write them so."
        )
    seconds, expected = step_seconds(series), run.problem.step_seconds
    if seconds is None or expected is None or data.is_step(seconds, expected):
        return
    raise ValueError(
        f"expected rows {expected} seconds apart, as those that the run was "
        f"trained on, got {seconds} in {series.name}."
    )


def stream_error(run: Run, windows: data.Windows, most: int) -> dict[str, Any]:
    """The largest difference between forecasts of a stream and of the parallel model.

    Args:
        run: one that streams.
        windows: of the series scaled by the run's standardizer.
        most: rows to compare, from the first one that is forecast.
    """
    graphdef, variables = nnx.split(run.model)
    options, arrays = run.config.data, windows.arrays
    begin = int(windows.starts[0]) + options.input_length
    end = int(windows.starts[-1]) + options.input_length + options.horizon
    known = list(run.problem.known_inputs)
    end -= options.horizon if known else 0
    seen = [arrays[name] for name in ("values", "missing", "marks") if name in arrays]
    rows = slice(begin, min(begin + most, end))
    parts = [part[rows] for part in seen]
    if known:
        ahead = np.arange(rows.start, rows.stop)[:, None] + 1 + np.arange(options.horizon)
        parts.append(arrays["values"][ahead][..., known].reshape(len(ahead), -1))
    x = np.concatenate(parts, axis=-1)[None]
    return {
        "stream_max_error": float(_stream_error(graphdef, variables, x)),
        "stream_steps": x.shape[1],
    }


@partial(jax.jit, static_argnums=0)
def _stream_error(graphdef: nnx.GraphDef[Any], variables: Any, x: Array) -> Array:
    model = nnx.merge(graphdef, variables)
    return jnp.max(jnp.abs(model(x, every_step=True) - inference.unroll(model, x)))
