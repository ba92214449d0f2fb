"""The forecasting task: data, model, test, predictions, streams and backtests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from flax_linattn import training
from flax_linattn.checks import OptionError, quote, suggest
from flax_linattn.data.sets.catalog import SERIES, Entry
from flax_linattn.models.layers import check_causal
from flax_linattn.tasks.forecast.backtest import backtest
from flax_linattn.tasks.forecast.baselines import (
    best_attention_weights,
    describe_attention_weights,
    fit_windows_ridge,
    set_attention_weights,
    set_to_ridge,
)
from flax_linattn.tasks.forecast.choices import choose
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines, evaluate_model, stream_error
from flax_linattn.tasks.forecast.model import Model, build_forecaster, make_loss
from flax_linattn.tasks.forecast.options import (
    ForecastConfig,
    ForecastOptions,
    ForecastStreamOptions,
)
from flax_linattn.tasks.forecast.panel import (
    SeriesPanel,
    count_series,
    load_panel,
    name_notes,
    own_panel,
    read_run_series,
)
from flax_linattn.tasks.forecast.quantiles import corrections
from flax_linattn.tasks.forecast.spec import PARTS, ForecastSpec, covariate_notes, describe
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.windows import (
    PanelWindows,
    context_notes,
    file_windows,
    forecast_each,
    part_windows,
)
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import DataSummary, Report, Task

NUM_COMPARED_ROWS = 300
"""Rows over which the stream is compared with the parallel model."""


class ForecastTask(ForecastOptions, Task[ForecastConfig, SeriesPanel, ForecastSpec]):
    """Forecasting of one series or a panel, as a task."""

    DataSpec = ForecastSpec
    kinds = (SERIES,)

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Returns the file of a data set of the catalog, and its split where it has one."""
        return {"csv": files[0], **({"split": entry.split} if entry.split else {})}

    def check(self, config: ForecastConfig, placement: training.Placement) -> None:
        if config.model.model != "encoder-decoder":
            check_causal(config.layers)
        if placement.sequence_shards > 1:
            raise OptionError(
                "expected a mesh without seq, since forecasting does not split sequences, got "
                f"seq={placement.sequence_shards}; remove seq from the mesh.",
                "mesh",
            )

    def load(self, config: ForecastConfig) -> SeriesPanel:
        return load_panel(config)

    def choose(
        self, panel: SeriesPanel, config: ForecastConfig
    ) -> tuple[ForecastConfig, list[str]]:
        """Chooses options that are ``"auto"`` by the panel, as ``tasks.protocols.Choosing``."""
        return choose(panel, config)

    def describe(self, panel: SeriesPanel, config: ForecastConfig) -> ForecastSpec:
        return describe(panel, config)

    def about_data(self, panel: SeriesPanel, config: ForecastConfig) -> DataSummary:
        """Summarizes series, rows, channels and times, with notes on unusual data.

        The notes are on repeated and missing times, missing values, constant channels, outliers,
        and further columns of Nixtla's form, which the estimator would take as known.
        """
        return DataSummary(panel.about, [*panel.notes, *covariate_notes(panel, config.data)])

    def batches(
        self,
        panel: SeriesPanel,
        config: ForecastConfig,
        data_spec: ForecastSpec,
        sequence_shards: int,
    ) -> training.Splits:
        parts = PARTS if panel.split.test else PARTS[:2]
        return training.Splits(*part_windows(panel, config, data_spec, parts))

    def model(
        self,
        config: ForecastConfig,
        data_spec: ForecastSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> Model:
        return build_forecaster(config, data_spec, placement)

    def objective(
        self, config: ForecastConfig, data_spec: ForecastSpec, steps_per_epoch: int
    ) -> training.Objective:
        return training.Objective(
            make_loss(config, data_spec), config.fit.make_optimizer(steps_per_epoch), monitor="mse"
        )

    def begin(
        self,
        models_: Sequence[Model],
        splits: training.Splits,
        config: ForecastConfig,
        data_spec: ForecastSpec,
    ) -> None:
        """Sets the linear map of patch models to a ridge, with the option ``ridge``."""
        if config.model.ridge:
            assert isinstance(splits.train, PanelWindows)
            assert isinstance(splits.validation, PanelWindows)
            parts = splits.train, splits.validation
            set_to_ridge(models_, fit_windows_ridge(*parts, data_spec, config.model.ridge_maps))

    def is_calibrated(self, config: ForecastConfig) -> bool:
        """Whether the option ``ridge`` is set, or quantiles are calibrated (``conformal``)."""
        return config.model.ridge or config.model.is_conformal

    def calibrate(self, run: Run, splits: training.Splits) -> str | None:
        """Fits the weight of the attention and the quantile corrections to the validation rows."""
        validation = splits.validation
        assert isinstance(validation, PanelWindows)
        note = None
        if run.config.model.ridge:
            set_attention_weights(run.model, weights := best_attention_weights(run, validation))
            note = describe_attention_weights(weights)
        if run.config.model.is_conformal:
            run.model.quantile_head.correction[...] = jnp.asarray(corrections(run, validation))
        return note

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        if file is not None:
            return file_windows(run, file)
        (windows,) = part_windows(own_panel(run), run.config, run.data_spec, PARTS[-1:])
        return windows

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        assert isinstance(batches, PanelWindows)
        return evaluate_model(run, batches)

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        assert isinstance(batches, PanelWindows)
        return evaluate_baselines(run, batches)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Difference of stream and parallel forecasts after each of the first 300 test rows.

        Values are standardized. With a mechanism whose state grows, over the rows of one window.
        """
        assert isinstance(batches, PanelWindows)
        length = run.config.data.context_length
        return stream_error(
            run, batches, NUM_COMPARED_ROWS if run.model.backbone.constant_memory else length
        )

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """Forecasts the horizon after the last row of a file: times (or steps) and targets.

        The column of times has its name in the file, or else "time". The quantiles of a target
        follow it. A run on a panel forecasts each series, named in the first column, "unique_id" if
        the run's data have that column (unnamed times are then "ds"), else "series". An unknown
        series is scaled by all its rows. Series with fewer rows than the context length are
        excluded, with a note.
        """
        series = read_run_series(run, file)
        ahead, note = forecast_each(run, series)
        notes = [note] if note else []
        if file is not None:  # training printed the notes on the run's own rows
            by_series = [(series[p].name, context_notes(run, series[p])) for p in ahead]
            notes += name_notes(by_series)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        series, forecasts = tuple(series[place] for place in ahead), [*ahead.values()]
        horizon, values = run.config.data.horizon, np.concatenate([one.values for one in forecasts])
        in_nixtla_form = run.config.data.id_column == "unique_id"
        series_name, *heads = ("unique_id", "ds") if in_nixtla_form else ("series", "step")
        columns = [np.tile(np.arange(horizon) + 1, len(forecasts))]
        indices = [one.row_index for one in forecasts if one.row_index is not None]
        first = series[0]
        has_times = first.row_times is not None or first.time_name is not None
        if len(indices) == len(series) and has_times:
            heads = [first.time_name or ("ds" if in_nixtla_form else "time")]
            columns = [indices[0].append(indices[1:])]
        if run.data_spec.members:
            ids = np.array([one.name for one in series], object)
            heads, columns = [series_name, *heads], [np.repeat(ids, horizon), *columns]
        suffixes = ("", *(f"@{level:g}" for level in run.config.model.levels))
        heads += [f"{name}{suffix}" for name in run.data_spec.target_names for suffix in suffixes]
        columns += [*values.reshape(len(values), -1).T]
        return make_table(heads, columns)

    def backtest(self, run_dir: Path, **how: Any) -> Report:
        """Tests a run on successive folds of time, as ``tasks.protocols.Backtesting``."""
        return backtest(run_dir, **how)

    def stream(self, run: Run, options: ForecastStreamOptions) -> ForecastStream:
        stream = ForecastStream(run, context=options.context, series=options.series)
        names = [info.name for info in run.data_spec.members]
        if options.series and options.series not in names:
            print(
                f"# note: {quote(options.series)} is streamed as a new series, scaled by the "
                f"median of the {count_series(names)} of the run"
                f"{suggest(options.series, names, otherwise='')}",
                file=sys.stderr,
            )
        return stream
