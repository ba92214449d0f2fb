"""``DataSpec``, the metadata of a run's data, and ``Run``, a trained run."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast, get_args

import numpy as np

from flax_linattn.annotations import annotation_origin, check_types, type_hints
from flax_linattn.checks import OptionError, quote

if TYPE_CHECKING:
    from flax_linattn.tasks.task import Task


OMIT_IF_EMPTY = "omit_if_empty"
"""Metadata of a field, see ``omit_if_empty``."""


class DataSpec(abc.ABC):
    """Metadata of the training data, saved in the run folder; a run needs no training data.

    Each task has its own frozen dataclass. Its annotations define how it is written and read:
    numbers, strings, tuples, mappings, arrays, and dataclasses of these.

    Attributes:
        checksum: Checksum of the data, a JSON value; a resumed run must have the same.
        scale_fields: Names of the fields that scale the model's inputs.
        free_fields: Names of the fields that may differ in the data of a run that continues another
            run; other fields, such as classes, define the model's inputs and outputs.
        json_keys: Keys of the fields whose key in JSON is not their name.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Sizes(DataSpec):
        ...     lengths: tuple[int, ...]
        ...     checksum: str = ""
        >>> Sizes((3, 4)).to_json()
        {'lengths': [3, 4], 'checksum': ''}
        >>> Sizes.from_json({"lengths": [3, 4]})
        Sizes(lengths=(3, 4), checksum='')
    """

    checksum: Any
    scale_fields: ClassVar[tuple[str, ...]] = ()
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "checksum")
    json_keys: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Makes a spec from the values of ``to_json``; missing fields have their defaults.

        Raises:
            ValueError: If a field is missing or unknown, or its value cannot be read.
        """
        spec: Self = _read(cls, values)
        return spec

    def check(self) -> None:
        """Checks the fields, because the file may be damaged or edited by hand.

        Raises:
            ValueError: If a value is out of range; the message names the field.
            TypeError: If the type of a value differs from its annotation.
        """
        _check_types(self)

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """The spec of these data for a model that was trained on other data.

        Args:
            previous: Spec of the data that the model was trained on.
            refit_scales: Scale inputs by these data. Default: by the scales of ``previous``, so
                that inputs keep their meaning.

        Raises:
            OptionError: If the inputs or outputs of the data differ, such as channels or classes.

        Example:
            >>> @dataclasses.dataclass(frozen=True)
            ... class Scaled(DataSpec):
            ...     names: tuple[str, ...]
            ...     mean: tuple[float, ...]
            ...     checksum: str
            ...     scale_fields: ClassVar[tuple[str, ...]] = ("mean",)
            >>> Scaled(("a",), (2.0,), "new").continue_from(Scaled(("a",), (1.0,), "old"))
            Scaled(names=('a',), mean=(1.0,), checksum='new')
        """
        scales: dict[str, Any] = {}
        for field in _fields(self):
            name = field.name
            if name in self.free_fields:
                continue
            is_scale = name in self.scale_fields
            before, now = (_plain(getattr(spec, name)) for spec in (previous, self))
            if (without_floats(before) != without_floats(now)) if is_scale else before != now:
                raise self.mismatch_error(previous, name)
            if is_scale and not refit_scales:
                scales[name] = getattr(previous, name)
        spec: Any = self
        return cast(Self, dataclasses.replace(spec, **scales))

    def mismatch_error(self, previous: Self, name: str) -> OptionError:
        """Makes the error about a field that differs from the run to continue."""
        before, now = (quote(_plain(getattr(spec, name)), 200) for spec in (previous, self))
        return OptionError(
            f"expected data with the same {name} as the run to continue ({before}), got {now}; "
            "pass matching data, or start a new run.",
            name,
        )

    @property
    def observation(self) -> Any:
        """Shape and dtype of one stream observation, [1, ...]; None if there is no such shape.

        With a shape, training prints a summary of the model.
        """
        return None


def omit_if_empty(default: Any = (), *, compare: bool = True) -> Any:
    """A field of a ``DataSpec`` that its file leaves out if it is an empty tuple or None.

    With ``compare=False`` data of another value are the same data.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Parts(DataSpec):
        ...     names: tuple[str, ...] = omit_if_empty()
        ...     checksum: str = ""
        >>> Parts().to_json(), Parts(("a",)).to_json()
        ({'checksum': ''}, {'names': ['a'], 'checksum': ''})
    """
    return dataclasses.field(default=default, compare=compare, metadata={OMIT_IF_EMPTY: True})


class Run(NamedTuple):
    """A run: the model with its selected parameters, its options and its data spec.

    Attributes:
        task: Task of the run.
        config: Options that the run was started with, resolved; several seeds share them.
        data_spec: Metadata of the training data.
        model: The ``nnx.Module``.
        data: Data that the task loaded for training; None in a run that was loaded from a folder.
        seed_index: Index of the run in a folder of several seeds; None for a single run.
    """

    task: Task[Any, Any, Any]
    config: Any
    data_spec: Any
    model: Any
    data: Any = None
    seed_index: int | None = None


def without_floats(value: Any) -> Any:
    """Replaces the floats of a JSON value by None: their last bits depend on the machine.

    Example:
        >>> without_floats({"rows": 3, "mean": [0.5, 1.5]})
        {'rows': 3, 'mean': [None, None]}
    """
    if isinstance(value, Mapping):
        return {name: without_floats(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_floats(entry) for entry in value]
    return None if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    """Converts a value to plain JSON values."""
    if dataclasses.is_dataclass(value):
        parts = {key: (field, getattr(value, field.name)) for key, field in _keys(value).items()}
        return {
            key: _plain(part)
            for key, (field, part) in parts.items()
            if not field.metadata.get(OMIT_IF_EMPTY) or part
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read(kind: Any, values: Mapping[str, Any]) -> Any:
    """Makes a dataclass from the JSON values of its fields."""
    hints, fields = type_hints(kind), _keys(kind)
    for name in values:
        if name not in fields:
            raise ValueError(f"unknown field {quote(name)}; expected one of {', '.join(fields)}.")
    for name, field in fields.items():
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and name not in values:
            raise ValueError(f"the field {name} is missing.")
    names = {key: field.name for key, field in fields.items()}
    return kind(**{names[key]: _typed(hints[names[key]], value) for key, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    """Converts a JSON value to its annotated type; other values stay for ``check``."""
    origin, args = annotation_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _read(hint, value)
    if origin is tuple and isinstance(value, list):
        kinds = (args[0],) * len(value) if args[-1:] == (Ellipsis,) else args
        return tuple(map(_typed, kinds, value)) if len(kinds) == len(value) else value
    if origin is np.ndarray and isinstance(value, list):
        return np.array(value, np.float64)
    return value


def _check_types(part: Any) -> None:
    check_types(part)
    for field in _fields(part):
        value = getattr(part, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(item):
                _check_types(item)


def _fields(part: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(part)


def _keys(part: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass or its instance by their keys in JSON."""
    keys = getattr(part, "json_keys", {})
    return {keys.get(field.name, field.name): field for field in _fields(part)}
