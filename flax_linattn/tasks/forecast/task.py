"""The forecasting task, as the commands see it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, ops, training
from flax_linattn.checks import OptionError
from flax_linattn.data.catalog import SERIES, Entry
from flax_linattn.tasks.forecast.backtest import backtest
from flax_linattn.tasks.forecast.by_series import (
    own_several,
    report_on_series,
    series_yardsticks,
)
from flax_linattn.tasks.forecast.conformal import corrections
from flax_linattn.tasks.forecast.data import (
    checksum_of,
    describe,
    load_data,
    make_windows,
    standardize,
)
from flax_linattn.tasks.forecast.error_figures import draw_errors
from flax_linattn.tasks.forecast.evaluate import (
    YARDSTICKS,
    check_fits,
    evaluate_forecaster,
    evaluate_yardsticks,
    fitted_ridge,
    load_series,
    read_targets,
    stream_error,
)
from flax_linattn.tasks.forecast.figures import draw_forecasts
from flax_linattn.tasks.forecast.linear_path import (
    about_shares,
    best_shares,
    set_shares,
    set_to_ridge,
)
from flax_linattn.tasks.forecast.model import Model, build_forecaster, make_loss
from flax_linattn.tasks.forecast.notes import notes
from flax_linattn.tasks.forecast.options import ForecastConfig, patch, tslib
from flax_linattn.tasks.forecast.predict import predict
from flax_linattn.tasks.forecast.problem import ForecastProblem
from flax_linattn.tasks.forecast.quantiles import score_quantiles, score_yardsticks
from flax_linattn.tasks.forecast.several import (
    Several,
    SeveralWindows,
    about_several,
    describe_several,
    load_series_of,
    load_several,
    notes_on_several,
    other_windows,
    several_splits,
)
from flax_linattn.tasks.forecast.stream import (
    ForecastStream,
    ForecastStreamOptions,
    note_on_series,
)
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.task import Report, Task
from flax_linattn.tasks.yardsticks import at_hand

COMPARED = 300
"""Rows over which the stream is compared with the parallel model."""


class Rows(NamedTuple):
    """The data of a run.

    Attributes:
        series: all rows.
        split: those of each part.
    """

    series: data.TimeSeries
    split: data.Split


class ForecastTask(Task[ForecastConfig, Rows | Several, ForecastProblem]):
    """Forecasting."""

    name = "forecast"
    Config = ForecastConfig
    Problem = ForecastProblem
    StreamOptions = ForecastStreamOptions
    presets: ClassVar[Mapping[str, Any]] = {"tslib": tslib, "patch": patch}
    default_preset = "patch"
    kinds = (SERIES,)

    def mechanisms(self) -> Sequence[str]:
        """Those with a causal form."""
        names = ops.list_mechanisms()
        return [name for name in names if ops.get_mechanism(name).capabilities.causal]

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """The file, and its customary split."""
        return {"csv": files[0], **({"split": entry.split} if entry.split else {})}

    def check(self, config: ForecastConfig, placement: training.Placement) -> None:
        """Windows are not split over devices."""
        if placement.spans > 1:
            raise OptionError(
                "forecasting runs do not split sequences; leave seq out of the mesh.", "mesh"
            )

    def load(self, config: ForecastConfig) -> Rows | Several:
        """The series, and its parts; or several."""
        if config.data.several:
            return load_several(config)
        series = load_data(config.data)
        return Rows(series, data.chronological_split(series.num_steps, config.data.split))

    def describe(self, data_: Rows | Several, config: ForecastConfig) -> ForecastProblem:
        """Names, scales, calendar, and whether the model is told which values are missing."""
        if isinstance(data_, Several):
            pairs = list(zip(data_.series, data_.splits, strict=True))
        else:
            pairs = [(data_.series, data_.split)]
        missing = any(np.isnan(one.values[: split.train.stop]).any() for one, split in pairs)
        tells = config.model.tell_missing and missing
        return dataclasses.replace(self._describe(data_, config), tells_missing=tells)

    def _describe(self, data_: Rows | Several, config: ForecastConfig) -> ForecastProblem:
        if isinstance(data_, Several):
            return describe_several(data_, config)
        series, split = data_
        problem = describe(series, split, config.data)
        targets = list(problem.targets)
        for part, rows in split._asdict().items():
            if len(rows) and np.isnan(series.values[rows.start : rows.stop, targets]).all():
                raise OptionError(
                    f"the {part} rows ({rows.start} to {rows.stop - 1}) have no value of "
                    f"{', '.join(problem.target_names)}; choose other rows or targets.",
                    "split",
                    "targets",
                )
        return problem

    def about_data(self, data_: Rows | Several, config: ForecastConfig) -> str:
        """Rows, channels and times."""
        if isinstance(data_, Several):
            return about_several(data_)
        series, split = data_
        lines = [
            f"{series.name}: {series.num_steps} rows of {', '.join(series.channels[:8])}"
            + (f" and {len(series.channels) - 8} more" if len(series.channels) > 8 else "")
        ]
        if series.times is not None:
            times = series.times
            lines.append(f"from {times[0]} to {times[-1]}, usually every {series.step}")
        parts = ", ".join(f"{name} {len(rows)}" for name, rows in split._asdict().items())
        return "\n".join([*lines, f"rows: {parts}"])

    def notes(self, data_: Rows | Several) -> Sequence[str]:
        """Repeated and missing times, missing values, channels that never change, outliers."""
        if isinstance(data_, Several):
            return notes_on_several(data_)
        return notes(data_.series, data_.split.test.stop)

    def batches(
        self, data_: Rows | Several, config: ForecastConfig, problem: ForecastProblem, spans: int
    ) -> training.Splits:
        """Windows whose horizons lie in each part."""
        if isinstance(data_, Several):
            return training.Splits(*several_splits(data_, config, problem))
        split = data_.split
        windows = partial(_windows_of, standardize(data_.series, problem), config)
        stride = config.data.stride
        return training.Splits(
            windows("training", split.train, seed=config.seed, stride=stride),
            windows("validation", split.validation, seed=None, stride=stride),
            windows("test", split.test, seed=None) if split.test else None,
        )

    def model(
        self,
        config: ForecastConfig,
        problem: ForecastProblem,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> Model:
        """A ``models.Forecaster``, ``models.EncoderDecoder`` or ``models.PatchForecaster``."""
        return build_forecaster(config, problem, placement)

    def objective(
        self, config: ForecastConfig, problem: ForecastProblem, steps_per_epoch: int
    ) -> training.Objective:
        """Mean square error, Adam."""
        return training.Objective(
            make_loss(config, problem),
            config.fit.make_optimizer(steps_per_epoch),
            monitor="mse",
        )

    def begin(
        self,
        models_: Sequence[Model],
        splits: training.Splits,
        config: ForecastConfig,
        problem: ForecastProblem,
    ) -> None:
        """Sets the patch model's linear map to a ridge, with the option ``ridge``."""
        if config.model.ridge:
            assert isinstance(splits.train, data.Windows)
            assert isinstance(splits.validation, data.Windows)
            set_to_ridge(models_, splits.train, splits.validation, problem)

    def is_calibrated(self, config: ForecastConfig) -> bool:
        """With the options ``conformal`` and ``ridge``."""
        return config.model.conformal or config.model.ridge

    def calibrate(self, run: Run, validation: training.BatchSource) -> str | None:
        """Weighs what is added to a ridge, and corrects the quantiles, by the validation rows."""
        assert isinstance(validation, data.Windows)
        told = None
        if run.config.model.ridge:
            set_shares(run.model, shares := best_shares(run, validation))
            told = about_shares(shares)
        if run.config.model.conformal:
            run.model.quantile_head.correction[...] = jnp.asarray(corrections(run, validation))
        return told

    def observation(self, problem: ForecastProblem) -> jax.ShapeDtypeStruct | None:
        """Of the channels, and the marks behind them."""
        if problem.known_inputs:  # its size is the horizon's, too
            return None
        width = problem.num_inputs + problem.num_flags + len(problem.marks)
        return jax.ShapeDtypeStruct((1, width), jnp.float32)

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Windows of the test rows, or of all rows of another file."""
        if run.problem.members:
            return self._test_series(run, file)
        series = load_series(run, file)
        rows = range(series.num_steps)
        if file is None:
            rows = range(*run.problem.split[-1])
            if checksum_of(series, rows.stop) != run.problem.checksum:
                raise OptionError(
                    f"the data of the run have changed since ({series.name}, {series.num_steps} "
                    "rows); give other data to test on.",
                    "test_file",
                )
        return make_windows(standardize(series, run.problem), run.config, rows, seed=None)

    def _test_series(self, run: Run, file: Path | None) -> training.BatchSource:
        config, problem = run.config, run.problem
        if file is None:
            return several_splits(own_several(run), config, problem)[-1]
        series = load_series_of(config.replace(csv=file).data, problem.channels)
        for one in series:
            check_fits(run, one)
        return other_windows(series, config, problem)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Errors, and some forecasts as a figure."""
        if isinstance(batches, SeveralWindows):
            report = report_on_series(run, batches)
            values = {**report.values, **score_quantiles(run, batches)}
            return dataclasses.replace(report, values=values)
        assert isinstance(batches, data.Windows)
        draw = partial(draw_forecasts, run, batches)
        values = evaluate_forecaster(run, batches) | score_quantiles(run, batches)
        return Report(
            values,
            figures={"forecasts.png": draw},
            yardsticks=YARDSTICKS,
            charts={"errors.png": draw_errors},
        )

    def yardsticks(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Errors of the last observation, the last season, a ridge."""
        if isinstance(batches, SeveralWindows):
            return series_yardsticks(run, batches)
        assert isinstance(batches, data.Windows)
        targets = at_hand(partial(read_targets, run))
        ridge = None if targets is None else fitted_ridge(run, targets)
        intervals = score_yardsticks(run, batches, ridge)
        return evaluate_yardsticks(run, batches, ridge) | intervals

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of forecasts, on standardised values, after each of the first 300 test rows.

        Of a window, with a mechanism whose state grows.
        """
        if not run.model.streams:
            return {}
        assert isinstance(batches, data.Windows)
        length = run.config.data.input_length
        most = COMPARED if run.model.backbone.constant_memory else length
        return stream_error(run, batches, most)

    def predict(self, run: Run, file: Path | None) -> Table:
        """The horizon after the last row of each series."""
        return predict(run, file)

    def backtest(self, run_dir: Path, **how: Any) -> Report:
        """Over folds of the rows after the training part."""
        return backtest(run_dir, **how)

    def stream(self, run: Run, options: ForecastStreamOptions) -> ForecastStream:
        """The forecast after each observation."""
        stream = ForecastStream(run, context=options.context, series=options.series)
        if note := note_on_series(run, options.series):
            print(f"# {note}", file=sys.stderr)
        return stream


def _windows_of(
    arrays: dict[str, NDArray], config: ForecastConfig, part: str, rows: range, **options: Any
) -> data.Windows:
    try:
        return make_windows(arrays, config, rows, **options)
    except ValueError as error:
        source = config.data
        raise OptionError(
            f"too few {part} rows ({len(rows)}): {error}; they depend on split "
            f"({source.split}), input_length ({source.input_length}) and horizon "
            f"({source.horizon}).",
            "split",
            "input_length",
            "horizon",
        ) from None
