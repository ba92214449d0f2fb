"""Time and memory of exported steps, compared with the compiled step of JAX and with a GRU.

    python -m experiments.efficiency.exported_steps

Each model is exported as C, compiled by the C compiler of this machine, and as ONNX, run by ONNX
Runtime on one thread. Both are called in this process, in turns with the model's own step in JAX.
The GRU has as many features and layers, and its files come from the same exporters. One row,
without training, which changes no time.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from flax import nnx

from experiments.efficiency.programs import num_parameters
from experiments.measured import Measured, Rows
from flax_linattn import inference, models
from flax_linattn.bench import Journal, run_in_turns, spread
from flax_linattn.bench.report import markdown, number

GRU, ONNX = "GRU", "ONNX Runtime"
COMPILE = ("cc", "-std=c99", "-shared", "-fPIC")
FLAGS = {"-O2": ("-O2",), "-O3, this processor": ("-O3", "-march=native")}
WRAPPER = """\
#include "model.h"
static model_state state;
static model_workspace workspace;
void run(int length, const float *x, float *y) {
    model_init(&state);
    for (int t = 0; t < length; ++t)
        model_step(x + t * MODEL_INPUTS, &state, y + t * MODEL_OUTPUTS, &workspace);
}
"""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        models: names of mechanisms, and of the baseline.
        length: number of steps of a call.
        rounds: how often each program is timed.
    """

    models: tuple[str, ...] = (
        "aaren", "elementwise_series", "gated_delta", "linear", "rwkv", "taylorshift", GRU,
    )  # fmt: skip
    channels: int = 12
    classes: int = 9
    features: int = 64
    num_layers: int = 2
    num_heads: int = 4
    length: int = 1000
    rounds: int = 11


class GruClassifier(nnx.Module):
    """A stack of GRUs with a linear output."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        widths = [size.channels, *[size.features] * size.num_layers]
        self.cells = nnx.List(nnx.GRUCell(a, b, rngs=rngs) for a, b in itertools.pairwise(widths))
        self.head = nnx.Linear(size.features, size.classes, rngs=rngs)

    def __call__(self, x: jax.Array, **_: Any) -> Any:
        raise NotImplementedError

    def init_state(self, batch_size: int, max_length: Any = None, *, dtype: Any = None) -> Any:
        return [jnp.zeros((batch_size, cell.hidden_features)) for cell in self.cells]

    def step(self, x: jax.Array, state: Any, *, mask: Any = None) -> Any:
        new = []
        for cell, carry in zip(self.cells, state, strict=True):
            carry, x = cell(carry, x)
            new.append(carry)
        return self.head(x), new


def measure(size: Size, journal: Journal) -> None:
    for name in size.models:
        journal.row({"model": name}, partial(costs, size, name))


def make_model(size: Size, name: str) -> Any:
    """The model of a row."""
    if name == GRU:
        return GruClassifier(size, nnx.Rngs(0))
    model = models.SequenceClassifier(
        size.channels, size.classes, features=size.features, num_layers=size.num_layers,
        num_heads=size.num_heads, mechanism=name, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.eval()
    return model


def costs(size: Size, name: str) -> dict[str, Any]:
    """Microseconds of a step, bytes, and the maximum difference of the outputs."""
    model = make_model(size, name)
    rows = np.random.default_rng(0).normal(size=(size.length, size.channels)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        sizes = inference.export_c(
            Path(folder, "model.h"), model, jnp.ones((1, size.channels)), name="model"
        )
        programs = {kind: library(Path(folder), flags) for kind, flags in FLAGS.items()}
        outputs = np.zeros((size.length, size.classes), np.float32)
        calls: dict[str, Callable[[], Any]] = {
            kind: partial(run_c, program, rows, outputs) for kind, program in programs.items()
        }
        inference.export_onnx(Path(folder, "model.onnx"), model, jnp.ones((1, size.channels)))
        calls[ONNX] = partial(run_onnx, make_session(Path(folder, "model.onnx")), rows)
        graphdef, variables = nnx.split(model)
        step = jax.jit(
            lambda variables, x, state: nnx.merge(graphdef, variables).step(x, state),
            donate_argnums=2,
        )
        observations = [jnp.asarray(row[None]) for row in rows]
        calls["JAX"] = partial(run_jax, step, variables, observations, model)
        own = np.concatenate(run_jax(step, variables, observations, model))
        difference = float(np.abs(calls[ONNX]() - own).max())
        for call in programs.values():
            run_c(call, rows, outputs)
            difference = max(difference, float(np.abs(outputs - own).max()))
        times = run_in_turns(calls, (), size.rounds)
    return {
        "parameters": num_parameters(model),
        "bytes": sizes,
        "difference": difference,
        "microseconds": {
            kind: spread([1e3 * one / size.length for one in each]) for kind, each in times.items()
        },
    }


def library(folder: Path, flags: tuple[str, ...]) -> Any:
    """The compiled header as a function of Python."""
    (folder / "wrapper.c").write_text(WRAPPER)
    path = folder / f"{'_'.join(flags)}.so"
    subprocess.run([*COMPILE, *flags, "-o", path, folder / "wrapper.c", "-lm"], check=True)
    return ctypes.CDLL(str(path)).run


def run_c(program: Any, rows: np.ndarray, outputs: np.ndarray) -> None:
    """Steps the compiled header over rows."""
    pointers = [x.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for x in (rows, outputs)]
    program(len(rows), *pointers)


def make_session(path: Path) -> onnxruntime.InferenceSession:
    """An ONNX file in a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_onnx(session: onnxruntime.InferenceSession, rows: np.ndarray) -> np.ndarray:
    """Steps an ONNX file over rows, one call each."""
    names = [output.name.removeprefix("next.") for output in session.get_outputs()]
    state, outputs = {}, []
    for t in range(len(rows)):
        state = dict(zip(names, session.run(None, {"x": rows[t : t + 1], **state}), strict=True))
        outputs.append(state.pop("y"))
    return np.concatenate(outputs)


def run_jax(step: Any, variables: Any, observations: Any, model: Any) -> list[jax.Array]:
    """Steps the model over observations, each of which waits for the one before."""
    state, outputs = model.init_state(1), []
    for x in observations:
        y, state = step(variables, x, state)
        outputs.append(jax.block_until_ready(y))
    return outputs


def table(rows: Rows, size: Size) -> str:
    """A line for each model."""
    kinds = [*FLAGS, ONNX, "JAX"]
    header = ["model", "parameters", "bytes: weights", "state", "workspace"]
    header += [f"us a step: {f'C, {kind}' if kind in FLAGS else kind}" for kind in kinds]
    header += ["maximum difference"]
    lines = [
        [
            row["model"],
            f"{row['parameters']:,}",
            *(f"{row['bytes'][part]:,}" for part in ("weights", "state", "workspace")),
            *(number(row["microseconds"][kind]["median"]) for kind in kinds),
            f"{row['difference']:.1e}",
        ]
        for row in rows
    ]
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.exported_steps",
    extras="export,onnx",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "a microcontroller: the compiled code ran on the processor of a server"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
