"""scikit-learn's conventions for estimators, without scikit-learn."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Container, Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers, quote, suggest
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Task

MAX_SEED = 2**31 - 1


class NotFittedError(ValueError, AttributeError):
    """A method of an estimator was called before ``fit``."""


class Estimator:
    """Base class of the estimators, with scikit-learn's handling of parameters.

    ``__init__`` only stores its arguments; ``fit`` checks them, and sets the attributes whose names
    end in ``_``.
    """

    run_: Run
    n_features_in_: int
    feature_names_in_: NDArray

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Refuses unknown parameters, with the nearest known one in the message.

        Raises:
            TypeError: If there is no parameter of that name.
        """
        known = inspect.signature(cls).parameters
        if (name := _first_unknown(params, known)) is not None:
            raise TypeError(_unknown_message(cls, "parameter", name, known))
        return super().__new__(cls)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters of the estimator by name.

        Args:
            deep: Has no effect: no parameter is an estimator.
        """
        return {name: getattr(self, name) for name in _defaults(self)}

    def set_params(self, **params: Any) -> Self:
        """Sets parameters of the estimator by name.

        Raises:
            ValueError: If there is no parameter of that name.
        """
        known = _defaults(self)
        if (name := _first_unknown(params, known)) is not None:
            raise ValueError(_unknown_message(type(self), "parameter", name, known))
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, default in _defaults(self).items()
            if repr(getattr(self, name)) != repr(default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __sklearn_tags__(self) -> Any:
        """Tags of the estimator; only scikit-learn calls this method."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )

    def _fitted(self) -> Run:
        """Returns the run, or raises ``NotFittedError`` before ``fit``."""
        if not hasattr(self, "run_"):
            kind: type[Exception] = NotFittedError
            if other := sys.modules.get("sklearn.exceptions"):  # its tools catch its own class
                kind = type("NotFittedError", (NotFittedError, other.NotFittedError), {})
            raise kind(f"this {type(self).__name__} is not fitted yet; call fit first.")
        return self.run_

    def _set_features(self, count: int, names: NDArray | None) -> None:
        """Sets the number of features, and their names if the data were a data frame."""
        self.n_features_in_ = count
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    def _run_options(self, task: Task[Any, Any, Any], **named: Any) -> dict[str, Any]:
        """Merges ``self.options`` and the named options that are not None.

        Raises:
            TypeError: If ``options`` is not a mapping.
            ValueError: If an entry of ``options`` is unknown to the task, names a data file, or is
                also a parameter of the estimator.
        """
        given = getattr(self, "options", None)
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"expected options as a dict such as {{'num_layers': 1}}, got {quote(given)}."
            )
        given = dict(given or {})
        config = task.Config.of()
        known = config.flat()
        for field in dataclasses.fields(config.data):
            if field.name in given and "Path" in str(field.type):
                raise OptionError(
                    f"expected no files in options, since fit receives the data, got "
                    f"{field.name!r}; remove it from options, and pass the content of the file to "
                    "fit.",
                    "options",
                )
        if (name := _first_unknown(given, known)) is not None:
            if name in _defaults(self):
                raise OptionError(
                    f"expected {name!r} as a parameter of {type(self).__name__}, got it in "
                    f"options; pass {type(self).__name__}({name}=...).",
                    "options",
                )
            raise OptionError(_unknown_message(type(self), "option", name, known), "options")
        for name, value in named.items():
            if value is None:
                continue
            if name in given:
                raise ValueError(
                    f"expected {name!r} as a parameter only, got it in options, too; remove it "
                    "from options."
                )
            given[name] = value
        return given


def _defaults(estimator: Estimator) -> dict[str, Any]:
    """The arguments of ``__init__`` with their default values."""
    arguments = inspect.signature(type(estimator)).parameters.values()
    return {argument.name: argument.default for argument in arguments}


def _first_unknown(given: Iterable[str], known: Container[str]) -> str | None:
    return next((name for name in given if name not in known), None)


def _unknown_message(estimator: type, kind: str, name: str, known: Iterable[str]) -> str:
    """Error message for an unknown name that suggests the nearest known name or lists all names."""
    names = ", ".join(known := list(known))
    further = f", or pass it as options={{{name!r}: ...}}" if "options" in known else ""
    nearest = suggest(str(name), known, otherwise=f"; choose one of {names}{further}.")
    return f"{estimator.__name__} has no {kind} {name!r}{nearest}"


def make_config(
    task: Task[Any, Any, Any], init_run: InitRun | None, options: Mapping[str, Any]
) -> Any:
    """Makes the config of a run from the default preset, or from the run to continue."""
    previous = None if init_run is None else init_run.read_config(task)
    config: Any = task.Config.of()
    model = None if previous is None else previous.flat().get("model")
    preset = task.usual_preset(options.get("model", model))
    if preset is not None:
        config = task.presets[preset](config)
    if previous is not None:
        fit = dataclasses.replace(previous.fit, runs=1)
        config = dataclasses.replace(config, model=previous.model, fit=fit)
    return config.replace(**options)


def make_seed(random_state: Any) -> int:
    """Makes a seed from an integer, a NumPy generator, or NumPy's global state for None.

    Raises:
        ValueError: If a number is negative or too large.
        TypeError: If ``random_state`` has any other type.

    Example:
        >>> make_seed(3), make_seed(None) >= 0
        (3, True)
    """
    source = np.random if random_state is None else random_state
    generate = getattr(source, "integers", None) or getattr(source, "randint", None)
    if generate is not None:
        return int(generate(MAX_SEED))
    check_integers(0, MAX_SEED, random_state=random_state)
    return int(random_state)
