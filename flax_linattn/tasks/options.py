"""Options of runs: composed of parts, and flat wherever people and files name them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, get_args, get_origin

from flax_linattn.annotations import check_fields, type_hints
from flax_linattn.checks import MAX_INTEGER, OptionError, check_choice, check_integers
from flax_linattn.models.layers import Layers, NamedMechanism
from flax_linattn.registry import MECHANISMS
from flax_linattn.tasks.files import make_file_name
from flax_linattn.training.optimizer_options import OptimizerOptions

if TYPE_CHECKING:
    import optax

    from flax_linattn.ops import Capabilities
    from flax_linattn.registry import Directions

Checkpoint: TypeAlias = Literal["best", "last"]
"""Parameters of a run: the selected ones, or those at the end of training."""
ExportFormat: TypeAlias = Literal["bundle", "c", "onnx"]
BEFORE_OUTPUT, AFTER_OUTPUT, EVERY = "before-output", "after-output", "every-"
"""When the state of a stream is saved; a number of rows follows the last value."""
MAX_BATCH_SIZE = 2**16
"""Maximum number of examples per training step; trainings of large models use as many."""


class TooFewRowsError(OptionError):
    """The data have too few rows for the options."""


@dataclasses.dataclass(frozen=True)
class Options:
    """A group of options of a run; converts strings to paths, and lists to tuples.

    Raises:
        ValueError: If the value of an option is not one of its choices.
        TypeError: If the type of an option differs from its annotation.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        for name, hint in type_hints(type(self)).items():
            value = getattr(self, name)
            if Path in get_args(hint) and isinstance(value, str):
                object.__setattr__(self, name, Path(value))
            if get_origin(hint) is tuple:  # of JSON a list
                parts = map(Path, value) if Path in get_args(hint) else value
                object.__setattr__(self, name, tuple(parts))


@dataclasses.dataclass(frozen=True)
class FitOptions(Options):
    """How a model is trained.

    Attributes:
        epochs: Maximum number of passes over the training data.
        steps: Maximum number of training steps, instead of ``epochs``; 0 uses ``epochs``.
        validate_every: Number of training steps between validations; 0 validates after each epoch.
        patience: Early stopping: number of validations without improvement after which training
            stops.
        patience_steps: Early stopping: minimum number of training steps without improvement, so
            that the short epochs of small data do not end training.
        batch_size: Number of examples per training step.
        optimizer: Optimizer and learning rate schedule.
        seed: Random seed of the initialization, the order of the examples and dropout.
        runs: Number of runs to train together on the same data. The first run has the seed
            ``seed``; each next run adds 1.
        time_limit: Maximum training time in seconds, without compilation and validations; training
            then ends with a validation. 0 sets no limit.
    """

    epochs: int = 100
    steps: int = 0
    validate_every: int = 0
    patience: int = 10
    patience_steps: int = 0
    batch_size: int = 16
    optimizer: OptimizerOptions = OptimizerOptions()
    seed: int = 0
    runs: int = 1
    time_limit: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, patience=self.patience)
        check_integers(1, 10**6, epochs=self.epochs)
        check_integers(1, MAX_BATCH_SIZE, batch_size=self.batch_size)
        check_integers(0, steps=self.steps, validate_every=self.validate_every)
        check_integers(0, patience_steps=self.patience_steps)
        check_integers(1, 1024, runs=self.runs)
        check_integers(0, MAX_INTEGER - self.runs + 1, seed=self.seed)
        if not 0 <= self.time_limit < math.inf:
            raise OptionError(
                "time_limit must be a finite number of seconds, or 0 for no limit, got "
                f"{self.time_limit}.",
                "time_limit",
            )

    @property
    def by_steps(self) -> bool:
        """Whether the run ends or validates after a number of steps instead of epochs."""
        return bool(self.steps or self.validate_every)

    def make_optimizer(
        self, steps_per_epoch: int, *, inject_hyperparams: bool = False
    ) -> optax.GradientTransformation:
        """Makes the optimizer of a run; see ``training.make_optimizer``."""
        from flax_linattn.training import make_optimizer

        total_steps = self.steps or self.epochs * steps_per_epoch
        return make_optimizer(
            self.optimizer, total_steps, steps_per_epoch, inject_hyperparams=inject_hyperparams
        )


