"""ONNX export of a streaming model: its step inside a loop over observations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_linattn.checks import OptionError, import_extra
from flax_linattn.inference.jaxprs import Equation, Value, export_error, trace_step
from flax_linattn.inference.model import StreamingModel, describe_array
from flax_linattn.storage import atomic_write
from flax_linattn.typing import Array

OPSET, IR_VERSION = 21, 10
"""Versions of the operators and of the file format, which runtimes since 2024 can read."""
PRODUCER = "flax_linattn"
"""Producer of the files, in their metadata."""
PREFIX = "next."
"""Prefix of the names of the arrays of the state after the observations."""
_INTEGERS = {np.dtype(np.uint32): np.dtype(np.int64)}
"""Dtype in ONNX for a dtype whose arithmetic ONNX runtimes do not support."""

_NODES = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "pow": "Pow", "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "logistic": "Sigmoid",
    "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "eq": "Equal", "lt": "Less",
    "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "and": "And", "or": "Or",
    "xor": "Xor", "not": "Not",
}  # fmt: skip
"""ONNX operator with the same inputs, by JAX primitive."""
_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_or": "ReduceMax",
    "reduce_and": "ReduceMin",
}


def export_onnx(
    path: str | Path,
    model: StreamingModel,
    observation: jax.ShapeDtypeStruct | Array,
    *,
    chunk_size: int | None = None,
    require_state: bool = False,
    task: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes a model as ONNX, for one stream at a time.

    The inputs are ``x``, any number of observations [T, ...], and the state before ``x``, whose
    arrays have the same names as in a bundle and default to the initial state. The outputs are
    ``y``, an output for each observation [T, ...], and the state after ``x``, with the prefix
    ``next.``. All operators are standard. The metadata of the file hold the signature as JSON.

    Args:
        path: File to write, atomically.
        model: Model whose state has constant size, in float32.
        observation: Observations of ``model.step``, [B, ...]; only shape and dtype matter.
        chunk_size: Number of observations C that the file processes in parallel, for prefill: ``x``
            is any number of chunks [N, C, ...], and ``y`` the output after each chunk [N, ...].
            The state is the same as without it: one observation at a time.
        require_state: Whether the state is a required input, as ONNX Runtime in browsers needs,
            which cannot pass inputs with defaults. Empty arrays, [0, ...] instead of [1, ...], are
            then the initial state.
        task: Description of raw observations and outputs, as in a bundle.

    Returns:
        The signature: shapes, dtypes and names.

    Raises:
        OptionError: If onnx is missing (the extra ``onnx``), the state grows, or the step has an
            operation without a translation.
        ValueError: If the model cannot stream.

    Example:
        >>> import pathlib, tempfile
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> path = pathlib.Path(tempfile.mkdtemp(), "model.onnx")
        >>> signature = inference.export_onnx(path, model, jnp.ones((1, 3)))
        >>> signature["observation"], signature["output"]["shape"]
        ({'shape': [3], 'dtype': 'float32'}, [5])
    """
    onnx = import_extra("onnx", "ONNX needs onnx: pip install 'flax-linattn[onnx]'.")
    program = trace_step(model, observation, chunk_size)
    graph = _Graph(onnx)
    lead: list[Any] = [1]
    before = list(program.state)
    if require_state:
        before = [graph.state_or(n, array) for n, array in program.initial.items()]
        lead = ["0 or 1"]
    first_nodes, graph.nodes = graph.nodes, []
    x = graph.add("Reshape", ["x_t", graph.shape(program.observation.shape)])
    graph.names[program.observation] = x
    for name, value in program.state.items():
        graph.names[value] = f"{name}.before"
    for equation in program.equations:
        graph.translate(equation)
    y = graph.add("Reshape", [graph.read(program.output), graph.shape(program.output.shape[1:])])
    ends = [
        graph.add("Identity", [graph.read(value)], f"{name}.after")
        for name, value in program.new_state.items()
    ]
    h = onnx.helper

    def info(name: str, value: Value, *lead: Any) -> Any:
        shape = [*lead, *value.shape[1:]]
        return h.make_tensor_value_info(name, _element_type(onnx, value.dtype), shape)

    states = program.state.items()
    body = h.make_graph(
        graph.nodes,
        "step",
        [*(info(f"{n}.before", v, 1) for n, v in states), info("x_t", program.observation)],
        [*(info(end, v, 1) for end, (_, v) in zip(ends, states, strict=True)),
         info(y, program.output)],
    )  # fmt: skip
    loop = h.make_node(
        "Scan", [*before, "x"], [*(PREFIX + name for name in program.state), "y"],
        num_scan_inputs=1, body=body,
    )  # fmt: skip
    defaults = {} if require_state else program.initial
    whole = h.make_graph(
        [*first_nodes, loop],
        type(model).__name__,
        [info("x", program.observation, "T"), *(info(n, v, *lead) for n, v in states)],
        [info("y", program.output, "T"), *(info(PREFIX + n, v, 1) for n, v in states)],
        [*graph.constants.values(),
         *(onnx.numpy_helper.from_array(a, n) for n, a in defaults.items())],
    )  # fmt: skip
    file = h.make_model(
        whole, opset_imports=[h.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        producer_name=PRODUCER,
    )  # fmt: skip
    signature = {
        "observation": describe_array(program.observation),
        "output": describe_array(program.output),
        "state": [{"name": name, **describe_array(value)} for name, value in states],
        "task": None if task is None else dict(task),
    }
    h.set_model_props(file, {"signature": json.dumps(signature, allow_nan=False)})
    onnx.checker.check_model(file)
    with atomic_write(path) as target:
        target.write(file.SerializeToString())
    return signature


def _element_type(onnx: Any, dtype: np.dtype[Any]) -> Any:
    if str(dtype) not in ("float32", "int32", "uint32", "bool", "int64"):
        raise OptionError(
            f"the step has an array of {dtype}, but ONNX export supports only float32, int32, "
            "uint32 and bool; export a bundle.",
            "format",
        )
    return onnx.helper.np_dtype_to_tensor_dtype(_INTEGERS.get(dtype, dtype))


class _Graph:
    """Nodes and constants of the operations of a step."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[Any, Any] = {}
        self.names: dict[Value, str] = {}
        self.num_names = 0

    def name(self) -> str:
        """Makes a new, unique name of a value."""
        self.num_names += 1
        return f"v{self.num_names}"

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **options: Any) -> str:
        """Adds a node, and returns the name of its output."""
        output = output or self.name()
        if kind == "Reshape":
            options["allowzero"] = 1  # 0 means an axis of length 0, not a copied axis
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **options))
        return output

    def read(self, value: Value) -> str:
        """Returns the name of a value; a constant is added to the file."""
        if value.constant is not None and value not in self.names:
            return self.constant(value.constant)
        return self.names[value]

    def constant(self, array: Any) -> str:
        """Returns the name of a constant; equal constants are stored once."""
        array = np.asarray(array)
        array = array.astype(_INTEGERS.get(array.dtype, array.dtype))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            _element_type(self.onnx, array.dtype)
            self.constants[key] = self.onnx.numpy_helper.from_array(array, self.name())
        return str(self.constants[key].name)

    def shape(self, numbers: Sequence[int]) -> str:
        """Returns the name of a constant of int64, such as a shape."""
        return self.constant(np.asarray(numbers, np.int64))

    def state_or(self, name: str, initial: Any) -> str:
        """The state of an input [1, ...], or the initial state if the input is [0, ...]."""
        rows = self.add("Concat", [name, self.constant(initial)], axis=0)
        return _cut(self, rows, [0], [1], [0], [1])

    def translate(self, equation: Equation) -> None:
        """Adds the nodes of an equation."""
        name, inputs = equation.primitive, [self.read(value) for value in equation.inputs]
        for value in equation.outputs:
            _element_type(self.onnx, value.dtype)
        if name in _NODES:
            outputs = [self._arithmetic(equation, inputs)]
        elif name in _REDUCTIONS:
            axes = self.shape(equation.params["axes"])
            outputs = [self.add(_REDUCTIONS[name], [*inputs, axes], keepdims=0)]
        elif name in _TRANSLATIONS:
            result = _TRANSLATIONS[name](self, equation, inputs)
            outputs = result if isinstance(result, list) else [result]
        else:
            raise export_error(f"the operation {name!r}", "ONNX")
        self.names |= dict(zip(equation.outputs, outputs, strict=True))

    def _arithmetic(self, equation: Equation, inputs: list[str]) -> str:
        result = self.add(_NODES[equation.primitive], inputs)
        if equation.outputs[0].dtype == np.uint32:
            result = self.add("Mod", [result, self.constant(np.int64(2**32))])
        return result


Translate = Callable[[_Graph, Equation, list[str]], str | list[str]]


def _compose(*kinds: str) -> Translate:
    """Translates a primitive to a chain of operators with one input each."""

    def translate(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
        (name,) = inputs
        for kind in kinds:
            name = graph.add(kind, [name])
        return name

    return translate


def _with_one(kind: str, *, first: bool) -> Translate:
    """Translates a primitive to an operator and the constant 1: 1 - erf(x) or log(1 + x)."""

    def translate(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
        one = graph.constant(np.float32(1))
        if first:
            return graph.add("Sub", [one, graph.add(kind, inputs)])
        return graph.add(kind, [graph.add("Add", [*inputs, one])])

    return translate


def _expm1(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which is exact near 0."""
    half = graph.add("Tanh", [graph.add("Mul", [*inputs, graph.constant(np.float32(0.5))])])
    one = graph.constant(np.float32(1))
    return graph.add("Mul", [half, graph.add("Add", [graph.add("Exp", inputs), one])])


def _square(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Mul", inputs * 2)


def _power(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Pow", [*inputs, graph.constant(np.float32(equation.params["y"]))])


def _remainder(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Mod", inputs, fmod=1)


def _is_finite(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    bad = [graph.add("IsNaN", inputs), graph.add("IsInf", inputs)]
    return graph.add("Not", [graph.add("Or", bad)])


def _select(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    which, *cases = inputs
    kind = equation.inputs[0].dtype
    if kind == np.bool_:
        return graph.add("Where", [which, *reversed(cases)])
    result = cases.pop()
    for k, case in reversed([*enumerate(cases)]):
        is_case = graph.add("Equal", [which, graph.constant(np.asarray(k, kind))])
        result = graph.add("Where", [is_case, case, result])
    return result


def _cast(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    """Casts to another dtype; a uint32 is an int64 from 0 to 2**32 - 1, and wraps."""
    source, target = equation.inputs[0].dtype, equation.outputs[0].dtype
    (name,) = inputs
    limit = graph.constant(np.int64(2**32))
    if source == np.uint32 and target == np.int32:
        is_high = graph.add("GreaterOrEqual", [name, graph.constant(np.int64(2**31))])
        name = graph.add("Where", [is_high, graph.add("Sub", [name, limit]), name])
    name = graph.add("Cast", [name], to=_element_type(graph.onnx, target))
    return graph.add("Mod", [name, limit]) if target == np.uint32 else name


def _bitcast(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    if any(np.issubdtype(v.dtype, np.floating) for v in (*equation.inputs, *equation.outputs)):
        raise export_error("a bitcast of floats", "ONNX")
    return _cast(graph, equation, inputs)


def _reshape(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Reshape", [inputs[0], graph.shape(equation.outputs[0].shape)])


def _broadcast(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    (value, *_), output = equation.inputs, equation.outputs[0]
    axes = equation.params["broadcast_dimensions"]
    sizes = dict(zip(axes, value.shape, strict=True))
    inner = [sizes.get(axis, 1) for axis in range(len(output.shape))]
    name = graph.add("Reshape", [inputs[0], graph.shape(inner)])
    if inner == list(output.shape):
        return name
    return graph.add("Expand", [name, graph.shape(output.shape)])


def _transpose(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Transpose", inputs, perm=equation.params["permutation"])


def _cut(graph: _Graph, name: str, starts: Any, ends: Any, axes: Any, steps: Any) -> str:
    parts = [graph.shape(numbers) for numbers in (starts, ends, axes, steps)]
    return graph.add("Slice", [name, *parts])


def _slice(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
    steps = equation.params["strides"] or [1] * len(starts)
    return _cut(graph, inputs[0], starts, ends, range(len(starts)), steps)


def _split(graph: _Graph, equation: Equation, inputs: list[str]) -> list[str]:
    axis, start, results = equation.params["axis"], 0, []
    for output in equation.outputs:
        end = start + output.shape[axis]
        results.append(_cut(graph, inputs[0], [start], [end], [axis], [1]))
        start = end
    return results


def _reverse(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    axes = equation.params["dimensions"]
    ones = [-1] * len(axes)
    return _cut(graph, inputs[0], ones, [-(2**31)] * len(axes), axes, ones)


def _concatenate(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    return graph.add("Concat", inputs, axis=equation.params["dimension"])


def _stack(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    axis = equation.params["axis"]
    parts = [graph.add("Unsqueeze", [name, graph.shape([axis])]) for name in inputs]
    return graph.add("Concat", parts, axis=axis)


def _pad(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    config = equation.params["padding_config"]
    if any(gap for _, _, gap in config):
        raise export_error("padding between elements", "ONNX")
    pads = [low for low, _, _ in config] + [high for _, high, _ in config]
    return graph.add("Pad", [inputs[0], graph.shape(pads), inputs[1]])


def _gather(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    """Slices at indices of the first axes, or elements along one axis; indices are clipped."""
    numbers, (x, index) = equation.params["dimension_numbers"], equation.inputs
    axes, outer = numbers.start_index_map, index.shape[:-1]
    rank = range(len(equation.outputs[0].shape))
    sizes = [1 if k in axes else n for k, n in enumerate(x.shape)]
    is_whole = list(equation.params["slice_sizes"]) == sizes and not numbers.operand_batching_dims
    is_first = axes == tuple(range(len(axes))) and numbers.offset_dims == tuple(rank)[len(outer) :]
    if numbers.collapsed_slice_dims != axes or not is_whole or not (is_first or len(axes) == 1):
        raise export_error("a gather of partial slices", "ONNX")
    lasts = np.asarray([x.shape[axis] - 1 for axis in axes], index.dtype)
    name = graph.add("Min", [inputs[1], graph.constant(lasts)])
    name = graph.add("Max", [name, graph.constant(np.zeros_like(lasts))])
    if is_first:
        name = graph.add("Cast", [name], to=_element_type(graph.onnx, np.dtype(np.int64)))
        return graph.add("GatherND", [inputs[0], name])
    name = graph.add("Reshape", [name, graph.shape(outer)])
    (axis,) = axes
    name = graph.add("Gather", [inputs[0], name], axis=axis)
    # ONNX puts the axes of the indices at the gathered axis, JAX where offset_dims has no axis.
    new = iter(range(axis, axis + len(outer)))
    own = iter([k for k in rank if not axis <= k < axis + len(outer)])
    order = [next(own) if k in numbers.offset_dims else next(new) for k in rank]
    return name if order == list(rank) else graph.add("Transpose", [name], perm=order)


def _sort(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    if len(inputs) != 1:
        raise export_error("a sort of several arrays together", "ONNX")
    axis, values = equation.params["dimension"], graph.name()
    size = graph.shape([equation.inputs[0].shape[axis]])
    node = graph.onnx.helper.make_node(
        "TopK", [*inputs, size], [values, graph.name()], axis=axis, largest=0, sorted=1
    )
    graph.nodes.append(node)
    return values


def _scatter(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    """Slices replaced at indices of the first axes."""
    numbers, updates = equation.params["dimension_numbers"], equation.inputs[2]
    first = tuple(range(len(numbers.scatter_dims_to_operand_dims)))
    outer = len(updates.shape) - len(numbers.update_window_dims)
    windows = tuple(range(outer, len(updates.shape)))
    is_simple = numbers.inserted_window_dims == first == numbers.scatter_dims_to_operand_dims
    if not is_simple or numbers.update_window_dims != windows or numbers.operand_batching_dims:
        raise export_error("a scatter of partial slices", "ONNX")
    index = graph.add("Cast", [inputs[1]], to=_element_type(graph.onnx, np.dtype(np.int64)))
    return graph.add("ScatterND", [inputs[0], index, inputs[2]])


def _product(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    """A matrix product, by MatMul with a weight, otherwise by Einsum."""
    a, b = equation.inputs
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    last = (len(a.shape) - 1,)
    if not batch_a and tuple(over_a) == last and tuple(over_b) == (0,) and len(b.shape) == 2:
        return graph.add("MatMul", inputs)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in a.shape]
    right = [next(letters) for _ in b.shape]
    for pair in (*zip(over_a, over_b, strict=True), *zip(batch_a, batch_b, strict=True)):
        right[pair[1]] = left[pair[0]]
    free = [[k for k in range(len(v.shape)) if k not in (*o, *c)] for v, o, c in
            ((a, over_a, batch_a), (b, over_b, batch_b))]  # fmt: skip
    out = [left[k] for k in (*batch_a, *free[0])] + [right[k] for k in free[1]]
    text = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return graph.add("Einsum", inputs, equation=text)


def _cumulate(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    axis = graph.constant(np.int64(equation.params["axis"]))
    return graph.add("CumSum", [*inputs, axis], reverse=int(equation.params["reverse"]))


def _clamp(graph: _Graph, equation: Equation, inputs: list[str]) -> str:
    low, name, high = inputs
    return graph.add("Min", [graph.add("Max", [name, low]), high])


_TRANSLATIONS: dict[str, Translate] = {
    "square": _square,
    "rsqrt": _compose("Sqrt", "Reciprocal"),
    "ne": lambda graph, equation, inputs: graph.add("Not", [graph.add("Equal", inputs)]),
    "erfc": _with_one("Erf", first=True),
    "log1p": _with_one("Log", first=False),
    "expm1": _expm1,
    "integer_pow": _power,
    "rem": _remainder,
    "round": _compose("Round"),
    "is_finite": _is_finite,
    "select_n": _select,
    "convert_element_type": _cast,
    "bitcast_convert_type": _bitcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "rev": _reverse,
    "concatenate": _concatenate,
    "stack": _stack,
    "pad": _pad,
    "gather": _gather,
    "sort": _sort,
    "scatter": _scatter,
    "dot_general": _product,
    "cumsum": _cumulate,
    "clamp": _clamp,
}
