"""C expressions of the operations of a step, one element at a time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flax_linattn.checks import OptionError
from flax_linattn.inference.jaxprs import Equation, Value

Index = Sequence[str]
"""Index of an element, an expression in C for each axis; "0" for an axis of one element."""

TYPES = {"float32": ("float", "f"), "int32": ("int32_t", "i"), "uint32": ("uint32_t", "u")}
TYPES |= {"bool": ("uint8_t", "i")}
"""C type, and member of the union of a workspace word, by dtype."""

_ELEMENTWISE = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "rem": "fmodf({}, {})",
    "max": "la_max({}, {})",
    "min": "la_min({}, {})",
    "pow": "powf({}, {})",
    "neg": "(-{})",
    "abs": "fabsf({})",
    "sign": "la_sign({})",
    "square": "la_square({})",
    "exp": "expf({})",
    "exp2": "exp2f({})",
    "expm1": "expm1f({})",
    "log": "logf({})",
    "log1p": "log1pf({})",
    "sqrt": "sqrtf({})",
    "rsqrt": "(1.0f / sqrtf({}))",
    "sin": "sinf({})",
    "cos": "cosf({})",
    "tanh": "tanhf({})",
    "logistic": "(1.0f / (1.0f + expf(-{})))",
    "erf": "erff({})",
    "erfc": "erfcf({})",
    "floor": "floorf({})",
    "ceil": "ceilf({})",
    "is_finite": "(isfinite({}) != 0)",
    "eq": "({} == {})",
    "ne": "({} != {})",
    "lt": "({} < {})",
    "le": "({} <= {})",
    "gt": "({} > {})",
    "ge": "({} >= {})",
    "and": "({} & {})",
    "or": "({} | {})",
    "xor": "({} ^ {})",
}
_INTEGERS = {"abs": "abs({})", "max": "la_imax({}, {})", "min": "la_imin({}, {})"}
_INTEGERS |= {"rem": "({} % {})", "sign": "(({0} > 0) - ({0} < 0))"}
# Counters of observations overflow and wrap in JAX; signed overflow is undefined in C.
_INTEGERS |= {
    name: f"(({{c_type}})((uint32_t){{}} {sign} (uint32_t){{}}))"
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))
}
"""Operations that differ for integers."""


@dataclasses.dataclass(frozen=True)
class Expression:
    """An array whose elements are C expressions.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
        at: Function from an index to the expression of the element.
        reads: Parts of the workspace that the expressions read.
        is_cheap: Whether reading an element again costs nothing.
        base: Function from a position to the element, if the array is stored in row-major order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    at: Callable[[Index], str]
    reads: frozenset[int] = frozenset()
    is_cheap: bool = False
    base: Callable[[str], str] | None = None


def row_major(value: Value | Expression, base: Callable[[str], str]) -> Expression:
    """Makes the expression of an array that is stored in row-major order."""
    shape = value.shape
    return Expression(
        shape, value.dtype, lambda index: base(position(shape, index)), is_cheap=True, base=base
    )


def c_type(value: Value | Expression) -> str:
    """Returns the C type of the elements of an array.

    Raises:
        OptionError: If C export does not support the dtype.
    """
    try:
        return TYPES[str(value.dtype)][0]
    except KeyError:
        raise OptionError(
            f"the step has an array of {value.dtype}, but C has only {', '.join(TYPES)}.", "format"
        ) from None


def number(x: Any) -> str:
    """A C literal of exactly the value of a float32 number, an integer or a boolean."""
    if isinstance(x, (bool, np.bool_)):
        return str(int(x))
    if isinstance(x, (int, np.integer)):
        return "INT32_MIN" if x == -(2**31) else f"{x}u" if x >= 2**31 else str(x)
    if not math.isfinite(x):
        return "NAN" if math.isnan(x) else "INFINITY" if x > 0 else "(-INFINITY)"
    text = f"{x:.9g}"
    text = text if set(".e") & {*text} else f"{text}.0"
    return f"({text}f)" if text[0] == "-" else f"{text}f"


def c_string(text: str) -> str:
    """A C string literal in UTF-8."""
    plain = {*range(32, 127)} - {*b'"\\?'}  # "??" begins a trigraph
    bytes_ = (chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(bytes_)}"'


def position(shape: Sequence[int], index: Index) -> str:
    """Position of an index in row-major order."""
    terms, stride = [], 1
    for size, one in zip(reversed(shape), reversed(index), strict=True):
        if one != "0":
            one = one if re.fullmatch(r"\w+", one) else f"({one})"
            terms.append(one if stride == 1 else f"{one} * {stride}")
        stride *= size
    return " + ".join(reversed(terms)) or "0"