@dataclasses.dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the model of a run: its layers, and options that a task adds."""

    layers: Layers


@dataclasses.dataclass(frozen=True)
class Config:
    """All options of a run, in groups for data, model and training.

    Options of all groups have different names, so that a command line, a file and ``of`` can name
    an option without its group.

    Attributes:
        data: Data set, its split and its scaling.
        model: Architecture of the model.
        fit: Length of the training, early stopping, batch size and seed.
        auto_values: Values that stand for a choice by the data, by option name. The config.json of
            a run holds the chosen values.
        main_options: Names of the options that most users need, in the order of a short help.
        json_keys: Keys of the options whose key in config.json is not their name.

    Raises:
        ValueError: If options are out of range or incompatible.
    """

    auto_values: ClassVar[Mapping[str, Any]] = {}
    main_options: ClassVar[tuple[str, ...]] = ("mechanism", "epochs", "time_limit", "seed")
    json_keys: ClassVar[Mapping[str, str]] = {}
    data: Options
    model: ModelOptions
    fit: FitOptions

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Makes a config from options by name; other options have their defaults.

        Raises:
            ValueError: If an option is unknown or out of range.

        Example:
            >>> from flax_linattn import tasks
            >>> task = tasks.get_task(tasks.list_tasks()[0])
            >>> config = task.Config.of(mechanism="softmax", epochs=3)
            >>> config.model.layers.mechanism, config.fit.epochs
            ('softmax', 3)
        """
        defaults: Any = cls
        config: Self = defaults().replace(**options)
        return config

    def replace(self, **options: Any) -> Self:
        """Returns a copy with some options replaced, by name.

        Raises:
            ValueError: If an option is unknown or out of range.
        """
        names = self.flat()
        for name in options:
            check_choice(names, option=name)
        return _replace_options(self, options)

    def flat(self) -> dict[str, Any]:
        """Returns all options by name, in their order.

        Raises:
            TypeError: If two parts have an option of the same name.
        """
        flat_hints(type(self))
        return dict(_leaves(self))

    @property
    def auto_options(self) -> tuple[str, ...]:
        """Names of the options that the data have not chosen yet."""
        values = self.flat()
        return tuple(name for name, value in self.auto_values.items() if values[name] == value)

    def with_auto_options(self, other: Self) -> Self:
        """Returns a copy with the other config's values of ``auto_options``."""
        values = other.flat()
        return self.replace(**{name: values[name] for name in self.auto_options})

    @property
    def layers(self) -> Layers:
        """Options of the layers of the model."""
        return self.model.layers

    @property
    def seed(self) -> int:
        """Random seed of the initialization, the order of the examples and dropout."""
        return self.fit.seed

    @property
    def seeds(self) -> str:
        """Seeds of all runs for names of folders: "0", or "0-to-15" for 16 runs."""
        last = self.seed + self.fit.runs - 1
        return str(self.seed) if self.fit.runs == 1 else f"{self.seed}-to-{last}"

    @property
    def name(self) -> str:
        """A name for the run folder."""
        return make_file_name(mechanism_name(self.layers), self.seeds)

    def run_config(self, seed_index: int) -> Self:
        """Returns the config of one of several runs, with its own seed.

        Example:
            >>> from flax_linattn import tasks
            >>> task = tasks.get_task(tasks.list_tasks()[0])
            >>> fit = task.Config.of(seed=7, runs=16).run_config(3).fit
            >>> fit.seed, fit.runs
            (10, 1)
        """
        fit = dataclasses.replace(self.fit, seed=self.seed + seed_index, runs=1)
        return dataclasses.replace(self, fit=fit)

    def with_layers(self, layers: Layers) -> Self:
        """Returns a copy with other layers of the model."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, layers=layers))

    def resolve(self) -> Self:
        """Returns a copy with absolute paths."""
        return self.replace(**{name: _resolve_path(value) for name, value in _leaves(self)})

    def to_json(self) -> dict[str, Any]:
        """Returns all options as JSON values, by key."""
        return {self.json_keys.get(name, name): _to_json(value) for name, value in _leaves(self)}

    def differences(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """JSON values of this and another config, by the names of the options that differ."""
        pairs = zip(_leaves(self), _leaves(other), strict=True)
        values = {name: (_to_json(own), _to_json(others)) for (name, own), (_, others) in pairs}
        return {name: (own, others) for name, (own, others) in values.items() if own != others}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Makes a config from the values of ``to_json``; missing options have their defaults.

        Raises:
            ValueError: If an option is unknown to this version, or out of range.
        """
        names = {key: name for name, key in cls.json_keys.items()}
        return cls.of(**{names.get(key, key): value for key, value in values.items()})


