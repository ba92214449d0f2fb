"""What a run remembers of its data, and what a run is made of."""

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
    """What the training data say: kept in the run folder, so that a run needs no training data.

    A task's own is a frozen dataclass. Its annotations say how it is written and read: numbers,
    text, tuples, mappings, arrays, and dataclasses of these.

    Attributes:
        checksum: of the data, as a JSON value: a resumed run must have the same.
        scale_fields: names of the fields that scale the model's inputs.
        free_fields: names of the fields that new data may change when a run is continued with them;
            other fields say what the model's inputs and outputs are, such as classes.

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

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Back from ``to_json``; a field that is not there has its default.

        Raises:
            ValueError: a field is missing or unknown, or its value cannot be read.
        """
        spec: Self = _read(cls, values)
        return spec

    def check(self) -> None:
        """Refuses what no data say: the file may be damaged, or written by hand.

        Raises:
            ValueError: names what does not fit.
            TypeError: the same, of types.
        """
        _check_types(self)

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """The spec of these data for a model that was trained on other data.

        Args:
            previous: the spec of the other data.
            refit_scales: whether inputs are scaled as these data say; default as ``previous`` says,
                so that they mean the same.

        Raises:
            OptionError: the data have other inputs or outputs, such as channels or classes.

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
        """The error that a field is not that of the data of the run to continue."""
        before, now = (quote(_plain(getattr(spec, name)), 200) for spec in (previous, self))
        return OptionError(
            f"expected data with the {name} of the run to continue ({before}), got {now}; give "
            "such data, or start a new run.",
            name,
        )

    @property
    def observation(self) -> Any:
        """An observation [1, ...] of a stream as a ``jax.ShapeDtypeStruct``; None if there is none.

        Training prints a summary of a model that takes one.
        """
        return None


def omit_if_empty(default: Any = ()) -> Any:
    """A field of a ``DataSpec`` that its file leaves out if it is an empty tuple or None.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Parts(DataSpec):
        ...     names: tuple[str, ...] = omit_if_empty()
        ...     checksum: str = ""
        >>> Parts().to_json(), Parts(("a",)).to_json()
        ({'checksum': ''}, {'names': ['a'], 'checksum': ''})
    """
    return dataclasses.field(default=default, metadata={OMIT_IF_EMPTY: True})


class Run(NamedTuple):
    """A run: the model with its selected parameters, and what it was made of.

    Attributes:
        task: whose run it is.
        config: what the run was started with, resolved; of one of several seeds, that of all.
        data_spec: what it learned of the data.
        model: an ``nnx.Module``.
        data: what its task loaded to train it; None in a run that comes from its folder.
        seed_index: its index among the runs of its folder, where these are several seeds.
    """

    task: Task[Any, Any, Any]
    config: Any
    data_spec: Any
    model: Any
    data: Any = None
    seed_index: int | None = None


def without_floats(value: Any) -> Any:
    """A JSON value whose floats are None, for their last bits depend on the machine.

    Example:
        >>> without_floats({"rows": 3, "mean": [0.5, 1.5]})
        {'rows': 3, 'mean': [None, None]}
    """
    if isinstance(value, Mapping):
        return {name: without_floats(of_name) for name, of_name in value.items()}
    if isinstance(value, list | tuple):
        return [without_floats(entry) for entry in value]
    return None if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value):
        parts = {field: getattr(value, field.name) for field in _fields(value)}
        return {
            field.name: _plain(part)
            for field, part in parts.items()
            if not field.metadata.get(OMIT_IF_EMPTY) or part
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read(kind: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from its fields as JSON has them."""
    hints, fields = type_hints(kind), {field.name: field for field in _fields(kind)}
    for name in values:
        if name not in fields:
            raise ValueError(f"expected one of {', '.join(fields)}, got {quote(name)}.")
    for name, field in fields.items():
        nothing = field.default is field.default_factory is dataclasses.MISSING
        if nothing and name not in values:
            raise ValueError(f"expected {name}, got nothing.")
    return kind(**{name: _typed(hints[name], value) for name, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    """A value of a file as the annotation has it; one of another kind stays, for ``check``."""
    origin, of = annotation_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _read(hint, value)
    if origin is tuple and isinstance(value, list):
        kinds = (of[0],) * len(value) if of[-1:] == (Ellipsis,) else of
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
