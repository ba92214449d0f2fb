"""Options of forecasting runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeAlias

from flax_linattn.checks import OptionError, check_choice, check_integers, quote
from flax_linattn.data.sets.catalog import customary_split
from flax_linattn.data.tables.cells import split_cells
from flax_linattn.data.tables.dialect import PLAIN, Dialect, TimesPolicy
from flax_linattn.models.layers import FORECASTER_LAYERS, MAX_LAYERS, Layers
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import (
    Config,
    FitOptions,
    ModelOptions,
    Options,
    TaskOptions,
    mechanism_name,
)
from flax_linattn.training.optimizer_options import OptimizerOptions

RidgeMaps: TypeAlias = Literal["auto", "shared", "channel"]
"""A shared map, one map per channel, or the choice with the smaller validation error."""
DEFAULT_SPLIT = "0.7/0.1/0.2"
"""Split of a series whose file has no published split."""
MIN_CONTEXT = 16
"""Minimum context length, in rows, of the automatic choice: one patch."""
TIME_LIMIT = 120.0
"""Seconds of training by default: twice as long as one idle core takes."""
EMBEDDED = "ETTh1.csv"
"""The file that comes with the package."""


@dataclasses.dataclass(frozen=True)
class ForecastData(Options):
    """Options of the data of a forecasting run: the file, its series, split and windows.

    Attributes:
        csv: Table with one row per time step (.csv, .txt, .tsf, also with .gz or .xz; .parquet,
            .feather, .xlsx). Default: the embedded ETTh1.
        header: Whether the first line holds the column names; "auto" infers it from the line.
        id_column: Column that names the series of each row, for a table with several series. One
            model is trained on all series. Default: unique_id if the table has the columns
            unique_id and ds, as in Nixtla's libraries.
        global_model: Whether each column of a table, or each series of a .tsf file, is a separate
            series with its own times and scale. One model is trained on all series.
        times: How to treat duplicate or irregular timestamps: "report" warns and keeps the rows in
            order, but fails if more than half are irregular; "irregular" accepts any spacing;
            "strict" refuses duplicates.
        freq: Frequency of the rows as a pandas alias: 15min, h, D, B (business days), W-SUN, MS or
            ME (month starts or ends), QE-DEC, bh (business hours); M@30 is the 30th of each month.
            Forecast times continue at this frequency. Default: inferred from the times.
        resample: Frequency to resample to by the mean, such as 15min, 1h, 1d, 1w or MS. Default: no
            resampling.
        dialect: Separators, decimal mark, times, missing values and encoding of a table.
        channels: The columns to read, separated by commas. Default: all columns.
        targets: Channels to forecast, separated by commas. Default: all channels, or y of a table
            with the columns unique_id and ds.
        known_future: Known future covariates: columns whose values are known over the horizon, such
            as prices or holidays, separated by commas. The patch model reads these columns and does
            not forecast them.
        known_calendar: Time features of the horizon that the patch model reads, separated by
            commas, such as hour,weekday: minute, hour, weekday, day (of the month), day of year,
            week or month. They are computed from the timestamps.
        split: Training, validation and test sets in the order of time, as fractions or numbers of
            rows. Default: the published split of a file with this name, otherwise 0.7/0.1/0.2.
        context_length: Number of past rows the model receives. 0 selects a multiple of the season
            by the error of the ridge on the validation rows.
        horizon: Forecast horizon, in rows.
        calendar: Whether the model receives time features such as hour and weekday, if rows have
            timestamps.
        stride: Number of rows from one training window to the next: 1 uses all windows; 0 uses as
            many as fit into the time limit. Validation and test use all windows.
        season: Season length in rows. 0 infers it from the frequency: a day for rows within a day,
            a week for daily rows (5 business days), a year for longer steps. Without times, 0
            selects a lag of high autocorrelation.
    """

    csv: Path | None = None
    header: Literal["auto", "yes", "no"] = "auto"
    id_column: str = ""
    global_model: bool = False
    times: TimesPolicy = "report"
    freq: str = ""
    resample: str = ""
    dialect: Dialect = PLAIN
    channels: str = ""
    targets: str = ""
    known_future: str = ""
    known_calendar: str = ""
    split: str = ""
    context_length: int = 96
    horizon: int = 96
    calendar: bool = True
    stride: int = 1
    season: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, 2**20, horizon=self.horizon)
        lengths = {"context_length": self.context_length, "stride": self.stride}
        check_integers(0, 2**20, **lengths, season=self.season)
        if self.freq or self.resample:
            from flax_linattn.data.tables.time_index import parse_frequency, parse_offset

            if self.freq:
                parse_frequency(self.freq)
            if self.resample:
                parse_offset(self.resample, "resample")
        if self.calendar_parts:
            from flax_linattn.data.series.time_features import CIRCLES

            for name in self.calendar_parts:
                check_choice(CIRCLES, known_calendar=name)

    @property
    def calendar_parts(self) -> tuple[str, ...]:
        """The time features that ``known_calendar`` names, without repetitions."""
        return tuple(dict.fromkeys(split_cells(self.known_calendar))) if self.known_calendar else ()

    @property
    def is_panel(self) -> bool:
        """Whether a global model learns from a panel of series."""
        return bool(self.id_column) or self.global_model


@dataclasses.dataclass(frozen=True)
class ForecastModel(ModelOptions):
    """Options of the forecasting model: its architecture, linear map and quantiles.

    Attributes:
        layers: Transformer blocks of the decoder (of the encoder for the model "encoder-decoder").
        model: Architecture of the forecaster. "decoder" forecasts after every observation;
            "encoder-decoder" is Time-Series-Library's transformer, which does not stream; "patch"
            embeds each channel independently, in patches.
        normalize: Whether each input is normalized by its own mean and standard deviation.
        label_length: Number of past rows that the decoder of the encoder-decoder receives.
        causal: Whether the encoder of the encoder-decoder uses causal attention.
        num_decoder_layers: Number of blocks of the decoder of the encoder-decoder.
        positions: Maximum number of positions of a window that the decoder or the patch model is
            trained to forecast from. The patch model forecasts from the ends of patches.
        absolute_positions: Whether the decoder or the patch model receives absolute positions of
            observations or patches. A stream that is never reset goes beyond the trained positions.
        patch_length: Patch length in rows; 0 selects an eighth of the context, at least 16.
        missing_flags: Whether the model receives indicators of missing values, if the training rows
            have any; otherwise missing values are only filled forward.
        linear_path: Whether the patch model adds a linear map of the window to the attention.
        ridge: Whether the linear map is a ridge regression, fitted on the training rows and then
            fixed. The validation rows set the weight, possibly zero, of what the attention adds to
            it.
        ridge_maps: Whether channels share one ridge map ("shared") or each has its own ("channel");
            "auto" selects the maps with the smaller error on the validation rows.
        channel_mechanism: Mechanism of cross-channel attention in the patch model, such as softmax.
            Default: no cross-channel attention.
        quantiles: Quantile levels to forecast in addition to the mean, separated by commas, such as
            0.025,0.1,0.5,0.9,0.975. Default: none.
        conformal: Whether quantile forecasts are calibrated on the validation rows (conformal
            prediction).
    """

    layers: Layers = FORECASTER_LAYERS
    model: Literal["decoder", "encoder-decoder", "patch"] = "decoder"
    normalize: bool = True
    label_length: int = 48
    causal: bool = True
    num_decoder_layers: int = 1
    positions: int = 8
    absolute_positions: bool = True
    patch_length: int = 16
    linear_path: bool = True
    ridge: bool = False
    ridge_maps: RidgeMaps = "shared"
    missing_flags: bool = False
    channel_mechanism: str = ""
    quantiles: str = ""
    conformal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, label_length=self.label_length, positions=self.positions)
        check_integers(0, patch_length=self.patch_length)
        check_integers(1, MAX_LAYERS, num_decoder_layers=self.num_decoder_layers)
        if self.ridge and not self.linear_path:
            raise OptionError(
                "ridge sets the linear map, which linear_path=False removes; set ridge=False, too.",
                "ridge",
                "linear_path",
            )
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for takers, names in _OPTIONS_OF.items():
            for name in () if self.model in takers else names:
                if getattr(self, name) == defaults[name]:
                    continue
                those = " and ".join(map(repr, takers))
                raise OptionError(
                    f"{name} is an option of the model{'s' * (len(takers) > 1)} {those}, not of "
                    f"{self.model!r}; remove the option, or choose another model.",
                    name,
                    "model",
                )
        if self.channel_mechanism:
            from flax_linattn.models.channel_mixing import check_channel_mechanism

            check_channel_mechanism(self.channel_mechanism)
        _ = self.levels  # refuses what are no levels

    @property
    def is_conformal(self) -> bool:
        """Whether quantile forecasts are calibrated on the validation rows."""
        return self.conformal and bool(self.levels)

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile levels to forecast, as numbers.

        Raises:
            ValueError: If the levels are not increasing numbers between 0 and 1.
        """
        try:
            levels = [float(level) for level in split_cells(self.quantiles)]
        except ValueError:
            raise OptionError(
                f"expected quantiles as levels such as 0.1,0.5,0.9, got {quote(self.quantiles)}.",
                "quantiles",
            ) from None
        if not levels:
            return ()
        from flax_linattn.models.quantiles import check_levels

        return check_levels(levels)


