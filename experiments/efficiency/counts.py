"""Depth and number of operations of a program, counted in the program as JAX traces it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core


def depth(jaxpr: core.Jaxpr) -> float:
    """The longest chain of operations in a program; an upper bound if there are loops.

    A loop counts as the number of its passes times the depth of its body, although passes may
    overlap.
    """
    at: dict[Any, float] = {}
    for equation in jaxpr.eqns:
        begin = max((at.get(v, 0.0) for v in equation.invars if not _is_literal(v)), default=0.0)
        at |= dict.fromkeys(equation.outvars, begin + cost(equation))
    return max((at.get(v, 0.0) for v in jaxpr.outvars if not _is_literal(v)), default=0.0)


def cost(equation: Any) -> float:
    """The depth of one operation."""
    name, params = equation.primitive.name, equation.params
    _check(name)
    inner = [depth(body) for body in _bodies(params)]
    if inner:
        return float(params.get("length", 1)) * max(inner)
    (shape, *_) = [v.aval.shape for v in equation.invars] or [()]
    if name.startswith(("cumsum", "cummax", "cumprod", "cumlogsumexp")):
        return math.ceil(math.log2(max(2, shape[params["axis"]])))
    if name.startswith(("reduce_", "argmax")) and "axes" in params:
        return math.ceil(math.log2(max(2, math.prod(shape[a] for a in params["axes"]))))
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 1 + math.ceil(math.log2(max(1, math.prod(shape[a] for a in contracted))))
    return 1.0


def _bodies(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
    """The programs that an operation calls."""
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one


def _check(name: str) -> None:
    if name == "while":
        raise ValueError(
            "expected loops with a known number of passes, got a while loop; use lax.scan."
        )


def _is_literal(variable: Any) -> bool:
    return isinstance(variable, core.Literal)


def work(jaxpr: core.Jaxpr) -> float:
    """The number of scalar operations of a program, with all passes of its loops.

    A multiplication and an addition count as one operation each; moving numbers counts as none.
    """
    return sum(map(_operations, jaxpr.eqns))


MOVES = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "slice", "concatenate", "pad",
         "convert_element_type", "copy", "iota", "rev", "stop_gradient", "expand_dims", "split",
         "dynamic_slice", "dynamic_update_slice", "gather", "scatter")  # fmt: skip


def _operations(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    _check(name)
    inner = [work(body) for body in _bodies(params)]
    if inner:
        return float(params.get("length", 1)) * max(inner)
    if name in MOVES:
        return 0.0
    sizes = [math.prod(v.aval.shape) for v in (*equation.invars, *equation.outvars)]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * sizes[-1] * math.prod(shape[axis] for axis in contracted)
    return float(max(sizes))
