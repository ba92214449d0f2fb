"""The step of a model as a flat list of equations, from which code is generated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from flax_linattn.checks import OptionError, check_integers
from flax_linattn.inference.model import StreamingModel, check_model, path_name, state_grows
from flax_linattn.inference.prefill import prefill_chunk, zero_output
from flax_linattn.typing import Array

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Parameter that holds the called jaxpr, by primitive; its equations replace the call."""
_IDENTITIES = ("stop_gradient", "copy", "copy_p", "optimization_barrier")


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """An array of a step, with a batch axis of one row.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
        constant: The array if it depends on no input, otherwise None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    constant: np.ndarray[Any, Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """One operation of a step: a primitive of JAX that calls no other function."""

    primitive: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """One step of a model for one row, without calls and unused operations.

    Attributes:
        equations: The operations, in order of execution.
        observation: The observation, [1, ...].
        state: The state before the step, by name as in a bundle.
        output: The output, [1, ...].
        new_state: The state after the step, by name.
        initial: The state before the first observation, by name.
    """

    equations: tuple[Equation, ...]
    observation: Value
    state: dict[str, Value]
    output: Value
    new_state: dict[str, Value]
    initial: dict[str, np.ndarray[Any, Any]]


def trace_step(
    model: StreamingModel,
    observation: jax.ShapeDtypeStruct | Array,
    chunk_size: int | None = None,
) -> StepProgram:
    """Traces the step of a model for one row into a flat list of equations.

    Values that depend only on the weights are computed here, and become constants.

    Args:
        model: Model whose state has constant size.
        observation: Observations of ``model.step``, [B, ...]; only shape and dtype matter.
        chunk_size: Number of observations C that a step processes in parallel, [1, C, ...]; the
            output is the last one. None is one observation, [1, ...].

    Raises:
        OptionError: If the state grows with the number of observations.
        ValueError: If the model cannot stream.
        TypeError: If ``model`` is not a :class:`StreamingModel`.

    Example:
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.SequenceClassifier(3, 5, features=16, num_layers=1, num_heads=4,
        ...                                   rngs=nnx.Rngs(0))
        >>> program = trace_step(model, jnp.ones((1, 3)))
        >>> program.output.shape, list(program.state)[2:5]
        ((1, 5), ['backbone.layers.0.m', 'backbone.layers.0.u', 'backbone.layers.0.w'])
    """
    check_model(model, sequences=chunk_size is not None)
    check_integers(1, chunk_size=chunk_size)
    if state_grows(model):
        raise OptionError(
            "expected a mechanism with a state of constant size, got one whose state grows with "
            "the number of observations; choose another mechanism, or a window.",
            "mechanism",
        )
    state = model.init_state(1)
    paths, tree = jax.tree_util.tree_flatten_with_path(state)
    names = [path_name(path) for path, _ in paths]
    lead = (1,) if chunk_size is None else (1, chunk_size)
    x = jax.ShapeDtypeStruct((*lead, *observation.shape[1:]), observation.dtype)

    def step(x: Array, leaves: Sequence[Array]) -> Any:
        before = jax.tree.unflatten(tree, leaves)
        if chunk_size is None:
            y, new = model.step(x, before)
        else:
            y, new = prefill_chunk(model, x, None, zero_output(model, x, before), before)
        return y, jax.tree.leaves(new)

    leaves = [leaf for _, leaf in paths]
    inputs, outputs, equations = _flatten(step, x, leaves)
    if any(equation.primitive == "scan" for equation in equations):
        with jax.disable_jit():  # loops of a fixed length are unrolled
            inputs, outputs, equations = _flatten(step, x, leaves)
    return StepProgram(
        equations,
        inputs[0],
        dict(zip(names, inputs[1:], strict=True)),
        outputs[0],
        dict(zip(names, outputs[1:], strict=True)),
        {name: np.asarray(leaf) for name, (_, leaf) in zip(names, paths, strict=True)},
    )


def export_error(what: str, language: str) -> OptionError:
    """Makes the error for a part of a step that has no translation to a language."""
    return OptionError(
        f"the step has {what}, which has no translation to {language}; export a bundle, or choose "
        "another mechanism.",
        "format",
        "mechanism",
    )


def _flatten(
    function: Callable[..., Any], *arguments: Any
) -> tuple[list[Value], list[Value], tuple[Equation, ...]]:
    """Traces a function, and returns its inputs, outputs and flat equations."""
    closed = jax.make_jaxpr(function)(*arguments)
    inputs = [_value(var) for var in closed.jaxpr.invars]
    flattener = _Flattener()
    outputs = flattener.call(closed.jaxpr, [_constant(c) for c in closed.consts], inputs)
    return inputs, outputs, _remove_unused(flattener.equations, outputs)


class _Flattener:
    """Collects the equations of a jaxpr and of all jaxprs that it calls."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []

    def call(self, jaxpr: Any, consts: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """Adds the equations of a jaxpr, and returns its outputs."""
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(var: Any) -> Value:
            return _constant(var.val) if isinstance(var, core.Literal) else values[var]

        for equation in jaxpr.eqns:
            outputs = self._add(equation, [read(var) for var in equation.invars])
            values |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _add(self, equation: Any, inputs: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            called = params[_CALLS[name]]
            if isinstance(called, core.ClosedJaxpr):
                return self.call(called.jaxpr, [_constant(c) for c in called.consts], inputs)
            return self.call(called, (), inputs)
        if name in _IDENTITIES:
            return inputs
        if name == "platform_index":  # the last is for accelerators: in parallel, without loops
            return [_constant(np.int32(len(params["platforms"]) - 1))]
        if name == "cond" and inputs[0].constant is not None:
            called = params["branches"][int(inputs[0].constant)]
            return self.call(called.jaxpr, [_constant(c) for c in called.consts], inputs[1:])
        outputs = [_value(var) for var in equation.outvars]
        if all(value.constant is not None for value in inputs):
            with jax.ensure_compile_time_eval():
                result = equation.primitive.bind(
                    *(jnp.asarray(value.constant) for value in inputs), **params
                )
            results = result if equation.primitive.multiple_results else [result]
            outputs = [_constant(array) for array in results]
            # The equation of a broadcast weight remains, because the array would take more memory.
            shapes = (outputs[0].shape, *(value.shape for value in inputs))
            if name != "broadcast_in_dim" or math.prod(shapes[0]) <= math.prod(shapes[1]):
                return outputs
        self.equations.append(Equation(name, tuple(inputs), tuple(outputs), dict(params)))
        return outputs


def _value(var: Any) -> Value:
    return Value(tuple(var.aval.shape), var.aval.dtype)


def _constant(array: Any) -> Value:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return Value(tuple(array.shape), array.dtype)  # no step samples
    array = np.asarray(array)
    return Value(array.shape, array.dtype, array)


def _remove_unused(equations: Sequence[Equation], outputs: Sequence[Value]) -> tuple[Equation, ...]:
    """Removes the equations on which no output depends."""
    needed, used = {*outputs}, []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outputs):
            used.append(equation)
            needed |= {*equation.inputs}
    return tuple(reversed(used))
