"""The options of a forecasting run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from flax_linattn.checks import at_least, positive, rate
from flax_linattn.tasks.runs import RunConfig, as_name

_OPTIONS_OF = {
    "decoder": ("norm", "positions"),
    "encoder-decoder": ("label_length", "num_decoder_layers", "causal"),
}
"""Options that only one model takes."""


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
        at_least(
            1,
            input_length=self.input_length,
            horizon=self.horizon,
            label_length=self.label_length,
            positions=self.positions,
            stride=self.stride,
            epochs=self.epochs,
            patience=self.patience,
            batch_size=self.batch_size,
        )
        at_least(0, season=self.season)
        positive(learning_rate=self.learning_rate)
        rate(dropout_rate=self.dropout_rate)
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
