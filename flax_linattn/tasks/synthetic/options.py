"""Options of runs on symbols."""

from __future__ import annotations

import dataclasses
from typing import Literal

from flax_linattn.checks import OptionError, at_least, positive
from flax_linattn.models import Layers, window_layers
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import Config, FitOptions, ModelOptions, Options, mechanism_name
from flax_linattn.training import OptimizerOptions

RECALL = ("recall", "copying", "induction", "parity")
"""Sequences that are no series: what they ask for stands in the sequence itself."""


@dataclasses.dataclass(frozen=True)
class SyntheticData(Options):
    """Which symbols, drawn anew for every step.

    Attributes:
        rules: of the series whose next symbol is asked for: nt, nt-s, nt-r, or a mixture of them
            joined by +, such as nt+nt-s; or sequences that ask for their own symbols: recall,
            copying, induction, parity.
        base: how many different symbols there are.
        delay: of series, tau: the next symbol follows from the last delay + 1.
        context: symbols that a guess is made from; the length of a sequence that is no series.
        condition: of nt-r, when its rare event is: x1=0 is where the last symbol is 0.
        num_pairs: of recall, keys with their values.
        validation_series: series of 100 symbols, or hundreds of sequences, to validate on.
        test_series: the same, to test on.
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
        at_least(2, 2**16, base=self.base)
        at_least(1, 2**16, delay=self.delay, num_pairs=self.num_pairs, context=self.context)
        at_least(1, 2**20, validation_series=self.validation_series, test_series=self.test_series)

    @property
    def recalls(self) -> bool:
        """Whether the sequences are no series."""
        return self.rules in RECALL


@dataclasses.dataclass(frozen=True)
class SyntheticModel(ModelOptions):
    """The model: of series a ``models.WindowModel``, of other sequences a ``LanguageModel``.

    Attributes:
        layers: of the backbone; those of series are as wide as there are symbols.
        readout: of series, whether the guess is read from the whole context ("flatten", weights for
            each position) or from its last symbol ("last").
        projections: of series, whether each position of the context has matrices of its own for its
            query, key and value ("position"), or all have the same ("shared").
        init_scale: of series, the standard deviation of initial kernels, times 1/sqrt(fan-in);
            biases begin at 0.
        position: of other sequences, how their embedding tells positions.
    """

    layers: Layers = window_layers(16)  # noqa: RUF009  (frozen)
    readout: Literal["flatten", "last"] = "flatten"
    projections: Literal["position", "shared"] = "position"
    init_scale: float = 0.1
    position: Literal["none", "learned", "sinusoidal"] = "sinusoidal"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(init_scale=self.init_scale)


@dataclasses.dataclass(frozen=True)
class SyntheticFit(FitOptions):
    """How the model is trained; an epoch is one new series, or batch of sequences.

    Attributes:
        loss: the squared difference to a one for the right symbol and zeros, summed over symbols,
            or the cross-entropy.
    """

    epochs: int = 2000
    validate_every: int = 50
    patience: int = 10**6
    batch_size: int = 40
    optimizer: OptimizerOptions = OptimizerOptions("sgd", learning_rate=0.005)
    loss: Literal["squared", "cross_entropy"] = "squared"


@dataclasses.dataclass(frozen=True)
class SyntheticConfig(Config):
    """Everything that a run on symbols depends on."""

    data: SyntheticData = SyntheticData()
    model: SyntheticModel = SyntheticModel()
    fit: SyntheticFit = SyntheticFit()

    def __post_init__(self) -> None:
        for name, whose in _not_taken(self.data).items():
            part = self.data if hasattr(self.data, name) else self.model
            if getattr(part, name) != getattr(type(part), name):  # the default
                raise OptionError(
                    f"{name} is an option of {whose}, which {self.data.rules} is not; leave it "
                    "out.",
                    name,
                    "rules",
                )
        features = self.layers.features
        if not self.data.recalls and features != self.data.base:
            raise OptionError(
                f"a series of {self.data.base} symbols takes features={self.data.base}, one for "
                f"each, got {features}.",
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


def _not_taken(data: SyntheticData) -> dict[str, str]:
    """Options that change nothing of these data, and the rules whose options they are."""
    series = ("delay", "readout", "projections", "init_scale")
    names = dict.fromkeys(series, "series") if data.recalls else {}
    if not data.recalls:
        names["position"] = "sequences that are no series"
    if "nt-r" not in data.rules.split("+"):
        names["condition"] = "the rules nt-r"
    if data.rules != "recall":
        names["num_pairs"] = "the rules recall"
    return names


def recall(config: SyntheticConfig) -> SyntheticConfig:
    """Multi-query associative recall, small: two layers of 64 features, Adam on the cross-entropy.

    Source: S. Arora et al., "Zoology" (2023), whose sizes begin there.
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
