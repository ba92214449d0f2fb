"""Options of runs on events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from flax_linattn.checks import MAX_INTEGER, OptionError, check_integers
from flax_linattn.data.tables.cells import is_number
from flax_linattn.models.layers import EVENT_LAYERS, Layers
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


@dataclasses.dataclass(frozen=True)
class EventsData(Options):
    """Events to train on, and how they are split.

    Attributes:
        file: Event file: a CSV file with a column of times and optional columns of event types and
            sequences, or another ``file_format``. Default: synthetic events, see ``process``.
        event_types_file: File of the event types, for a file of times in the format ``rmtpp``.
        file_format: Format of the file: ``table`` (CSV), ``rmtpp`` (text files of times and event
            types, one sequence per line), ``jodie`` (interactions of users and items), ``npz``
            (arrays) or ``easytpp`` (JSON). ``auto`` infers it from the file.
        time: CSV column of times: numbers in any unit, or dates.
        event_type: CSV column of event types.
        sequence: CSV column that identifies the sequence of an event.
        sort: Sort the rows by time, if times decrease.
        timezone: Time zone of dates without one, such as Europe/Berlin.
        begin: Start of the observation of each sequence, a number or a date. Default: unknown; the
            first event of each sequence is then an input and not forecast.
        end: End of the observation of each sequence. Default: its last event.
        process: Process that generates synthetic events: ``hawkes`` (self-exciting),
            ``hawkes-marked`` (self-exciting, three event types), ``poisson``, ``poisson-sine``
            (periodic rate) or ``renewal``.
        num_sequences: Number of sequences to use, from the start of the file, or to generate. 0
            uses all sequences of a file, and generates 200.
        split: Sizes of the training, validation and test sets: fractions, or numbers of sequences.
        split_by: What to split: the ``sequences``, in the order of the file, or each sequence along
            ``time``, where later parts condition on earlier ones. ``auto`` splits along time if
            there are fewer than three sequences.
    """

    file: Path | None = None
    event_types_file: Path | None = None
    file_format: Literal["auto", "rmtpp", "jodie", "npz", "easytpp", "table"] = "auto"
    time: str = "time"
    event_type: str = "mark"
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
        check_integers(0, 10**6, num_sequences=self.num_sequences)
        if self.file is None:
            for name in ("event_types_file", "file_format", "sequence", "sort", "begin", "end"):
                if getattr(self, name) != getattr(EventsData, name):
                    raise OptionError(
                        f"{name} needs an event file; set file, or remove {name}.", name, "file"
                    )
        elif self.process != EventsData.process:
            raise OptionError(
                f"process={self.process!r} generates synthetic events, but file={self.file} has "
                "events; remove one of the two.",
                "process",
                "file",
            )


@dataclasses.dataclass(frozen=True)
class EventsModel(ModelOptions):
    """Temporal point process with log-normal mixtures, see ``models.EventForecaster``.

    Attributes:
        layers: Transformer blocks of the backbone.
        kernel_size: Kernel size, in events, of the convolution in the embedding.
        num_components: Number of log-normal components in the mixture of the next gap.
        periods: Periods in the time unit of the file, separated by commas; their phases are model
            inputs. ``auto`` uses a day and a week for dates, and none for numbers.
        clock: Add the time since the start of the sequence to the inputs, as sinusoids of growing
            periods (transformer Hawkes process).
        scale: Gap that is scaled to 1, in the file's time unit; 0 uses the geometric mean of the
            training gaps.
        resolution: Smallest gap, in the file's time unit: shorter gaps count as this one, since a
            gap of zero has no density. 0 uses the smallest positive training gap.
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
        check_integers(1, 1024, kernel_size=self.kernel_size, num_components=self.num_components)
        for name in ("scale", "resolution"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise OptionError(f"expected {name} as a number of at least 0, got {value}.", name)
        self.given_periods()

    def given_periods(self) -> tuple[float, ...] | None:
        """The periods as numbers; None for "auto".

        Raises:
            OptionError: If a period is not above 0.
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
                "expected periods as positive numbers separated by commas, none or auto, got "
                f"{self.periods!r}.",
                "periods",
            )
        return periods


ADAM = OptimizerOptions(learning_rate=2e-3, warmup=0.0, last_rate=0.0, clip_norm=1.0)
"""Default optimizer; it clips gradients, which are steep for gaps far out in a tail."""


@dataclasses.dataclass(frozen=True)
class EventsFit(FitOptions):
    """How the model is trained, by Adam.

    Attributes:
        length: Maximum number of events per training segment; longer sequences are cut.
        history: Number of events before each cut that the model conditions on without learning from
            them.
    """

    epochs: int = 100
    patience: int = 10
    batch_size: int = 32
    optimizer: OptimizerOptions = ADAM
    length: int = 256
    history: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, 2**20, length=self.length)
        check_integers(0, 2**20, history=self.history)


@dataclasses.dataclass(frozen=True)
class EventsConfig(Config):
    """Options of a run on events."""

    main_options = ("file", "process", "learning_rate", *Config.main_options)
    json_keys = MappingProxyType({"event_type": "mark", "event_types_file": "marks_file"})
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
    """Transformer Hawkes process with a log-normal mixture, as in the Aaren paper.

    Source: ``configs/model/thp_mix.yaml`` of meta-tpp and the Aaren paper's appendix E: 2 layers of
    64, one head, 8 components, Adam at 5e-4, 16 sequences per step, a clock. It selects on
    validation data; the published code selects by the validation RMSE, and adds an L2 penalty of
    1e-4.
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


@dataclasses.dataclass(frozen=True)
class EventsStreamOptions:
    """Options of a stream of events.

    A line is an event: its time and, if the run has event types, its type, separated by a comma. A
    first line may name the columns. A blank line starts a new sequence. The output has the time
    from each event to the next one, in the unit of the run's file (seconds for dates).

    Attributes:
        quantiles: Quantile levels of the time to the next event, separated by commas.
        top_event_types: Number of the most probable event types to print.
        within: Also print the probability of an event within this time, in the unit of the file; 0
            prints none.
        begin: Start of the observation of each sequence, for a run trained with such starts;
            the first event is then also forecast.
        max_length: Maximum number of events of a sequence, for mechanisms with a cache. Default:
            one more than the longest training segment.
        simulate: Number of futures to sample after the last event, instead of the lines for each
            event.
        events: Number of events of each sampled future.
        seed: Random seed of the sampled futures.
    """

    quantiles: str = "0.05,0.5,0.95"
    top_event_types: int = 1
    within: float = 0.0
    begin: str = ""
    max_length: int | None = None
    simulate: int = 0
    events: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_integers(0, 2**20, top_event_types=self.top_event_types)
        check_integers(1, 2**20, events=self.events)
        check_integers(0, 2**16, simulate=self.simulate)
        check_integers(0, MAX_INTEGER, seed=self.seed)
        check_integers(1, max_length=self.max_length)
        if not 0 <= self.within < float("inf"):
            raise OptionError(
                f"expected within as a number of at least 0, got {self.within}.", "within"
            )
        if self.simulate and self.within:
            raise OptionError(
                "within is not available with simulate, which samples futures; remove one of them.",
                "within",
                "simulate",
            )
        self.levels()

    def levels(self) -> tuple[float, ...]:
        """The quantile levels as numbers.

        Raises:
            OptionError: If a level is not between 0 and 1.
        """
        cells = [cell for cell in self.quantiles.split(",") if cell.strip()]
        levels = tuple(float(cell) if is_number(cell.strip()) else -1.0 for cell in cells)
        if not all(0 < level < 1 for level in levels):
            raise OptionError(
                "expected quantiles as numbers between 0 and 1, separated by commas, got "
                f"{self.quantiles!r}.",
                "quantiles",
            )
        return levels


class EventsOptions(TaskOptions):
    """The options of models of events."""

    name = "events"
    Config = EventsConfig
    StreamOptions = EventsStreamOptions
    is_causal = True
    presets: ClassVar[Mapping[str, Any]] = {"thp": thp}
