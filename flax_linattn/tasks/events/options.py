"""Options of runs on events."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from flax_linattn.checks import OptionError, at_least
from flax_linattn.models import EVENT_LAYERS, Layers
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import Config, FitOptions, ModelOptions, Options, mechanism_name
from flax_linattn.training import OptimizerOptions


@dataclasses.dataclass(frozen=True)
class EventsData(Options):
    """Which events, and how they are split.

    Attributes:
        file: events: a CSV file with a column of times and perhaps ones of marks and sequences, or
            another format (below). Default: events are drawn, see ``process``.
        marks_file: marks of a file of times in the format rmtpp.
        file_format: of the file; "auto" looks at it. rmtpp: text files of times and of marks, a
            sequence a line; jodie: interactions of users and items; npz: arrays; easytpp: JSON.
        time: the column of times of a CSV file: numbers of any unit, or dates.
        mark: the column of marks.
        sequence: the column that tells sequences apart.
        sort: whether rows that go back in time are sorted.
        timezone: of dates without one, such as Europe/Berlin.
        begin: when the observation of each sequence began, a number or a date; default not known,
            so that the first event of each is given and not forecast.
        end: when it ended; default with the last event of each.
        process: drawn from where there is no file: hawkes (events excite others), hawkes-marked
            (of three marks), poisson, poisson-sine (the rate goes up and down), renewal.
        num_sequences: of a file, the first so many; 0 = all. Drawn, 200 unless others are given.
        split: training, validation and test: shares, or numbers of sequences.
        split_by: "sequences" in the order of the file; "time" cuts each sequence, a later part
            seeing the earlier ones; "auto" cuts where there are fewer than three sequences.
    """

    file: Path | None = None
    marks_file: Path | None = None
    file_format: Literal["auto", "rmtpp", "jodie", "npz", "easytpp", "table"] = "auto"
    time: str = "time"
    mark: str = "mark"
    sequence: str = "sequence"
    sort: bool = False
    timezone: str = "UTC"
    begin: str = ""
    end: str = ""
    process: Literal["hawkes", "hawkes-marked", "poisson", "poisson-sine", "renewal"] = "hawkes"
    num_sequences: int = 0
    split: str = "0.6/0.2/0.2"
    split_by: Literal["auto", "sequences", "time"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, 10**6, num_sequences=self.num_sequences)
        if self.file is None:
            for name in ("marks_file", "file_format", "sequence", "sort", "begin", "end"):
                if getattr(self, name) != getattr(EventsData, name):
                    raise OptionError(
                        f"{name} is an option of a file; give one, or leave it out.", name, "file"
                    )
        elif self.process != EventsData.process:
            raise OptionError(
                f"process={self.process} is an option of drawn events, but there is a file; leave "
                "one of the two out.",
                "process",
                "file",
            )


@dataclasses.dataclass(frozen=True)
class EventsModel(ModelOptions):
    """The model: ``models.EventForecaster``.

    Attributes:
        layers: of the backbone.
        kernel_size: events that the convolution of the embedding sees.
        num_components: log-normal distributions in the mixture of the next gap.
        periods: lengths of time of whose phase the model is told, separated by commas, in the
            file's unit; "auto" = a day and a week where times are dates, none elsewhere.
        clock: whether the model is told, beside the gap before each event, the time since the
            sequence began, by waves of growing periods, as in the transformer Hawkes process.
        scale: the gap that counts as one, in the file's unit; 0 = the geometric mean of those to
            train on.
        resolution: a gap below it counts as it, since a gap of zero has no density, in the file's
            unit; 0 = the smallest one above zero to train on.
    """

    layers: Layers = EVENT_LAYERS
    kernel_size: int = 4
    num_components: int = 8
    periods: str = "auto"
    clock: bool = False
    scale: float = 0.0
    resolution: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, 1024, kernel_size=self.kernel_size, num_components=self.num_components)
        for name in ("scale", "resolution"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise OptionError(f"{name} must be at least 0 and finite, got {value}.", name)
        self.given_periods()

    def given_periods(self) -> tuple[float, ...] | None:
        """The periods that are given as numbers; None of "auto".

        Raises:
            OptionError: one is not above 0.
        """
        if self.periods == "auto":
            return None
        if self.periods in ("", "none"):
            return ()
        try:
            periods = tuple(float(cell) for cell in self.periods.split(","))
        except ValueError:
            periods = (-1.0,)
        if not all(0 < period < float("inf") for period in periods):
            raise OptionError(
                f"periods must be positive numbers separated by commas, none, or auto, got "
                f"{self.periods!r}.",
                "periods",
            )
        return periods


ADAM = OptimizerOptions(learning_rate=2e-3, warmup=0.0, last_rate=0.0, clip_norm=1.0)
"""Gradients are clipped, since a gap far out in a tail has a steep one; a cosine ends at 0."""


@dataclasses.dataclass(frozen=True)
class EventsFit(FitOptions):
    """How the model is trained, by Adam.

    Attributes:
        length: events of a sequence that are learned from at once; longer ones are cut.
        history: events before a cut that the model sees, too, and does not learn from.
    """

    epochs: int = 100
    patience: int = 10
    batch_size: int = 32
    optimizer: OptimizerOptions = ADAM
    length: int = 256
    history: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, 2**20, length=self.length)
        at_least(0, 2**20, history=self.history)


@dataclasses.dataclass(frozen=True)
class EventsConfig(Config):
    """Everything that a run on events depends on."""

    data: EventsData = EventsData()
    model: EventsModel = EventsModel()
    fit: EventsFit = EventsFit()

    @property
    def name(self) -> str:
        """A name for the run folder."""
        file = self.data.file
        dataset = self.data.process if file is None else file.name.split(".")[0]
        return make_file_name(dataset, mechanism_name(self.layers), self.seeds)


def thp(config: EventsConfig) -> EventsConfig:
    """The transformer Hawkes process with a mixture of log-normals, as the Aaren paper ran it.

    Source: ``configs/model/thp_mix.yaml`` of meta-tpp and the Aaren paper's appendix E: 2 layers of
    64, one head, 8 components, Adam at 5e-4, 16 sequences a step, a clock. It selects on validation
    data; the published code selects by the validation RMSE, and adds an L2 penalty of 1e-4.
    """
    return config.replace(
        features=64,
        num_layers=2,
        num_heads=1,
        hidden_features=64,
        norm="post",
        dropout_rate=0.1,
        kernel_size=1,
        num_components=8,
        clock=True,
        learning_rate=5e-4,
        batch_size=16,
    )