class TaskOptions:
    """Options of a task that can be read before its data and models are imported.

    Attributes:
        name: Name in the registry and in run folders.
        Config: Class of the options of a run.
        StreamOptions: Dataclass of the options of a stream.
        is_causal: Whether models need a causal (or a non-causal) mechanism; None accepts both.
        presets: Functions config -> config by name, such as published protocols.
        default_preset: Preset of a command that passes neither a preset nor a ``model``; None uses
            the defaults of ``Config``. A command that passes only a ``model`` uses the preset with
            the model's name, if there is one.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Config]]
    StreamOptions: ClassVar[type]
    is_causal: ClassVar[bool | None] = None
    presets: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    default_preset: ClassVar[str | None] = None

    @classmethod
    def usual_preset(cls, model: str | None) -> str | None:
        """Returns the preset of a run that names none: that of its model, or the default."""
        return cls.default_preset if model is None else model if model in cls.presets else None


def mechanism_name(layers: Layers) -> str:
    """Joins the names of the mechanisms of layers, for folders and titles."""
    names = layers.mechanism if isinstance(layers.mechanism, tuple) else (layers.mechanism,)
    return "+".join(name if isinstance(name, str) else name.name for name in names)


def flat_hints(part: Any) -> dict[str, Any]:
    """Type of each option by name, including the options of nested groups."""
    hints: dict[str, Any] = {}
    for name, hint in _field_hints(part).items():
        options = flat_hints(hint) if dataclasses.is_dataclass(hint) else {name: hint}
        for option in options.keys() & hints.keys():
            raise TypeError(
                f"{part.__name__} has two options named {option!r}; rename one of them."
            )
        hints |= options
    return hints


def _field_hints(part: Any) -> dict[str, Any]:
    hints = type_hints(part)
    return {field.name: hints[field.name] for field in dataclasses.fields(part)}


def _leaves(part: Any) -> Iterator[tuple[str, Any]]:
    hints = _field_hints(type(part))
    for name, hint in hints.items():
        value = getattr(part, name)
        if dataclasses.is_dataclass(hint):
            yield from _leaves(value)
        else:
            yield name, value


def _replace_options(part: Any, options: Mapping[str, Any]) -> Any:
    changes = {}
    for name, hint in _field_hints(type(part)).items():
        if dataclasses.is_dataclass(hint):
            changes[name] = _replace_options(getattr(part, name), options)
        elif name in options:
            changes[name] = options[name]
    return dataclasses.replace(part, **changes)


def _resolve_path(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_resolve_path, value))
    return value.resolve() if isinstance(value, Path) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, NamedMechanism):
        raise OptionError(
            "expected the mechanism of a run as a name, because config.json stores text; pass its "
            f"name, with hyperparameters as in '{value.name}:name=value'.",
            "mechanism",
        )
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def mechanisms_by_direction(is_causal: bool | None) -> tuple[str, ...]:
    """Names of the mechanisms with a causal (or non-causal) form; None returns all names."""
    return tuple(name for name, able in MECHANISMS.items() if _has_direction(able, is_causal))


def _has_direction(able: Directions | Capabilities, is_causal: bool | None) -> bool:
    return is_causal is None or (able.causal if is_causal else able.noncausal)


def check_direction(config: Config, is_causal: bool, **remedy: Any) -> None:
    """Raises OptionError for mechanisms without a causal (or non-causal) form."""
    for mechanism in config.layers.mechanisms:
        if not _has_direction(mechanism.capabilities, is_causal):
            raise OptionError(
                f"{mechanism.name!r} has no {'causal' if is_causal else 'non-causal'} form; choose "
                f"one of {', '.join(mechanisms_by_direction(is_causal))}.",
                "mechanism",
                **remedy,
            )
