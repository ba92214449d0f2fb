"""Registry access: mechanisms by name and hyperparameters."""

from __future__ import annotations

import ast
import dataclasses
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from flax_linattn.annotations import type_hints
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.mechanisms import REGISTRY
from flax_linattn.registry import MECHANISMS, Directions, check_mechanism

MAX_HYPERPARAMETER_CHARACTERS = 1000
"""Limit in characters: Python's parser needs stack space for nested expressions."""


def list_mechanisms() -> tuple[str, ...]:
    """Lists the names that ``get_mechanism`` accepts.

    Example:
        >>> list_mechanisms()[:4]
        ('softmax', 'aaren', 'elementwise', 'elementwise_series')
    """
    return tuple(REGISTRY)


def get_mechanism(name: str, **hyperparameters: Any) -> Mechanism:
    """Makes a mechanism from its name: frozen and hashable, hence static under ``jax.jit``.

    Args:
        name: One of ``list_mechanisms()``. Hyperparameters may follow after a colon, as on the
            command line: ``"elementwise_series:order=2,chunk_size=64"``.
        **hyperparameters: Fields of the mechanism's dataclass.

    Raises:
        ValueError: If the name is unknown, or a hyperparameter is out of range.
        TypeError: If a hyperparameter is unknown or has the wrong type.

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
    check_mechanism(name)
    mechanism = REGISTRY[name]
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
    """Registers a user-defined mechanism in this process.

    ``get_mechanism``, layers, task options and ``models.load_model`` then accept it by name. The
    same class may be registered again, also after it was redefined, as when a notebook cell is run
    twice.

    Args:
        name: Name of the mechanism, equal to its class's ``name``: lower-case letters, digits and
            underscores.
        mechanism_class: Subclass of :class:`Mechanism`, itself a frozen dataclass, whose fields all
            have defaults.

    Raises:
        ValueError: If the name is invalid, differs from that of the class, or is already taken.
        TypeError: If the class is not a frozen dataclass derived from :class:`Mechanism`.

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
        raise ValueError(
            f"the class {_qualified_name(given)} has the name {own!r}, expected {name!r}."
        )
    registered = REGISTRY.get(name, mechanism_class)
    if _qualified_name(registered) != _qualified_name(mechanism_class):
        raise ValueError(
            f"there is a mechanism {name!r} already, {_qualified_name(registered)}; choose "
            "another name."
        )
    REGISTRY[name] = mechanism_class
    able = mechanism_class().capabilities
    MECHANISMS[name] = Directions(able.causal, able.noncausal)


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_type(expects: str, value: Any, hint: Any) -> None:
    """Rejects a value whose type differs from the annotation, above all text from a name."""
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
    """Parses hyperparameters such as ``order=2,switch=memory``: Python literals or bare words."""
    expected = (
        f"expected hyperparameters of {name!r} as name=value,name=value after the colon, "
        "each once, got"
    )
    if len(text) > MAX_HYPERPARAMETER_CHARACTERS:
        raise ValueError(
            f"{expected} {len(text)} characters, more than {MAX_HYPERPARAMETER_CHARACTERS}."
        )
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
