"""Forecasting: the next values of a series, from a CSV of the user's own or the embedded ETTh1."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference, models, ops, training
from flax_linattn.tasks.forecast_figure import draw_windows
from flax_linattn.tasks.forecast_metrics import Errors, seasonal_naive
from flax_linattn.tasks.runs import (
    RunConfig,
    as_name,
    fingerprint,
    keep_problem,
    reading_problem,
    write_json,
)
from flax_linattn.training.processes import is_main, on_main
from flax_linattn.typing import Array

Model = models.Forecaster | models.EncoderDecoder
_OPTIONS_OF = {
    "decoder": ("norm", "positions"),
    "encoder-decoder": ("label_length", "num_decoder_layers", "causal"),
}


@dataclasses.dataclass(frozen=True)
class ForecastConfig(RunConfig):
    """Everything that a forecasting run depends on.

    Attributes:
        csv: a table with a row a time, times in the first column or none (.csv, .txt, .tsf; .gz and
            .xz too); default the embedded ETTh1.
        header: whether the first line names the columns; "auto" looks at it.
        channels: the columns to read, separated by commas; default all.
        targets: those of them to forecast; default all.
        split: training, validation and test, in the order of time: shares of all rows or numbers of
            rows. Default 0.7/0.1/0.2, and for ETTh1 the customary 8640/2880/2880.
        input_length: rows that a forecast sees.
        horizon: rows to forecast.
        calendar: whether the model sees hour, weekday and the like, where rows have times.
        normalize: whether each input is normalised by its own mean and standard deviation.
        model: "decoder" forecasts after every observation, and streams; "encoder-decoder" is
            Time-Series-Library's transformer.
        mechanism: the attention mechanism, by name; its hyperparameters may follow, as in
            elementwise_series:order=2.
        label_length: rows that the decoder of the encoder-decoder sees.
        causal: whether the encoder sees only the past.
        features: width of the model.
        num_layers: transformer blocks; of the encoder, if there are both.
        num_decoder_layers: blocks of the decoder of the encoder-decoder.
        num_heads: attention heads.
        hidden_features: width of the feed-forward layers.
        dropout_rate: share of features dropped in training.
        norm: LayerNorm before ("pre") or after ("post") each sublayer's residual.
        positions: most observations of a window that the decoder learns to forecast from.
        stride: rows from one training or validation window to the next; 1 takes all, and a long
            series, whose windows overlap, loses little by a few. The test takes all.
        epochs: most passes over the training windows.
        patience: epochs without improvement before stopping.
        batch_size: windows a step.
        learning_rate: of Adam.
        schedule: "constant", or "halving" after the second epoch and each that follows, as
            Time-Series-Library has it.
        season: rows of a season for the seasonal naive forecast; 0 = a day of rows closer than a
            day, a week of daily ones, a year of others.
        dtype: of the computation; parameters, sums and losses stay float32.
        seed: of initialisation, order and dropout.
    """

    task: ClassVar[str] = "forecast"

    csv: Path | None = None
    header: Literal["auto", "yes", "no"] = "auto"
    channels: str = ""
    targets: str = ""
    split: str = ""
    input_length: int = 96
    horizon: int = 96
    calendar: bool = True
    normalize: bool = True
    model: Literal["decoder", "encoder-decoder"] = "decoder"
    mechanism: str = "aaren"
    label_length: int = 48
    causal: bool = True
    features: int = 64
    num_layers: int = 2
    num_decoder_layers: int = 1
    num_heads: int = 8
    hidden_features: int = 128
    dropout_rate: float = 0.1
    norm: Literal["pre", "post"] = "post"
    positions: int = 8
    stride: int = 1
    epochs: int = 10
    patience: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-3
    schedule: Literal["constant", "halving"] = "halving"
    season: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("input_length", "horizon", "label_length", "positions", "stride", "epochs")
        for name in (*counts, "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.season < 0:
            raise ValueError(f"season must be at least 0, got {self.season}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}.")
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}.")
        if self.model == "encoder-decoder" and self.label_length > self.input_length:
            raise ValueError(
                f"label_length ({self.label_length}) must be at most input_length "
                f"({self.input_length})."
            )
        other = "encoder-decoder" if self.model == "decoder" else "decoder"
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in _OPTIONS_OF[other]:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{name} is an option of --model {other}; leave it out.")

    @property
    def name(self) -> str:
        """A name for the run folder."""
        dataset = "etth1" if self.csv is None else self.csv.name.split(".")[0]
        return as_name(dataset, self.model, self.mechanism, self.horizon, self.seed)

    def resolve(self) -> ForecastConfig:
        """Makes paths absolute and fills in the default split."""
        split = self.split or ("8640/2880/2880" if self.csv is None else "0.7/0.1/0.2")
        return dataclasses.replace(super().resolve(), split=split)


@dataclasses.dataclass(frozen=True)
class ForecastProblem:
    """What the training data say: kept in the run folder so that a run needs no training data.

    Attributes:
        dataset: its name.
        channels: names of the observed channels.
        targets: indices of those that are forecast.
        step_seconds: time between rows; None if rows have no times.
        marks: names of the calendar features.
        standardizer: mean and standard deviation a channel, of the training rows.
        split: the rows of each part, [begin, end) of training, validation and test.
        fingerprint: a checksum of those rows.
    """

    dataset: str
    channels: tuple[str, ...]
    targets: tuple[int, ...]
    step_seconds: float | None
    marks: tuple[str, ...]
    standardizer: data.Standardizer
    split: tuple[tuple[int, int], ...]
    fingerprint: str

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the channels that are forecast."""
        return tuple(self.channels[index] for index in self.targets)

    @property
    def season(self) -> int:
        """Rows of a day, of a week of daily rows, or of a year; 1 if rows have no times."""
        day = 86400.0
        for least, season in ((7 * day, 365.25 * day), (day, 7 * day), (0.0, day)):
            if self.step_seconds is not None and self.step_seconds >= least:
                return max(1, round(season / self.step_seconds))
        return 1

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **dataclasses.asdict(self),
            "standardizer": json.loads(self.standardizer.to_json()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ForecastProblem:
        """Back from ``to_json``."""
        standardizer = data.Standardizer.from_json(json.dumps(values["standardizer"]))
        lists = {name: tuple(values[name]) for name in ("channels", "targets", "marks")}
        lists["split"] = tuple((begin, end) for begin, end in values["split"])
        return cls(**{**values, **lists, "standardizer": standardizer})


class ForecastRun(NamedTuple):
    """A trained run, loaded from its folder.

    Attributes:
        model: with the selected parameters.
        config: what the run was started with, resolved.
        problem: what it learned of the data.
    """

    model: Model
    config: ForecastConfig
    problem: ForecastProblem


def build_model(
    config: ForecastConfig,
    problem: ForecastProblem,
    placement: training.Placement = training.ONE_DEVICE,
) -> Model:
    """The freshly initialised model of a run.

    Args:
        config: the run's options.
        problem: what it learned of the data.
        placement: the devices that it is to compute on.

    Raises:
        ValueError: an option that the model does not take.
    """
    try:
        mechanism = ops.get_mechanism(config.mechanism)
    except TypeError as error:  # in a configuration a hyperparameter is a value
        raise ValueError(str(error)) from None
    shared: dict[str, Any] = {
        "num_marks": len(problem.marks),
        "targets": problem.targets,
        "normalize": config.normalize,
        "features": config.features,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "hidden_features": config.hidden_features,
        "mechanism": placement.mechanism(mechanism),
        "dropout_rate": config.dropout_rate,
        "dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype),
        "rngs": nnx.Rngs(config.seed),
    }
    if config.model == "decoder":
        return models.Forecaster(
            len(problem.channels),
            config.horizon,
            memory=config.input_length,
            norm=config.norm,
            max_length=config.input_length,
            **shared,
        )
    return models.EncoderDecoder(
        len(problem.channels),
        config.horizon,
        label_length=config.label_length,
        num_decoder_layers=config.num_decoder_layers,
        is_causal=config.causal,
        **shared,
    )


@dataclasses.dataclass(frozen=True)
class ForecastLoss:
    """Mean square error of forecasts, as ``training.fit`` takes it; the metrics add mean absolute.

    In training a decoder forecasts from several observations of a window, evenly spread from a
    random one on; in validation from the last one, as the others always do.

    Args:
        input_length: rows of a window before its horizon.
        horizon: H.
        targets: the channels that are forecast.
        positions: observations to learn from.
    """

    input_length: int
    horizon: int
    targets: tuple[int, ...]
    positions: int

    def __call__(
        self, model: Model, batch: dict[str, Array], dropout_key: Array | None
    ) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        """The loss, and (sum, weight) of the metrics."""
        last = jnp.array([self.input_length - 1])
        if dropout_key is not None and isinstance(model, models.Forecaster):
            dropout_key, key = jax.random.split(dropout_key)
            stride = self.input_length // self.positions
            begin = jax.random.randint(key, (), 0, stride)
            last = self.input_length - 1 - begin - stride * jnp.arange(self.positions)
        forecasts = predict(model, batch, self.input_length, last, dropout_key)
        future = last[:, None] + 1 + jnp.arange(self.horizon)
        truth = batch["values"][:, future][..., jnp.array(self.targets)]
        errors = (forecasts - truth).reshape(truth.shape[0], -1)
        weight = batch["weight"]
        count = jnp.sum(weight)
        square = jnp.sum(jnp.mean(jnp.square(errors), axis=1) * weight)
        absolute = jnp.sum(jnp.mean(jnp.abs(errors), axis=1) * weight)
        return square / count, {"mse": (square, count), "mae": (absolute, count)}


def predict(
    model: Model,
    batch: dict[str, Array],
    input_length: int,
    positions: Array,
    dropout_key: Array | None = None,
) -> Array:
    """Forecasts [B, P, H, targets] of windows, from each of these observations.

    An encoder-decoder forecasts from the last one only.
    """
    values, marks = batch["values"], batch.get("marks")
    seen = values[:, :input_length]
    if isinstance(model, models.EncoderDecoder):
        return model(seen, marks, dropout_key=dropout_key)[:, None]
    if marks is not None:
        seen = jnp.concatenate([seen, marks[:, :input_length]], axis=-1)
    forecasts: Array = model(seen, positions=positions, dropout_key=dropout_key)
    return forecasts


def train_forecaster(
    config: ForecastConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    parallel: training.Parallel | None = None,
    trackers: Sequence[training.Tracker] = (),
    profile_steps: int = 0,
) -> dict[str, Any]:
    """Trains, selects on validation data and tests a forecaster; all goes to the run folder.

    Args:
        config: the run's options.
        run_dir: the run folder: config.json, problem.json, metrics.jsonl, checkpoints,
            learning_curve.png, test.json, forecasts.png.
        resume: go on where the run in that folder stopped.
        progress: show a progress bar.
        parallel: the devices, and what is split over them; default all that divide the batch.
        trackers: take in the run's numbers, see ``training.fit``.
        profile_steps: how many steps to trace, see ``training.fit``.

    Returns:
        What test.json holds: see ``evaluate_forecaster``.

    Raises:
        ValueError: bad options or data; a run folder that is taken; options that differ from
            those of the run to resume.
        FileNotFoundError: the data file, or on ``resume`` the run, is missing.
        training.NonFiniteLossError: the loss was not finite.
        training.Interrupted: a signal came; the run was saved.
    """
    config = config.resolve()
    parallel = training.Parallel() if parallel is None else parallel
    placement = parallel.place(config.batch_size)
    if placement.spans > 1:
        raise ValueError("forecasting runs do not split sequences; leave seq out of the mesh.")
    config.check_run_dir(run_dir, resume)
    series = load_data(config)
    split = data.chronological_split(series.num_steps, config.split)
    problem = describe(series, split, config)
    model = build_model(config, problem, placement)
    windows = partial(make_windows, standardize(series, problem), config)
    train_windows = windows(split.train, seed=config.seed, stride=config.stride)
    validation_windows = windows(split.validation, seed=None, stride=config.stride)
    test_windows = windows(split.test, seed=None)
    if progress and is_main():
        print(_about(series, problem, split), file=sys.stderr)
        if isinstance(model, models.Forecaster):
            width = len(problem.channels) + len(problem.marks)
            observation = jax.ShapeDtypeStruct((1, width), jnp.float32)
            print(inference.summarize(model, observation), f"\non {placement}", file=sys.stderr)

    def write_options() -> None:
        keep_problem(run_dir, problem.to_json(), resume)
        config.write(run_dir)

    on_main(write_options)
    result = training.fit(
        model,
        make_loss(config, problem),
        optax.adam(learning_rate(config, len(train_windows))),
        train_windows,
        validation_windows,
        config=training.FitConfig(
            epochs=config.epochs, patience=config.patience, monitor="mse", seed=config.seed
        ),
        run_dir=run_dir,
        resume=resume,
        progress=progress,
        parallel=parallel,
        trackers=trackers,
        profile_steps=profile_steps,
    )
    run = ForecastRun(model, config, problem)
    report = evaluate_forecaster(run, test_windows)
    report |= {
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "train_seconds": round(sum(line["seconds"] for line in result.history), 1),
    }
    on_main(partial(write_json, run_dir / "test.json", report))
    if is_main() and training.learning_curve(run_dir) is not None:
        draw_forecasts(run, test_windows, run_dir / "forecasts.png")
    return report


def evaluate_forecaster(run: ForecastRun, windows: data.Windows) -> dict[str, Any]:
    """Tests a run on windows, beside the naive forecasts.

    Args:
        run: the run.
        windows: of the series scaled by the run's standardizer, in the order of time.

    Returns:
        MSE, MAE and RMSE over all windows, steps and targets, of the model, of repeating the last
        observation ("naive") and of repeating the last season ("seasonal naive"), on standardised
        values and (``original_``) on those of the file.
    """
    config, problem = run.config, run.problem
    forecast = compile_forecast(run)
    targets = list(problem.targets)
    scale = problem.standardizer.std[targets]
    seasons = {"naive": 1, "seasonal_naive": config.season or problem.season}
    series = windows.arrays["values"][:, targets]
    found = {name: Errors(len(targets)) for name in ("model", "naive", "seasonal_naive")}
    for first, batch in zip(
        range(0, windows.num_examples, config.batch_size), windows, strict=True
    ):
        real = batch["weight"] > 0
        truth = batch["values"][real][:, config.input_length :, targets]
        last = windows.starts[first : first + len(truth)] + config.input_length - 1
        found["model"].add(np.asarray(forecast(batch))[real], truth)
        for name, season in seasons.items():
            found[name].add(seasonal_naive(series, last, config.horizon, season), truth)
    report: dict[str, Any] = {
        "dataset": problem.dataset,
        "model": config.model,
        "mechanism": config.mechanism,
        "input_length": config.input_length,
        "horizon": config.horizon,
        "targets": ", ".join(problem.target_names),
        "num_test_windows": windows.num_examples,
    }
    for name, errors in found.items():
        prefix = "test" if name == "model" else name
        report |= {f"{prefix}_{key}": value for key, value in errors.metrics().items()}
        original = errors.metrics(scale).items()
        report |= {f"{prefix}_original_{key}": value for key, value in original}
    return report


def compile_forecast(run: ForecastRun) -> Callable[[dict[str, NDArray]], Array]:
    """The forecasts [B, H, targets] of windows, as one compiled program."""
    graphdef, variables = nnx.split(run.model)
    last = jnp.array([run.config.input_length - 1])

    @jax.jit
    def forecast(variables: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, variables)
        return predict(model, batch, run.config.input_length, last)[:, 0]

    return partial(forecast, variables)


def evaluate_run(run_dir: Path, test_file: Path | None = None) -> dict[str, Any]:
    """Tests a run on its test rows, or on all of another file.

    Where the model streams, ``stream_max_error`` is the largest difference, on standardised values,
    between the forecasts after each of the first 300 test rows (of a window, with a mechanism
    whose state grows) from a stream and from the parallel model.

    Args:
        run_dir: the run folder.
        test_file: a table with the run's channels.

    Raises:
        FileNotFoundError: the run or the file is missing.
        ValueError: damaged files, or other channels; the run's own file has changed.
    """
    run = load_forecaster(run_dir)
    series = load_series(run, test_file)
    rows = range(series.num_steps)
    if test_file is None:
        rows = range(*run.problem.split[-1])
        if _fingerprint(series, rows.stop) != run.problem.fingerprint:
            raise ValueError(
                f"the data of the run have changed since ({run.config.csv}, {series.num_steps} "
                "rows); give other data with --test-file."
            )
    windows = make_windows(standardize(series, run.problem), run.config, rows, seed=None)
    report = evaluate_forecaster(run, windows)
    if isinstance(run.model, models.Forecaster) and run.model.backbone.streams:
        most = 300
        if not run.model.backbone.mechanism.capabilities.constant_memory:
            most = run.config.input_length
        report |= _compare_stream(run.model, windows.arrays, rows[:most])
    return report


def load_series(run: ForecastRun, path: Path | None = None) -> data.TimeSeries:
    """A run's series, or another file's, with the run's channels.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a damaged file, or other channels or times than the run was trained on.
    """
    config = run.config if path is None else dataclasses.replace(run.config, csv=path)
    series = load_data(dataclasses.replace(config, channels="")).select(run.problem.channels)
    if run.problem.marks and series.times is None:
        raise ValueError(
            f"{path} has no times, from which the run took {', '.join(run.problem.marks)}; give "
            "times in the first column."
        )
    seconds = _step_seconds(series)
    if seconds is not None and seconds != run.problem.step_seconds:
        raise ValueError(
            f"expected rows {run.problem.step_seconds} seconds apart, as those that the run was "
            f"trained on, got {seconds} in {path}."
        )
    return series


def _compare_stream(
    model: models.Forecaster, arrays: dict[str, NDArray], rows: range
) -> dict[str, Any]:
    graphdef, variables = nnx.split(model)
    x = np.concatenate(list(arrays.values()), axis=-1)[rows.start : rows.stop][None]

    @jax.jit
    def error(variables: Any, x: Array) -> Array:
        model = nnx.merge(graphdef, variables)
        return jnp.max(jnp.abs(model(x, every_step=True) - inference.unroll(model, x)))

    return {"stream_max_error": float(error(variables, x)), "stream_steps": x.shape[1]}


def draw_forecasts(run: ForecastRun, windows: data.Windows, path: Path, count: int = 3) -> None:
    """Draws some forecasts, evenly spread over the windows, to a PNG file, in the file's units.

    Raises:
        ValueError: matplotlib is not installed.
    """
    config, targets = run.config, list(run.problem.targets)
    chosen = np.linspace(0, windows.num_examples - 1, count).astype(int)
    batch = windows.take(chosen)
    forecasts = np.asarray(compile_forecast(run)(batch))
    scale = run.problem.standardizer.std[targets], run.problem.standardizer.mean[targets]
    values = batch["values"][:, :, targets]
    drawn = [
        (
            seen[: config.input_length] * scale[0] + scale[1],
            seen[config.input_length :] * scale[0] + scale[1],
            forecast * scale[0] + scale[1],
        )
        for seen, forecast in zip(values, forecasts, strict=True)
    ]
    titles = [f"from row {windows.starts[index] + config.input_length}" for index in chosen]
    draw_windows(drawn, run.problem.target_names, path, titles)


def make_loss(config: ForecastConfig, problem: ForecastProblem) -> ForecastLoss:
    """The loss of a run."""
    return ForecastLoss(
        config.input_length,
        config.horizon,
        problem.targets,
        positions=min(config.positions, config.input_length),
    )


def load_data(config: ForecastConfig) -> data.TimeSeries:
    """The series of a run, its channels chosen.

    Raises:
        ValueError: a damaged file, or an unknown channel.
        FileNotFoundError: there is no such file.
    """
    if config.csv is None:
        series = data.etth1()
    else:
        header = {"auto": None, "yes": True, "no": False}[config.header]
        series = data.load_series(config.csv, header=header)
    if config.channels:
        series = series.select([name.strip() for name in config.channels.split(",")])
    return series


def describe(series: data.TimeSeries, split: data.Split, config: ForecastConfig) -> ForecastProblem:
    """What a run has to know of its data; scales are those of the training rows.

    Raises:
        ValueError: an unknown target, or training rows without values.
    """
    names = [name.strip() for name in config.targets.split(",")] if config.targets else None
    targets = series.channels if names is None else series.select(names).channels
    marks: list[str] = []
    if config.calendar and series.times is not None and series.step is not None:
        _, marks = data.calendar_features(series.times[:1], series.step)
    known = dataclasses.replace(series, values=series.values[: split.train.stop], times=None)
    return ForecastProblem(
        dataset=series.name,
        channels=series.channels,
        targets=tuple(series.channels.index(name) for name in targets),
        step_seconds=_step_seconds(series),
        marks=tuple(marks),
        standardizer=data.Standardizer.fit([known.fill_forward().values]),
        split=tuple((part.start, part.stop) for part in split),
        fingerprint=_fingerprint(series, split.test.stop),
    )


def _step_seconds(series: data.TimeSeries) -> float | None:
    return None if series.step is None else float(series.step / np.timedelta64(1, "s"))


def _fingerprint(series: data.TimeSeries, stop: int) -> str:
    """A checksum of the first rows, which later ones do not change."""
    times = [] if series.times is None else [series.times[:stop]]
    return fingerprint([series.values[:stop], *times])


def standardize(series: data.TimeSeries, problem: ForecastProblem) -> dict[str, NDArray]:
    """What a model sees of a series: ``values`` [T, channels], and ``marks`` of the calendar.

    A missing value takes the last known one, or the training mean if there is none.
    """
    filled = series.fill_forward(problem.standardizer.mean)
    (values,) = problem.standardizer.apply([filled.values])
    arrays: dict[str, NDArray] = {"values": values.astype(np.float32)}
    if problem.marks:
        assert series.times is not None and problem.step_seconds is not None
        step = np.timedelta64(round(problem.step_seconds), "s")
        arrays["marks"], _ = data.calendar_features(series.times, step)
    return arrays


def make_windows(
    arrays: dict[str, NDArray],
    config: ForecastConfig,
    rows: range,
    *,
    seed: int | None,
    stride: int = 1,
) -> data.Windows:
    """Windows of a standardised series whose horizons lie in these rows."""
    return data.Windows(
        arrays,
        rows,
        input_length=config.input_length,
        horizon=config.horizon,
        stride=stride,
        batch_size=config.batch_size,
        seed=seed,
    )


def load_forecaster(run_dir: Path) -> ForecastRun:
    """Loads a run's model with its selected parameters.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: its files are damaged.
    """
    config = ForecastConfig.read(run_dir)
    with reading_problem(run_dir) as values:
        problem = ForecastProblem.from_json(values)
    model = build_model(config, problem)
    training.load_best(model, run_dir)
    return ForecastRun(model, config, problem)


def learning_rate(config: ForecastConfig, steps_per_epoch: int) -> optax.Schedule:
    """The learning rate at each step."""
    if config.schedule == "constant":
        return optax.constant_schedule(config.learning_rate)
    halved = {epoch * steps_per_epoch: 0.5 for epoch in range(2, config.epochs)}
    return optax.piecewise_constant_schedule(config.learning_rate, halved)


def _about(series: data.TimeSeries, problem: ForecastProblem, split: data.Split) -> str:
    """A few lines on the data, with what deserves a second look."""
    lines = [
        f"{series.name}: {series.num_steps} rows of {', '.join(series.channels[:8])}"
        + (f" and {len(series.channels) - 8} more" if len(series.channels) > 8 else "")
    ]
    if series.times is not None:
        lines.append(f"from {series.times[0]} to {series.times[-1]}, usually every {series.step}")
    if series.num_gaps:
        lines.append(f"note: {series.num_gaps} rows do not follow after that time")
    if series.num_missing:
        lines.append(f"note: {series.num_missing} missing values take the last known one")
    parts = ", ".join(f"{name} {len(rows)}" for name, rows in split._asdict().items())
    return "\n".join([*lines, f"rows: {parts}"])
