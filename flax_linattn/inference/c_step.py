"""C99 code of the step of a model: one header with its weights, its state and the step.

Each operation of the step becomes a C expression of one element. An expression that is used once is
inlined, so that chains of operations share a loop. All other expressions are stored in a workspace,
whose parts are reused when no later statement reads them. If possible, the inner loop of a matrix
product runs over output elements that are adjacent in memory, so that compilers vectorize the loop.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_linattn.checks import OptionError, quote
from flax_linattn.inference.c_expressions import (
    TRANSLATIONS,
    TYPES,
    Expression,
    c_string,
    c_type,
    is_same_order,
    number,
    position,
    row_major,
)
from flax_linattn.inference.jaxprs import Equation, StepProgram, Value, export_error, trace_step
from flax_linattn.inference.model import StreamingModel
from flax_linattn.storage import atomic_write
from flax_linattn.typing import Array

_REDUCTIONS = {
    "reduce_sum": ("0", "{} + {}"),
    "reduce_prod": ("1", "{} * {}"),
    "reduce_max": ("-INFINITY", "la_max({}, {})"),
    "reduce_min": ("INFINITY", "la_min({}, {})"),
    "reduce_or": ("0", "{} | {}"),
    "reduce_and": ("1", "{} & {}"),
}
_SIGNED_OPERATIONS = ("max", "min", "clamp", "reduce_max", "reduce_min")
"""Operations whose C helpers exist for signed numbers only."""
HEADER_BEGIN = "/* One step of"
"""First words of every header, by which an exported file is recognized."""
_HELPERS = """\
static inline float la_max(float a, float b) { return a > b || a != a ? a : b; }
static inline float la_min(float a, float b) { return a < b || a != a ? a : b; }
static inline int32_t la_imax(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t la_imin(int32_t a, int32_t b) { return a < b ? a : b; }
static inline float la_square(float a) { return a * a; }
static inline float la_sign(float a) { return a > 0 ? 1.0f : a < 0 ? -1.0f : a; }
static inline float la_power(float a, int n) {
    float power = 1.0f;
    for (int i = 0; i < abs(n); ++i) power *= a;
    return n < 0 ? 1.0f / power : power;
}
static inline int32_t la_bits(float a) { int32_t b; memcpy(&b, &a, 4); return b; }
static inline float la_number(int32_t a) { float b; memcpy(&b, &a, 4); return b; }
"""


def export_c(
    path: str | Path,
    model: StreamingModel,
    observation: jax.ShapeDtypeStruct | Array,
    *,
    name: str = "model",
    task: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Writes a model as one C99 header, which needs only the C library.

    The header defines the structs ``NAME_state`` and ``NAME_workspace`` and the functions
    ``NAME_init(state)`` and ``NAME_step(x, state, y, workspace)``. Weights are constant arrays, and
    no function allocates memory. Results equal the results of the model up to rounding.

    Args:
        path: File to write, atomically.
        model: Model whose state has constant size, in float32.
        observation: Observations of ``model.step``, [B, ...]; only shape and dtype matter.
        name: Prefix of the names in the header.
        task: Description of raw observations and outputs, as in a bundle. The scales of values
            become the function ``NAME_scale(x)``, and classes become ``NAME_class(index)``.

    Returns:
        Sizes in bytes of "weights", "state" and "workspace".

    Raises:
        OptionError: If the state grows, ``name`` is not a C identifier, or the step has an
            operation or a dtype without a translation.
        ValueError: If the model cannot stream.

    Example:
        >>> import pathlib, tempfile
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> path = pathlib.Path(tempfile.mkdtemp(), "model.h")
        >>> sorted(inference.export_c(path, model, jnp.ones((1, 3))))
        ['state', 'weights', 'workspace']
        >>> "void model_step(const float *x, model_state *s, float *y" in path.read_text()
        True
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise OptionError(f"expected name as a C identifier, got {quote(name)}.", "name")
    program = trace_step(model, observation)
    text, sizes = _Header(program, name).write(type(model).__name__, task or {})
    with atomic_write(path) as file:
        file.write(text.encode())
    return sizes


@dataclasses.dataclass
class _Statement:
    """Lines of C, and the parts of the workspace that they read and write."""

    lines: list[str]
    reads: frozenset[int]
    writes: int | None


class _Header:
    """Writes the header of a program."""

    def __init__(self, program: StepProgram, name: str) -> None:
        self.program, self.name = program, name
        self.constants: list[str] = []
        self.weight_bytes = 0
        self.statements: list[_Statement] = []
        self.part_sizes: list[int] = []
        self.values: dict[Value, Expression] = {}
        self.uses = Counter(value for equation in program.equations for value in {*equation.inputs})
        # C has no arrays of length 0. No expression reads them, so the struct omits them.
        self.fields = _fields(key for key, x in program.state.items() if math.prod(x.shape))

    def write(self, model: str, task: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
        """Returns the text of the header, and the sizes of its parts in bytes."""
        program, name = self.program, self.name
        self.values[program.observation] = row_major(program.observation, "x[{}]".format)
        for key, value in program.state.items():
            self.values[value] = row_major(value, f"s->{self.fields.get(key, '')}[{{}}]".format)
        for equation in program.equations:
            self._translate(equation)
        self._return()
        body, words = self._place()
        # Helpers get the prefix of the model, because a program may include several headers.
        helpers, body = (
            [re.sub(r"\bla_(?=\w+\()", f"{name}_", line) for line in lines]
            for lines in (_HELPERS.splitlines(), body)
        )
        state = [
            f"    {c_type(program.state[key])} {field}[{math.prod(program.state[key].shape)}];"
            for key, field in self.fields.items()
        ]
        sizes = {
            "weights": self.weight_bytes,
            "state": sum(math.prod(v.shape) * v.dtype.itemsize for v in program.state.values()),
            "workspace": 4 * words,
        }
        upper = name.upper()
        lines = [
            f"{HEADER_BEGIN} {model}, written by flax_linattn.inference.export_c.",
            f"   Bytes: {', '.join(f'{key} {size}' for key, size in sizes.items())}. */",
            f"#ifndef {upper}_H", f"#define {upper}_H",
            *(f"#include <{header}.h>" for header in ("math", "stdint", "stdlib", "string")), "",
            f"enum {{ {upper}_INPUTS = {math.prod(program.observation.shape)}, "
            f"{upper}_OUTPUTS = {math.prod(program.output.shape)} }};", "",
            "typedef struct {", *state, f"}} {name}_state;", "",
            "/* Temporary values of one step, which no later step reads. */",
            f"typedef struct {{ union {{ float f; int32_t i; uint32_t u; }} w[{words}]; }} "
            f"{name}_workspace;", "",
            *helpers, "",
            *self.constants, "",
            "/* The state before the first observation. */",
            f"static inline void {name}_init({name}_state *s) {{", *self._initial(), "}", "",
            "/* Maps the observation x to the output y, and updates the state. */",
            f"static inline void {name}_step(const {c_type(program.observation)} *x, "
            f"{name}_state *s, {c_type(program.output)} *y, {name}_workspace *space) {{",
            *([] if words else ["    (void)space;"]),
            *(f"    {line}" for line in body), "}",
            *_task_functions(name, task), "",
            f"#endif /* {upper}_H */", "",
        ]  # fmt: skip
        return "\n".join(lines), sizes

    def _translate(self, equation: Equation) -> None:
        """Translates an equation to expressions, and stores expressions that are used again."""
        name = equation.primitive
        inputs = [self._read(value) for value in equation.inputs]
        if name in _SIGNED_OPERATIONS and any(x.dtype == np.uint32 for x in inputs):
            raise export_error(f"the operation {name!r} of unsigned integers", "C")
        if name in TRANSLATIONS:
            results = TRANSLATIONS[name](equation, self._prepare(equation, inputs))
        elif name in _REDUCTIONS:
            results = [self._reduce(equation, inputs[0])]
        elif name == "dot_general":
            results = [self._product(equation, inputs)]
        elif name == "cumsum":
            results = [self._cumulate(equation, inputs[0])]
        elif name == "scatter":
            results = [self._scatter(equation, inputs)]
        elif name == "sort" and len(inputs) == 1:
            results = [self._sort(equation, inputs[0])]
        else:
            raise export_error(f"the operation {name!r}", "C")
        for value, result in zip(equation.outputs, results, strict=True):
            c_type(value)  # raises for a dtype without a C type
            if not result.is_cheap and self.uses[value] > 1:
                result = self._store(result, name)
            self.values[value] = result

    def _prepare(self, equation: Equation, inputs: list[Expression]) -> list[Expression]:
        """Stores inputs whose elements would be computed more than once."""
        name, size = equation.primitive, math.prod(equation.outputs[0].shape)
        if name in ("reshape", "squeeze", "expand_dims"):
            moves = not is_same_order(inputs[0].shape, equation.outputs[0].shape)
            return [self._store(x, name) if moves and x.base is None else x for x in inputs]
        is_read_again = name in ("gather", "split")
        return [
            self._cheap(x, name) if is_read_again or math.prod(x.shape) < size else x
            for x in inputs
        ]

    def _read(self, value: Value) -> Expression:
        if value not in self.values:
            self.values[value] = self._constant(value)
        return self.values[value]

    def _constant(self, value: Value) -> Expression:
        """A constant: a number if all elements are equal, otherwise an array of the header."""
        array = value.constant
        assert array is not None
        flat = array.reshape(-1)
        bits = flat.view(f"u{flat.itemsize}") if flat.size else flat
        if not flat.size or (bits == bits[0]).all():
            text = number(flat[0] if flat.size else 0)
            return Expression(value.shape, value.dtype, lambda _: text, is_cheap=True)
        label = f"{self.name}_c{len(self.constants)}"
        numbers = ", ".join(map(number, flat.tolist()))
        self.constants.append(f"static const {c_type(value)} {label}[{flat.size}] = {{{numbers}}};")
        self.weight_bytes += flat.nbytes
        return row_major(value, f"{label}[{{}}]".format)

    def _store(self, result: Expression, about: str) -> Expression:
        """Stores an expression in the workspace."""
        part, target = self._part(result)
        index, loops = _loops(result.shape)
        line = f"{target.at(index)} = {result.at(index)};"
        self._add_statement(_nest(loops, [line]), result.reads, part, about)
        return target

    def _cheap(self, result: Expression, about: str) -> Expression:
        return result if result.is_cheap else self._store(result, about)

    def _part(self, source: Value | Expression) -> tuple[int, Expression]:
        """Adds a part to the workspace, with the shape and dtype of an array."""
        part = len(self.part_sizes)
        self.part_sizes.append(math.prod(source.shape))
        base = f"space->w[@{part}@ + {{}}].{TYPES[str(source.dtype)][1]}".format
        return part, dataclasses.replace(row_major(source, base), reads=frozenset({part}))

    def _add_statement(
        self, lines: list[str], reads: frozenset[int], writes: int | None, about: str
    ) -> None:
        self.statements.append(_Statement([f"/* {about} */", *lines], reads, writes))

    def _reduce(self, equation: Equation, x: Expression) -> Expression:
        """A reduction over axes, in the order of the elements."""
        axes, (begin, combine) = equation.params["axes"], _REDUCTIONS[equation.primitive]
        part, target = self._part(equation.outputs[0])
        index, loops = _loops(target.shape)
        inner, inner_loops = _loops([x.shape[axis] for axis in axes], "r")
        free, reduced = iter(index), dict(zip(axes, inner, strict=True))
        element = x.at([reduced[k] if k in reduced else next(free) for k in range(len(x.shape))])
        kind = c_type(target).replace("uint8_t", "int32_t")
        if not np.issubdtype(x.dtype, np.floating):
            combine = combine.replace("la_", "la_i")
            begin = begin.replace("-INFINITY", "INT32_MIN").replace("INFINITY", "INT32_MAX")
        body = [
            f"{kind} sum = {begin};",
            *_nest(inner_loops, [f"sum = {combine.format('sum', element)};"]),
            f"{target.at(index)} = sum;",
        ]
        self._add_statement(_nest(loops, body), x.reads, part, equation.primitive)
        return target

    def _product(self, equation: Equation, inputs: Sequence[Expression]) -> Expression:
        """A matrix product; its sums are the inner loops, or enclose the loop of the last axis."""
        a, b = (self._cheap(x, "dot_general") for x in inputs)
        (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
        part, target = self._part(equation.outputs[0])
        index, loops = _loops(target.shape)
        inner, inner_loops = _loops([a.shape[axis] for axis in over_a], "r")
        free = iter(index[len(batch_a) :])

        def element(x: Expression, over: Sequence[int], batch: Sequence[int]) -> str:
            known = dict(zip(over, inner, strict=True)) | dict(zip(batch, index, strict=False))
            return x.at([known[k] if k in known else next(free) for k in range(len(x.shape))])

        term = f"{element(a, over_a, batch_a)} * {element(b, over_b, batch_b)}"
        last = len(b.shape) - 1
        if loops and last not in (*over_b, *batch_b) and b.shape[last] > 1:
            lines = [
                *_nest(loops, [f"{target.at(index)} = 0;"]),
                *_nest([*loops[:-1], *inner_loops, loops[-1]], [f"{target.at(index)} += {term};"]),
            ]
        else:
            body = [
                f"{c_type(target)} sum = 0;",
                *_nest(inner_loops, [f"sum += {term};"]),
                f"{target.at(index)} = sum;",
            ]
            lines = _nest(loops, body)
        self._add_statement(lines, a.reads | b.reads, part, "dot_general")
        return target

    def _cumulate(self, equation: Equation, x: Expression) -> Expression:
        """A cumulative sum along an axis."""
        axis, is_reversed = equation.params["axis"], equation.params["reverse"]
        part, target = self._part(equation.outputs[0])
        size = x.shape[axis]
        index, loops = _loops([1 if k == axis else n for k, n in enumerate(x.shape)])
        at = [*index[:axis], f"({size - 1} - r)" if is_reversed else "r", *index[axis + 1 :]]
        line = f"sum += {x.at(at)}; {target.at(at)} = sum;"
        body = [f"{c_type(target)} sum = 0;", *_nest([f"for (int r = 0; r < {size}; ++r)"], [line])]
        self._add_statement(_nest(loops, body), x.reads, part, "cumsum")
        return target

    def _sort(self, equation: Equation, x: Expression) -> Expression:
        """A copy that insertion sort sorts along an axis; NaN comes last."""
        axis, target = equation.params["dimension"], self._store(x, "sort")
        index, loops = _loops([1 if k == axis else n for k, n in enumerate(x.shape)])

        def at(place: str) -> str:
            return target.at([*index[:axis], place, *index[axis + 1 :]])

        before = at("k - 1")
        is_after = f"{before} > one"
        if np.issubdtype(x.dtype, np.floating):
            is_after += f" || ({before} != {before} && one == one)"
        shift = f"for (; k > 0 && ({is_after}); --k) {at('k')} = {before};"
        body = [
            f"{c_type(x).replace('uint8_t', 'int32_t')} one = {at('n')};",
            "int k = n;",
            shift,
            f"{at('k')} = one;",
        ]
        lines = _nest([*loops, f"for (int n = 1; n < {x.shape[axis]}; ++n)"], body)
        self._add_statement(lines, target.reads, None, "sort")
        return target

    def _scatter(self, equation: Equation, inputs: Sequence[Expression]) -> Expression:
        """A copy with slices replaced at indices; slices that are out of bounds are dropped."""
        x, starts, updates = inputs
        if "CLIP" in str(equation.params["mode"]):
            raise export_error("writes at indices that are clipped", "C")
        starts, target = self._cheap(starts, "scatter"), self._store(x, "scatter")
        numbers = equation.params["dimension_numbers"]
        index, loops = _loops(updates.shape)
        window = [index[k] for k in numbers.update_window_dims]
        outer = [i for k, i in enumerate(index) if k not in numbers.update_window_dims]
        dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        inner = iter(window)
        place = ["0" if axis in dropped else next(inner) for axis in range(len(x.shape))]
        pairs = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        for axis, batch in pairs:
            place[axis] = outer[batch]
        tests = []
        for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
            start = starts.at([*outer, str(k)])
            place[axis] = start if place[axis] == "0" else f"({start} + {place[axis]})"
            tests.append(f"{place[axis]} >= 0 && {place[axis]} < {x.shape[axis]}")
        line = f"if ({' && '.join(tests)}) {target.at(place)} = {updates.at(index)};"
        reads = target.reads | starts.reads | updates.reads
        self._add_statement(_nest(loops, [line]), reads, None, "scatter")
        return target

    def _return(self) -> None:
        """Writes the output and the new state, after all reads of the old state."""
        program, copies = self.program, []
        for key, name in self.fields.items():
            value, field = program.new_state[key], f"s->{name}"
            if value is program.state[key]:
                continue
            result = self._read(value)
            is_in_workspace = bool(result.reads) and result.base is not None
            if value.constant is None and not is_in_workspace:
                result = self._store(result, key)
            copies.append((field, result))
        copies.append(("y", self._read(program.output)))
        for field, result in reversed(copies):  # first the output, which may read the old state
            index, loops = _loops(result.shape)
            place = f"{field}[{position(result.shape, index)}]"
            lines = _nest(loops, [f"{place} = {result.at(index)};"])
            self._add_statement(lines, result.reads, None, field)

    def _place(self) -> tuple[list[str], int]:
        """Assigns memory to the parts of the workspace; returns lines and number of words."""
        last = {part: at for at, one in enumerate(self.statements) for part in one.reads}
        places: dict[int, tuple[int, int]] = {}
        offsets: dict[int, int] = {}
        words = 0
        for at, one in enumerate(self.statements):
            if one.writes is not None:
                begin, size = 0, self.part_sizes[one.writes]
                for used, length in sorted(places.values()):
                    if begin + size <= used:
                        break
                    begin = max(begin, used + length)
                places[one.writes], offsets[one.writes] = (begin, size), begin
                words = max(words, begin + size)
            for part in [part for part in places if last.get(part, at) <= at]:
                del places[part]
        lines = [line for one in self.statements for line in one.lines]
        lines = [re.sub(r"@(\d+)@", lambda m: str(offsets[int(m[1])]), line) for line in lines]
        return [line.replace("[0 + ", "[") for line in lines], words

    def _initial(self) -> list[str]:
        lines = []
        for key, name in self.fields.items():
            flat, field = self.program.initial[key].reshape(-1), f"s->{name}"
            if len({x.tobytes() for x in flat}) == 1:
                loop = f"    for (int i = 0; i < {flat.size}; ++i) "
                lines.append(f"{loop}{field}[i] = {number(flat[0])};")
            else:
                lines += [f"    {field}[{i}] = {number(x)};" for i, x in enumerate(flat)]
        return lines


def _fields(names: Iterable[str]) -> dict[str, str]:
    """Maps each name of a state to a unique C identifier."""
    fields: dict[str, str] = {}
    for name in names:
        field = re.sub(r"\W", "_", name, flags=re.ASCII)
        if "_" not in field or not field[0].isalpha():  # it may be a keyword or a number
            field = f"state_{field}"
        while field in fields.values():
            field += "_"
        fields[name] = field
    return fields


def _loops(shape: Sequence[int], letter: str = "i") -> tuple[list[str], list[str]]:
    """An index over a shape, and the loops of its variables; axes of size 1 have no loop."""
    names = [f"{letter}{axis}" if size != 1 else "0" for axis, size in enumerate(shape)]
    loops = [
        f"for (int {name} = 0; {name} < {size}; ++{name})"
        for name, size in zip(names, shape, strict=True)
        if name != "0"
    ]
    return names, loops


def _nest(loops: Sequence[str], body: Sequence[str]) -> list[str]:
    """Nests lines in loops, or in a block if there are no loops."""
    indent = "    "
    lines = [f"{indent * depth}{loop} {{" for depth, loop in enumerate(loops)]
    if not loops:
        return ["{", *(f"{indent}{line}" for line in body), "}"]
    lines += [f"{indent * len(loops)}{line}" for line in body]
    return [*lines, *(f"{indent * depth}}}" for depth in reversed(range(len(loops))))]


def _comment(text: str) -> str:
    """Escapes the comment delimiters of C in a text."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def _task_functions(name: str, task: Mapping[str, Any]) -> list[str]:
    """C functions that scale values and name classes, if the task has values or classes."""
    lines = []
    for entry in task.get("inputs") or ():
        if entry.get("kind") == "values" and len(task["inputs"]) == 1:
            size = len(entry["names"])
            mean, std = ([float(np.float32(x)) for x in entry[key]] for key in ("mean", "std"))
            arrays = [", ".join(map(number, numbers)) for numbers in (mean, std)]
            lines += [
                "",
                f"/* Scales {_comment(json.dumps(entry['names'])[1:-1])}. */",
                f"static inline void {name}_scale(float *x) {{",
                f"    static const float mean[{size}] = {{{arrays[0]}}};",
                f"    static const float std[{size}] = {{{arrays[1]}}};",
                f"    for (int i = 0; i < {size}; ++i) x[i] = (x[i] - mean[i]) / std[i];",
                "}",
            ]
    outputs = task.get("outputs") or {}
    if outputs.get("kind") == "classes":
        names = ", ".join(c_string(str(one)) for one in outputs["names"])
        lines += [
            "",
            "/* The name of a class; y holds the logits of all classes. */",
            f"static inline const char *{name}_class(int index) {{",
            f"    static const char *const names[] = {{{names}}};",
            "    return names[index];",
            "}",
        ]
    return lines
