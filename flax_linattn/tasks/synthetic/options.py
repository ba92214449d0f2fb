"""Options of runs on synthetic sequence tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from flax_linattn.checks import OptionError, check_integers, check_positive
from flax_linattn.models.layers import Layers, window_layers
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

RECALL = ("recall", "copying", "induction", "parity")
"""Tasks other than series: their sequences hold the answers to their queries."""


@dataclasses.dataclass(frozen=True)
class SyntheticData(Options):
    """Synthetic sequences, generated again for every step.

    Attributes:
        rules: Task: next symbol of a series by the rules ``nt``, ``nt-s``, ``nt-r`` or a mixture
            such as ``nt+nt-s``; or ``recall``, ``copying``, ``induction`` or ``parity``.
        base: Number of different symbols.
        delay: Delay tau of a series: the next symbol follows from the last delay + 1 symbols.
        context: Context length: number of symbols that a prediction is made from; for recall,
            copying, induction and parity the length of a sequence.
        condition: Condition of the rare event of ``nt-r``, such as ``x1=0`` (the last symbol is 0).
        num_pairs: Number of key-value pairs of ``recall``.
        validation_series: Number of validation series of 100 symbols, or of hundreds of sequences.
        test_series: Number of test series of 100 symbols, or of hundreds of sequences.
    """

    rules: str = "nt"
    base: int = 16
    delay: int = 2
    context: int = 32
    condition: str = "x1=0"
    num_pairs: int = 8
    validation_series: int = 16
    test_series: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(2, 2**16, base=self.base)
        check_integers(1, 2**16, delay=self.delay, num_pairs=self.num_pairs, context=self.context)
        check_integers(
            1, 2**20, validation_series=self.validation_series, test_series=self.test_series
        )

    @property
    def recalls(self) -> bool:
        """Whether the task is a recall task, with queries, rather than a series."""
        return self.rules in RECALL


@dataclasses.dataclass(frozen=True)
class SyntheticModel(ModelOptions):
    """A ``models.WindowModel`` for series; a ``models.LanguageModel`` for other tasks.

    Attributes:
        layers: Transformer blocks of the backbone. A series takes one feature per symbol.
        readout: Readout of a series model: ``flatten`` (weights for each context position) or
            ``last`` (the last position alone).
        projections: Query, key and value projections of a series model: one set per
            ``position``, or one ``shared`` set.
        init_scale: Standard deviation of the initial kernels of a series model, in units of
            1/sqrt(fan-in); biases start at 0.
        position: Positional encoding of tasks other than series.
    """

    layers: Layers = window_layers(16)  # noqa: RUF009  (frozen)
    readout: Literal["flatten", "last"] = "flatten"
    projections: Literal["position", "shared"] = "position"
    init_scale: float = 0.1
    position: Literal["none", "learned", "sinusoidal"] = "sinusoidal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(init_scale=self.init_scale)


@dataclasses.dataclass(frozen=True)
class SyntheticFit(FitOptions):
    """How the model is trained; an epoch is one new series or batch of sequences.

    Attributes:
        loss: Training loss: ``squared`` (squared error to the one-hot symbol, summed over symbols)
            or ``cross_entropy``.
    """

    epochs: int = 2000
    validate_every: int = 50
    patience: int = 10**6
    batch_size: int = 40
    optimizer: OptimizerOptions = OptimizerOptions("sgd", learning_rate=0.005)
    loss: Literal["squared", "cross_entropy"] = "squared"


@dataclasses.dataclass(frozen=True)
class SyntheticConfig(Config):
    """Options of a run on synthetic sequence tasks."""

    main_options = ("rules", "base", "context", "learning_rate", *Config.main_options)
    data: SyntheticData = SyntheticData()
    model: SyntheticModel = SyntheticModel()
    fit: SyntheticFit = SyntheticFit()

    def __post_init__(self) -> None:
        for name, rules in _unused_options(self.data).items():
            part = self.data if hasattr(self.data, name) else self.model
            if getattr(part, name) != getattr(type(part), name):  # the default
                raise OptionError(
                    f"{name}=... has an effect only on {rules}, got rules={self.data.rules!r}; "
                    "remove it.",
                    name,
                    "rules",
                )
        features = self.layers.features
        if not self.data.recalls and features != self.data.base:
            raise OptionError(
                f"a series of {self.data.base} symbols needs features={self.data.base}, one per "
                f"symbol, got {features}.",
                "features",
                "base",
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        data = self.data
        size = [f"{data.num_pairs}-pairs"] if data.rules == "recall" else []
        size += [] if data.recalls else [f"N{data.base}T{data.delay}"]
        mechanism = mechanism_name(self.layers)
        return make_file_name(data.rules, *size, data.context, mechanism, self.seeds)


def _unused_options(data: SyntheticData) -> dict[str, str]:
    """Options that have no effect on these data, with the rules that use them."""
    series = ("delay", "readout", "projections", "init_scale")
    names = dict.fromkeys(series, "series") if data.recalls else {}
    if not data.recalls:
        names["position"] = "tasks other than series"
    if "nt-r" not in data.rules.split("+"):
        names["condition"] = "rules='nt-r'"
    if data.rules != "recall":
        names["num_pairs"] = "rules='recall'"
    return names


def recall(config: SyntheticConfig) -> SyntheticConfig:
    """Multi-query associative recall with 8 pairs: 2 layers of 64 features, Adam, cross-entropy.

    Source: S. Arora et al., "Zoology" (2023), the smallest size.
    """
    return config.replace(
        rules="recall",
        base=128,
        context=64,
        num_pairs=8,
        features=64,
        num_layers=2,
        activation="gelu",
        batch_size=64,
        optimizer="adam",
        learning_rate=1e-3,
        loss="cross_entropy",
    )


@dataclasses.dataclass(frozen=True)
class SyntheticStreamOptions:
    """Options of a stream of symbols.

    Each line is a symbol, an integer from 0. A blank line starts a new sequence.

    Attributes:
        max_length: Maximum number of symbols of a sequence, for mechanisms with a cache, except for
            series models. Default: the context length.
    """

    max_length: int | None = None


class SyntheticOptions(TaskOptions):
    """The options of synthetic sequence tasks."""

    name = "synthetic"
    Config = SyntheticConfig
    StreamOptions = SyntheticStreamOptions
    is_causal = True
    presets: ClassVar[Mapping[str, Any]] = {"recall": recall}
