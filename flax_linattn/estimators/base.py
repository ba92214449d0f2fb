"""What all estimators share: scikit-learn's conventions, without scikit-learn."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from flax_linattn.checks import at_least, choice
from flax_linattn.registry import get_task
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Task

LARGEST_SEED = 2**31 - 1


class NotFittedError(ValueError, AttributeError):
    """An estimator was asked before it was fitted."""


class Estimator:
    """An object of parameters, which ``fit`` gives what it learns: attributes that end in ``_``.

    ``__init__`` only stores its arguments; they are checked by ``fit``.
    """

    run_: Run

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        Args:
            deep: changes nothing: no parameter is an estimator.
        """
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Changes parameters.

        Raises:
            ValueError: there is no such parameter.
        """
        for name in params:
            choice(_parameters(type(self)), parameter=name)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _parameters(type(self))
        changed = {
            name: value
            for name, value in self.get_params().items()
            if not _same(value, defaults[name])
        }
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of its estimators, which alone calls this."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if "run_" in state:
            state["run_"] = _frozen(state["run_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "run_" in state:
            self.run_ = _thawed(state["run_"])

    def _fitted(self) -> Run:
        """The run.

        Raises:
            NotFittedError: there is none.
        """
        if not hasattr(self, "run_"):
            raise _not_fitted()(f"this {type(self).__name__} is not fitted yet; call fit first.")
        return self.run_


def _not_fitted() -> type[NotFittedError]:
    """One that scikit-learn's tools catch, too, where it is in use."""
    other = sys.modules.get("sklearn.exceptions")
    if other is None:
        return NotFittedError
    return type("NotFittedError", (NotFittedError, other.NotFittedError), {})


def _parameters(estimator: type) -> dict[str, Any]:
    """The arguments of ``__init__`` with their defaults."""
    arguments = list(inspect.signature(estimator.__init__).parameters.values())[1:]  # type: ignore[misc]
    return {argument.name: argument.default for argument in arguments}


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, type(default)) and repr(value) == repr(default))


def _frozen(run: Run) -> dict[str, Any]:
    """A run as pickle takes it: without its data, parameters as arrays."""
    leaves = jax.tree.leaves(nnx.state(run.model, nnx.Variable))
    return {
        "task": run.task.name,
        "config": run.config,
        "problem": run.problem,
        "variables": [np.asarray(leaf) for leaf in leaves],
    }


def _thawed(frozen: Mapping[str, Any]) -> Run:
    task = get_task(frozen["task"])
    model = task.model(frozen["config"], frozen["problem"])
    state = nnx.state(model, nnx.Variable)
    nnx.update(model, jax.tree.unflatten(jax.tree.structure(state), frozen["variables"]))
    return Run(task, frozen["config"], frozen["problem"], model)


def config_of(
    task: Task[Any, Any, Any], init_run: InitRun | None, options: Mapping[str, Any]
) -> Any:
    """The options of a run: the task's, with the model and the training of a run to continue.

    Args:
        task: whose run it is; its default preset is that of a new run.
        init_run: the run to continue, if any.
        options: further ones, by name.

    Raises:
        ValueError: there is no such option, or one is out of range.
        FileNotFoundError: there is no such run to continue.
    """
    before = None if init_run is None else init_run.read_config(task)
    config: Any = task.Config.of()
    preset = task.default_preset
    if preset is not None:
        usual: Any = task.presets[preset](config)
        model = options.get("model", before.flat()["model"] if before else None)
        config = usual if model in (None, usual.flat()["model"]) else config
    if before is not None:
        fit = dataclasses.replace(before.fit, runs=1)
        config = dataclasses.replace(config, model=before.model, fit=fit)
    return config.replace(**options)


def seed_of(random_state: Any) -> int:
    """A seed, of a number, of NumPy's random state, or of its global one for None.

    Raises:
        ValueError: a number below 0 or too large.
        TypeError: something else.

    Example:
        >>> seed_of(3), seed_of(None) >= 0
        (3, True)
    """
    if random_state is None:
        random_state = np.random
    if isinstance(random_state, np.random.RandomState) or random_state is np.random:
        return int(random_state.randint(LARGEST_SEED))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(LARGEST_SEED))
    at_least(0, LARGEST_SEED, random_state=random_state)
    return int(random_state)


def options_of(options: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """Options of a run: those that are given, and of named ones those that are not None.

    Raises:
        ValueError: one is given twice.
    """
    given = dict(options or {})
    for name, value in named.items():
        if value is None:
            continue
        if name in given:
            raise ValueError(f"expected {name} once, got it in options, too; leave it out there.")
        given[name] = value
    return given