def _broadcast_at(x: Expression, index: Index) -> str:
    """The element of a scalar, or of an array that is broadcast over axes of size 1."""
    return x.at(["0" if n == 1 else i for n, i in zip(x.shape, index, strict=False)])


def _all_reads(inputs: Sequence[Expression]) -> frozenset[int]:
    return frozenset().union(*(x.reads for x in inputs))


def _convert(source: np.dtype[Any], target: np.dtype[Any]) -> str:
    if target == np.bool_:
        return "({} != 0)"
    return "{}" if source == target else f"(({TYPES[str(target)][0]}){{}})"


_ELEMENTWISE_WITH_PARAMETERS = (
    "select_n", "convert_element_type", "integer_pow", "not", "clamp", "bitcast_convert_type",
    "round",
)  # fmt: skip
"""Elementwise operations whose expression depends on parameters, dtypes or the number of inputs."""


def _elementwise(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    """An operation on each element."""
    name, output, first = equation.primitive, equation.outputs[0], equation.inputs[0]
    is_float = np.issubdtype(first.dtype, np.floating)
    if name == "select_n":
        cases = "".join(f"{{0}} == {k} ? {{{k + 1}}} : " for k in range(len(inputs) - 2))
        is_pair = len(inputs) == 3
        text = "({0} ? {2} : {1})" if is_pair else f"({cases}{{{len(inputs) - 1}}})"
    elif name == "convert_element_type":
        c_type(output)  # raises for a dtype without a C type
        text = _convert(first.dtype, output.dtype)
    elif name == "integer_pow":
        text = f"la_power({{}}, {equation.params['y']})"
    elif name == "not":
        text = "(!{})" if first.dtype == np.bool_ else "(~{})"
    elif name == "clamp":
        text = "la_min(la_max({1}, {0}), {2})" if is_float else "la_imin(la_imax({1}, {0}), {2})"
    elif name == "bitcast_convert_type":
        to_float = np.issubdtype(output.dtype, np.floating)
        cast = "" if is_float == to_float else "la_number" if to_float else "la_bits"
        text = f"{cast}({{}})" if is_float or to_float else f"(({c_type(output)}){{}})"
    elif name == "round":
        text = "rintf({})" if int(equation.params["rounding_method"]) else "roundf({})"
    else:
        text = _ELEMENTWISE[name] if is_float else _INTEGERS.get(name, _ELEMENTWISE[name])
        text = text.replace("{c_type}", c_type(output))

    def at(index: Index) -> str:
        return text.format(*(_broadcast_at(x, index) for x in inputs))

    return [Expression(output.shape, output.dtype, at, _all_reads(inputs))]


def _view(x: Expression, output: Value, at: Callable[[Index], Index]) -> list[Expression]:
    """An array whose elements are elements of another array."""
    result = Expression(output.shape, output.dtype, lambda i: x.at(at(i)), x.reads, x.is_cheap)
    return [result]


def _broadcast(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    (x, *_), output = inputs, equation.outputs[0]
    axes = equation.params["broadcast_dimensions"]

    def at(index: Index) -> Index:
        return ["0" if x.shape[k] == 1 else index[axis] for k, axis in enumerate(axes)]

    return _view(x, output, at)


def _reshape(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    (x, *_), output = inputs, equation.outputs[0]
    if is_same_order(x.shape, output.shape):
        sources = [k for k, n in enumerate(x.shape) if n != 1]
        targets = [k for k, n in enumerate(output.shape) if n != 1]
        axes = dict(zip(sources, targets, strict=True))
        return _view(
            x, output, lambda i: [i[axes[k]] if k in axes else "0" for k in range(len(x.shape))]
        )
    assert x.base is not None
    return [dataclasses.replace(row_major(output, x.base), reads=x.reads)]


def is_same_order(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes differ only by axes of size 1."""
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def _transpose(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    order = equation.params["permutation"]
    return _view(
        inputs[0], equation.outputs[0], lambda i: [i[order.index(k)] for k in range(len(order))]
    )


def _slice(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    starts, steps = equation.params["start_indices"], equation.params["strides"]

    def at(index: Index) -> Index:
        each = zip(index, starts, steps or [1] * len(starts), strict=True)
        return [_affine(one, start, step) for one, start, step in each]

    return _view(inputs[0], equation.outputs[0], at)


def _affine(one: str, start: int, step: int) -> str:
    scaled = one if step == 1 or one == "0" else f"({one}) * {step}"
    sign = "-" if start < 0 else "+"
    return scaled if not start else str(start) if one == "0" else f"{scaled} {sign} {abs(start)}"


def _split(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    x, axis, start = inputs[0], equation.params["axis"], 0
    results: list[Expression] = []
    for output in equation.outputs:

        def at(index: Index, start: int = start) -> Index:
            return [*index[:axis], _affine(index[axis], start, 1), *index[axis + 1 :]]

        results += _view(x, output, at)
        start += output.shape[axis]
    return results


def _reverse(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    (x,), axes = inputs, equation.params["dimensions"]

    def at(index: Index) -> Index:
        return [f"{x.shape[k] - 1} - {i}" if k in axes else i for k, i in enumerate(index)]

    return _view(x, equation.outputs[0], at)


def _concatenate(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    """Concatenates arrays along an axis, or along a new axis for ``stack``."""
    output, is_stack = equation.outputs[0], equation.primitive == "stack"
    axis = equation.params["axis" if is_stack else "dimension"]

    sizes = [1 if is_stack else x.shape[axis] for x in inputs]
    ends = list(itertools.accumulate(sizes))

    def at(index: Index) -> str:
        i, text = index[axis], ""
        for x, size, end in zip(reversed(inputs), reversed(sizes), reversed(ends), strict=True):
            own = [] if is_stack else [_affine(i, size - end, 1)]
            element = x.at([*index[:axis], *own, *index[axis + 1 :]])
            text = f"({i} < {end} ? {element} : {text})" if text else element
        return text

    return [Expression(output.shape, output.dtype, at, _all_reads(inputs))]


def _pad(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    (x, fill), output, config = inputs, equation.outputs[0], equation.params["padding_config"]

    def at(index: Index) -> str:
        inside, tests = [], []
        for i, size, (low, _, gap) in zip(index, x.shape, config, strict=True):
            place = f"({i} - {low})" if low else i
            inside.append(f"{place} / {gap + 1}" if gap else place)
            tests += [f"{place} >= 0 && {place} < {size * (gap + 1) - gap}"] if i != "0" else []
            tests += [f"{place} % {gap + 1} == 0"] if gap else []
        return f"({' && '.join(tests) or '1'} ? {x.at(inside)} : {fill.at(())})"

    return [Expression(output.shape, output.dtype, at, _all_reads(inputs))]


def _iota(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    output, axis = equation.outputs[0], equation.params["dimension"]
    return [
        Expression(
            output.shape, output.dtype, lambda i: f"(({c_type(output)}){i[axis]})", is_cheap=True
        )
    ]


def _gather(equation: Equation, inputs: Sequence[Expression]) -> list[Expression]:
    """Slices at indices; slices out of bounds are clipped or filled, depending on the mode."""
    x, starts = inputs
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    output, mode = equation.outputs[0], str(equation.params["mode"])
    fill = equation.params.get("fill_value")
    is_float = np.issubdtype(x.dtype, np.floating)
    filler = number(fill if fill is not None else math.nan if is_float else -(2**31))
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)

    def at(index: Index) -> str:
        outer = [i for k, i in enumerate(index) if k not in numbers.offset_dims]
        offsets = iter([index[k] for k in numbers.offset_dims])
        place = ["0" if k in dropped else next(offsets) for k in range(len(x.shape))]
        pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        for axis, batch in pairs:
            place[axis] = outer[batch]
        tests = []
        for k, axis in enumerate(numbers.start_index_map):
            start, last = starts.at([*outer, str(k)]), x.shape[axis] - sizes[axis]
            tests.append(f"{start} >= 0 && {start} <= {last}")
            clipped = f"la_imin(la_imax({start}, 0), {last})"
            place[axis] = clipped if place[axis] == "0" else f"{clipped} + {place[axis]}"
        element = x.at(place)
        return f"({' && '.join(tests)} ? {element} : {filler})" if "FILL" in mode else element

    return [Expression(output.shape, output.dtype, at, _all_reads((x, starts)))]


TRANSLATIONS: dict[str, Callable[[Equation, Sequence[Expression]], list[Expression]]] = {
    **dict.fromkeys((*_ELEMENTWISE, *_ELEMENTWISE_WITH_PARAMETERS), _elementwise),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "rev": _reverse,
    "concatenate": _concatenate,
    "stack": _concatenate,
    "pad": _pad,
    "iota": _iota,
    "gather": _gather,
}
