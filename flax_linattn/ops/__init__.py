"""Attention mechanisms as pure functions on arrays, behind one contract.

``list_mechanisms`` names them, ``get_mechanism`` makes one. Adding a mechanism takes its
module and one line in the registry below.
"""

from __future__ import annotations

import ast
import dataclasses
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from flax_linattn.ops.contract.capabilities import Capabilities, Learned
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.state import PackedState
from flax_linattn.ops.contract.weights import weights
from flax_linattn.ops.engine.cache import CacheMechanism, KVCache
from flax_linattn.ops.engine.exponential import ExponentialState
from flax_linattn.ops.engine.kernel import KernelMechanism, KernelState
from flax_linattn.ops.engine.series import SeriesState
from flax_linattn.ops.engine.shards import SequenceParallel, sequence_parallel
from flax_linattn.ops.engine.stateless import StatelessMechanism
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.mechanisms import (
    AFT,
    AFTSimple,
    Hedgehog,
    LinearAttention,
    Linformer,
    Nystrom,
    Performer,
    RandomFeatureAttention,
)
from flax_linattn.ops.mechanisms.aaren import Aaren, AarenState
from flax_linattn.ops.mechanisms.elementwise import Elementwise, ElementwiseSeries
from flax_linattn.ops.mechanisms.expressive import Expressive, ExpressiveQuadratic
from flax_linattn.ops.mechanisms.softmax import SoftmaxAttention
from flax_linattn.ops.mechanisms.taylorshift import TaylorShift, taylorshift_n0, taylorshift_n1

_REGISTRY: dict[str, type[Mechanism]] = {
    "softmax": SoftmaxAttention,
    "aaren": Aaren,
    "elementwise": Elementwise,
    "elementwise_series": ElementwiseSeries,
    "taylorshift": TaylorShift,
    "expressive": Expressive,
    "expressive_quadratic": ExpressiveQuadratic,
    "linear": LinearAttention,
    "aft": AFT,
    "aft_simple": AFTSimple,
    "hedgehog": Hedgehog,
    "performer": Performer,
    "rfa": RandomFeatureAttention,
    "linformer": Linformer,
    "nystrom": Nystrom,
}


def list_mechanisms() -> tuple[str, ...]:
    """The names that ``get_mechanism`` takes.

    Example:
        >>> list_mechanisms()[:4]
        ('softmax', 'aaren', 'elementwise', 'elementwise_series')
    """
    return tuple(_REGISTRY)


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
    if name not in _REGISTRY:
        raise ValueError(f"unknown mechanism {name!r}; choose one of: {', '.join(_REGISTRY)}.")
    mechanism = _REGISTRY[name]
    fields = [field.name for field in dataclasses.fields(mechanism)]
    unknown = sorted(set(hyperparameters) - set(fields))
    if unknown:
        raise TypeError(
            f"{name!r} has no hyperparameter {unknown[0]!r}; it has: {', '.join(fields)}."
        )
    hints = get_type_hints(mechanism)
    for field, value in hyperparameters.items():
        _check_type(f"{name!r} expects {field}", value, hints[field])
    return mechanism(**hyperparameters)


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
        shown = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        shown = shown.replace("NoneType", "None").replace("bool", "True or False")
        raise TypeError(f"{expects} as {shown}, got {value!r}.")


def _parse(name: str, text: str) -> dict[str, Any]:
    """Hyperparameters from ``order=2,switch=memory``: Python literals, or bare words."""
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
    except (SyntaxError, ValueError):
        raise ValueError(
            f"expected hyperparameters of {name!r} as name=value,name=value after the colon, "
            f"each once, got {text!r}."
        ) from None


__all__ = [
    "AFT",
    "AFTSimple",
    "Aaren",
    "AarenState",
    "CacheMechanism",
    "Capabilities",
    "Elementwise",
    "ElementwiseSeries",
    "ExponentialState",
    "Expressive",
    "ExpressiveQuadratic",
    "Hedgehog",
    "KVCache",
    "KernelMechanism",
    "KernelState",
    "Learned",
    "LinearAttention",
    "Linformer",
    "Mechanism",
    "Nystrom",
    "PackedState",
    "Performer",
    "RandomFeatureAttention",
    "SequenceParallel",
    "SeriesState",
    "SoftmaxAttention",
    "StatelessMechanism",
    "StreamingMechanism",
    "TaylorShift",
    "get_mechanism",
    "list_mechanisms",
    "sequence_parallel",
    "taylorshift_n0",
    "taylorshift_n1",
    "weights",
]
