"""Mechanisms by name and hyperparameters."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from flax_linattn.annotations import type_hints
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.mechanisms import REGISTRY

LONGEST = 1000
"""Characters of hyperparameters: Python's parser needs a stack for what is nested."""


def list_mechanisms() -> tuple[str, ...]:
    """The names that ``get_mechanism`` takes.

    Example:
        >>> list_mechanisms()[:4]
        ('softmax', 'aaren', 'elementwise', 'elementwise_series')
    """
    return tuple(REGISTRY)


def get_mechanism(name: str, **hyperparameters: Any) -> Mechanism:
    """Makes a mechanism: frozen, hashable, hence static under ``jax.jit``.

    Args:
        name: one of ``list_mechanisms()``; hyperparameters may follow after a colon, as they do
            on the command line: ``"elementwise_series:order=2,chunk_size=64"``.
        **hyperparameters: fields of the mechanism's dataclass.

    Raises:
        ValueError: the name is unknown, or a hyperparameter is out of range.
        TypeError: a hyperparameter is unknown or of another type.

    Example:
        >>> get_mechanism("aaren", chunk_size=64).capabilities.constant_memory
        True
        >>> get_mechanism("elementwise_series:order=2") == get_mechanism(
        ...     "elementwise_series", order=2)
        True
    """
    name, _, text = name.partition(":")
    if text:
        hyperparameters = _parse(name, text) | hyperparameters
    mechanism = REGISTRY[_known(name)]
    fields = [field.name for field in dataclasses.fields(mechanism)]
    unknown = sorted(set(hyperparameters) - set(fields))
    if unknown:
        raise TypeError(
            f"{name!r} has no hyperparameter {unknown[0]!r}; it has: {', '.join(fields)}."
        )
    hints = type_hints(mechanism)
    for field, value in hyperparameters.items():
        _check_type(f"{name!r} expects {field}", value, hints[field])
    return mechanism(**hyperparameters)


def register_mechanism(name: str, mechanism_class: type[Mechanism]) -> None:
    """Adds a mechanism of one's own to this process.

    ``get_mechanism``, layers, options of tasks and ``models.load_model`` then know it by name. The
    same class may come again, also made anew, as when a cell of a notebook is run twice.

    Args:
        name: of the mechanism, its class's ``name``: lower-case letters, digits and underscores.
        mechanism_class: a subclass of :class:`Mechanism`, itself a frozen dataclass, whose fields
            all have defaults.

    Raises:
        ValueError: the name is none, is another than the class's, or is that of another mechanism.
        TypeError: the class is no such one.

    Example:
        >>> import dataclasses
        >>> from flax import nnx
        >>> from flax_linattn import nn, ops
        >>> @dataclasses.dataclass(frozen=True)
        ... class Sharp(ops.SoftmaxAttention):
        ...     name = "sharp"
        ...     about = "softmax attention with a factor of 2"
        ...     scale: float | None = 2.0
        >>> ops.register_mechanism("sharp", Sharp)
        >>> ops.get_mechanism("sharp:scale=3.0").scale
        3.0
        >>> nn.Attention(8, 2, mechanism="sharp", rngs=nnx.Rngs(0)).mechanism == Sharp()
        True
    """
    given: Any = mechanism_class
    if not (isinstance(given, type) and issubclass(given, Mechanism)) or (
        "__dataclass_fields__" not in vars(given)
    ):
        raise TypeError(
            "expected a subclass of ops.Mechanism with @dataclasses.dataclass(frozen=True) above "
            f"it, got {given!r}."
        )
    if not (name.isascii() and name.isidentifier() and name.islower()):
        raise ValueError(
            f"expected a name of lower-case letters, digits and underscores, got {name!r}."
        )
    own = mechanism_class().name
    if own != name:
        raise ValueError(f"the class {_where(given)} has the name {own!r}, expected {name!r}.")
    taken = REGISTRY.get(name, mechanism_class)
    if _where(taken) != _where(mechanism_class):
        raise ValueError(
            f"there is a mechanism {name!r} already, {_where(taken)}; choose another name."
        )
    REGISTRY[name] = mechanism_class


def _where(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _known(name: str) -> str:
    """``name``, if it is registered; an error suggests the closest name."""
    if name in REGISTRY:
        return name
    close = difflib.get_close_matches(name, REGISTRY, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"unknown mechanism {name!r}; choose one of: {', '.join(REGISTRY)}.{hint} One of "
        "your own has to be registered first, by importing the module that does so."
    )


def _check_type(expects: str, value: Any, hint: Any) -> None:
    """Refuses a value of another type than its annotation: of text above all, from a name."""
    options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) else (hint,)
    kinds = tuple(get_origin(o) or o for o in options if o is not Ellipsis)
    if get_origin(hint) is tuple:
        kinds = (tuple,)
    if get_origin(hint) is Literal or Literal in kinds:
        return  # the mechanism itself says which words it knows
    numbers = {int: Integral, float: Real}  # NumPy's too
    accepted = isinstance(value, tuple(numbers.get(kind, kind) for kind in kinds))
    if not accepted or (isinstance(value, bool) and bool not in kinds):
        types = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        types = types.replace("NoneType", "None").replace("bool", "True or False")
        raise TypeError(f"{expects} as {types}, got {value!r}.")


def _parse(name: str, text: str) -> dict[str, Any]:
    """Hyperparameters from ``order=2,switch=memory``: Python literals, or bare words."""
    expected = (
        f"expected hyperparameters of {name!r} as name=value,name=value after the colon, "
        "each once, got"
    )
    if len(text) > LONGEST:
        raise ValueError(f"{expected} {len(text)} characters, more than {LONGEST}.")
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        names = [keyword.arg for keyword in call.keywords]
        if None in names or len(set(names)) < len(names):
            raise ValueError
        return {
            str(keyword.arg): keyword.value.id
            if isinstance(keyword.value, ast.Name)
            else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{expected} {text!r}.") from None
