"""Flags from options: parsed as they are declared, and made into options after that.

tyro would make the options itself, and show what they refuse in words of its own; here each part
of the options becomes a dict, so that errors reach ``main``, which knows the flags.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import docstring_parser
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from flax_linattn.checks import OptionError
from flax_linattn.cli import FLAGS
from flax_linattn.models import Mechanisms

MARKERS = (tyro.conf.OmitArgPrefixes,)
"""Options have names of their own, without that of their part."""
GROUPS = {"config": "", "start": "Run", "fit": "Training", "dialect": "Table", "stream": "Stream"}
"""Titles of the groups of options in help texts, by the names of parts whose titles differ."""


def registry() -> ConstructorRegistry:
    """Rules for tyro: a part is a dict of options, and mechanisms are names."""
    rules = ConstructorRegistry()
    rules.struct_rule(_part)
    rules.primitive_rule(_mechanisms)
    return rules


@contextmanager
def only(names: Container[str]) -> Iterator[None]:
    """A context whose errors name only options that a command has."""
    try:
        yield
    except OptionError as error:
        error.options = tuple(n for n in error.options if n in names or FLAGS.get(n) in names)
        raise


def call(command: Callable[..., Any], name: str, args: Sequence[str]) -> None:
    """Calls a function with the options of a command line; its errors name only these."""
    with only(own(command)):
        tyro.cli(command, args=args, prog=f"flax-linattn {name}")


def own(command: Callable[..., Any]) -> set[str]:
    """The options of a command: the parameters of its function that are not given by place.

    Example:
        >>> def predict(run, /, out, seed_index=None): ...
        >>> sorted(own(predict))
        ['out', 'seed_index']
    """
    parameters = inspect.signature(command).parameters.values()
    return {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names alone, of those of parts.

    Example:
        >>> flat({"model": {"layers": {"features": 8}, "causal": True}})
        {'features': 8, 'causal': True}
    """
    options: dict[str, Any] = {}
    for name, value in values.items():
        options |= flat(value) if isinstance(value, dict) else {name: value}
    return options


def _part(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Any dataclass with a default of its own type."""
    if not (dataclasses.is_dataclass(info.type) and isinstance(info.default, info.type)):
        return None
    hints = get_type_hints(info.type, include_extras=True)
    about = _about_attributes(info.type)
    fields = []
    for field in dataclasses.fields(info.type):
        value, hint = getattr(info.default, field.name), hints[field.name]
        hint = type(value) if isinstance(hint, TypeVar) else hint
        if dataclasses.is_dataclass(type(value)):
            hint = Annotated[hint, tyro.conf.arg(name=GROUPS.get(field.name, field.name.title()))]
        elif (value is None or value is False or value == "") and get_origin(hint) is not Annotated:
            # The help text says what these defaults mean.
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="")]
        fields.append(StructFieldSpec(field.name, hint, value, about.get(field.name)))
    return StructConstructorSpec(instantiate=lambda **values: values, fields=tuple(fields))


def _about_attributes(part: Any) -> dict[str, str]:
    """Help texts of attributes from the docstrings of a dataclass and its bases."""
    about: dict[str, str] = {}
    for base in reversed(part.__mro__[:-1]):
        for parameter in docstring_parser.parse(base.__doc__ or "").params:
            text = (parameter.description or "").replace("\n", " ").replace("``", '"')
            about[parameter.arg_name] = text[:1].upper() + text[1:]
    return about


def _mechanisms(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Names: one for all layers, or one for each."""
    if info.type != Mechanisms:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME [NAME ...]",
        instance_from_str=lambda names: names[0] if len(names) == 1 else tuple(names),
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            [value] if isinstance(value, str) else list(map(str, value))
        ),
    )
