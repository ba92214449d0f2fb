"""Prefill in ONNX: steps, chunks and LinearAttention, compared with JAX.

    python -m experiments.efficiency.exported_prefill

The models of ``exported_steps``, and the attention of one of their layers without its projections.
One stream, in ONNX Runtime on one thread and in JAX, in turns. The files of steps and of chunks
come from ``inference.export_onnx``. A graph written by hand has the recurrence as the operator
``LinearAttention`` of opset 27; its state is the part that outputs need. One token is a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from flax import nnx

from experiments.efficiency.exported_steps import Size as StepSize
from experiments.efficiency.exported_steps import make_model, make_session
from experiments.measured import Measured, Rows
from flax_linattn import inference, ops
from flax_linattn.bench import Journal, run_in_turns, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.checks import OptionError

STEPS, CHUNKS, FUSED, JAX = "ONNX, steps", "ONNX, chunks", "LinearAttention", "JAX"
KINDS = (STEPS, CHUNKS, FUSED, JAX)
MODEL, ATTENTION = "model", "attention"
OPSET, IR_VERSION = 27, 11
RULES = {
    "linear": "linear", "retention": "gated", "gated_linear": "gated", "gated_delta": "gated_delta",
}  # fmt: skip
"""The rule of LinearAttention that is the recurrence of a mechanism."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: names of mechanisms, whose models are measured.
        attention: names of mechanisms, whose attention is measured.
        num_heads: number of heads.
        head_dim: channels of a head, of keys and of values.
        length: tokens of a prefill.
        chunk_size: tokens that the file of chunks processes in parallel.
        rounds: how often each program is timed.
    """

    mechanisms: tuple[str, ...] = (*RULES, "aaren", "elementwise_series", "rwkv", "taylorshift")
    attention: tuple[str, ...] = tuple(RULES)
    num_heads: int = 4
    head_dim: int = 16
    length: int = 512
    chunk_size: int = 64
    rounds: int = 11


class PackedAttention(nnx.Module):
    """A mechanism whose queries, keys, values and gates are parts of one array [B, H, n K]."""

    def __init__(self, size: Size, name: str) -> None:
        self.size, self.mechanism = size, ops.get_mechanism(name)
        self.gates = self.mechanism.token_arguments
        self.num_parts = 3 + len(self.gates)

    def inputs(self, length: int) -> np.ndarray:
        """Random inputs: queries and keys of length 1, log-decays below 0, betas below 1."""
        shape = (self.num_parts, length, self.size.num_heads, self.size.head_dim)
        q, k, v, *gates = np.random.default_rng(0).normal(size=shape)
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        gates = [each.activation(x) for each, x in zip(self.gates, gates, strict=True)]
        return np.concatenate([q, k, v, *gates], -1).astype(np.float32)

    def unpack(self, x: jax.Array) -> tuple[list[jax.Array], dict[str, Any]]:
        parts = jnp.split(x, self.num_parts, -1)
        return parts[:3], {
            each.name: part if each.axes == "HK" else part[..., 0]
            for each, part in zip(self.gates, parts[3:], strict=True)
        }

    def __call__(self, x: jax.Array, *, state: Any = None, **_: Any) -> Any:
        (q, k, v), gates = self.unpack(x)
        return self.mechanism.attend(
            q, k, v, is_causal=True, initial_state=state, return_state=True, **gates
        )

    def init_state(self, batch_size: int, max_length: Any = None, *, dtype: Any = None) -> Any:
        head_dim = self.size.head_dim
        return self.mechanism.init_state(batch_size, self.size.num_heads, head_dim, head_dim)

    def step(self, x: jax.Array, state: Any, *, mask: Any = None) -> Any:
        (q, k, v), gates = self.unpack(x)
        return self.mechanism.step(q, k, v, state, **gates)


def write_fused(path: Path, model: PackedAttention) -> None:
    """Writes the attention as LinearAttention."""
    name, h = model.mechanism.name, onnx.helper
    heads, head_dim = model.size.num_heads, model.size.head_dim
    is_average = name == "linear"
    value_dim = head_dim + is_average  # its denominator is the attention to values of 1
    log_gamma = np.log1p(-(2.0 ** (-5.0 - np.arange(heads))))
    arrays = {
        "one": np.float32(1), "zero": np.float32(0), "0": np.array([0]), "1": np.array([1]),
        "2": np.array([2]), "heads": np.array([heads]), "rest": np.array([-1]),
        "by_head": np.array([-1, heads, value_dim]), "sizes": np.array([head_dim, 1]),
        "pads": np.array([0, 0, 0, 0, 0, 1]), "log_gamma": log_gamma.astype(np.float32),
    }  # fmt: skip
    nodes: list[Any] = []

    def add(kind: str, inputs: list[str], *outputs: str, **options: Any) -> str:
        nodes.append(h.make_node(kind, inputs, outputs, **options))
        return outputs[0]

    q, k, v, *gates = "q", "k", "v", *(each.name for each in model.gates)
    add("Split", ["x"], q, k, v, *gates, axis=-1, num_outputs=model.num_parts)
    add("Shape", ["x"], "length", start=0, end=1)
    add("Concat", ["1", "length", "rest"], "packed", axis=0)
    if is_average:
        q, k = (
            add("Add", [add("Exp", [add("Min", [x, "zero"], f"{x}_low")], f"{x}_exp"),
                        add("Relu", [x], f"{x}_high")], f"{x}_phi")
            for x in (q, k)
        )  # fmt: skip
        v = add("Pad", [v, "pads", "one"], "v_one")
    gates = [
        gate if each.axes == "HK" else add("Slice", [gate, "0", "1", "2"], f"{gate}_first")
        for gate, each in zip(gates, model.gates, strict=True)
    ]
    inputs = [add("Reshape", [x, "packed"], f"{x}_packed") for x in (q, k, v, *gates)]
    if name == "retention":
        add("Concat", ["1", "length", "heads"], "gate_shape", axis=0)
        inputs.append(add("Expand", ["log_gamma", "gate_shape"], "log_decay"))
    add(
        "LinearAttention", [*inputs[:3], "value", *inputs[3:]], "y_packed", "next.value",
        q_num_heads=heads, kv_num_heads=heads, update_rule=RULES[name],
        scale=1.0 if is_average else head_dim**-0.5,
    )  # fmt: skip
    y = add("Reshape", ["y_packed", "by_head"], "sums" if is_average else "y")
    if is_average:
        add("Split", [y, "sizes"], "sum", "weight", axis=-1)
        add("Div", ["sum", "weight"], "y")
    kind, state = onnx.TensorProto.FLOAT, [1, heads, head_dim, value_dim]
    info = h.make_tensor_value_info
    graph = h.make_graph(
        nodes, name,
        [info("x", kind, ["T", heads, head_dim * model.num_parts]), info("value", kind, state)],
        [info("y", kind, ["T", heads, head_dim]), info("next.value", kind, state)],
        [onnx.numpy_helper.from_array(np.asarray(array), key)
         for key, array in {**arrays, "value": np.zeros(state, np.float32)}.items()],
    )  # fmt: skip
    opset = h.make_opsetid("", OPSET)
    onnx.save(h.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION), path)


def measure(size: Size, journal: Journal) -> None:
    points = [(MODEL, name, size.length) for name in size.mechanisms]
    points += [(ATTENTION, name, n) for name in size.attention for n in (1, size.length)]
    for part, name, length in points:
        point = {"part": part, "mechanism": name, "tokens": length}
        journal.row(point, partial(costs, size, part, name, length))


def costs(size: Size, part: str, name: str, length: int) -> dict[str, Any]:
    """Microseconds of a call, and the maximum difference of the last outputs."""
    if part == MODEL:
        model = make_model(StepSize(), name)
        x = np.random.default_rng(0).normal(size=(length, *model.observation_shape))
        x = x.astype(np.float32)
    else:
        model = PackedAttention(size, name)
        x = model.inputs(length)
    graphdef, variables = nnx.split(model)

    def run(variables: Any, x: jax.Array, state: Any) -> Any:
        model = nnx.merge(graphdef, variables)
        if length == 1:
            return model.step(x[:, 0], state)
        return inference.prefill(model, x, state=state)

    program, state, device = jax.jit(run), model.init_state(1), jnp.asarray(x[None])
    calls: dict[str, Callable[[], Any]] = {
        JAX: lambda: jax.block_until_ready(program(variables, device, state)[0])
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export = partial(inference.export_onnx, path, model, jnp.asarray(x[:1]))
        export()
        calls[STEPS] = partial(run_whole, make_session(path), x)
        if length > 1:
            with contextlib.suppress(OptionError):  # an operation without a translation
                export(chunk_size=size.chunk_size)
                chunks = x.reshape(-1, size.chunk_size, *x.shape[1:])
                calls[CHUNKS] = partial(run_whole, make_session(path), chunks)
        if part == ATTENTION:
            write_fused(path, model)
            calls[FUSED] = partial(run_whole, make_session(path), x)
    own = np.asarray(calls[JAX]()[0])
    difference = max(float(np.abs(calls[k]()[-1] - own).max()) for k in calls if k != JAX)
    times = run_in_turns(calls, (), size.rounds)
    return {
        "difference": difference,
        "microseconds": {k: spread([1e3 * one for one in each]) for k, each in times.items()},
    }


def run_whole(session: Any, x: np.ndarray) -> np.ndarray:
    """Outputs of one call; the state after it is computed, too."""
    y, *_ = session.run(None, {"x": x})
    return np.asarray(y)


def table(rows: Rows, size: Size) -> str:
    """A line for each part, mechanism and length."""
    header = ["part", "mechanism", "tokens", *(f"us a call: {kind}" for kind in KINDS)]
    header += ["maximum difference"]
    lines = [
        [
            row["part"], row["mechanism"], f"{row['tokens']}",
            *(number(row["microseconds"][k]["median"]) if k in row["microseconds"] else "-"
              for k in KINDS),
            f"{row['difference']:.1e}",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.exported_prefill",
    extras="export,onnx",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "accelerators; programs of several threads in ONNX Runtime"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