_OPTIONS_OF = {
    ("decoder", "patch"): ("positions", "absolute_positions", "missing_flags", "quantiles"),
    ("decoder", "encoder-decoder"): ("normalize",),
    ("encoder-decoder",): ("label_length", "num_decoder_layers", "causal"),
    ("patch",): ("patch_length", "linear_path", "ridge", "ridge_maps", "channel_mechanism"),
}
"""Options that not all models take, by the models that do."""


@dataclasses.dataclass(frozen=True)
class ForecastFit(FitOptions):
    """Options of the training of the forecaster, by Adam."""

    epochs: int = 10
    patience: int = 3
    batch_size: int = 32
    optimizer: OptimizerOptions = OptimizerOptions(schedule="halving")


@dataclasses.dataclass(frozen=True)
class ForecastConfig(Config):
    """Options of a forecasting run."""

    auto_values = MappingProxyType(
        {"season": 0, "context_length": 0, "patch_length": 0, "ridge_maps": "auto", "stride": 0}
    )
    main_options = ("csv", "targets", "horizon", "context_length", "model", *Config.main_options)
    json_keys = MappingProxyType({"missing_flags": "tell_missing"})
    data: ForecastData = ForecastData()
    model: ForecastModel = ForecastModel()
    fit: ForecastFit = ForecastFit()

    def __post_init__(self) -> None:
        for name in ("known_future", "known_calendar"):
            if getattr(self.data, name) and self.model.model != "patch":
                raise OptionError(
                    f"{name} is an option of the model 'patch', not of {self.model.model!r}; set "
                    f"model='patch', or remove {name}.",
                    name,
                    model="patch",
                )
        longest, labels = self.data.context_length, self.model.label_length
        if self.model.model == "encoder-decoder" and 0 < longest < labels:
            raise OptionError(
                f"label_length ({labels}) must be at most context_length ({longest}).",
                "label_length",
                "context_length",
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        csv = self.data.csv
        dataset = "etth1" if csv is None else csv.name.split(".")[0]
        parts = [dataset, self.model.model, mechanism_name(self.layers)]
        return make_file_name(*parts, self.data.horizon, self.seeds)

    def resolve(self) -> Self:
        """Returns a copy with absolute paths, the default split, and the id column of a panel."""
        source = self.data
        file = EMBEDDED if source.csv is None else source.csv.name
        split = source.split or customary_split(file) or DEFAULT_SPLIT
        id_column = source.id_column
        if source.csv is not None and not source.is_panel:
            from flax_linattn.data.series.load import find_id_column

            id_column = find_id_column(source.csv, source.dialect)
        return super().resolve().replace(split=split, id_column=id_column)


def tslib(config: ForecastConfig) -> ForecastConfig:
    """Encoder-decoder transformer with the settings of Time-Series-Library's scripts.

    Source: ``scripts/long_term_forecast/*/Transformer.sh`` and the defaults of ``run.py``: 2
        encoder layers and 1 decoder layer, width 512, hidden 2048, Adam at 1e-4 halved every epoch.
        It selects on validation data.
    Departure: our rate is halved from the third epoch on.
    """
    return config.replace(
        model="encoder-decoder",
        causal=False,
        normalize=False,
        mechanism="softmax",
        features=512,
        hidden_features=2048,
        learning_rate=1e-4,
    )


def patch(config: ForecastConfig) -> ForecastConfig:
    """Patch model with a ridge regression and automatic context, trained within two minutes.

    Context and patch length, the ridge's maps and, for a long series, the stride of the training
    windows are chosen from the data (``tasks.forecast.choices``). The learning rate decays with the
    steps, so that a short training ends at a small rate. The numbers were chosen on the validation
    rows of ETTh1, with horizon and context of 96 rows (docs/guides/forecast.md).
    """
    return config.replace(
        model="patch",
        ridge=True,
        ridge_maps="auto",
        context_length=0,
        patch_length=0,
        stride=0,
        time_limit=TIME_LIMIT,
        calendar=False,
        schedule="cosine",
        epochs=4,
        patience=4,
    )


@dataclasses.dataclass(frozen=True)
class ForecastStreamOptions:
    """Options of a stream of a forecaster.

    Each line is an observation: the channels separated by commas, after the time if the run has
    times; or a JSON object with "time" and the channels by name. A first line may name the columns.

    Attributes:
        context: Maximum number of past observations of a forecast; at least half as many are used.
            0 uses all of them. Default: the run's context length.
        series: Name of the series, for a run on a panel. A new series is scaled by the median of
            the scales of the panel.
    """

    context: int | None = None
    series: str = ""


class ForecastOptions(TaskOptions):
    """The options of forecasting runs and their streams."""

    name = "forecast"
    Config = ForecastConfig
    StreamOptions = ForecastStreamOptions
    is_causal = True
    presets: ClassVar[Mapping[str, Any]] = {"tslib": tslib, "patch": patch}
    default_preset = "patch"
